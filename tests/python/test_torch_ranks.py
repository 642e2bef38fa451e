"""Ranks over torch.distributed: what the transport promises, and jobs of torchrun."""

import datetime
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import numpy as np
from torch_or_skip import DEVICE, WHERE, gpus, in_host_memory, tiers, torch

import hotrow
import hotrow.torch
from hotrow.torch.transport import _Family

dist = torch.distributed
JOB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_ranks_main.py")


def together(count, function):
    """function(transport) on so many threads, over Gloo. Returns what each returns or raises."""
    store = dist.HashStore()
    results = [None] * count

    def main(rank):
        try:
            group = dist.ProcessGroupGloo(store, rank, count, datetime.timedelta(seconds=60))
            family = _Family(group, store, "failure", range(count))
            results[rank] = function(hotrow.torch.Transport._of(family, rank))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def exchange(transport, sizes=lambda source, target: source + 2 * target, timeout=20.0, op="Test"):
    """Every rank sends bytes that say where they come from."""
    ranks, rank = range(transport.world_size), transport.rank
    send = [bytes([10 * rank + p]) * (0 if p == rank else sizes(rank, p)) for p in ranks]
    recv = [bytearray(0 if p == rank else sizes(p, rank)) for p in ranks]
    transport.exchange([memoryview(s) for s in send], [memoryview(r) for r in recv], timeout, op)
    return all(recv[p] == bytes([10 * p + rank]) * len(recv[p]) for p in ranks)


class ScalerTest(unittest.TestCase):
    @gpus(2)
    def test_a_step_that_one_rank_leaves_out_moves_no_row_on_any(self):
        def run(transport):
            scaler = unittest.mock.Mock(
                **{"is_enabled.return_value": True, "get_scale.return_value": 1.0}
            )
            with hotrow.torch.EmbeddingCollection(
                [hotrow.Table("items", 4, ["item"])], store=hotrow.Memory("16MiB"), threads=1,
                max_batch_size=8, communicator=hotrow.Communicator(transport),
                **tiers("8MiB", transport.rank),
            ) as tables:
                tables.set_grad_scaler(scaler)

                def step(factor, first):
                    ids = torch.arange(first, first + 4) + transport.rank
                    (tables({"item": ids}).pooled.sum() * factor).backward()
                    return tables.digest()["tables"], tables.steps

                before = step(1.0, 0)
                after = step(float("inf") if transport.rank == 1 else 1.0, 3)
                return after == before, step(1.0, 3)[1]

        self.assertEqual(together(2, run), [(True, 2), (True, 2)])


