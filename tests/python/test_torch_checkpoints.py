"""One checkpoint of tables, model, optimizer, schedule and random numbers."""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import numpy as np
from torch_or_skip import WHERE, array, in_host_memory, tiers, torch

import hotrow
import hotrow.torch


def make(folder, **changes):
    arguments = dict(
        store=hotrow.Ssd(folder + "/rows", disk_bytes="512MiB", memory="64MiB"),
        max_batch_size=32, prefetch_depth=2, checkpoint_dir=folder + "/checkpoints", resume=True,
        **tiers("8MiB"),
    )
    arguments.update(changes)
    os.makedirs(folder, exist_ok=True)
    return hotrow.torch.EmbeddingCollection(
        [hotrow.Table("items", 8, ["item"], optimizer=hotrow.RowwiseAdagrad(lr=0.1))], **arguments
    )


class Trainer:
    def __init__(self, tables):
        torch.manual_seed(5)
        self.tables = tables
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        ).to(WHERE)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedules = [
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
            for optimizer in (self.optimizer, tables.optimizer)
        ]

    def state(self):
        return {
            "model": self.model, "optimizer": self.optimizer,
            "schedule": self.schedules[0], "tables_schedule": self.schedules[1],
        }

    def train(self, stop, every=5):
        batches = (
            {"item": torch.from_numpy(np.random.default_rng(n).integers(0, 500, 32))}
            for n in range(self.tables.steps, stop)
        )
        for batch in hotrow.torch.prefetch(batches, self.tables, depth=2):
            loss = self.model(self.tables(batch).pooled).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            for schedule in self.schedules:
                schedule.step()
            if every and self.tables.steps % every == 0:
                self.tables.collection.wait_checkpoint()
                self.tables.save_checkpoint({**self.state(), "note": [1, "two"]}, wait=False)
        self.tables.collection.wait_checkpoint()

    def hash(self):
        """Of the rows and of all torch knows."""
        out = hashlib.sha256(self.tables.digest()["hash"].encode())
        for parameter in self.model.state_dict().values():
            out.update(array(parameter).tobytes())
        for state in self.optimizer.state_dict()["state"].values():
            out.update(array(state["exp_avg_sq"]).tobytes())
        out.update(repr([s.get_last_lr() for s in self.schedules]).encode())
        out.update(torch.get_rng_state().numpy().tobytes())
        return out.hexdigest()


def main(folder):
    with make(folder) as tables:
        trainer = Trainer(tables)
        tables.restore(trainer.state())
        print(tables.steps, flush=True)
        trainer.train(int(os.environ["STEPS"]))
        print(trainer.hash(), flush=True)


