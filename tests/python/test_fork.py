"""A process forks while tables are open: the child's are of no use and do no harm."""

import multiprocessing
import os
import signal
import sys
import tempfile
import unittest

import numpy as np

import hotrow

IDS = {"items": np.arange(64)}


def step(tables, ids=IDS):
    with tables.prefetch(ids) as begun:
        begun.update(np.ones_like(begun.lookup().pooled))


def forked(child):
    """The exit status of a process that calls it: 0, or what its exception left."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        signal.alarm(10)  # hangs no longer than that
        status = 1
        try:
            child()
            status = 0
        except SystemExit as error:
            status = error.code or 0
        finally:
            os._exit(status)
    return os.waitpid(process, 0)[1]


class ForkTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.tables = self.opened()
        self.addCleanup(lambda: self.tables.close())
        step(self.tables)

    def opened(self, **changes):
        return hotrow.EmbeddingCollection(
            [hotrow.Table("items", 4)], cache="4MiB", max_batch_size=64, prefetch_depth=1,
            store=hotrow.Ssd(self.folder + "/rows", disk_bytes="64MiB", memory="16MiB"),
            checkpoint_dir=self.folder + "/saved", **changes,
        )

    def refused(self):
        for call in (
            lambda: step(self.tables), lambda: self.tables.evaluate(IDS), self.tables.digest,
            self.tables.save_checkpoint, lambda: self.tables.erase("items", np.arange(3)),
        ):
            with self.assertRaisesRegex(hotrow.errors.FailedPrecondition, "forked this one"):
                call()

    def test_children_end_at_once_and_the_parent_goes_on(self):
        ahead = self.tables.prefetch(IDS)

        def drop():
            nonlocal ahead
            ahead = None
            self.tables = None

        def leave():
            with self.tables:
                pass

        def fail():
            with self.assertRaises(KeyError), self.tables:
                raise KeyError("mine")

        for child in (drop, leave, fail, ahead.cancel, self.refused, sys.exit):
            self.assertEqual(forked(child), 0, child)
        ahead.update(np.ones_like(ahead.lookup().pooled))
        step(self.tables)
        self.tables.save_checkpoint()
        self.assertEqual(self.tables.steps, 3)

    def test_data_of_several_threads(self):
        hotrow.pack(
            {"items": np.arange(64), "label": np.zeros(64)}, self.folder + "/pack", ["items"]
        )
        data = hotrow.Packed(self.folder + "/pack", reader_threads=2)

        def read():
            self.assertEqual(sum(map(len, data.batches(16))), 64)

        def drop():
            nonlocal data
            data = None

        for child in (read, drop, sys.exit):
            self.assertEqual(forked(child), 0, child)
        read()

    def test_what_a_parent_closes_opens_again_while_its_child_lives(self):
        process = os.fork()
        if process == 0:
            signal.alarm(20)
            signal.pause()
            os._exit(0)
        try:
            self.tables.save_checkpoint()
            self.tables.close()
            self.tables = self.opened(resume=True)
            self.assertEqual(self.tables.steps, 1)
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def test_a_child_has_tables_of_its_own(self):
        def train():
            with hotrow.EmbeddingCollection(
                [hotrow.Table("items", 4)], store=hotrow.Memory("16MiB"), max_batch_size=64
            ) as tables:
                step(tables)

        self.assertEqual(forked(train), 0)

    def test_processes_of_multiprocessing(self):
        def leave():
            self.tables.close()
            self.tables = None

        process = multiprocessing.get_context("fork").Process(target=leave)
        process.start()
        process.join(10)
        self.assertEqual(process.exitcode, 0)
        step(self.tables)


if __name__ == "__main__":
    unittest.main()
