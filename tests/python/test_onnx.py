"""Models as ONNX files: onnxruntime gives the scores of `hotrow score`.

Needs onnxruntime and onnx, which a build does not install: `pip install onnxruntime onnx`. With
HOTROW_PYTHON_ONNX=1 they must be there. HOTROW_ONNX_REPORT=1 prints the largest differences.
"""

import json
import math
import os
import random
import subprocess
import tempfile
import unittest

import numpy as np

import hotrow.__main__

try:
    import onnx
    import onnxruntime
except ImportError as error:
    if os.environ.get("HOTROW_PYTHON_ONNX") == "1":
        raise
    raise unittest.SkipTest(f"onnxruntime and onnx are not installed ({error})") from error

SAMPLES = 240
TOLERANCE = 1e-5
DENSE = ["price", "age"]
# Name, table, how many different values, and the most of a sample.
FEATURES = [("user", "user", 60, 1), ("friend", "user", 60, 1), ("item", "item", 40, 1),
            ("tags", "item", 40, 6), ("hour", "hour", 24, 1)]
HISTORY = "tags"

COMMON = ["--over_arch_layer_sizes=12-7-1", "--embedding_dim=5", "--batch_size=40"]
MODELS = {
    "dlrm": ["dlrm", "--dense_arch_layer_sizes=9-5"],
    "dlrm_no_dense": ["dlrm"],
    "dlrm_cat": ["dlrm", "--interaction=cat", "--dense_arch_layer_sizes=6", "--pooling=mean"],
    "dlrm_batch_norm": ["dlrm", "--dense_arch_layer_sizes=9-5", "--batch_norm"],
    "deepfm": ["deepfm"],
    "deepfm_no_dense": ["deepfm"],
    "deepfm_batch_norm": ["deepfm", "--batch_norm", "--pooling=mean", "--dropout=0.2"],
    "dcn_v1": ["dcn", "--dcn_version=1", "--dcn_num_layers=3"],
    "dcn_v2": ["dcn", "--dcn_num_layers=2", "--dense_arch_layer_sizes=8"],
    "dcn_low_rank": ["dcn", "--dcn_low_rank_dim=4", "--dcn_structure=parallel"],
    "dcn_mix": ["dcn", "--dcn_low_rank_dim=4", "--dcn_num_experts=3"],
    "wide_deep": ["wide_deep"],
    "xdeepfm": ["xdeepfm", "--cin_layer_sizes=6-4"],
    "pnn_inner": ["pnn", "--pnn_products=inner"],
    "pnn_outer": ["pnn", "--pnn_products=outer"],
    "pnn_both": ["pnn", "--pnn_products=both"],
    "din": ["din", f"--history={HISTORY}:item", "--attention_layer_sizes=8-4"],
    "bst": ["bst", f"--history={HISTORY}:item", "--num_heads=5", "--num_blocks=2"],
    "hstu": ["hstu", f"--history={HISTORY}:item", "--num_blocks=3"],
    "mmoe": ["mmoe", "--num_experts=3", "--expert_layer_sizes=9-6", "--batch_norm"],
    "mmoe_shared_bottom": ["mmoe", "--num_experts=1", "--expert_layer_sizes=9-6"],
    "fp16_rows": ["dlrm", "--dense_arch_layer_sizes=9-5", "--weights_precision=fp16"],
}
TASKS = {"mmoe": 2, "mmoe_shared_bottom": 2}


def command(*arguments):
    return subprocess.run([hotrow.__main__.program(), *arguments], capture_output=True, text=True,
                          timeout=120, check=False)


