"""Scoring with trained models: the bits of the C++ scorer, threads, and what is refused."""

import copy
import os
import signal
import tempfile
import threading
import unittest

import numpy as np

import hotrow
from test_command import HAS_PROGRAM, command

SCHEMA = """{
  "name": "shop", "files": ["log.csv"], "split": {"modulo": 10, "valid": [8], "test": [9]},
  "columns": [
    {"name": "click", "role": "label"},
    {"name": "price", "role": "dense", "transform": "log1p"},
    {"name": "age", "role": "dense"},
    {"name": "user", "role": "categorical", "key": "integer"},
    {"name": "item", "role": "categorical", "key": "integer"},
    {"name": "words", "role": "categorical", "key": "integer", "separator": " ",
     "max_hotness": 4}
  ]}"""

# Shapes by the flags of their programs.
MODELS = {
    "dlrm": ["--dense_arch_layer_sizes=8-4", "--over_arch_layer_sizes=8-1", "--embedding_dim=4"],
    "deepfm": ["--over_arch_layer_sizes=8-1", "--embedding_dim=5"],
    "din": ["--history=words:item", "--over_arch_layer_sizes=8-1", "--embedding_dim=4"],
}


class Samples:
    """The rows of a log, as text and as arrays."""

    def __init__(self, count=300):
        random = np.random.default_rng(3)
        self.user = random.integers(0, 50, count)
        self.item = random.integers(0, 30, count)
        self.price = random.integers(0, 90, count)
        self.age = random.integers(0, 80, count) / 4
        self.lengths = random.integers(0, 4, count)
        self.words = random.integers(0, 20, self.lengths.sum())
        self.click = (self.user + self.item) % 3 == 0
        ends = np.cumsum(self.lengths)
        self.bags = [self.words[end - n : end] for end, n in zip(ends, self.lengths)]

    def lines(self):
        """As `line_columns` has them: price, age, user, item, words."""
        return [
            f"{self.price[i]},{self.age[i]},{self.user[i]},{self.item[i]},"
            + " ".join(map(str, self.bags[i]))
            for i in range(len(self.user))
        ]

    def write(self, folder):
        with open(os.path.join(folder, "schema.json"), "w", encoding="utf-8") as file:
            file.write(SCHEMA)
        with open(os.path.join(folder, "log.csv"), "w", encoding="utf-8") as file:
            file.write("click,price,age,user,item,words\n")
            for click, line in zip(self.click, self.lines()):
                file.write(f"{int(click)},{line}\n")
        with open(os.path.join(folder, "new.csv"), "w", encoding="utf-8") as file:
            file.write("price,age,user,item,words\n")
            file.writelines(line + "\n" for line in self.lines())

    def ids(self, dtype=np.int64):
        return {
            "user": self.user.astype(dtype),
            "item": self.item.astype(dtype),
            "words": (self.words.astype(dtype), self.lengths.astype(np.int32)),
        }

    def dense(self):
        price = np.log1p(self.price.astype(np.float64))
        return np.stack([price, self.age], axis=1).astype(np.float32)