class TorchCheckpointsTest(unittest.TestCase):
    def test_what_comes_back(self):
        with tempfile.TemporaryDirectory() as folder:
            with make(folder) as tables:
                trainer = Trainer(tables)
                self.assertEqual(tables.restore(trainer.state()), {})
                trainer.train(10)
                expected = trainer.hash()
                trainer.train(12, every=0)
            with make(folder) as tables:
                trainer = Trainer(tables)
                self.assertEqual(tables.restore(trainer.state()), {"note": [1, "two"]})
                self.assertEqual(trainer.hash(), expected)
                self.assertEqual(tables.steps, 10)
                self.assertAlmostEqual(tables.optimizer.param_groups[0]["lr"], 0.97**10)
                torch.nn.init.zeros_(trainer.model[0].weight)
                with self.assertRaisesRegex(KeyError, "has no 'sampler'"):
                    tables.restore({**trainer.state(), "sampler": trainer.optimizer})
                self.assertFalse(trainer.model[0].weight.any())  # all is there, or nothing is read

    @in_host_memory
    def test_random_numbers_of_a_gpu_come_back(self):
        put = unittest.mock.Mock()
        gpu = unittest.mock.patch.multiple(
            torch.cuda, is_initialized=lambda: True, is_available=lambda: True, set_rng_state=put,
            get_rng_state=lambda device: torch.tensor([1, 2], dtype=torch.uint8),
        )
        with tempfile.TemporaryDirectory() as folder:
            with make(folder) as tables, gpu:
                tables.save_checkpoint({"note": "three"})
            with make(folder) as tables:  # where there is none
                self.assertEqual(tables.restore(), {"note": "three"})
            put.assert_not_called()
            with make(folder) as tables, gpu:
                self.assertEqual(tables.restore(), {"note": "three"})
        state, device = put.call_args.args
        self.assertEqual((state.tolist(), str(device)), ([1, 2], "cuda"))

    def test_what_would_not_come_back_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            rate = torch.optim.SGD([torch.zeros(1)], lr=np.float64(0.5))
            kept = {
                "a": torch.ones(2), "b": b"x", "c": [1.5, None, "d"], "e": {"f": (1, 2)},
                "sparse": torch.eye(3).to_sparse(),
            }
            with make(folder) as tables:
                for state in ({"best": np.float64(0.7)}, {"best": np.ones(2)}, {"best": rate}):
                    with self.assertRaisesRegex(TypeError, "state: 'best' holds numpy"):
                        tables.save_checkpoint(state)
                self.assertIsNone(tables.collection.newest_checkpoint)
                tables.save_checkpoint(kept)
            with make(folder) as tables:
                back = tables.restore()
                self.assertEqual(back.pop("a").tolist(), [1, 1])
                self.assertTrue(torch.equal(back.pop("sparse").to_dense(), torch.eye(3)))
                self.assertEqual(back, {name: kept[name] for name in "bce"})

    def test_a_checkpoint_that_is_not_of_torch_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            with make(folder) as tables:
                tables({"item": torch.arange(4)}).pooled.sum().backward()
                tables.collection.save_checkpoint({"model": b"mine"})
                expected = tables.digest()
            with make(folder) as tables:
                with self.assertRaisesRegex(ValueError, "checkpoints.*not saved by hotrow.torch"):
                    tables.restore({"model": torch.nn.Linear(1, 1)})
                self.assertEqual(tables.collection.restored["model"], b"mine")
                self.assertEqual(tables.digest(), expected)

    def test_a_compiled_module_has_the_names_of_the_plain_one(self):
        with tempfile.TemporaryDirectory() as folder:
            with make(folder) as tables:
                trainer = Trainer(tables)
                tables.save_checkpoint({"model": torch.compile(trainer.model)})
            with make(folder) as tables:
                torch.manual_seed(6)
                model = torch.nn.Sequential(
                    torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
                ).to(WHERE)
                tables.restore({"model": model})
                self.assertTrue(torch.equal(model[0].weight, trainer.model[0].weight))

    def test_killed_anywhere_and_resumed_it_ends_with_the_same_bits(self):
        kills = int(os.environ.get("HOTROW_PYTHON_KILLS", "0"))
        if kills == 0:
            self.skipTest("takes half a minute: HOTROW_PYTHON_KILLS=3")
        random = np.random.default_rng(1)

        def start(folder):
            """The process, and the step at which it goes on."""
            process = subprocess.Popen(
                [sys.executable, __file__, folder], stdout=subprocess.PIPE, text=True,
                env={**os.environ, "STEPS": str(50 * kills)},
            )
            self.addCleanup(process.stdout.close)
            return process, int(process.stdout.readline())

        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as cut:
            process, _ = start(whole)
            begin = time.monotonic()
            expected = process.stdout.read()
            seconds = time.monotonic() - begin
            self.assertEqual(process.wait(), 0)
            begins = []
            for _ in range(kills):
                process, step = start(cut)
                begins.append(step)
                time.sleep(random.uniform(0.0, 2.0) * seconds / kills)
                process.send_signal(signal.SIGKILL)
                process.wait()
            process, step = start(cut)
            self.assertEqual(process.stdout.read(), expected)
            self.assertEqual(process.wait(), 0)
            print(f"killed {kills} times, gone on at steps {[*begins, step]}")


if __name__ == "__main__":
    if len(sys.argv) == 2 and os.path.isdir(sys.argv[1]):
        main(sys.argv[1])
    else:
        unittest.main()
