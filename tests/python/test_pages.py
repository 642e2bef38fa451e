"""Pages: what they tell to type runs, with the files that they assume, and their flags exist.

docs/operations.md has test_operations.py, docs/first_hour.md tests/readme, examples/ their own.
"""

import contextlib
import glob
import importlib.util
import io
import json
import os
import pickle
import re
import subprocess
import tempfile
import unittest
import urllib.request
import warnings

import numpy as np

import hotrow
from hotrow.__main__ import program
from test_command import HAS_PROGRAM

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "hotrow.torch"))
ON_GPU = os.environ.get("HOTROW_TEST_DEVICE") == "cuda"  # as torch_or_skip.py has it
EMULATED = bool(os.environ.get("HOTROW_EMULATED_GPU"))
MODELS = ("dlrm", "deepfm", "dcn", "wide_deep", "xdeepfm", "pnn", "din", "bst", "hstu", "mmoe")

# Flags of other programs that pages name.
OTHERS = {
    "cmake": "--build --install --prefix --component", "run": "--no-install", "run_tests.sh": "--gpu",
    "pkg-config": "--cflags --libs --static",
    "torchrun": "--standalone --nnodes --nproc-per-node --max-restarts --rdzv-backend --rdzv-conf "
                "--rdzv-endpoint --rdzv-id",
    "mpirun": "--allow-run-as-root --oversubscribe", "googletest": "--gtest_filter",
    "bundle": "--bundle --filter --jobs --libraries --out --sanitizer --timeout --tool",
    "models.md": "--num_units",
}

# Where the versions are that docs/formats/README.md lists, in its order.
VERSIONS = (
    "models/saving/manifest.cc", "models/saving/portable_manifest.cc",
    "models/delta/delta_manifest.cc", "store/host/host_snapshot_impl.h",
    "store/ssd/ssd_manifest_impl.h", "store/ssd/ssd_format_impl.h", "store/ssd/ssd_image_impl.h",
    "store/rocks/rocks_dir.cc", "embedding/serving/row_file_impl.h",
    "embedding/serving/row_levels.cc", "models/data/vocabulary.cc", "models/data/packed_format.cc",
    "cache/access_trace.cc",
)

# What a page's `dlrm ...` stands for: a small job. `...` itself is no argument.
DLRM = """#!/bin/bash
arguments=()
for each in "$@"; do [[ $each == ... ]] || arguments+=("$each"); done
exec hotrow train dlrm --data=synthetic:tables=2,rows=50,samples=3000,valid=64,test=64 \\
  --embedding_dim=4 --dense_arch_layer_sizes=4 --over_arch_layer_sizes=4-1 --threads=1 \\
  --batch_size=${BATCH:-64} --epochs=${EPOCHS:-1} "${arguments[@]}"
"""

SHOP = """{"name": "shop", "files": ["shop.csv"],
  "split": {"modulo": 10, "valid": [8], "test": [9]},
  "columns": [{"name": "click", "role": "label"}, {"name": "price", "role": "dense"},
    {"name": "age", "role": "dense"},
    {"name": "user", "role": "categorical", "key": "integer"},
    {"name": "tags", "role": "categorical", "key": "integer", "separator": " "COUNT}]}"""


def page(name):
    with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
        return file.read()