@unittest.skipUnless(HAS_PROGRAM, "this build has no program that trains")
class ScorerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.samples = Samples()
        cls.samples.write(cls.folder.name)
        for model, shape in MODELS.items():
            done = command(
                "train", model, f"--data=table:{cls.folder.name}/schema.json", "--batch_size=32",
                "--threads=1", "--store_bytes=64MiB", "--learning_rate=0.1",
                f"--save_dir={cls.path(model)}", *shape,
            )
            assert done.returncode == 0, done.stderr

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def open(self, model="dlrm", **options):
        out = hotrow.Scorer(self.path(model), **{"max_concurrency": 2, **options})
        self.addCleanup(out.close)
        return out

    def assert_same_bits(self, found, expected):
        self.assertEqual(found.dtype, np.float32)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))

    def test_a_forked_child_leaves_it_alone(self):
        with self.open(rows_dir=self.path("rows"), memory="1MB") as scorer:
            lines = self.samples.lines()[:3]
            before = scorer.score_lines(lines)
            for _ in range(8):
                process = os.fork()
                if process == 0:
                    signal.alarm(10)
                    status = 1
                    try:
                        with self.assertRaisesRegex(RuntimeError, "forked this one"):
                            scorer.score_lines(lines)
                        scorer.close()
                        scorer = None
                        status = 0
                    finally:
                        os._exit(status)
                self.assertEqual(os.waitpid(process, 0)[1], 0)
            np.testing.assert_array_equal(scorer.score_lines(lines), before)

    def test_rows_may_lie_on_a_disk(self):
        expected = self.open().score(self.samples.ids(), self.samples.dense())
        for _ in range(2):  # written, then read again
            with self.open(rows_dir=self.path("rows"), memory="1MB") as scorer:
                found = scorer.score(self.samples.ids(), self.samples.dense())
                self.assert_same_bits(found, expected)
                self.assertLessEqual(scorer.table_bytes, 1_000_000)
                self.assertEqual(scorer.notes, [])
        with self.assertRaisesRegex(ValueError, "memory must be given with rows_dir"):
            self.open(rows_dir=self.path("rows"))

    def test_lines_are_the_bits_of_the_program(self):
        for model in MODELS:
            for score in ("logit", "probability"):
                out = command("score", self.path(model), self.path("new.csv"), f"--score={score}",
                              "--batch_size=64")
                self.assertEqual(out.returncode, 0, out.stderr)
                expected = np.array([[float(line)] for line in out.stdout.split()], np.float32)
                found = self.open(model, max_batch_size=64).score_lines(
                    self.samples.lines(), probabilities=score == "probability"
                )
                self.assert_same_bits(found, expected)
            lines = [line.encode() for line in self.samples.lines()]
            self.assert_same_bits(
                self.open(model, max_batch_size=64).score_lines(lines, probabilities=True), expected
            )

    def test_every_form_of_a_batch_scores_alike(self):
        samples = self.samples
        offsets = np.concatenate([[0], np.cumsum(samples.lengths)])
        lengths = np.concatenate([np.ones(2 * len(samples.user), np.int64), samples.lengths])
        everything = np.concatenate([samples.user, samples.item, samples.words])
        for model in MODELS:
            scorer = self.open(model)
            expected = scorer.score_lines(samples.lines())
            self.assertGreater(np.ptp(expected), 0.01)
            # As `for line in open(path)` gives them.
            ended = [line + "\n" for line in samples.lines()]
            self.assert_same_bits(scorer.score_lines(ended), expected)
            dense = samples.dense()
            for dtype in (np.int64, np.uint64, np.int32):
                self.assert_same_bits(scorer.score(samples.ids(dtype), dense), expected)
            ids = samples.ids()
            ids["words"] = hotrow.Bags(samples.words, offsets=offsets)
            self.assert_same_bits(scorer.score(ids, dense), expected)
            jagged = hotrow.Jagged(len(samples.user), everything, lengths=lengths)
            self.assert_same_bits(scorer.score(jagged, dense), expected)
            out = np.empty_like(expected)
            self.assertIs(scorer.score(ids, dense, out=out, probabilities=True), out)
            np.testing.assert_allclose(out, 1 / (1 + np.exp(-expected)), rtol=1e-6)

    def test_candidates_score_as_whole_samples(self):
        samples, n = self.samples, 40
        for model in MODELS:
            scorer = self.open(model)
            words = np.tile([3, 4], n)
            whole = {
                "user": np.full(n, 7), "item": samples.item[:n], "words": (words, np.full(n, 2))
            }
            dense = samples.dense()[:n].copy()
            dense[:, 1] = 2.5
            expected = scorer.score(whole, dense)
            for age in ("age", 1):
                found = scorer.score_candidates(
                    {"words": [[3, 4]], "user": [7]}, {"item": samples.item[:n]},
                    user_dense={age: 2.5}, dense=np.ascontiguousarray(dense[:, :1]),
                )
                self.assert_same_bits(found, expected)
            self.assert_same_bits(scorer.score_candidates({}, whole, dense=dense), expected)
            # All features are the user's: the dense ones tell the candidates apart.
            same = {"user": np.full(n, 7), "item": np.full(n, 5), "words": whole["words"]}
            found = scorer.score_candidates(
                {"user": [7], "item": [5], "words": [[3, 4]]}, {}, dense=dense
            )
            self.assert_same_bits(found, scorer.score(same, dense))

    def test_arrow(self):
        try:
            import pyarrow
        except ImportError:
            self.skipTest("pyarrow is not installed")
        samples, scorer = self.samples, self.open()
        batch = pyarrow.record_batch({
            "item": pyarrow.array(samples.item), "user": pyarrow.array(samples.user),
            "words": pyarrow.array([list(bag) for bag in samples.bags], pyarrow.list_(pyarrow.int64())),
        })
        self.assert_same_bits(
            scorer.score(batch, samples.dense()), scorer.score(samples.ids(), samples.dense())
        )

    def test_description(self):
        with self.open(max_batch_size=7) as scorer:
            self.assertEqual(scorer.model, "dlrm")
            self.assertGreater(scorer.step, 0)
            self.assertEqual(scorer.features, ["user", "item", "words"])
            self.assertEqual((scorer.num_dense, scorer.dense), (2, ["price", "age"]))
            self.assertEqual((scorer.num_tasks, scorer.labels), (1, ["click"]))
            self.assertEqual(scorer.line_columns, ["price", "age", "user", "item", "words"])
            self.assertEqual(scorer.max_batch_size, 7)
            self.assertEqual(scorer.notes, [])
            coded = self.open(rows="int4")
            self.assertEqual(coded.rows, scorer.rows)
            self.assertGreater(scorer.table_bytes, 0)
            scores = [each.score_lines(self.samples.lines()) for each in (coded, scorer)]
            self.assertFalse(np.array_equal(*scores))
            np.testing.assert_allclose(*scores, atol=0.3)
        with self.assertRaisesRegex(TypeError, "neither be copied"):
            copy.copy(scorer)

    def test_threads(self):
        """More than there are sessions; one thread closes it while the others score."""
        samples, scorer = self.samples, self.open()
        ids, dense = samples.ids(), samples.dense()
        expected = scorer.score(ids, dense)
        good, errors = [], []

        def score():
            try:
                while True:
                    self.assert_same_bits(scorer.score(ids, dense), expected)
                    good.append(1)
            except hotrow.errors.FailedPrecondition as error:
                errors.append(str(error))

        threads = [threading.Thread(target=score) for _ in range(5)]
        for thread in threads:
            thread.start()
        while len(good) < 30 and any(thread.is_alive() for thread in threads):
            pass
        scorer.close()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, ["the scorer has been closed"] * 5)
        scorer.close()
        with self.assertRaisesRegex(RuntimeError, "closed"):
            scorer.score_lines(samples.lines())

    def test_batches_that_memory_does_not_hold(self):
        with self.assertRaisesRegex(MemoryError, "max_batch_size: 4096 calls.*lower it, or max_con"):
            self.open(max_batch_size=1 << 24, max_concurrency=4096)

    def test_a_call_ends_at_its_deadline(self):
        samples = self.samples
        ids = {name: np.tile(samples.ids()[name], 300) for name in ("user", "item")}
        ids["words"] = tuple(np.tile(part, 300) for part in samples.ids()["words"])
        dense = np.tile(samples.dense(), (300, 1))
        user, item = {"user": [1], "words": [[2]]}, {"item": ids["item"]}
        hurried, patient = self.open(deadline=0.0001), self.open(deadline=600)
        for call in (
            lambda scorer: scorer.score(ids, dense),
            lambda scorer: scorer.score_candidates(user, item, dense=dense),
            lambda scorer: scorer.score_lines(samples.lines() * 300),
        ):
            with self.assertRaisesRegex(TimeoutError, "of 90000"):
                call(hurried)
            call(patient)
        with self.assertRaisesRegex(ValueError, "deadline: must be above 0"):
            self.open(deadline=0)

    def test_what_is_wrong_is_named(self):
        samples, scorer = self.samples, self.open()
        ids, dense = samples.ids(), samples.dense()
        lines = samples.lines()
        user, item = {"user": [1], "words": [[2]]}, {"item": [3, 4]}
        two = dense[:2]
        for kind, text, call in (
            (ValueError, "'words' is missing", lambda: scorer.score({"user": [1], "item": [1]})),
            (ValueError, "feature 'shop'", lambda: scorer.score({**ids, "shop": [1]}, dense)),
            (TypeError, "float64", lambda: scorer.score({**ids, "user": samples.age}, dense)),
            (ValueError, "'item': has 3 samples",
             lambda: scorer.score({**ids, "item": ids["item"][:3]}, dense)),
            (ValueError, "dense: is missing", lambda: scorer.score(ids)),
            (TypeError, "dense: is float64", lambda: scorer.score(ids, dense.astype(float))),
            (ValueError, "dense: has shape", lambda: scorer.score(ids, dense[:, :1])),
            (ValueError, "dense: .*contiguous", lambda: scorer.score(ids, dense.T.copy().T)),
            (ValueError, "must be contiguous",
             lambda: scorer.score(ids, np.zeros((300, 4), np.float32)[:, :2])),
            (ValueError, "out: has shape",
             lambda: scorer.score(ids, dense, out=np.empty(300, np.float32)[:, None][:3])),
            (TypeError, "out: is float64", lambda: scorer.score(ids, dense, out=np.empty((300, 1)))),
            (TypeError, "batch: is list", lambda: scorer.score([1], dense)),
            (ValueError, "words.*sample 1: 5 values, at most 4", lambda: self.open("din").score(
                {"user": [1, 2], "item": [1, 2], "words": (np.arange(6), np.array([1, 5]))}, two)),
            (ValueError, r"values\[1\] is -1: ids of 32 bits must not be negative", lambda:
             scorer.score({**ids, "user": np.array([1, -1] * 150, np.int32)}, dense)),
            (ValueError, "names of the columns",
             lambda: scorer.score_lines([",".join(scorer.line_columns)])),
            (TypeError, "one line", lambda: scorer.score_lines(lines[0])),
            (TypeError, r"lines\[1\]: is 5", lambda: scorer.score_lines([lines[0], 5])),
            (ValueError, "line 2: .*expected 5", lambda: scorer.score_lines([lines[0], "1,2"])),
            (TypeError, "user: is list", lambda: scorer.score_candidates([1], item)),
            (ValueError, "no feature 'shop'", lambda: scorer.score_candidates({"shop": [1]}, item)),
            (ValueError, "in user and in candidates",
             lambda: scorer.score_candidates({"user": [1], "item": [1]}, item)),
            (ValueError, "user: has 2 samples",
             lambda: scorer.score_candidates({**user, "user": [1, 2], "words": [[1], [2]]}, item)),
            (ValueError, "user_dense: the model has no dense feature 'size'",
             lambda: scorer.score_candidates(user, item, user_dense={"size": 1}, dense=two)),
            (ValueError, "user_dense: is 2, must lie in",
             lambda: scorer.score_candidates(user, item, user_dense={2: 1}, dense=two)),
            (ValueError, "given twice",
             lambda: scorer.score_candidates(user, item, user_dense={1: 1, "age": 2}, dense=two)),
            (ValueError, "how many candidates", lambda: scorer.score_candidates(
                {**user, "item": [1]}, {}, user_dense={0: 1, 1: 1})),
            (ValueError, "rows: is \"int3\", must be one of", lambda: self.open(rows="int3")),
            (ValueError, "^precision: ", lambda: self.open(precision="fp64")),
            (MemoryError, "^memory: .*budget is 10", lambda: self.open(memory=10)),
            (ValueError, "^max_batch_size must lie", lambda: self.open(max_batch_size=0)),
            (RuntimeError, "nowhere", lambda: self.open("nowhere")),
        ):
            with self.subTest(text), self.assertRaisesRegex(kind, text):
                call()
        # And it scores as before.
        self.assertEqual(scorer.score(ids, dense).shape, (300, 1))
        self.assertEqual(scorer.score_lines([]).shape, (0, 1))


if __name__ == "__main__":
    unittest.main()