def run(*arguments):
    done = command(*arguments)
    if done.returncode != 0:
        raise AssertionError(f"hotrow {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def signed(key):
    """A key as INT64 holds it: its two's complement."""
    return key - 2**64 if key >= 2**63 else key


def longest(bags):
    return max(1, max(map(len, bags), default=0))


class Log:
    """Samples as text and as what the text means. Users have keys of all 64 bits."""

    def __init__(self, folder, num_labels, has_dense):
        draw = random.Random(7)
        self.names = DENSE if has_dense else []
        self.ids = {name: [] for name, _, _, _ in FEATURES}
        self.dense = []
        lines = []
        for i in range(SAMPLES):
            fields = [str(draw.randint(0, 1)), str(draw.randint(0, 1))][:num_labels]
            numbers = [round(draw.gauss(0, 1), 3) for _ in self.names]
            fields += [str(number) for number in numbers]
            self.dense.append(numbers)
            for name, table, values, most in FEATURES:
                count = draw.randint(0, most) if most > 1 else int(draw.random() < 0.9)
                keys = [int(values * draw.random() ** 2) for _ in range(count)]
                if table == "user":
                    keys = [(key * 0x9E3779B97F4A7C15) % 2**64 for key in keys]
                self.ids[name].append(keys)
                fields.append("|".join(map(str, keys)))
            lines.append(",".join(fields))
        labels = ["click", "like"][:num_labels]
        columns = [{"name": name, "role": "label"} for name in labels]
        columns += [{"name": name, "role": "dense"} for name in self.names]
        for name, table, values, most in FEATURES:
            column = {"name": name, "role": "categorical", "key": "integer", "table": table}
            if most > 1:
                column |= {"separator": "|", "max_hotness": most}
            if table != "user":
                column["num_embeddings"] = values
            columns.append(column)
        self.path = f"{folder}/log.csv"
        self.schema = f"{folder}/schema.json"
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(",".join(column["name"] for column in columns) + "\n")
            file.write("\n".join(lines) + "\n")
        with open(self.schema, "w", encoding="utf-8") as file:
            json.dump({"name": "log", "files": {"train": [self.path]}, "columns": columns}, file)

    def padded(self, name, samples, padding=-12345):
        """Keys [B, L] and how many of them there are, [B, 1]."""
        bags = [self.ids[name][i] for i in samples]
        ids = np.full((len(bags), longest(bags)), padding, np.int64)
        for row, bag in zip(ids, bags):
            row[: len(bag)] = [signed(key) for key in bag]
        return ids, np.array([[len(bag)] for bag in bags], np.int64).reshape(-1, 1)

    def dense_of(self, samples):
        return np.array([self.dense[i] for i in samples], np.float32).reshape(-1, len(self.names))


class Rows:
    """The tables of a model, read from its arrays."""

    def __init__(self, folder):
        with open(f"{folder}/manifest.json", encoding="utf-8") as file:
            manifest = json.load(file)
        self.tables = {}
        for table in manifest["tables"]:
            arrays = {array["name"]: np.concatenate([np.load(f"{folder}/{part['file']}")
                                                     for part in array["files"]])
                      for array in table["arrays"] if array["name"] in ("keys", "weights")}
            self.tables[table["name"]] = dict(zip(map(int, arrays["keys"]), arrays["weights"]))

    def of(self, table, keys, columns):
        rows = [self.tables[table][key] for key in keys]
        return np.array(rows, np.float32).reshape(len(keys), columns)


def embeddings(log, rows, metadata, samples):
    """The inputs of a file without rows."""
    out = {}
    for feature in json.loads(metadata["hotrow.features"]):
        name, columns = feature["name"], feature["columns"]
        bags = [rows.of(feature["table"], log.ids[name][i], columns) for i in samples]
        if feature["pooling"] == "none":
            padded = np.full((len(bags), longest(bags), columns), np.nan, np.float32)
            for row, bag in zip(padded, bags):
                row[: len(bag)] = bag
            out[f"rows.{name}"] = padded
            out[f"length.{name}"] = np.array([[len(b)] for b in bags], np.int64).reshape(-1, 1)
            continue
        pooled = [bag.sum(axis=0) for bag in bags]
        if feature["pooling"] == "mean":
            pooled = [vector / max(len(bag), 1) for vector, bag in zip(pooled, bags)]
        out[f"embedding.{name}"] = np.array(pooled, np.float32).reshape(-1, columns)
    return out


def keys(log, samples):
    """The inputs of a file with rows."""
    out = {}
    for name, _, _, _ in FEATURES:
        out[f"ids.{name}"], out[f"length.{name}"] = log.padded(name, samples)
    return out


def difference(found, expected):
    """The largest one, relative to scores above 1."""
    return float(np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected)), initial=0))


