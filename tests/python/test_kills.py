"""Trainers that are killed, stopped, left by forked children and moved between their lives end with
the same bits. HOTROW_PYTHON_KILLS: how many lives of each kind are ended."""

import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np

import hotrow
from test_ranks import Channel

BATCH = 32


def batch(step, rank, ranks):
    ids = np.random.default_rng(step).integers(0, 3000, BATCH)
    return {"item": ids.reshape(ranks, -1)[rank]}


def store_of(name, path):
    return {
        "memory": hotrow.Memory("64MiB"),
        "ssd": hotrow.Ssd(path, disk_bytes="16MiB", memory="16MiB"),
        "rocksdb": hotrow.RocksDb(path, disk_bytes="256MiB", memory="64MiB"),
    }[name]


def fork_some(tables, ahead, ranks, draw):
    """Forks a child that leaves in one of many ways; it must end well, and at once."""
    way = draw.choice(["exit", "drop", "close", "cancel", "refused", "return"])
    sys.stdout.flush()
    process = os.fork()
    if process:
        status = os.waitpid(process, 0)[1]
        if status:
            print(f"a forked child that was to {way} ended with {status}", file=sys.stderr)
            os._exit(3)
        return
    signal.alarm(20)  # hangs no longer than that
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        if way == "drop":
            del tables, ahead
            gc.collect()
        elif way == "close":
            tables.close()
        elif way == "cancel":
            ahead.cancel()
        elif way == "refused":
            try:
                tables.save_checkpoint()
                os._exit(4)
            except hotrow.errors.FailedPrecondition:
                pass
        elif way == "return" and ranks == 1:
            sys.exit(0)  # through all that is open
    except SystemExit:
        raise
    except BaseException as error:
        print(f"a forked child that was to {way}: {error!r}", file=sys.stderr)
        os._exit(5)
    os._exit(0)


class Run:
    """One life of a trainer, on all its ranks: threads of this process."""

    def __init__(self, folder, store, ranks, stop, seed):
        self.folder, self.store, self.ranks, self.stop = folder, store, ranks, stop
        self.draw = random.Random(seed)
        self.asked = False  # by a signal, to end with a checkpoint
        self.ends = False   # the same, agreed on by all ranks
        self.turn = threading.Barrier(ranks)
        self.shared = {
            "world_size": ranks, "queues": {}, "mutex": threading.Lock(), "fails": None
        }
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: setattr(self, "asked", True))

    def train(self, rank):
        communicator = None
        if self.ranks > 1:
            communicator = hotrow.Communicator(Channel(self.shared, rank), timeout_seconds=60)
        with hotrow.EmbeddingCollection(
            [hotrow.Table("items", 8, ["item"], optimizer=hotrow.RowwiseAdagrad(lr=0.1))],
            store=store_of(self.store, self.folder + "/rows"), cache="2MiB", max_batch_size=BATCH,
            prefetch_depth=1, checkpoint_dir=self.folder + "/checkpoints", resume=True, threads=1,
            communicator=communicator,
        ) as tables:
            while tables.steps < self.stop:
                step = tables.prefetch(batch(tables.steps, rank, self.ranks))
                if rank == 0:
                    print("step", tables.steps, flush=True)
                    if self.draw.random() < 0.05:
                        fork_some(tables, step, self.ranks, self.draw)
                    self.ends = self.asked
                self.turn.wait(60)
                ends = self.ends  # rank 0 may be a step ahead below
                step.update(step.lookup().pooled * 0.5 + 0.01)
                if ends or tables.steps % 5 == 0:
                    tables.wait_checkpoint()
                    tables.save_checkpoint(wait=ends)
                if ends:
                    return
            tables.wait_checkpoint()
            told = tables.digest()
            if rank == 0:
                print("end", told["hash"], told["tables"][0]["rows"], flush=True)

    def run(self):
        errors = []

        def train(rank):
            try:
                self.train(rank)
            except BaseException as error:
                self.turn.abort()
                errors.append(error)

        others = [threading.Thread(target=train, args=(rank,)) for rank in range(1, self.ranks)]
        for thread in others:
            thread.start()
        try:
            self.train(0)  # in the thread that gets the signals
        except BaseException:
            self.turn.abort()
            self.shared["fails"] = "rank 0 has ended"
            raise
        finally:
            for thread in others:
                thread.join()
        if errors:
            raise errors[0]


def life(folder, store, ranks, stop, seed):
    return subprocess.Popen(
        [sys.executable, __file__, folder, store, str(ranks), str(stop), str(seed)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


class KillsTest(unittest.TestCase):
    def has_rocksdb(self):
        with tempfile.TemporaryDirectory() as folder:
            try:
                hotrow.EmbeddingCollection(
                    [hotrow.Table("items", 8)], store=store_of("rocksdb", folder), cache="2MiB",
                    max_batch_size=BATCH,
                ).close()
            except NotImplementedError:
                return False
        return True

    def end_of(self, process):
        out, errors = process.communicate()
        self.assertEqual(process.returncode, 0, errors)
        return out.splitlines()[-1]

    def end_often(self, store, ranks, lives, stop, seed):
        draw = random.Random(seed)
        met = dict.fromkeys(("KILL", "TERM", "HUP", "PIPE", "moved", "copied"), 0)
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as cut:
            expected = self.end_of(life(whole + "/job", store, ranks, stop, 1))
            self.assertRegex(expected, "^end [0-9a-f]+ [0-9]+$")
            folder = cut + "/job"
            for number in range(lives):
                process = life(folder, store, ranks, stop, draw.random())
                for _ in range(draw.randrange(2 * stop // lives + 2)):
                    if not process.stdout.readline():
                        break
                how = draw.choice(["KILL", "KILL", "TERM", "HUP", "PIPE"])
                if how == "PIPE":
                    process.stdout.close()
                else:
                    process.send_signal(getattr(signal, "SIG" + how))
                errors = process.stderr.read()
                process.stderr.close()
                process.stdout.close()
                status = process.wait()
                allowed = [0, -getattr(signal, "SIG" + how)] + ([1, 120] if how == "PIPE" else [])
                self.assertIn(status, allowed, f"{store}, {ranks} ranks, life {number}: {errors}")
                self.assertNotIn("forked child", errors)
                met[how] += 1
                if os.path.exists(folder) and draw.random() < 0.6:
                    to = f"{cut}/job-{number}"
                    if draw.random() < 0.5:
                        os.rename(folder, to)
                        met["moved"] += 1
                    else:
                        shutil.copytree(folder, to)
                        shutil.rmtree(folder)
                        met["copied"] += 1
                    folder = to
            self.assertEqual(self.end_of(life(folder, store, ranks, stop, 2)), expected)
        print(f"{store}, {ranks} ranks: {lives} lives ended: {met}", flush=True)

    def test_the_end_is_the_same(self):
        lives = int(os.environ.get("HOTROW_PYTHON_KILLS", "2"))
        seed = int(os.environ.get("HOTROW_TEST_SEED", "1"))
        for store in ("memory", "ssd", "rocksdb"):
            for ranks in (1, 2):
                if lives <= 2 and (store, ranks) not in (("ssd", 2), ("rocksdb", 1)):
                    continue  # all of them where there is time
                with self.subTest(store=store, ranks=ranks):
                    if store == "rocksdb" and not self.has_rocksdb():
                        self.skipTest("a build without RocksDB")
                    self.end_often(store, ranks, lives, 20 * lives, seed)


if __name__ == "__main__":
    if len(sys.argv) == 6:
        Run(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), sys.argv[5]).run()
    else:
        unittest.main()