class TransportTest(unittest.TestCase):
    def test_messages_of_all_sizes(self):
        def run(transport):
            sizes = [
                lambda source, target: 0,
                lambda source, target: source + 2 * target,
                lambda source, target: (target % 2) * 300_000,
            ]
            return all(exchange(transport, size) for size in sizes for _ in range(3))

        for count in (1, 2, 4):
            self.assertEqual(together(count, run), [True] * count)

    def test_channels_do_not_wait_for_each_other(self):
        def run(transport):
            channels = [transport, transport.duplicate(), transport.duplicate()]
            order = channels if transport.rank else channels[::-1]
            right = []
            threads = [
                threading.Thread(target=lambda c=c: right.append(exchange(c))) for c in order
            ]
            for thread in threads:
                thread.start()
                time.sleep(0.02)
            for thread in threads:
                thread.join()
            return right

        self.assertEqual(together(2, run), [[True] * 3] * 2)

    def test_other_calls_are_told_from_lost_messages(self):
        def run(transport):
            exchange(transport, lambda s, t: 8 + transport.rank, op="AllGather")

        for result in together(2, run):
            self.assertIsInstance(result, hotrow.errors.InvalidArgument)
            self.assertRegex(str(result), "rank [01] sends [89] bytes to rank [01], which expects")

    def test_other_operations_are_told_with_the_same_sizes(self):
        def run(transport):
            exchange(transport, lambda s, t: 8, op=["AllGather", "Barrier"][transport.rank])

        told = "rank 1 calls Barrier while rank 0 calls AllGather"
        results = together(2, run)
        self.assertEqual(str(results[0]), told)
        self.assertEqual(
            str(results[1]), "rank 0 calls AllGather while rank 1 calls Barrier"
        )

    def test_nothing_is_written_past_a_buffer(self):
        """However much comes, and the rank that sent too much hears of it, too."""
        guard = 1 << 20

        def run(transport):
            sent, expected = sizes
            space = np.full(expected + guard, 2, dtype=np.uint8)
            send, recv = [memoryview(b""), memoryview(b"")], [memoryview(bytearray())] * 2
            if transport.rank == 0:
                send[1] = memoryview(b"\1" * sent)
            else:
                recv[0] = memoryview(space)[:expected]
            try:
                transport.exchange(send, recv, 20.0, "AllToAllV")
                exchange(transport)  # its own part was fine: it hears of the error here
            except (hotrow.errors.InvalidArgument, ConnectionError) as error:
                transport.abort(str(error))
                self.assertTrue((space == 2).all())
                return str(error)

        begin = time.monotonic()
        for sizes in ((200, 0), (200, 100), (4 << 20, 0), (4 << 20, 70_000)):
            told = f"rank 0 sends {sizes[0]} bytes to rank 1, which expects {sizes[1]}"
            self.assertEqual(together(2, run), [told] * 2)
        self.assertLess(time.monotonic() - begin, 15)

    def test_an_error_is_for_good_in_every_channel(self):
        def run(transport):
            other = transport.duplicate()
            exchange(transport)
            if transport.rank == 2:
                transport.abort("disk full")
            told = []
            for channel in (other, transport, other, transport.duplicate()):
                try:
                    exchange(channel)
                except ConnectionError as error:
                    told.append(str(error))
                    transport.abort(str(error))  # as the library does after any error
            return told

        begin = time.monotonic()
        self.assertEqual(together(3, run), [["disk full"] * 4] * 3)
        self.assertLess(time.monotonic() - begin, 15)  # not the timeout

    def test_channels_that_wait_hear_of_an_error_in_another(self):
        """Rank 2 has ended its call of the first channel when rank 1 sends its part of that."""
        def run(transport):
            other = transport.duplicate()
            told = []

            def call(channel):
                try:
                    exchange(channel)
                except ConnectionError as error:
                    told.append(str(error))
                    transport.abort(str(error))

            if transport.rank == 1:
                time.sleep(0.6)
                call(transport)
                return told
            beside = threading.Thread(target=call, args=(other,))
            beside.start()
            time.sleep(0.2)
            if transport.rank == 0:
                transport.abort("out of tea")
            else:
                call(transport)
            beside.join()
            return told

        begin = time.monotonic()
        self.assertEqual(together(3, run), [["out of tea"] * count for count in (1, 1, 2)])
        self.assertLess(time.monotonic() - begin, 10)  # not the timeout

    def test_late_ranks_are_waited_for(self):
        def run(transport):
            for late in range(transport.world_size):
                if transport.rank == late:
                    time.sleep(0.1)
                exchange(transport, lambda s, t: 100_000 * t)
            return True

        self.assertEqual(together(3, run), [True] * 3)

    def test_a_silent_rank_is_named(self):
        def run(transport):
            if transport.rank == 1:
                time.sleep(1)
            else:
                exchange(transport, timeout=0.3)

        results = together(3, run)
        self.assertIn("rank 1 was silent for 0.3 s", str(results[0]))
        self.assertIn("rank 1 was silent for 0.3 s", str(results[2]))

    def test_abort_ends_calls_that_wait(self):
        def run(transport):
            other = transport.duplicate()
            if transport.rank == 1:
                exchange(other, timeout=20)
                time.sleep(0.1)
                transport.abort("out of tea")
                return exchange(transport)
            exchange(other, timeout=20)
            return exchange(transport)

        begin = time.monotonic()
        for result in together(3, run):
            self.assertIsInstance(result, ConnectionError)
            self.assertIn("out of tea", str(result))
        self.assertLess(time.monotonic() - begin, 5)

    @in_host_memory
    def test_tables(self):
        def run(transport):
            ranks = transport.world_size
            with hotrow.EmbeddingCollection(
                [hotrow.Table("items", 4, optimizer=hotrow.Sgd(lr=1.0))],
                store=hotrow.Memory("16MiB"), max_batch_size=8, prefetch_depth=1,
                communicator=hotrow.Communicator(transport, 20), threads=1,
                **tiers("8MiB", transport.rank),
            ) as tables:
                for number in range(4):
                    ids = np.arange(8).reshape(ranks, -1)[transport.rank] + 5 * number
                    step = tables.prefetch({"items": ids})
                    step.update(step.lookup().pooled + 1)
                return tables.digest()

        expected = together(1, run)[0]
        for count in (2, 4):
            self.assertEqual(together(count, run), [expected] * count)

    def test_what_is_on_its_way_after_an_error_stays(self):
        """A rank takes a message late, whose sender has given up and closed its end."""
        closed = threading.Event()

        def late(transport):
            self.assertTrue(closed.wait(20))
            time.sleep(0.1)
            family, seconds = transport._family, datetime.timedelta(seconds=5)
            head, body = torch.empty(64, dtype=torch.uint8), torch.empty(8, dtype=torch.uint8)
            family.group.recv([head], 0, transport._head_tag).wait(seconds)
            family.group.recv([body], 0, transport._body_tag).wait(seconds)
            return bytes(body.numpy())

        def run(transport):
            if transport.rank == 2:
                return late(transport)
            if transport.rank == 1:
                return transport.abort("disk full")
            send = bytearray(b"original")
            views = [memoryview(b""), memoryview(b""), memoryview(send)]
            try:
                transport.exchange(views, [memoryview(bytearray())] * 3, 20.0, "Test")
            except ConnectionError as error:
                told = str(error)
            send[:] = b"freed..."
            transport.abort(told)
            transport.close()
            closed.set()
            return told

        self.assertEqual(together(3, run), ["disk full", None, b"original"])

    @gpus(2)
    def test_what_one_rank_refuses_ends_the_others(self):
        ids = torch.arange(4)

        def twice(tables, wrong):
            loss = tables({"items": ids}).pooled.sum()
            loss.backward(retain_graph=True)
            loss.backward() if wrong else tables({"items": ids}).pooled.sum().backward()

        cases = {
            "'items' is missing": lambda tables, wrong: tables({} if wrong else {"items": ids}),
            "must be on one device": lambda tables, wrong: tables(
                {"items": (ids, ids.to("meta") if wrong else torch.ones(4).long())}
            ),
            "has been|have been updated already": twice,
            "is int, in which the features": lambda tables, wrong: next(
                hotrow.torch.prefetch([7 if wrong else {"items": ids}], tables)
            ),
            "which torch.load": lambda tables, wrong: tables.save_checkpoint(
                {"state": ids.numpy() if wrong else ids}
            ),
        }
        for cause, use in cases.items():
            folder = tempfile.mkdtemp()
            self.addCleanup(shutil.rmtree, folder, True)

            def run(transport):
                ranks = hotrow.Communicator(transport, 20)
                tables = hotrow.torch.EmbeddingCollection(
                    [hotrow.Table("items", 4)], store=hotrow.Memory("16MiB"), max_batch_size=8,
                    prefetch_depth=1, communicator=ranks, threads=1, checkpoint_dir=folder,
                    **tiers("8MiB", ranks.rank),
                )
                use(tables, transport.rank == 1)
                return tables.digest()

            begin = time.monotonic()
            with self.subTest(cause):
                told, refused = together(2, run)
                self.assertRegex(str(refused), cause)
                self.assertIsInstance(told, hotrow.errors.Unavailable)
                self.assertRegex(str(told), f"rank 1 ended the job: .*({cause})")
                self.assertLess(time.monotonic() - begin, 10)  # not the timeout

    def test_it_needs_a_process_group(self):
        with self.assertRaisesRegex(RuntimeError, "init_process_group"):
            hotrow.torch.Transport()


ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"
}


