"""PyTorch models that `hotrow serve`, `hotrow score` and the Scorer run: torch's own scores.

Needs torch, onnxruntime and onnxscript; with HOTROW_PYTHON_ONNX=1 they must be there.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from unittest import mock

import numpy as np
from torch_or_skip import torch

import hotrow
import hotrow.torch
from hotrow import _onnxruntime
from test_command import HAS_PROGRAM, command

if _onnxruntime.library() is None or importlib.util.find_spec("onnxscript") is None:
    MISSING = "onnxruntime or onnxscript is not installed"
    if os.environ.get("HOTROW_PYTHON_ONNX") == "1":
        raise ImportError(MISSING)
    raise unittest.SkipTest(MISSING)

TOLERANCE = 1e-6
SAMPLES = 150
CATEGORICAL = {"role": "categorical", "key": "integer"}
SCHEMA = {
    "name": "shop", "files": ["log.csv"], "split": {"modulo": 10, "valid": [8], "test": [9]},
    "columns": [
        {"name": "click", "role": "label"},
        {"name": "price", "role": "dense"},
        {"name": "age", "role": "dense"},
        {"name": "item", **CATEGORICAL},
        {"name": "tags", "separator": " ", "table": "item", **CATEGORICAL},
        {"name": "user", **CATEGORICAL},
    ],
}


class Batch:
    """Samples for torch and for the scorer; ids above `known` were never trained."""

    def __init__(self, seed, count=SAMPLES, known=60):
        random = np.random.default_rng(seed)
        self.dense = random.normal(size=(count, 2)).astype(np.float32).round(3)
        lengths = random.integers(0, 4, count)
        self.ids = {
            "item": random.integers(0, known, count),
            "tags": (random.integers(0, known, lengths.sum()), lengths),
            "user": random.integers(0, known, count),
        }
        self.labels = torch.from_numpy((random.random(count) < 0.4).astype(np.float32))

    def torch(self):
        values, lengths = self.ids["tags"]
        ids = {name: torch.from_numpy(self.ids[name]) for name in ("item", "user")}
        ids["tags"] = (torch.from_numpy(values), torch.from_numpy(lengths))
        return ids, torch.from_numpy(self.dense)

    def lines(self):
        values, lengths = self.ids["tags"]
        bags = np.split(values, np.cumsum(lengths)[:-1])
        return [
            f"{self.dense[i, 0]},{self.dense[i, 1]},{self.ids['item'][i]},"
            f"{' '.join(map(str, bags[i]))},{self.ids['user'][i]}"
            for i in range(len(lengths))
        ]


class Model(torch.nn.Module):
    """Products of vectors, as DLRM makes them, over tables of two widths."""

    def __init__(self, tables, tasks=1):
        super().__init__()
        self.tables = tables
        self.bottom = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU())
        self.norm = torch.nn.BatchNorm1d(9 + 4)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(9 + 4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1),
            torch.nn.Linear(16, tasks),
        )

    def forward(self, ids, dense):
        return self.over(self.tables(ids).pooled, dense)

    def over(self, pooled, dense):
        vectors = torch.cat([self.bottom(dense)[:, None], pooled[:, :16].view(len(dense), 2, 8)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(self.norm(torch.cat([products, pooled[:, 16:]], 1)))[:, 0]

    def tasks(self, pooled, dense):
        return torch.sigmoid(self.top(self.norm(torch.cat([pooled[:, :11], dense], 1))))


def make_tables(**changes):
    return hotrow.torch.EmbeddingCollection(
        [hotrow.Table("items", 8, ["item", "tags"], optimizer=hotrow.RowwiseAdagrad(lr=0.1)),
         hotrow.Table("users", 4, ["user"], pooling="mean", weights_precision="fp16",
                      **changes)],
        store=hotrow.Memory("64MB"), max_batch_size=SAMPLES, seed=3,
    )


def train(model, steps):
    optimizer = torch.optim.Adam(model.top.parameters(), lr=0.01)
    model.train()
    for step in range(steps):
        batch = Batch(step)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(*batch.torch()), batch.labels
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def expected(model, batch, score=None):
    model.eval()
    ids, dense = batch.torch()
    with torch.no_grad():
        out = model(ids, dense) if score is None else score(model.tables(ids).pooled, dense)
    return out.numpy().reshape(len(dense), -1)


def without_onnx():
    """Torch takes seconds to write a file that is not looked at."""
    return mock.patch.object(sys.modules["hotrow.torch.export"], "_to_onnx", return_value=b"x")


class TorchExportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        torch.manual_seed(1)
        self.tables = make_tables()
        self.addCleanup(self.tables.close)
        self.model = Model(self.tables)

    def export(self, name="model", **changes):
        path = f"{self.folder}/{name}"
        arguments = {"num_dense": 2, "schema": SCHEMA, **changes}
        hotrow.torch.export(self.tables, self.model.over, path, **arguments)
        return path

    def assert_close(self, found, wanted):
        found = np.asarray(found, np.float32).reshape(wanted.shape)
        self.assertGreater(np.ptp(wanted), 0.05)
        difference = np.abs(found - wanted) / np.maximum(1, np.abs(wanted))
        self.assertLessEqual(float(difference.max()), TOLERANCE)

    def test_the_scorer(self):
        train(self.model, 8)
        path = self.export()
        self.assertTrue(self.model.training and self.tables.training)
        train(self.model, 1)  # what was written stays
        with hotrow.Scorer(path, max_batch_size=64) as scorer:
            self.assertEqual(scorer.model, "onnx")
            self.assertEqual((scorer.step, scorer.num_tasks), (8, 1))
            self.assertEqual(scorer.features, ["item", "tags", "user"])
            self.assertEqual((scorer.dense, scorer.labels), (["price", "age"], ["click"]))
            before = scorer.score(Batch(90).ids, Batch(90).dense)
        path = self.export("next")
        with hotrow.Scorer(path) as scorer, hotrow.Scorer(path, rows="int8") as narrow:
            for seed, count in ((90, SAMPLES), (91, 1), (92, 33)):
                batch = Batch(seed, count=count, known=90)  # some have no row
                wanted = expected(self.model, batch)
                logits = scorer.score(batch.ids, batch.dense)
                if count > 1:
                    self.assert_close(logits, wanted)
                    self.assert_close(scorer.score_lines(batch.lines()), wanted)
                np.testing.assert_allclose(narrow.score(batch.ids, batch.dense), wanted, atol=0.1)
            user = {"user": batch.ids["user"][:1]}
            others = {name: batch.ids[name] for name in ("item", "tags")}
            found = scorer.score_candidates(user, others, dense=batch.dense)
            batch.ids["user"][:] = batch.ids["user"][0]
            self.assert_close(found, expected(self.model, batch))
            self.assertFalse(
                np.array_equal(before, scorer.score(Batch(90).ids, Batch(90).dense))
            )

    def test_tasks_and_probabilities(self):
        model = self.model = Model(self.tables, tasks=2)
        path = f"{self.folder}/tasks"
        model.tables({**Batch(1).torch()[0]}).pooled.square().sum().backward()
        hotrow.torch.export(self.tables, model.tasks, path, num_dense=2, output="probability",
                            labels=["click", "buy"])
        batch = Batch(5)
        with hotrow.Scorer(path) as scorer:
            self.assertEqual(scorer.labels, ["click", "buy"])
            self.assertIsNone(scorer.line_columns)
            found = scorer.score(batch.ids, batch.dense, probabilities=True)
        self.assert_close(found, expected(model, batch, model.tasks))

    def test_probabilities_of_0_and_1(self):
        class Sure(torch.nn.Module):
            def forward(self, embeddings):
                return (embeddings[:, 0] > 0).float()

        hotrow.torch.export(self.tables, Sure(), f"{self.folder}/sure", output="probability")
        batch = Batch(5)
        with hotrow.Scorer(f"{self.folder}/sure") as scorer:
            self.assertTrue(np.isfinite(scorer.score(batch.ids)).all())
            found = scorer.score(batch.ids, probabilities=True)
        self.assertLessEqual(set(found.flatten()), {0.0, 1.0})

    def test_a_plain_module(self):
        top = torch.nn.Linear(self.tables.pooled_dim, 1)
        with self.assertNoLogs("torch.onnx", "WARNING"):
            hotrow.torch.export(self.tables, top, f"{self.folder}/plain")
        batch = Batch(5)
        with hotrow.Scorer(f"{self.folder}/plain") as scorer, torch.no_grad():
            self.tables.eval()
            wanted = top(self.tables(batch.torch()[0]).pooled).numpy()
            np.testing.assert_allclose(scorer.score(batch.ids), wanted, atol=TOLERANCE)

    @unittest.skipUnless(HAS_PROGRAM, "this build has no program")
    def test_the_command(self):
        train(self.model, 8)
        path, batch = self.export(), Batch(90, known=90)
        with open(f"{self.folder}/lines.csv", "w", encoding="utf-8") as file:
            file.write("\n".join(["price,age,item,tags,user", *batch.lines()]) + "\n")
        done = command("score", "--score=logit", path, f"{self.folder}/lines.csv")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_close([float(line) for line in done.stdout.split()],
                          expected(self.model, batch))
        done = command("verify", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = command("score", "--onnxruntime=/nowhere.so", path, f"{self.folder}/lines.csv")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "/nowhere.so.*pip install onnxruntime.*--onnxruntime")

    @unittest.skipUnless(HAS_PROGRAM, "this build has no program")
    def test_the_server_follows_a_model_that_is_replaced(self):
        train(self.model, 4)
        link, batch = f"{self.folder}/served", Batch(90, known=90)
        os.symlink(self.export("first"), link)
        environment = {**os.environ, "HOTROW_ONNXRUNTIME": _onnxruntime.library()}
        server = subprocess.Popen(
            [hotrow.__main__.program(), "serve", link, "--port=0", "--follow_ms=20"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        self.addCleanup(server.communicate)
        self.addCleanup(server.send_signal, signal.SIGTERM)
        line = server.stdout.readline()
        found = re.search(r"http://\S+/v2/models/onnx\n", line)
        if found is None:
            server.kill()
            error = server.communicate()[1]
            if "libcpp-httplib-dev" in error:
                self.skipTest("this build has no HTTP server")
            self.fail(line + error)

        def score():
            values, lengths = batch.ids["tags"]
            tensors = {"item": batch.ids["item"], "tags": values, "tags:lengths": lengths,
                       "user": batch.ids["user"]}
            inputs = [{"name": name, "datatype": "INT64", "shape": list(ids.shape),
                       "data": ids.tolist()} for name, ids in tensors.items()]
            inputs.append({"name": "dense", "datatype": "FP32", "shape": [SAMPLES, 2],
                           "data": batch.dense.ravel().tolist()})
            body = json.dumps({"inputs": inputs, "outputs": [{"name": "logits"}]}).encode()
            url = found.group().strip() + "/infer"
            with urllib.request.urlopen(url, body, timeout=60) as reply:
                answer = json.load(reply)
            return int(answer["model_version"]), answer["outputs"][0]["data"]

        version, logits = score()
        self.assertEqual(version, 4)
        self.assert_close(logits, expected(self.model, batch))
        train(self.model, 3)
        os.symlink(self.export("second"), link + ".next")
        os.replace(link + ".next", link)
        end = time.monotonic() + 60
        while version == 4 and time.monotonic() < end:
            version, logits = score()
        self.assertEqual(version, 7)
        self.assert_close(logits, expected(self.model, batch))

    def test_what_is_refused(self):
        path = self.export()
        for changes, wanted in (
            ({"output": "score"}, "output: is 'score'"),
            ({"num_dense": 3, "schema": None}, "mat1 and mat2|shape"),
            ({"labels": ["a", "b"]}, "labels: are 2, dense_part gives 1 tasks"),
            ({"schema": {**SCHEMA, "columns": SCHEMA["columns"][:-1]}}, "schema: has 2 features"),
            ({"schema": {**SCHEMA, "columns": [{}]}}, "schema"),
        ):
            with self.subTest(changes), self.assertRaisesRegex(Exception, wanted), without_onnx():
                self.export("other", **changes)
        with self.assertRaisesRegex(ValueError, "dense_part: looks rows up"):
            hotrow.torch.export(self.tables, self.model, f"{self.folder}/other", num_dense=2)
        with self.assertRaisesRegex(TypeError, "dense_part"):
            hotrow.torch.export(self.tables, lambda pooled: pooled, f"{self.folder}/other")
        with mock.patch.object(importlib.util, "find_spec", return_value=None):
            with self.assertRaisesRegex(ImportError, "pip install onnxscript"):
                self.export("other")
        with self.assertRaisesRegex(hotrow.Error, "model"), without_onnx():
            self.export()  # is there
        self.assertEqual(os.listdir(self.folder), ["model"])
        with self.assertRaisesRegex(hotrow.Error, "/none.so.*pip install onnxruntime"):
            hotrow.Scorer(path, onnxruntime="/none.so")
        with open(f"{path}/manifest.json", encoding="utf-8") as file:
            manifest = json.load(file)
        manifest["num_dense"] = 3
        del manifest["scoring"]["schema"]
        with open(f"{path}/manifest.json", "w", encoding="utf-8") as file:
            json.dump(manifest, file)
        with self.assertRaisesRegex(hotrow.Error, r'dense.onnx.*"dense" of float \[-1, 2\]'):
            hotrow.Scorer(path)

    def test_tables_that_cannot_be_written(self):
        with make_tables(serve_rows="int8") as tables:
            with self.assertRaisesRegex(hotrow.Error, "serve_rows"), without_onnx():
                hotrow.torch.export(tables, torch.nn.Linear(20, 1), f"{self.folder}/other")
        unpooled = hotrow.torch.EmbeddingCollection(
            [hotrow.Table("items", 4), hotrow.Table("words", 4, ["history"], pooling="none")],
            store=hotrow.Memory("1MB"), max_batch_size=4,
        )
        with unpooled, self.assertRaisesRegex(NotImplementedError, "history.*none"), without_onnx():
            hotrow.torch.export(unpooled, torch.nn.Linear(4, 1), f"{self.folder}/other")
        self.assertEqual(os.listdir(self.folder), [])


if __name__ == "__main__":
    unittest.main()