@unittest.skipUnless(os.path.exists(hotrow.__main__.program()), "this build has no program")
class OnnxTest(unittest.TestCase):
    differences = {}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    @classmethod
    def tearDownClass(cls):
        if os.environ.get("HOTROW_ONNX_REPORT") == "1":
            print(f"\nonnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}")
            for name, largest in cls.differences.items():
                print(f"{name:40} {largest:.2e}")

    def train(self, name, *flags):
        log = Log(self.folder, TASKS.get(name, 1), has_dense="no_dense" not in name)
        run("train", *MODELS[name], f"--data=table:{log.schema}", *COMMON, "--epochs=2",
            "--learning_rate=0.05", f"--save_dir={self.folder}/model", *flags)
        lines = run("score", "--score=logit", f"{self.folder}/model", log.path).splitlines()
        scores = np.array([[float(x) for x in line.split("\t")] for line in lines], np.float32)
        self.assertEqual(scores.shape, (SAMPLES, TASKS.get(name, 1)))
        self.assertGreater(np.ptp(scores), 0.05)
        return log, scores

    def export(self, *flags):
        path = f"{self.folder}/model{len(os.listdir(self.folder))}.onnx"
        summary = json.loads(run("export", "--format=onnx", "--json", *flags,
                                 f"{self.folder}/model", path))
        self.assertEqual(summary["bytes"], os.path.getsize(path))
        model = onnx.load(path)
        onnx.checker.check_model(model, full_check=True)
        with open(path, "rb") as file:  # the bytes that protobuf makes of the same
            self.assertEqual(model.SerializeToString(deterministic=True), file.read())
        self.assertEqual(model.producer_name, "hotrow")
        self.assertEqual([v.name for v in model.graph.input], summary["inputs"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        metadata = session.get_modelmeta().custom_metadata_map
        self.assertEqual(summary["step"], int(metadata["hotrow.step"]))
        return session, metadata

    def check(self, name, session, make, log, scores):
        """All samples, parts of them, none, and NaNs."""
        def score(samples, inputs):
            if log.names:
                inputs["dense"] = log.dense_of(samples)
            return session.run(["logits", "probabilities"], inputs)

        largest = 0
        for samples in (range(SAMPLES), range(7, 8), range(50, 83)):
            logits, probabilities = score(samples, make(samples))
            largest = max(largest, difference(logits, scores[samples]),
                          difference(probabilities, 1 / (1 + np.exp(-scores[samples]))))
        self.differences[name] = largest
        self.assertLessEqual(largest, TOLERANCE)
        logits, probabilities = score(range(0), make(range(0)))
        self.assertEqual(logits.shape, (0, scores.shape[1]))
        self.assertEqual(probabilities.shape, (0, scores.shape[1]))
        if log.names:
            samples = range(20)
            inputs = make(samples)
            inputs["dense"] = log.dense_of(samples)
            inputs["dense"][3] = math.nan
            logits, probabilities = session.run(["logits", "probabilities"], inputs)
            for found in (logits, probabilities):
                self.assertTrue(np.isnan(found[3]).all())
                self.assertFalse(np.isnan(np.delete(found, 3, axis=0)).any())

    def test_scores_are_those_of_hotrow(self):
        for name in MODELS:
            with self.subTest(name):
                self.setUp()
                log, scores = self.train(name)
                run("export", f"{self.folder}/model", f"{self.folder}/arrays")
                rows = Rows(f"{self.folder}/arrays")
                session, metadata = self.export()
                self.assertEqual(metadata["hotrow.form"], "embeddings")
                self.assertEqual(json.loads(metadata["hotrow.labels"]),
                                 ["click", "like"][: scores.shape[1]])
                self.check(f"{name}, embeddings", session,
                           lambda samples: embeddings(log, rows, metadata, samples), log, scores)
                # Keys of users have no bound, and begin with random numbers; all have rows here.
                session, metadata = self.export("--with_rows", "--unseen_keys=zeros")
                self.assertEqual(metadata["hotrow.form"], "rows")
                self.check(f"{name}, rows", session, lambda samples: keys(log, samples), log,
                           scores)

    def test_keys_without_rows(self):
        log, scores = self.train("dlrm", "--initializer=constant:0.25", "--limit_train_batches=1",
                                 "--epochs=1")
        session, metadata = self.export("--with_rows")
        tables = {t["name"]: t for t in json.loads(metadata["hotrow.tables"])}
        self.assertEqual({t["index"] for t in tables.values()}, {"encoder", "key"})
        self.assertEqual(tables["item"]["rows"], 40)
        self.assertEqual(tables["user"]["unseen_keys"], "exact")
        self.check("keys without rows", session, lambda samples: keys(log, samples), log, scores)
        # A key that training would refuse is refused.
        for wrong in (40, -1, 2**62, -2**63):
            inputs = keys(log, range(1)) | {"dense": log.dense_of(range(1))}
            inputs["ids.item"] = np.array([[wrong]])
            inputs["length.item"] = np.array([[1]])
            with self.assertRaisesRegex(Exception, "out of data bounds|indices element"):
                session.run(["logits"], inputs)

    def test_random_first_values_are_refused(self):
        self.train("dlrm")
        done = command("export", "--format=onnx", "--with_rows", f"{self.folder}/model",
                       f"{self.folder}/no.onnx")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--unseen_keys=zeros", done.stderr)
        self.assertFalse(os.path.exists(f"{self.folder}/no.onnx"))


if __name__ == "__main__":
    unittest.main()