def launch(ranks, *arguments, mpi=False, torchrun=()):
    head = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), sys.executable]
    if not mpi:
        head = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                f"--nproc-per-node={ranks}", *torchrun]
    return subprocess.run(
        [*head, JOB, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT, timeout=200,
    )


@unittest.skipIf(WHERE != DEVICE, "emulated GPUs are within one process")
@unittest.skipUnless(os.environ.get("HOTROW_SLOW_TESTS"), "takes two minutes: HOTROW_SLOW_TESTS=1")
@gpus(4)
class JobsTest(unittest.TestCase):
    def results(self, process):
        self.assertEqual(process.returncode, 0, process.stderr)
        return json.loads(re.search(r"^\{.*\}$", process.stdout, re.M).group())

    def test_losses_do_not_depend_on_the_number_of_ranks(self):
        one = self.results(launch(1))
        self.assertLess(sum(one["losses"][-5:]), sum(one["losses"][:5]))
        for ranks in (2, 4):
            np.testing.assert_allclose(
                self.results(launch(ranks))["losses"], one["losses"], rtol=2e-5
            )

    def test_losses_are_those_of_mpi(self):
        try:
            import mpi4py  # noqa: F401
        except ImportError:
            self.skipTest("mpi4py is not installed")
        if shutil.which("mpirun") is None:
            self.skipTest("there is no mpirun")
        for ranks in (2, 4):
            ours = self.results(launch(ranks))
            theirs = self.results(launch(ranks, "--ranks=mpi", mpi=True))
            if ranks == 2:
                self.assertEqual(ours, theirs)
            else:  # Gloo and MPI add up four gradients of the dense layer in their own orders
                np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=2e-6)

    def test_a_rank_that_dies_is_named_and_the_agent_starts_the_job_again(self):
        begin = time.monotonic()
        process = launch(2, "--die-at=8")
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("rank 1 has ended, or its connection is lost", process.stderr)
        self.assertLess(time.monotonic() - begin, 60)
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as cut:
            expected = self.results(launch(2, f"--checkpoints={whole}"))
            again = launch(2, "--die-at=8", f"--checkpoints={cut}", torchrun=["--max-restarts=1"])
            self.assertEqual(self.results(again), expected)

    def test_fewer_ranks_go_on(self):
        expected = self.results(launch(1))["losses"]
        with tempfile.TemporaryDirectory() as folder:
            launch(4, "--steps=10", f"--checkpoints={folder}")
            losses = self.results(launch(2, f"--checkpoints={folder}"))["losses"]
            np.testing.assert_allclose(losses, expected, rtol=2e-5)

    def test_the_agent_goes_on_with_the_ranks_that_are_left(self):
        """Two torchruns of two ranks each, as on two machines; one is lost with its ranks."""
        expected = self.results(launch(1))["losses"]
        with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
            free.close()
            agents = [
                subprocess.Popen(
                    [
                        sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2",
                        "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=hotrow",
                        f"--rdzv-endpoint=localhost:{port}", "--max-restarts=2",
                        f"--rdzv-conf=is_host={host},last_call_timeout=10,join_timeout=120",
                        JOB, f"--checkpoints={folder}", *more,
                    ],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
                )
                for host, more in (("true", []), ("false", ["--die-at=12", "--die-with-agent"]))
            ]
            try:
                out, err = agents[0].communicate(timeout=200)
                agents[1].communicate(timeout=60)
            finally:
                for agent in agents:
                    agent.kill()
            self.assertEqual(agents[0].returncode, 0, err)
            self.assertEqual(agents[1].returncode, -signal.SIGKILL)
            self.assertRegex(err, "rank [0-3] has ended, or its connection is lost")
            results = json.loads(re.search(r"^\{.*\}$", out, re.M).group())
            self.assertEqual(results["ranks"], 2)
            np.testing.assert_allclose(results["losses"], expected, rtol=2e-5)


if __name__ == "__main__":
    unittest.main()
