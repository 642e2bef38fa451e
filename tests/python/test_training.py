"""Tables from Python: what they compute, and that every way to give a batch is the same."""

import gc
import os
import signal
import tempfile
import threading
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request
import weakref

import numpy as np

import hotrow
from hotrow import _abi

DIM = 4


def make(**changes):
    arguments = dict(store=hotrow.Memory("16MiB"), cache="8MiB", max_batch_size=64, seed=3)
    arguments.update(changes)
    tables = arguments.pop("tables", None) or [
        hotrow.Table("items", DIM, ["item", "seen"], optimizer=hotrow.Sgd(lr=1.0)),
        hotrow.Table("users", 2, ["user"], optimizer=hotrow.RowwiseAdagrad(lr=0.1)),
    ]
    return hotrow.EmbeddingCollection(tables, **arguments)


def train(tables, batches, scale=0.5):
    outputs = []
    for batch in batches:
        with tables.prefetch(batch) as step:
            embeddings = step.lookup()
            outputs.append(embeddings.pooled.copy())
            step.update(np.full_like(embeddings.pooled, scale))
    return outputs


def batch_of(seed=0, size=5):
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 3, size)
    return {
        "item": random.integers(0, 50, size),
        "seen": (random.integers(0, 50, lengths.sum()), lengths),
        "user": random.integers(0, 9, (size, 2)),
    }