def blocks(name, language=""):
    """The fenced blocks of a page in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", page(name), re.S | re.M)
    return [text for kind, text in found if kind == language]


@unittest.skipUnless(HAS_PROGRAM, "this build has no program")
class FlagsTest(unittest.TestCase):
    def test_every_flag_of_a_page_exists(self):
        def help_of(*arguments):
            return subprocess.run([program(), *arguments, "--help"], capture_output=True, text=True,
                                  timeout=60, check=True).stdout

        general = help_of()
        commands = re.findall(r"^  ([a-z-]+) ", general, re.M)
        self.assertIn("erase", commands)
        texts = [general, *map(help_of, commands), *(help_of("train", model) for model in MODELS),
                 help_of("trace", "mrc"), *OTHERS.values()]
        known = set(re.findall(r"--[a-z][a-z0-9_-]*", " ".join(texts)))
        for source in glob.glob("bench/**/*.*", root_dir=SOURCE, recursive=True):  # of benchmarks
            if source.endswith((".cc", ".h", ".py")):
                names = re.findall(r'\bAdd\w*\(\s*"(\w+)"|add_argument\("--([\w-]+)"', page(source))
                known.update("--" + (one or two) for one, two in names)
        for name in ["README.md", *glob.glob("docs/**/*.md", root_dir=SOURCE, recursive=True)]:
            code = re.findall(r"```.*?```|`[^`\n]+`", page(name), re.S)
            flags = re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", " ".join(code))
            self.assertEqual(sorted(set(flags) - known), [], name)


class RunTest(unittest.TestCase):
    def test_each_command_of_run_has_help(self):
        for arguments in (["--help"], ["help"], ["build", "--help"], ["test", "-h"],
                          ["wheel", "--help"]):
            done = subprocess.run([os.path.join(SOURCE, "run"), *arguments], capture_output=True,
                                  text=True, timeout=10, check=True)
            self.assertIn("Usage: ./run", done.stdout)


class VersionsTest(unittest.TestCase):
    def test_the_page_of_formats_names_the_versions_of_the_sources(self):
        rows = re.findall(r"^\| \[(\w+)\.md\]\(\1\.md\)(?:: (.*))? \| (\d+)(?:-(\d+))? \|$",
                          page("docs/formats/README.md"), re.M)
        self.assertEqual(len(rows), len(VERSIONS))
        for source, (name, _, first, last) in zip(VERSIONS, rows):
            text = page(source)
            versions = re.search(r"Versions = \{\.(?:first|oldest) = (\d+), "
                                 r"\.(?:last|newest) = (\d+)\}", text)
            found = versions.groups() if versions else None
            self.assertEqual((first, last or first), found, f"{name}, {source}")


class Pages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def python(self, code, **names):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # files that a page leaves open
            exec(code, names)
        return names, out.getvalue()


class PagesTest(Pages):
    def setUp(self):
        super().setUp()
        os.mkdir("bin")
        for name, text in (("dlrm", DLRM), ("hotrow", f'#!/bin/sh\nexec {program()} "$@"\n')):
            with open(f"bin/{name}", "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(f"bin/{name}", 0o755)

    def shell(self, script, **variables):
        if not HAS_PROGRAM:
            self.skipTest("this build has no program")
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        done = subprocess.run(["bash", "-euxo", "pipefail", "-c", script], text=True, timeout=60,
                              env={**os.environ, "PATH": path, **variables},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-4000:])
        return done.stdout

    def shop(self, count=""):
        """shop.json and its data: users, bags of tags."""
        random = np.random.default_rng(1)
        with open("shop.csv", "w", encoding="utf-8") as file:
            file.write("click,price,age,user,tags\n")
            for i in range(2000):
                tags = " ".join(map(str, random.integers(0, 20, i % 3)))
                user = random.integers(0, 40)
                file.write(f"{user % 2},{i % 7}.5,{i % 50},{user},{tags}\n")
        with open("shop.json", "w", encoding="utf-8") as file:
            file.write(SHOP.replace("COUNT", count))

    def test_deltas(self):
        export, train, apply, compact = blocks("docs/deltas.md")
        run = "--checkpoint_dir=ckpt --keep_checkpoints=3 --limit_train_batches=1000 --resume"
        first = "".join(f"EPOCHS={epochs} dlrm {run}\n" for epochs in (1, 2, 3))
        apply = apply.replace("--until=3 chain model", "--until=1 chain earlier")
        self.shell(f"{first}{export}{apply}hotrow verify checkpoint\n"
                   f"{compact}hotrow verify chain\nrm -r chain", BATCH="1")
        train = train.replace("...", "--limit_train_batches=1000")
        self.assertIn("resume", self.shell(train + "hotrow verify chain", BATCH="1", EPOCHS="5"))

    def test_metrics(self):
        serve, keep, watch, read = [
            line.split("#")[0] for line in blocks("docs/metrics.md")[0].strip().splitlines()
        ]
        out = self.shell(f"""
            EPOCHS=1000000 {serve.replace("9400", "0")} > log &
            until grep -q /metrics log; do sleep 0.05; done
            port=$(sed -n 's|.*:\\([0-9]*\\)/metrics.*|\\1|p' log | head -n 1)
            {watch.replace("9400", "$port")} --count=2 --every=0.1
            kill -TERM $!
            wait $!
            {keep}
            {read}""".replace("/var/lib/node_exporter/", ""))
        self.assertIn("dlrm on the cpu over memory: training", out)
        self.assertIn("dlrm on the cpu over memory: finished", out)

    def test_planner(self):
        script = blocks("docs/planner.md")[0]
        # A run of a second is not planned to its tolerances.
        out = self.shell(script.replace("--check=run.json", "--check=run.json || [[ $? == 1 ]]"))
        self.assertIn("samples/s", out)
        self.assertRegex(out, r"hit rate")

    def test_packed_data(self):
        self.shop()
        out = self.shell(blocks("docs/formats/packed_data.md", "sh")[0])
        self.assertIn("test AUC", out)
        self.assertEqual(out.count("shop.packed: packed data: 1,600 train"), 3)

    def test_portable(self):
        self.shell("dlrm --checkpoint_dir=run\nhotrow export run out")
        [weights] = glob.glob("out/tables/0000-*/weights-*.npy")
        before = np.load(weights)
        self.python(blocks("docs/formats/portable.md", "python")[1])
        np.testing.assert_array_equal(np.load(weights), before * np.float32(0.5))
        self.shell(blocks("docs/formats/portable.md")[1])

    def test_vocabulary(self):
        self.shop(', "min_count": 80')
        self.shell("dlrm --data=table:shop.json --save_dir=model\nhotrow export model out")
        names, _ = self.python(blocks("docs/formats/vocabulary.md", "python")[0])
        self.assertEqual(names["minimum"], 80)
        self.assertLess(set(names["keys"].tolist()), set(range(20)))
        self.assertGreater(len(names["keys"]), 2)

    def test_scoring(self):
        self.shop()
        self.shell("dlrm --data=table:shop.json --save_dir=model")
        [code] = [text for text in blocks("docs/python.md", "python") if "hotrow.Scorer" in text]
        for theirs, ours in (("/models/monday", "model"), ("8GB", "64MB"), ('"item"', '"tags"')):
            code = code.replace(theirs, ours)
        code = code.replace('"31,4.5,7,500", "31,9.9,7,501"', '"4.5,31,7,5 9", "9.9,31,7,5"')
        names, _ = self.python(code, hotrow=hotrow, users=np.arange(3), items=np.arange(3),
                               dense=np.ones((3, 2), np.float32),
                               prices=np.ones((3, 1), np.float32))
        self.assertEqual(names["logits"].shape, (3, 1))
        self.assertTrue(((names["clicks"] >= 0) & (names["clicks"] <= 1)).all())
        self.assertEqual(len(names["same"]), 2)

    def test_first_hour(self):
        commands = [text.replace("build/bin/dlrm", "hotrow train dlrm")
                    for text in blocks("docs/first_hour.md", "sh")[:2]]
        self.shell("".join(commands))
        _, out = self.python(blocks("docs/first_hour.md", "python")[0])
        high, low = map(float, re.findall(r"\[([\d.e-]+)\s*\]", out))
        self.assertGreater(high, 0.8)
        self.assertLess(low, 0.3)
        self.assertRegex(out, r"\n1024 0\.[45]")

    def test_ten_lines(self):
        code = [text for text in blocks("docs/python.md", "python") if "item_ids" in text][0]
        for large, small in (("/data/rows", "rows"), ("200GB", "64MB"), ("2GB", "32MB"),
                             ("8GB", "16MB"), ("65536", "64")):
            code = code.replace(large, small)
        code = code.replace("prefetch_depth=1", "prefetch_depth=1, metrics_port=0")
        names, _ = self.python(code, item_ids=np.arange(64), user_ids=np.arange(64) % 5,
                               gradient=np.ones((64, 80), np.float32))
        self.assertEqual([table["rows"] for table in names["tables"].digest()["tables"]], [64, 5])
        if HAS_PROGRAM:
            screen = self.shell(f"hotrow top {names['tables'].metrics_port} --count=1")
            self.assertRegex(screen, r"\n  cache .*\n  ssd ")
        names["tables"].close()

    def test_data_and_checkpoints(self):
        data, checkpoints = [
            text for text in blocks("docs/python.md", "python")
            if "hotrow.pack(" in text or "pickle.dumps" in text
        ]
        ids = np.arange(600)
        batch = {"user": ids % 40, "item": ids, "price": ids * 0.5, "click": ids % 2}
        data = data.replace('pyarrow.dataset.dataset("logs/").scanner().to_reader()', "logs")
        data = data.replace("4096", "64") + "    step.update(step.lookup().pooled)\n"
        tables = [hotrow.Table("user", 4), hotrow.Table("item", 8)]
        place = {"store": hotrow.Memory("64MB"), "max_batch_size": 64, "prefetch_depth": 1}
        with hotrow.EmbeddingCollection(tables, **place) as collection:
            self.python(data, hotrow=hotrow, logs=batch, held_out=batch, tables=collection)
            self.assertEqual(collection.steps, -(-600 // 64))

        checkpoints = checkpoints.replace("...,", "specs, **place,").replace("/data/", "")
        checkpoints = checkpoints.replace("    ...", "    step = tables.prefetch(ids)\n"
                                          "    step.update(step.lookup().pooled)")
        checkpoints = checkpoints.replace("999", "2").replace("1000", "3")
        for begin, end in ((0, 5), (3, 6)):  # what came behind the checkpoint is trained again
            names, _ = self.python(
                checkpoints, hotrow=hotrow, specs=tables, place=place, pickle=pickle,
                ids={"user": ids[:9], "item": ids[:9]}, model="of the first run",
                batches_from=lambda first, end=end: range(first, end),
            )
            names["tables"].wait_checkpoint()
            names["tables"].close()
            if begin:
                self.assertEqual(names["tables"].restored.step, begin)

    def test_serving(self):
        self.shop()
        self.shell("dlrm --data=table:shop.json --save_dir=model")
        serve, _, ask, _, bench = blocks("docs/serving_http.md")
        server = subprocess.Popen([program(), *serve.split()[1:2], "model", "--port=0",
                                   "--drain_ms=0"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            found = re.search(r"127\.0\.0\.1:\d+", server.stdout.readline())
            if found is None:
                self.skipTest("this build has no HTTP server")
            url, body = re.search(r"(http://\S+) -d '(.*)'", ask, re.S).groups()
            url = url.replace("127.0.0.1:8000", found.group())
            with urllib.request.urlopen(url, body.encode(), timeout=10) as reply:
                scores = json.load(reply)["outputs"][0]
            self.assertEqual((scores["name"], scores["shape"]), ("scores", [2, 1]))
            with open("log.csv", "w", encoding="utf-8") as lines:
                lines.write("4.5,31,7,5 9\n" * 30)
            quick = " --seconds=0.1 --warm_up_seconds=0.05"
            bench = bench.replace("127.0.0.1:8000", found.group() + quick)
            bench = bench.replace("1-2-4-8-16-32", "1-2").replace("--user_features=10",
                                                                  "--user_features=1")
            bench = bench.replace("--lines", "--clients=1 --lines")
            out = self.shell(f"{bench}\nhotrow top {found.group()} --count=1")
            with open("load.html", encoding="utf-8") as loaded:
                self.assertRegex(loaded.read(), r"clients on .*, hotrow 0\.\d.*, at 20\d\d-.* UTC")
            self.assertIn("dlrm served", out)
        finally:
            server.terminate()
            server.communicate(timeout=30)


@unittest.skipUnless(HAS_TORCH, "torch is not installed")
class TorchPagesTest(Pages):
    """On the CPU what a page tells to do on a GPU is done without `device=`."""

    def setUp(self):
        super().setUp()
        import hotrow.torch  # noqa: F401
        import torch

        class Model(torch.nn.Module):
            def __init__(self, tables):
                super().__init__()
                top = torch.nn.Linear(tables.pooled_dim, 1)
                self.tables, self.top = tables, top.to(tables._passes.device)

            def forward(self, features):
                return self.top(self.tables(features).pooled)

        self.model = Model

    def run_page(self, code, **names):
        import torch

        small = {"200GB": "64MB", "40GB": "64MB", "20GB": "8MB", "65536": "64",
                 '"/checkpoints"': '"checkpoints"', '"/arrays"': '"arrays"',
                 '"/data/checkpoints"': '"checkpoints"'}
        if not ON_GPU:
            small['device="cuda", device_cache="20GB",'] = ""
        if EMULATED or not ON_GPU:
            small[".cuda()"] = ""
        for theirs, ours in sorted(small.items(), key=lambda pair: -len(pair[0])):
            code = code.replace(theirs, ours)

        ids = torch.arange(64)
        known = {"torch": torch, "hotrow": hotrow, "criterion": torch.nn.BCEWithLogitsLoss(),
                 "DistributedDataParallel": torch.nn.parallel.DistributedDataParallel,
                 "Model": self.model,
                 "loader": [({"item": ids, "user": ids % 5}, self.labels())] * 3}
        names, _ = self.python(code, **{**known, **names})
        self.addCleanup(names["tables"].close)
        return names

    @staticmethod
    def labels():
        import torch

        labels = (torch.arange(64) % 2)[:, None].float()
        return labels.cuda() if ON_GPU and not EMULATED else labels

    def block(self, page, text):
        [code] = [code for code in blocks(page, "python") if text in code]
        return code

    def one_rank(self):
        import torch

        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)

    def test_a_model(self):
        names = self.run_page(self.block("docs/python.md", "class Model"))
        self.assertEqual(names["tables"].steps, 3)

    def test_checkpoints(self):
        """The second run goes on where the first one's last checkpoint is."""
        import torch

        code = self.block("docs/python.md", "tables.restore(state)")
        code = code.replace("...,", "specs, **place,").replace("1000", "2")
        code = code.replace("    ...", "    model(batch).sum().backward()")
        code = code.replace("999", "1") + "tables.collection.wait_checkpoint()\n"
        making, rest = code.split("state =")
        place = {"store": hotrow.Memory("64MB"), "max_batch_size": 64}
        if ON_GPU:
            place.update(device="cuda", device_cache="8MB")
        for first, end in ((0, 5), (4, 6)):
            begun = []

            def batches_from(step, end=end, begun=begun):
                begun.append(step)
                return [{"item": torch.arange(9)} for _ in range(step, end)]

            def trainer(tables):
                model = self.model(tables)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)

            names = self.run_page(
                making + "model, optimizer, schedule = trainer(tables)\nstate =" + rest,
                specs=[hotrow.Table("item", 4)], place=place, trainer=trainer, epoch=0,
                batches_from=batches_from,
            )
            self.assertEqual((begun, names["tables"].steps), ([first], end))
            names["tables"].close()

    def test_ranks(self):
        self.one_rank()
        code = self.block("docs/python.md", "hotrow.torch.Transport()")
        code = code.split("\n", 1)[1].replace(
            "...,", 'specs, store=hotrow.Memory("64MB"), max_batch_size=64,')
        names = self.run_page(code, specs=[hotrow.Table("item", 4)])
        features, _ = names["loader"][0]
        names["model"](features).sum().backward()
        self.assertEqual(names["tables"].steps, 1)

    def test_from_torchrec(self):
        import torch

        class Keyed:
            keys = staticmethod(lambda: ["item"])
            values = staticmethod(lambda: torch.arange(64))
            lengths = staticmethod(lambda: torch.ones(64, dtype=torch.int64))

        self.one_rank()
        code = self.block("docs/from_torchrec.md", "hotrow.Table")
        names = self.run_page(code, loader=[(Keyed(), self.labels())] * 3)
        self.assertEqual(names["tables"].steps, 3)
        self.assertTrue(os.path.exists("arrays/manifest.json"))

    def test_from_dynamicemb(self):
        import torch

        state = {"top": torch.nn.Linear(2, 1)}
        names = self.run_page(self.block("docs/from_dynamicemb.md", "hotrow.Table"), state=state)
        self.assertIsNotNone(names["tables"].collection.newest_checkpoint)


if __name__ == "__main__":
    unittest.main()
