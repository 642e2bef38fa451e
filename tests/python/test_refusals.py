"""Bad input is a Python exception that names the argument.

dtype, shape, unknown feature, negative lengths, arrays that are not contiguous: test_batches; of
gradients and outputs: test_steps, test_outputs. A step used twice: test_steps. A path without
permission: test_a_path_without_permission. Devices: test_torch.py, DevicesTest.
"""

import copy
import os
import pickle
import tempfile
import unittest

import numpy as np

import hotrow

IDS = np.array([1, 2, 3])


class RefusalsTest(unittest.TestCase):
    def setUp(self):
        self.tables = hotrow.EmbeddingCollection(
            [hotrow.Table("items", 4, num_embeddings=100), hotrow.Table("users", 2)],
            store=hotrow.Memory("16MiB"), max_batch_size=8,
        )

    def tearDown(self):
        self.tables._abandon()

    def refused(self, batch, kind, *parts):
        with self.assertRaises(kind) as caught:
            self.tables.prefetch(batch)
        for part in parts:
            self.assertIn(part, str(caught.exception))

    def test_batches(self):
        good = {"items": IDS, "users": IDS}
        self.refused(IDS, TypeError, "ndarray")
        self.refused({"items": IDS}, ValueError, "users", "missing")
        self.refused({**good, "shops": IDS}, ValueError, "shops")
        self.refused({**good, "items": IDS.astype(float)}, TypeError, "items", "float64")
        self.refused({**good, "items": np.array(["a"])}, TypeError, "items", "hash texts")
        self.refused({**good, "items": IDS[::2]}, ValueError, "items", "contiguous")
        self.refused({**good, "items": IDS[:2]}, ValueError, "users", "3 samples")
        self.refused({**good, "items": IDS.reshape(1, 1, 3)}, ValueError, "items", "shape")
        self.refused({**good, "items": (IDS, IDS, IDS)}, ValueError, "items", "tuple of 3")
        self.refused({**good, "items": hotrow.Bags(IDS)}, ValueError, "items", "either")
        self.refused({**good, "items": (IDS, np.array([1, -1, 3]))}, ValueError, "items", "-1")
        self.refused({**good, "items": (IDS, np.array([1, 1, 2]))}, ValueError, "items")
        self.refused({**good, "items": (IDS, np.array([1.0, 1, 1]))}, TypeError, "lengths", "items")
        self.refused(
            {**good, "items": hotrow.Bags(IDS, np.ones(3, int), None, np.ones(2, "f4"))},
            ValueError, "weights", "items",
        )
        self.refused({**good, "items": np.array([1, 2, 100])}, ValueError, "100")
        many = np.zeros(9, int)
        self.refused({"items": many, "users": many}, ValueError, "9")
        self.refused(hotrow.Jagged(3, IDS, np.ones(3, int)), ValueError, "lengths", "6")
        self.refused(hotrow.Jagged(-1, IDS, np.ones(3, int)), ValueError, "batch_size")
        step = self.tables.prefetch(good)
        step.cancel()

    def test_steps(self):
        step = self.tables.prefetch({"items": IDS, "users": IDS})
        pooled = step.lookup().pooled
        with self.assertRaisesRegex(TypeError, "gradient.*float64"):
            step.update(pooled.astype(float))
        with self.assertRaisesRegex(ValueError, "gradient.*shape"):
            step.update(pooled[:, :3])
        with self.assertRaisesRegex(ValueError, "gradient.*users"):
            step.update({"items": pooled[:, :4]})
        with self.assertRaisesRegex(ValueError, "gradient.*contiguous"):
            step.update(np.asfortranarray(pooled))
        with self.assertRaisesRegex(TypeError, "gradient.*str"):
            step.update("none")
        step.update(pooled)
        with self.assertRaisesRegex(hotrow.errors.FailedPrecondition, "updated already"):
            step.update(pooled)
        with self.assertRaisesRegex(RuntimeError, "updated already"):
            step.lookup()
        step.cancel()
        cancelled = self.tables.prefetch({"items": IDS, "users": IDS})
        cancelled.cancel()
        with self.assertRaisesRegex(RuntimeError, "cancelled"):
            cancelled.lookup()

    def test_outputs(self):
        batch = {"items": IDS, "users": IDS}
        parts = {"items": np.zeros((3, 4), np.float32), "users": np.zeros((3, 2), np.float32)}
        with self.assertRaisesRegex(TypeError, "out: is dict"):  # what is pooled lies in one array
            self.tables.evaluate(batch, out=parts)
        whole = np.zeros((3, 6), np.float32)
        self.tables.evaluate(batch, out=whole)
        np.testing.assert_array_equal(whole, self.tables.evaluate(batch).pooled)
        whole.flags.writeable = False
        with self.assertRaisesRegex(ValueError, "out: is read-only"):
            self.tables.evaluate(batch, out=whole)

    def test_a_closed_collection(self):
        step = self.tables.prefetch({"items": IDS, "users": IDS})
        with self.assertRaises(hotrow.errors.FailedPrecondition):
            self.tables.close()
        step.cancel()
        handle = self.tables._handle
        self.tables.close()
        self.tables.close()
        with self.assertRaisesRegex(RuntimeError, "closed"):  # as of a thread that had begun before
            hotrow._abi.flush(handle)
        with self.assertRaisesRegex(KeyError, "mine"), hotrow.EmbeddingCollection(
            [hotrow.Table("items", 4)], store=hotrow.Memory("16MiB"), max_batch_size=8
        ) as tables:
            handle = tables._handle
            raise KeyError("mine")
        with self.assertRaisesRegex(RuntimeError, "closed"):
            hotrow._abi.flush(handle)
        with self.assertRaisesRegex(RuntimeError, "closed"):
            self.tables.prefetch({"items": IDS, "users": IDS})
        with self.assertRaisesRegex(RuntimeError, "closed"):
            self.tables.stats()

    def test_options(self):
        def refused(kind, part, tables=None, **changes):
            arguments = dict(store=hotrow.Memory("16MiB"), max_batch_size=8)
            arguments.update(changes)
            with self.assertRaises(kind) as caught:
                hotrow.EmbeddingCollection(tables or [hotrow.Table("items", 4)], **arguments)
            self.assertIn(part, str(caught.exception))

        refused(ValueError, "max_batch_size", max_batch_size=0)
        refused(TypeError, "max_batch_size", max_batch_size="8")
        refused(TypeError, "store", store="/data")
        refused(ValueError, "cache", cache="8 bananas")
        refused(ValueError, "lru", cache="8MiB", cache_policy="random")
        refused(ValueError, "prefetch_depth", prefetch_depth=99)
        refused(ValueError, "resume", resume=True)
        refused(ValueError, "disk_bytes", store=hotrow.Ssd("/tmp/x", disk_bytes=0), cache="8MiB")
        refused(ValueError, "store.path", store=hotrow.Ssd(["/tmp/x", ""], disk_bytes=1), cache=1)
        refused(ValueError, "tables[0]: dim", [hotrow.Table("items", 0)])
        refused(TypeError, "tables[0]", ["items"])
        refused(TypeError, "tables[0].features", [hotrow.Table("items", 4, "item")])
        refused(ValueError, "pooling", [hotrow.Table("items", 4, pooling="max")])
        refused(ValueError, "weights_precision", [hotrow.Table("a", 4, weights_precision="int3")])
        refused(TypeError, "optimizer", [hotrow.Table("items", 4, optimizer="sgd")])
        refused(ValueError, "optimizer.lr=-1: takes", [hotrow.Table("a", 4, optimizer=hotrow.Sgd(lr=-1))])
        refused(ValueError, "twice", [hotrow.Table("items", 4, ["a"]), hotrow.Table("b", 4, ["a"])])
        refused(RuntimeError, "none", init_from="/none")
        refused(MemoryError, "memory", store=hotrow.Memory("1KiB"))
        refused(ValueError, "budget_bytes", cache=2**63 - 1)

    def test_numbers_that_do_not_fit(self):
        """ctypes would cut them off."""
        def made(table={}, **changes):
            arguments = {"store": hotrow.Memory("16MiB"), "max_batch_size": 8, **changes}
            return hotrow.EmbeddingCollection([hotrow.Table("items", 4, **table)], **arguments)

        def ssd(**changes):
            return made(store=hotrow.Ssd("/tmp/x", **{"disk_bytes": "1GiB", **changes}))

        def optimizer(**changes):
            return made(dict(optimizer=hotrow.Ftrl(**changes)))

        class Transport:
            def __init__(self, rank=0, world_size=1):
                self.rank, self.world_size = rank, world_size

        def communicator(timeout_seconds=30.0, **changes):
            return hotrow.Communicator(Transport(**changes), timeout_seconds)

        def data(**changes):
            return hotrow.Data("synthetic:tables=1,samples=30", **changes)

        def samples(**changes):
            return data().batches(**{"batch_size": 3, **changes})

        nan, inf = float("nan"), float("inf")
        for call, name, values in (
            (made, "seed", (2**64, -1, 1.5, True)),
            (made, "max_batch_size", (2**64 + 8, 1.5, None)),
            (made, "prefetch_depth", (2**64, 0.5)),
            (made, "checkpoint_keep", (2**64 + 1, 1.5)),
            (made, "threads", (2**32 + 1, 2**31, -1, 1.5)),
            (made, "max_gradient_norm", (nan, inf, 1e300, "1", -1.0)),
            (made, "cache", (2**64 + 4096, -1, 2.5, "99999999PB", np.int64(-1))),
            (made, "evaluation_staging", (2**63, -1)),
            (made, "exchange_feedback", (2**64, -1)),
            (ssd, "disk_bytes", (2**64 + 2**30, -1)),
            (ssd, "memory", (2**64 + 2**30, "9" * 400 + ".5GB")),
            (lambda **changes: made(changes), "num_embeddings", (2**64 + 1, 0.5)),
            (lambda **changes: made(changes), "max_hotness", (2**64 + 1, 0.5)),
            (lambda **changes: made(changes), "max_row_gradient_norm", (nan, inf, 1e39)),
            (
                lambda bound: made(dict(initializer=hotrow.uniform(bound))), "bound",
                (nan, inf, 1e39),
            ),
            (optimizer, "lr", (nan, inf, -inf, 1e39, "1", True)),
            (optimizer, "l1", (nan, inf)),
            (optimizer, "beta", (nan, inf)),
            (communicator, "rank", (2**32, -1, 0.5)),
            (communicator, "world_size", (2**32 + 1, 0)),
            (communicator, "timeout_seconds", (nan, inf, 0, -1, "1")),
            (data, "seed", (2**64, -1, 1.5)),
            (data, "reader_threads", (2**32 + 1, 0, -1, 1.5)),
            (samples, "batch_size", (2**64 + 3, 1.5)),
            (samples, "epoch", (2**64, 0.5)),
            (samples, "first_sample", (2**64, 0.5)),
        ):
            for value in values:
                named = {"bound": "initializer.value"}.get(name, name)
                with self.subTest(name, value=value):
                    with self.assertRaisesRegex((ValueError, TypeError), named):
                        call(**{name: value})
        self.assertEqual(next(data(seed=np.uint64(2**64 - 1)).batches(30)).ids.batch_size, 30)
        made(seed=2**64 - 1, cache=np.int64(8 << 20)).close()

    def test_numbers_that_are_not_finite(self):
        before = self.tables.digest()
        for value in (float("nan"), float("inf")):
            step = self.tables.prefetch({"items": IDS, "users": IDS})
            gradient = np.zeros_like(step.lookup().pooled)
            gradient[1, 2] = value
            with self.assertRaisesRegex(ValueError, rf"gradient: pooled\[1, 2\] is {value}"):
                step.update(gradient)
            weights = np.array([1.0, value, 1.0], dtype=np.float32)[: len(IDS)]
            items = hotrow.Bags(IDS, np.ones(len(IDS), dtype=np.int64), weights=weights)
            for call in (self.tables.prefetch, self.tables.evaluate):
                with self.assertRaisesRegex(ValueError, '"items", sample 1: its weight is'):
                    call({"items": items, "users": IDS})
        self.assertEqual(self.tables.digest(), before)

    def test_keys_of_32_bits(self):
        """The rule: an int32 is a key that is not negative."""
        words = np.array([-5, 7], dtype=np.int32)
        items = np.array([1, 2])
        with self.assertRaisesRegex(ValueError, "is -5: ids of 32 bits must not be negative.*int64.*uint64"):
            self.tables.evaluate({"items": items, "users": words})
        keys = np.array([2**64 - 5, 2**32 - 5, 7], dtype=np.uint64)
        self.tables.write_rows("users", keys, np.array([[0, 0], [1, 1], [2, 2]]))
        for users, row in (
            (words.astype(np.int64), 0),  # its sign
            (words.view(np.uint32).astype(np.uint64), 1),  # its 32 bits
        ):
            found = self.tables.evaluate({"items": items, "users": users})["users"]
            np.testing.assert_array_equal(found[:, 0], [row, 2])
        found = self.tables.evaluate({"items": items[1:], "users": words[1:]})["users"]
        np.testing.assert_array_equal(found[:, 0], [2])

    def test_masked_arrays(self):
        masked = np.ma.array([1, 2, 3], mask=[0, 1, 0])
        whole = np.ma.array([1, 2, 3])
        self.tables.evaluate({"items": whole, "users": whole})
        step = self.tables.prefetch({"items": IDS, "users": IDS})
        pooled = step.lookup().pooled
        hidden = np.ma.array(pooled, mask=pooled > -1)
        for what, call in (
            ("values", lambda: self.tables.evaluate({"items": masked, "users": whole})),
            ("lengths", lambda: self.tables.evaluate({"items": (IDS, masked), "users": whole})),
            ("keys", lambda: self.tables.read_rows("items", masked)),
            ("gradient", lambda: step.update(hidden)),
            ("rows", lambda: self.tables.write_rows("items", whole, hidden[:3, :4])),
        ):
            with self.assertRaisesRegex(ValueError, what + ".*masked entries"):
                call()
        step.cancel()

    def test_an_interrupt_within_a_transport_stays_one(self):
        class Interrupted:
            rank, world_size = 0, 2

            def exchange(self, *_):
                raise KeyboardInterrupt

            def duplicate(self):
                return self

            def abort(self, message):
                pass

            def close(self):
                pass

        with self.assertRaises(KeyboardInterrupt):
            hotrow.EmbeddingCollection(
                [hotrow.Table("items", 4)], store=hotrow.Memory("16MiB"), max_batch_size=8,
                communicator=hotrow.Communicator(Interrupted()),
            )

    def test_rates_of_an_update(self):
        for value in (float("nan"), float("inf"), 1e300, -1.0, "1", None):
            step = self.tables.prefetch({"items": IDS, "users": IDS})
            gradient = step.lookup().pooled
            with self.assertRaisesRegex((ValueError, TypeError), "lr_factor"):
                step.update(gradient, lr_factor=value)
            step.cancel()
        self.assertEqual(self.tables.steps, 0)

    def test_handles_are_not_copied(self):
        step = self.tables.prefetch({"items": IDS, "users": IDS})
        for owner in (self.tables, step):
            for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
                with self.assertRaisesRegex(TypeError, "neither be copied nor pickled"):
                    duplicate(owner)
        step.cancel()
        with tempfile.TemporaryDirectory() as folder:
            with hotrow.EmbeddingCollection(
                [hotrow.Table("items", 4)], store=hotrow.Memory("16MiB"), max_batch_size=8,
                checkpoint_dir=folder,
            ) as tables:
                tables.save_checkpoint({"a": b"xyz"})
            saved = hotrow.Saved(folder)
            data = hotrow.Data("synthetic:tables=1,samples=30", seed=2)
            for duplicate in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
                again = duplicate(saved)
                self.assertNotEqual(again._handle, saved._handle)
                self.assertEqual(again["a"], b"xyz")
                again = duplicate(data)
                self.assertNotEqual(again._handle, data._handle)
                ids = [next(its.batches(30)).ids.values for its in (data, again)]
                np.testing.assert_array_equal(*ids)

    def test_files(self):
        with self.assertRaises(hotrow.Error):
            hotrow.Saved("/nowhere")
        with self.assertRaisesRegex(ValueError, "nothing"):
            hotrow.Data("nothing")
        with self.assertRaises(ValueError):
            next(hotrow.Data("synthetic:tables=1,samples=3").batches(0))
        with self.assertRaisesRegex(RuntimeError, "checkpoint_dir"):
            self.tables.save_checkpoint()
        with self.assertRaisesRegex(ValueError, "shops"):
            self.tables.read_rows("shops", IDS)

    def test_a_path_without_permission(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            locked = os.path.join(folder, "locked")
            os.mkdir(locked, mode=0o500)
            root = os.geteuid() == 0  # may write everywhere, so another user tries
            try:
                if root:
                    os.seteuid(65534)
                if os.access(locked, os.W_OK, effective_ids=True):
                    self.skipTest("no user without permission is at hand")
            except OSError as error:
                self.skipTest(f"no user without permission is at hand ({error})")
            try:
                for changes in (
                    dict(store=hotrow.Ssd(locked + "/rows", disk_bytes="1GiB"), cache="8MiB"),
                    dict(store=hotrow.Memory("16MiB"), checkpoint_dir=locked + "/saved"),
                ):
                    with self.subTest(str(changes)), self.assertRaisesRegex(
                        (hotrow.Error, PermissionError), "locked.*[Pp]ermission"
                    ):
                        hotrow.EmbeddingCollection(
                            [hotrow.Table("items", 4)], max_batch_size=8, **changes
                        )
            finally:
                if root:
                    os.seteuid(0)

    def test_sizes(self):
        from hotrow.options import parse_bytes

        for text, value in (("64MiB", 64 << 20), ("1.5G", 1_500_000_000), ("2 KB", 2000), (7, 7)):
            self.assertEqual(parse_bytes(text, "x"), value)


if __name__ == "__main__":
    unittest.main()
