"""Ranks over mpi4py: this file under mpirun, each rank printing what it saw."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

import numpy as np

import hotrow

try:
    import mpi4py  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"mpi4py is not installed ({error})") from error


def train(transport):
    ranks = transport.world_size
    with hotrow.EmbeddingCollection(
        [hotrow.Table("items", 4, optimizer=hotrow.Sgd(lr=1.0))],
        store=hotrow.Memory("16MiB"), cache="8MiB", max_batch_size=8, prefetch_depth=1,
        communicator=hotrow.Communicator(transport, 20), threads=1,
    ) as tables:
        for number in range(4):
            ids = np.arange(8).reshape(ranks, -1)[transport.rank] + 5 * number
            step = tables.prefetch({"items": ids})
            step.update(step.lookup().pooled + 1)
        return tables.digest()["hash"]


def exchange(transport, size, timeout=20.0, operation="Test"):
    ranks = range(transport.world_size)
    send = [b"x" * (0 if p == transport.rank else size) for p in ranks]
    recv = [bytearray(len(part)) for part in send]
    views = [[memoryview(part) for part in parts] for parts in (send, recv)]
    transport.exchange(*views, timeout, operation)
    return all(recv[p] == send[p] for p in ranks)


def messages(transport):
    return all(exchange(transport, size) for size in (0, 1, 70_000, 0, 3_000_000, 5))


def other_operations(transport):
    exchange(transport, 8, operation=["AllGather", "Barrier"][transport.rank])


def other_calls(transport):
    exchange(transport, 8 + transport.rank)


def silent(transport):
    if transport.rank == 1:
        time.sleep(1)
    else:
        exchange(transport, 8, timeout=0.3)


def abort(transport):
    channel = transport.duplicate()
    if transport.rank == 1:
        time.sleep(0.1)
        transport.abort("out of tea")
    exchange(channel, 8)


def ended(transport):
    """As who waits for a GPU hears it, in no exchange."""
    if transport.rank == 1:
        transport.abort("out of tea")
    else:
        assert transport.failure() in (None, "out of tea")
    deadline = time.monotonic() + 5
    while transport.failure() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return transport.failure()


class MpiTest(unittest.TestCase):
    def run_ranks(self, ranks, name):
        """Of each rank: what the function returned, or the error as text."""
        process = subprocess.run(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), sys.executable,
             __file__, name],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.assertEqual(process.returncode, 0, process.stderr)
        found = dict(json.loads(line) for line in re.findall(r"\[\d+, .*?\"\]", process.stdout))
        self.assertEqual(sorted(found), list(range(ranks)), process.stdout)
        return [found[rank] for rank in range(ranks)]

    def setUp(self):
        if shutil.which("mpirun") is None:
            self.skipTest("there is no mpirun")

    def test_tables_do_not_depend_on_the_number_of_ranks(self):
        expected = self.run_ranks(1, "train")
        for ranks in (2, 4) if os.environ.get("HOTROW_SLOW_TESTS") else (2,):
            self.assertEqual(self.run_ranks(ranks, "train"), expected * ranks)

    def test_messages_of_all_sizes(self):
        self.assertEqual(self.run_ranks(3, "messages"), ["True"] * 3)

    def test_errors_name_the_rank(self):
        for text in self.run_ranks(2, "other_calls"):
            self.assertRegex(text, "rank [01] sends [89] bytes to rank [01], which expects [89]")
        self.assertEqual(
            self.run_ranks(2, "other_operations"),
            ["rank 1 calls Barrier while rank 0 calls AllGather",
             "rank 0 calls AllGather while rank 1 calls Barrier"],
        )
        self.assertIn("rank 1 was silent for 0.3 s in Test", self.run_ranks(2, "silent")[0])
        for text in self.run_ranks(2, "abort"):
            self.assertIn("out of tea", text)
        self.assertEqual(self.run_ranks(2, "ended"), ["out of tea"] * 2)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in (
        "train", "messages", "other_operations", "other_calls", "silent", "abort", "ended"
    ):
        import hotrow.mpi

        transport = hotrow.mpi.Transport()
        try:
            result = str(globals()[sys.argv[1]](transport))
        except Exception as error:
            result = f"{error}"
        print(json.dumps([transport.rank, result]), flush=True)
    else:
        unittest.main()