class TrainingTest(unittest.TestCase):
    def test_rows_move_by_the_gradient_times_the_rate(self):
        ids = np.array([7, 8, 7], dtype=np.int64)
        with make(tables=[hotrow.Table("items", DIM, optimizer=hotrow.Sgd(lr=1.0))]) as tables:
            step = tables.prefetch({"items": ids})
            before = step.lookup().pooled
            self.assertEqual(before.shape, (3, DIM))
            np.testing.assert_array_equal(before[0], before[2])
            gradient = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)
            step.update(gradient, lr_factor=0.5)
            rows, found = tables.read_rows("items", np.array([7, 8, 9], dtype=np.uint64))
            self.assertEqual(found.tolist(), [True, True, False])
            np.testing.assert_allclose(
                rows[0], before[0] - 0.5 * (gradient[0] + gradient[2]), rtol=0, atol=1e-6
            )
            np.testing.assert_allclose(rows[1], before[1] - 0.5 * gradient[1], atol=1e-6)
            self.assertEqual(tables.steps, 1)

    def test_erased_keys_are_new(self):
        with make(tables=[hotrow.Table("items", DIM, optimizer=hotrow.Sgd(lr=1.0))]) as tables:
            first = tables.evaluate({"items": np.array([7])}).pooled
            train(tables, [{"items": np.array([7, -8])}])
            tables.erase("items", np.array([7, 7, 9], dtype=np.uint64))
            keys, _ = tables.read_table("items")
            self.assertEqual(keys.tolist(), [(1 << 64) - 8])
            np.testing.assert_array_equal(tables.evaluate({"items": np.array([7])}).pooled, first)
            tables.erase("items", np.array([-8]))
            self.assertEqual(len(tables.read_table("items")[0]), 0)
            with tables.prefetch({"items": np.array([7])}) as step:
                step.lookup()
                with self.assertRaises(hotrow.errors.FailedPrecondition):
                    tables.erase("items", np.array([7]))
            with self.assertRaisesRegex(TypeError, "keys"):
                tables.erase("items", np.array([7.0]))

    def test_pretrained_rows(self):
        with make() as tables:
            rows = np.arange(2 * DIM, dtype=np.float64).reshape(2, DIM)
            tables.write_rows("items", np.array([7, -8]), rows)
            read, found = tables.read_rows("items", np.array([-8, 7, 1]))
            self.assertEqual(found.tolist(), [True, True, False])
            np.testing.assert_array_equal(read[:2], rows[::-1])
            with self.assertRaisesRegex(ValueError, "shape"):
                tables.write_rows("items", np.array([7]), rows)
            with self.assertRaisesRegex(hotrow.errors.InvalidArgument, "key 7 occurs twice"):
                tables.write_rows("items", np.array([7, 7]), rows)
            with self.assertRaisesRegex(hotrow.errors.InvalidArgument, "finite"):
                tables.write_rows("items", np.array([7, 8]), rows * np.nan)
            with tables.prefetch({"item": np.array([7]), "seen": np.array([8]),
                                  "user": np.array([1])}):
                with self.assertRaises(hotrow.errors.FailedPrecondition):
                    tables.write_rows("items", np.array([7, 8]), rows)

    def test_rows_that_are_older_than_a_step_go(self):
        with make(tables=[hotrow.Table("items", DIM, optimizer=hotrow.Sgd(lr=1.0))]) as tables:
            train(tables, [{"items": np.array([1, 2])}, {"items": np.array([2, 3])}])
            self.assertEqual(tables.erase_older_than("items", 1), 0)
            self.assertEqual(tables.erase_older_than("items", 2), 1)
            keys, _ = tables.read_table("items")
            self.assertEqual(sorted(keys.tolist()), [2, 3])
            self.assertEqual(tables.erase_older_than("items", np.int64(9)), 2)
            with self.assertRaisesRegex(hotrow.errors.InvalidArgument, "step"):
                tables.erase_older_than("items", -1)
            with self.assertRaises(TypeError):
                tables.erase_older_than("items", 1.5)
            train(tables, [{"items": np.array([1])}])
            for step in (-(2**64) + 5, 2**64 + 5):
                with self.assertRaisesRegex(ValueError, "step: is"):
                    tables.erase_older_than("items", step)
            self.assertEqual(len(tables.read_table("items")[0]), 1)

    def test_of_a_capacity_by_score_the_highest_stay(self):
        ids, ones = np.array([1, 2, 3, 2]), np.array([1, 1, 1, 1])
        worth = np.array([5, -1, 3, 2], np.float32)
        batches = (
            {"items": hotrow.Bags(ids, ones, scores=worth), "plain": ids},
            hotrow.Jagged(
                4, np.concatenate([ids, ids]), np.concatenate([ones, ones]),
                scores=np.concatenate([worth, worth]),
            ),
        )
        for batch in batches:
            with make(
                tables=[
                    hotrow.Table("items", DIM, score="sum", max_rows=2, max_rows_by="score"),
                    hotrow.Table("plain", DIM),
                ],
                row_limit_steps=1,
            ) as tables:
                train(tables, [batch])
                keys, _ = tables.read_table("items")
                self.assertEqual(sorted(keys.tolist()), [1, 3])  # 2 has 1
                # None of these brings a score, also behind a batch that did.
                train(tables, [{"items": np.array([4, 1]), "plain": np.array([4, 1])}])
                keys, _ = tables.read_table("items")
                self.assertEqual(sorted(keys.tolist()), [1, 3])
                wrong = hotrow.Bags(ids, ones, scores=worth[:2])
                with self.assertRaisesRegex(ValueError, "scores of feature 'items': has 2"):
                    tables.prefetch({"items": wrong, "plain": ids})
                with self.assertRaisesRegex(hotrow.errors.InvalidArgument, "keeps none"):
                    tables.prefetch({"items": ids, "plain": hotrow.Bags(ids, ones, scores=worth)})
                with self.assertRaisesRegex(hotrow.errors.InvalidArgument, "finite"):
                    nan = np.array([5, np.nan, 3, 2], np.float32)
                    tables.prefetch({"items": hotrow.Bags(ids, ones, scores=nan), "plain": ids})

    def test_every_form_of_a_batch_trains_the_same_rows(self):
        batch = batch_of()
        size = len(batch["item"])
        values, lengths = batch["seen"]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        all_values = np.concatenate([batch["item"], values, batch["user"].reshape(-1)])
        all_lengths = np.concatenate([np.ones(size, int), lengths, np.full(size, 2)])
        forms = {
            "lengths": batch,
            "offsets": {**batch, "seen": hotrow.Bags(values, offsets=offsets)},
            "int32": {
                "item": batch["item"].astype(np.int32),
                "seen": (values.astype(np.int32), lengths.astype(np.int32)),
                "user": batch["user"].astype(np.int32),
            },
            "uint64": {
                "item": batch["item"].astype(np.uint64),
                "seen": (values.astype(np.uint64), lengths),
                "user": batch["user"].astype(np.uint64),
            },
            "read-only": {**batch, "item": np.frombuffer(batch["item"].tobytes(), np.int64)},
            "lists": {**batch, "item": batch["item"].tolist()},
            "weights of 1": {
                **batch, "seen": hotrow.Bags(values, lengths, None, np.ones(len(values), "f4"))
            },
            "jagged": hotrow.Jagged(size, all_values, all_lengths),
            "jagged offsets": hotrow.Jagged(
                size, all_values, offsets=np.concatenate([[0], np.cumsum(all_lengths)])
            ),
        }
        digests = {}
        for name, form in forms.items():
            with make() as tables:
                train(tables, [form, form])
                digests[name] = tables.digest()["hash"]
        self.assertEqual(len(set(digests.values())), 1, digests)

    def test_cache_store_depth_and_threads_move_no_bit(self):
        batches = [batch_of(seed) for seed in range(6)]
        digests = set()
        with tempfile.TemporaryDirectory() as folder:
            for changes in (
                dict(cache=0),
                dict(threads=1),
                dict(cache_policy="lfu", prefetch_depth=2),
                dict(store=hotrow.Ssd(folder + "/rows", disk_bytes="256MiB", memory="64MiB")),
            ):
                with make(**changes) as tables:
                    train(tables, batches)
                    digests.add(tables.digest()["hash"])
        self.assertEqual(len(digests), 1)

    def test_steps_ahead_are_trained_in_order(self):
        batches = [batch_of(seed) for seed in range(5)]
        with make() as tables:
            expected = train(tables, batches)
        with make(prefetch_depth=4) as tables:
            steps = [tables.prefetch(batch) for batch in batches]
            for step, want in zip(steps, expected):
                got = step.lookup().pooled
                np.testing.assert_array_equal(got, want)
                step.update(np.full_like(got, 0.5))
            for step in steps:
                step.cancel()

    def test_arrays_that_are_not_copied_are_kept_until_the_step_is_over(self):
        hashes = set()
        for copy in (True, False):
            with make(prefetch_depth=2) as tables:
                steps, arrays = [], []
                for number in range(3):
                    ids = np.random.default_rng(number).integers(0, 50, 24)
                    batch = hotrow.Jagged(4, ids, offsets=np.arange(0, 26, 2))
                    steps.append(tables.prefetch(batch, copy=copy))
                    if copy:
                        ids[:] = -1
                    arrays.append(weakref.ref(ids))
                    del batch, ids
                self.assertEqual([array() is None for array in arrays], [copy] * 3)
                out = steps[0].lookup()
                steps[0].update(out)
                self.assertIsNone(arrays[0]())
                steps[1].cancel()
                self.assertIsNone(arrays[1]())
                del steps[2]
                self.assertEqual(arrays[2]() is None, copy)  # until the next call
                hashes.add(tables.digest()["hash"])
                self.assertIsNone(arrays[2]())
        self.assertEqual(len(hashes), 1)

    def test_features_without_pooling(self):
        tables = [
            hotrow.Table("items", DIM, ["item"], optimizer=hotrow.Sgd(lr=1.0)),
            hotrow.Table("words", 3, ["query"], pooling="none", optimizer=hotrow.Sgd(lr=1.0)),
        ]
        values, lengths = np.array([5, 6, 5]), np.array([2, 0, 1])
        batch = {"item": np.array([1, 2, 3]), "query": (values, lengths)}
        jagged = hotrow.Jagged(
            3, np.concatenate([batch["item"], values]), np.concatenate([np.ones(3, int), lengths])
        )
        for form in (batch, jagged):
            with make(tables=tables) as collection:
                step = collection.prefetch(form)
                out = step.lookup()
                self.assertEqual(out.pooled.shape, (3, DIM))
                self.assertEqual(out["query"].shape, (3, 3))
                np.testing.assert_array_equal(out["query"][0], out["query"][2])
                gradient = out.empty_like()
                gradient.pooled[:] = 0
                gradient["query"][:] = [[1.0] * 3, [0.0] * 3, [2.0] * 3]
                step.update(gradient)
                after = collection.evaluate(form)
                np.testing.assert_allclose(after["query"][0], out["query"][0] - 3, atol=1e-6)
                np.testing.assert_array_equal(after["item"], out["item"])

    def test_a_batch_may_have_no_ids_or_no_samples(self):
        tables = [hotrow.Table("items", DIM), hotrow.Table("words", 3, pooling="none")]
        none = np.empty(0, np.int64)
        for size in (3, 0):
            with make(tables=tables) as collection:
                batch = {name: (none, np.zeros(size, int)) for name in ("items", "words")}
                step = collection.prefetch(batch)
                out = step.lookup()
                self.assertEqual(out.pooled.shape, (size, DIM))
                self.assertEqual(out["words"].shape, (0, 3))
                step.update(out)
                self.assertEqual(collection.evaluate(batch)["words"].shape, (0, 3))
                self.assertEqual(collection.steps, 1)

    def test_gradients_by_feature_are_those_of_one_array(self):
        batch = batch_of()
        digests = set()
        for split in (False, True):
            with make() as tables:
                step = tables.prefetch(batch)
                pooled = step.lookup().pooled
                gradient = np.arange(pooled.size, dtype=np.float32).reshape(pooled.shape)
                if split:
                    gradient = {
                        "item": gradient[:, :DIM],
                        "seen": gradient[:, DIM : 2 * DIM],
                        "user": gradient[:, 2 * DIM :],
                    }
                step.update(gradient)
                digests.add(tables.digest()["hash"])
        self.assertEqual(len(digests), 1)

    def test_evaluation_leaves_no_trace(self):
        with make() as tables:
            train(tables, [batch_of()])
            before = tables.digest()
            first = tables.evaluate(batch_of(1))
            again = tables.evaluate(batch_of(1), out=first.empty_like())
            np.testing.assert_array_equal(first.pooled, again.pooled)
            self.assertEqual(tables.digest(), before)

    def test_a_step_that_is_dropped_changes_nothing(self):
        with make() as tables:
            train(tables, [batch_of()])
            before = tables.digest()["hash"]
            with tables.prefetch(batch_of(1)) as step:
                step.lookup()
            tables.prefetch(batch_of(2))
            gc.collect()
            self.assertEqual(tables.digest()["hash"], before)
            train(tables, [batch_of(3)])

    def test_an_interrupt_leaves_nothing_behind(self):
        def interrupted(name):  # Control-C while the library works is seen when it has returned
            function = getattr(_abi, name)

            def call(*arguments):
                function(*arguments)
                raise KeyboardInterrupt

            return unittest.mock.patch.object(_abi, name, call)

        with make() as tables:
            for name, copy in (("prefetch", True), ("prefetch_in_place", False)):
                with interrupted(name), self.assertRaises(KeyboardInterrupt):
                    tables.prefetch(batch_of(0), copy=copy)
            train(tables, [batch_of(0)])
        with tempfile.TemporaryDirectory() as folder:
            store = hotrow.Ssd(folder + "/rows", disk_bytes="256MiB", memory="64MiB")
            with interrupted("collection_create"), self.assertRaises(KeyboardInterrupt):
                make(store=store)
            gc.collect()
            make(store=store).close()

    def test_all_rows_of_a_table(self):
        with make() as tables:
            train(tables, [{"item": np.array([9, 4]), "seen": np.array([4, 2**40]),
                            "user": np.array([-1, 0])}])
            keys, rows = tables.read_table("items")
            self.assertEqual(keys.tolist(), [4, 9, 2**40])
            np.testing.assert_array_equal(rows, tables.read_rows("items", keys)[0])
            self.assertEqual(tables.read_table("users")[0].tolist(), [0, 2**64 - 1])

            def fail(keys, rows):
                raise KeyError("mine")

            with self.assertRaisesRegex(KeyError, "mine"):
                tables.for_each_row("items", fail)
            with self.assertRaisesRegex(hotrow.Error, "callback"):
                tables.for_each_row("items", lambda keys, rows: tables.flush())

    def test_statistics(self):
        with make() as tables:
            train(tables, [batch_of()])
            stats = tables.stats()
            self.assertEqual(stats["steps"], 1)
            self.assertEqual([tier["name"] for tier in stats["tiers"]], ["cache", "memory"])
            digest = tables.digest()
            self.assertEqual([table["name"] for table in digest["tables"]], ["items", "users"])
            lines = str(stats).splitlines()
            self.assertRegex(lines[0], "^collection: steps 1, ")
            self.assertEqual([line.split(":")[0] for line in lines[1:]],
                             ["tier cache", "tier memory", "table items", "table users"])
            page = stats._repr_html_()  # of a notebook
            self.assertIn("<td>memory</td>", page)
            self.assertIn("<tr><td>steps</td><td>1</td></tr>", page)

    def test_what_people_see(self):
        self.assertEqual(
            repr(hotrow.Table("items", 4, ["item"], optimizer=hotrow.Sgd(lr=1.0))),
            "Table(name='items', dim=4, features=['item'], optimizer=Sgd(lr=1.0))",
        )
        with make() as tables:
            self.assertEqual(
                repr(tables), "<hotrow.EmbeddingCollection of items [4], users [2]; over "
                "Memory(memory='16MiB'), on cpu>",
            )
            step = tables.prefetch(batch_of())
            self.assertEqual(repr(step), "<hotrow.Step of 5 samples: begun>")
            self.assertEqual(repr(step.lookup()), "Embeddings(pooled=[5, 10] of item, seen, user)")
            step.cancel()
            self.assertIn("cancelled", repr(step))
        self.assertIn("; closed>", repr(tables))

    def test_a_batch_may_lack_optional_features(self):
        batch = batch_of()
        empty = {**batch, "user": (np.empty(0, np.int64), np.zeros(5, np.int64))}
        lacking = {name: ids for name, ids in batch.items() if name != "user"}
        with make() as tables, make(optional_features=["user"]) as towers:
            with self.assertRaisesRegex(ValueError, "feature 'user' is missing"):
                tables.prefetch(lacking)
            for one, two in zip(train(tables, [empty, batch]), train(towers, [lacking, batch])):
                np.testing.assert_array_equal(one, two)
            self.assertEqual(tables.digest(), towers.digest())
            self.assertFalse(towers.evaluate(lacking)["user"].any())
            with self.assertRaisesRegex(ValueError, "feature 'item' is missing"):
                towers.prefetch({"seen": batch["seen"]})
        with make(optional_features=["item", "seen", "user"]) as towers:
            with self.assertRaisesRegex(ValueError, "none of the features item, seen, user"):
                towers.prefetch({})
        with self.assertRaisesRegex(ValueError, "optional_features.*'uesr'"):
            make(optional_features=["uesr"])

    def test_numbers_are_served_until_the_end(self):
        with make(metrics_port=0) as tables:
            url = f"http://127.0.0.1:{tables.metrics_port}/metrics"
            train(tables, [batch_of()])
            with urllib.request.urlopen(url, timeout=10) as reply:
                text = reply.read().decode()
            self.assertIn("\nhotrow_updates_total 1\n", text)
            self.assertEqual(text, tables.metrics())
            with self.assertRaises(urllib.error.HTTPError):
                urllib.request.urlopen(url + "/all", timeout=10)
            with self.assertRaisesRegex(OSError, f"metrics_port: {tables.metrics_port} cannot"):
                make(metrics_port=tables.metrics_port)
            port = tables.metrics_port
            with tempfile.TemporaryDirectory() as directory:
                store = hotrow.Ssd(directory + "/store", disk_bytes="64MiB", memory="16MiB")
                try:
                    make(store=store, metrics_port=port)
                except OSError:  # which keeps the traceback; the store is free all the same
                    make(store=store).close()
            child = os.fork()
            if child == 0:
                time.sleep(3)  # it must not keep the port
                os._exit(0)
        with self.assertRaises(urllib.error.URLError):
            urllib.request.urlopen(url, timeout=10)
        dropped = make(metrics_port=port)  # the port is free again
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        gone = weakref.ref(dropped)
        del dropped
        gc.collect()
        self.assertIsNone(gone())

    def test_calls_of_several_threads_wait_for_each_other(self):
        failures = []
        with make() as tables:
            train(tables, [batch_of()])

            def read():
                try:
                    for seed in range(30):
                        tables.evaluate(batch_of(seed))
                        tables.stats()
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=read) for _ in range(3)]
            for thread in threads:
                thread.start()
            train(tables, [batch_of(seed) for seed in range(20)])
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])

    def test_samples_of_the_readers_train(self):
        data = hotrow.Data("synthetic:tables=3,rows=100,samples=40,dense=2", seed=1)
        tables = [hotrow.Table(f["table"], 2, [f["name"]]) for f in data.features]
        with make(tables=tables) as collection:
            seen = 0
            for samples in data.batches(16):
                self.assertEqual(samples.dense.shape, (len(samples), 2))
                self.assertEqual(samples.labels.shape, (len(samples), 1))
                step = collection.prefetch(samples.ids)
                step.update(np.zeros_like(step.lookup().pooled))
                seen += len(samples)
            self.assertEqual(seen, 40)
        kept = next(iter(data.batches(8))).ids.values  # outlives reader and samples
        del data
        gc.collect()
        self.assertTrue((kept < 100).all())


if __name__ == "__main__":
    unittest.main()
