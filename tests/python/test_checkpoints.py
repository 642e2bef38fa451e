"""A trainer that is killed and resumed ends with the same bits, its own state included."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import hotrow


def batch(step):
    random = np.random.default_rng(step)
    return {"item": random.integers(0, 500, 32)}


def train(folder, store, stop):
    """A model of its own: one weight a column, in `dense`. Prints the step where it goes on, and
    what it ended with."""
    os.makedirs(folder, exist_ok=True)
    kinds = {
        "memory": hotrow.Memory("64MiB"),
        "ssd": hotrow.Ssd(folder + "/rows", disk_bytes="512MiB", memory="64MiB"),
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


if __name__ == "__main__":
    if len(sys.argv) == 4:
        train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        unittest.main()
