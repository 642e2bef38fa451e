"""A trainer that is killed and resumed ends with the same bits, its own state included."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import hotrow


def one_step(tables, ids=np.array([5, 7, 9])):
    with tables.prefetch({"items": ids}) as step:
        step.update(np.ones_like(step.lookup().pooled))


def batch(step):
    random = np.random.default_rng(step)
    return {"item": random.integers(0, 500, 32)}


def train(folder, store, stop):
    """A model by itself: one weight a column, in `dense`. Prints the step where it goes on, and
    what it ended with."""
    os.makedirs(folder, exist_ok=True)
    kinds = {
        "memory": hotrow.Memory("64MiB"),
        "ssd": hotrow.Ssd(
            [folder + "/rows", folder + "/more,rows"], disk_bytes="512MiB", memory="64MiB"
        ),
    }
    with hotrow.EmbeddingCollection(
        [hotrow.Table("items", 8, ["item"], optimizer=hotrow.RowwiseAdagrad(lr=0.1))],
        store=kinds[store], cache="8MiB", max_batch_size=32, prefetch_depth=1,
        checkpoint_dir=folder + "/checkpoints", resume=True,
    ) as tables:
        dense = np.ones(8, dtype=np.float32)
        if tables.restored is not None:
            dense = np.frombuffer(tables.restored["dense"], dtype=np.float32).copy()
            assert int(tables.restored["step"]) == tables.steps
        print(tables.steps, flush=True)
        for number in range(tables.steps, stop):
            step = tables.prefetch(batch(number))
            vectors = step.lookup().pooled
            step.update(vectors * dense)
            dense -= np.float32(0.01) * vectors.sum(axis=0)
            if number % 5 == 4:
                tables.wait_checkpoint()
                tables.save_checkpoint(
                    {"dense": dense.tobytes(), "step": str(tables.steps).encode()}, wait=False
                )
        tables.wait_checkpoint()
        print(tables.digest()["hash"], dense.tobytes().hex(), flush=True)


class CheckpointsTest(unittest.TestCase):
    def test_killed_anywhere_and_resumed_it_ends_with_the_same_bits(self):
        kills = int(os.environ.get("HOTROW_PYTHON_KILLS", "3"))
        random = np.random.default_rng(1)

        def start(folder, store):
            """The process, and the step at which it goes on."""
            process = subprocess.Popen(
                [sys.executable, __file__, folder, store, str(30 * kills)], stdout=subprocess.PIPE,
                text=True,
            )
            self.addCleanup(process.stdout.close)
            return process, int(process.stdout.readline())

        for store in ("memory", "ssd"):
            with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as cut:
                process, _ = start(whole, store)
                begin = time.monotonic()
                expected = process.stdout.read()
                seconds = time.monotonic() - begin  # of training alone
                self.assertEqual(process.wait(), 0)
                begins = []
                for _ in range(kills):
                    process, step = start(cut, store)
                    begins.append(step)
                    time.sleep(random.uniform(0.0, 2.0) * seconds / kills)
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                process, step = start(cut, store)
                self.assertEqual(process.stdout.read(), expected)
                self.assertEqual(process.wait(), 0)
                print(f"{store}: killed {kills} times, gone on at steps {[*begins, step]}")

    def test_what_a_checkpoint_says(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = dict(
                tables=[hotrow.Table("items", 2)], store=hotrow.Memory("16MiB"), max_batch_size=4,
                checkpoint_dir=folder, checkpoint_model="mine",
            )
            with hotrow.EmbeddingCollection(**arguments) as tables:
                self.assertIsNone(tables.restored)
                self.assertIsNone(tables.newest_checkpoint)
                step = tables.prefetch({"items": np.array([1, 2])})
                step.update(np.ones_like(step.lookup().pooled))
                tables.save_checkpoint({"a": b"xyz", "b": bytearray(b""), "c": np.arange(3)})
                digest = tables.digest()
            saved = hotrow.Saved(folder)
            self.assertEqual((saved.step, saved.model), (1, "mine"))
            self.assertEqual(list(saved), ["a", "b", "c"])
            self.assertEqual(saved["a"], b"xyz")
            self.assertEqual(saved["b"], b"")
            self.assertEqual(np.frombuffer(saved["c"], np.int64).tolist(), [0, 1, 2])
            with self.assertRaises(KeyError):
                saved["d"]
            with self.assertRaisesRegex(hotrow.errors.FailedPrecondition, "resume"):
                hotrow.EmbeddingCollection(**arguments)
            # The tables alone go on elsewhere.
            arguments.update(checkpoint_dir=None, init_from=folder, checkpoint_model="other")
            with hotrow.EmbeddingCollection(**arguments) as tables:
                self.assertEqual(tables.digest(), digest)
                self.assertEqual(tables.restored.path, saved.path)
            arguments.update(tables=[hotrow.Table("items", 3)])
            with self.assertRaisesRegex(hotrow.errors.FailedPrecondition, "columns"):
                hotrow.EmbeddingCollection(**arguments)

    def test_rows_on_a_disk_stay_without_a_checkpoint_dir(self):
        with tempfile.TemporaryDirectory() as folder:
            def opened(**changes):
                return hotrow.EmbeddingCollection(
                    [hotrow.Table("items", 2)], cache="4MiB", max_batch_size=64,
                    store=hotrow.Ssd(folder + "/rows", disk_bytes="64MiB", memory="16MiB"),
                    **changes,
                )

            with opened() as tables:  # what it makes is kept, at the same step and a later one
                one_step(tables)
                self.assertIsNone(tables.restored)
                digest = tables.digest()
            for steps in (1, 1, 2):
                with opened() as tables:
                    self.assertEqual(tables.steps, steps)
                    self.assertEqual(tables.digest(), digest)
                    if steps == 1 and tables.restored.path.endswith("-1"):
                        one_step(tables)
                        digest = tables.digest()
            with (
                self.assertWarnsRegex(UserWarning, "KeyError ended `with`"),
                self.assertRaisesRegex(KeyError, "mine"),
                opened() as tables,
            ):
                one_step(tables)
                raise KeyError("mine")  # as a kill would leave it
            with opened() as tables:
                self.assertEqual(tables.digest(), digest)
                with self.assertRaisesRegex(hotrow.Error, r"^store: Ssd\(path=.*another job"):
                    opened()

    def test_a_store_whose_first_process_was_killed_opens(self):
        for kind in (hotrow.Ssd, hotrow.RocksDb):
            with (
                self.subTest(kind.__name__), tempfile.TemporaryDirectory() as folder,
                contextlib.suppress(NotImplementedError),  # a build without RocksDB
            ):
                def opened():
                    return hotrow.EmbeddingCollection(
                        [hotrow.Table("items", 2)], cache="4MiB", max_batch_size=64,
                        store=kind(folder + "/rows", disk_bytes="64MiB", memory="16MiB"),
                    )

                with self.assertRaisesRegex(KeyError, "mine"), opened() as tables:
                    one_step(tables)
                    tables.flush()
                    raise KeyError("mine")  # as a kill would leave it
                with opened() as tables:
                    self.assertEqual((tables.steps, tables.digest()["tables"][0]["rows"]), (0, 0))
                    one_step(tables)
                with opened() as tables:
                    self.assertEqual(tables.steps, 1)

    def test_a_second_checkpoint_of_a_step_has_what_changed_since(self):
        ssd = hotrow.Ssd("rows", disk_bytes="64MiB", memory="16MiB")
        for kind in (hotrow.Memory("16MiB"), ssd):
            with tempfile.TemporaryDirectory() as folder:
                if isinstance(kind, hotrow.Ssd):
                    kind = dataclasses.replace(kind, path=folder + "/rows")
                arguments = dict(
                    tables=[hotrow.Table("items", 2)], store=kind, cache="4MiB", max_batch_size=64,
                    checkpoint_dir=folder + "/saved", resume=True,
                )
                with hotrow.EmbeddingCollection(**arguments) as tables:
                    one_step(tables)
                    tables.save_checkpoint({"a": b"first"})
                    tables.erase("items", np.array([7]))
                    for number in range(11):
                        tables.save_checkpoint({"a": b"%d" % number})
                with hotrow.EmbeddingCollection(**arguments) as tables:
                    self.assertEqual((tables.steps, tables.restored["a"]), (1, b"10"))
                    self.assertFalse(tables.read_rows("items", np.array([7]))[1].any())
                    self.assertEqual(len(os.listdir(folder + "/saved")), 4)  # two, tables and LOCK

    def test_a_store_that_is_moved_while_it_is_open_takes_no_checkpoint(self):
        def elsewhere():
            return self.assertRaisesRegex(RuntimeError, "/rows.* is elsewhere now, or gone")

        for kind in (hotrow.Memory, hotrow.Ssd, hotrow.RocksDb):
            with (
                self.subTest(kind.__name__), tempfile.TemporaryDirectory() as folder,
                contextlib.suppress(NotImplementedError),  # a build without RocksDB
            ):
                def opened(place="rows"):
                    path = folder + "/" + place
                    where = {"store": hotrow.Memory("16MiB"), "checkpoint_dir": path, "resume": True}
                    if kind is not hotrow.Memory:
                        where = {"store": kind(path, disk_bytes="64MiB", memory="16MiB")}
                    return hotrow.EmbeddingCollection(
                        [hotrow.Table("items", 2)], cache="4MiB", max_batch_size=64, **where
                    )

                tables = opened()
                one_step(tables)
                digest = tables.digest()
                os.rename(folder + "/rows", folder + "/moved")
                with elsewhere():
                    tables.save_checkpoint()
                self.assertFalse(os.path.exists(folder + "/rows"))
                if kind is not hotrow.RocksDb:  # which takes no care
                    with opened() as other:  # in its place
                        one_step(other, np.arange(50))
                        other.save_checkpoint()
                        with elsewhere():
                            tables.save_checkpoint()
                        others = other.digest()
                    with opened() as other:
                        self.assertEqual(other.digest(), others)
                    os.rename(folder + "/rows", folder + "/other")
                os.rename(folder + "/moved", folder + "/rows")
                tables.save_checkpoint()
                tables.close()
                with opened() as again:
                    self.assertEqual(again.digest(), digest)

    def test_checkpoints_make_room_on_a_full_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            with hotrow.EmbeddingCollection(
                [hotrow.Table("items", 32)], cache="1MB", max_batch_size=4096,
                store=hotrow.Ssd(folder + "/rows", disk_bytes="16MB", memory="16MB"),
                checkpoint_dir=folder + "/saved", checkpoint_keep=99,
            ) as tables:
                def saved():
                    return sum(name.startswith("step-") for name in os.listdir(folder + "/saved"))

                count = 0
                while saved() == count:  # of rows that are there, and what the older ones hold
                    one_step(tables, np.arange(4096 * (count % 3), 4096 * (count % 3 + 1)))
                    if saved() == count:
                        tables.save_checkpoint()
                        count += 1
                self.assertLessEqual(saved(), 2)  # the newest, and the one that wanted its room
                tables.erase("items", np.arange(4096))
                tables.save_checkpoint()
                self.assertEqual(tables.digest()["tables"][0]["rows"], 8192)

    def test_a_full_store_is_read_saved_and_made_smaller(self):
        for kind, memory, disk in (
            (hotrow.Ssd, "4MB", "128MB"), (hotrow.Ssd, "16MB", "16MB"),
            (hotrow.RocksDb, "16MB", "12MB"),
        ):
            with (
                self.subTest(disk), tempfile.TemporaryDirectory() as folder,
                contextlib.suppress(NotImplementedError),  # a build without RocksDB
            ):
                arguments = dict(
                    tables=[hotrow.Table("items", 1 if disk == "128MB" else 32)], cache="1MB",
                    store=kind(folder + "/rows", disk_bytes=disk, memory=memory),
                    max_batch_size=4096, checkpoint_dir=folder + "/saved", resume=True,
                )
                with hotrow.EmbeddingCollection(**arguments) as tables:
                    count = 0
                    with self.assertRaises(MemoryError):
                        while True:
                            one_step(tables, np.arange(count, count + 4096))
                            count += 4096
                    self.assertGreater(count, 16_000)
                    self.assertEqual(len(tables.evaluate({"items": np.arange(9)}).pooled), 9)
                    self.assertEqual(tables.digest()["tables"][0]["rows"], count)
                    one_step(tables, np.arange(4096))  # rows that are there
                    tables.save_checkpoint()
                    with contextlib.suppress(MemoryError):  # it holds what these write again
                        for begin in range(0, 2 * count, 4096):
                            one_step(tables, np.arange(begin % count, begin % count + 4096))
                    self.assertEqual(len(tables.evaluate({"items": np.arange(9)}).pooled), 9)
                    self.assertEqual(tables.digest()["tables"][0]["rows"], count)
                    tables.save_checkpoint()
                    for keys in np.array_split(np.arange(4096, count), 16):
                        tables.erase("items", keys)
                        tables.save_checkpoint()  # lets go of what the one before holds
                    one_step(tables, np.arange(count, count + 4096))
                    tables.save_checkpoint()
                    digest = tables.digest()
                with hotrow.EmbeddingCollection(**arguments) as tables:
                    self.assertEqual(tables.digest(), digest)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        unittest.main()
