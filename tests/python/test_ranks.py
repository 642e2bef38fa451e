"""Ranks over a transport of the program's own: threads that pass messages."""

import gc
import queue
import tempfile
import threading
import time
import unittest
import unittest.mock

import numpy as np

import hotrow
from hotrow import _abi


class Channel:
    """A queue for each pair of ranks; channels have numbers, the same on all ranks."""

    def __init__(self, shared, rank, number=0):
        self.rank, self.world_size = rank, shared["world_size"]
        self._shared, self._number, self._made = shared, number, 0

    def _queue(self, source, target):
        with self._shared["mutex"]:
            return self._shared["queues"].setdefault(
                (self._number, source, target), queue.Queue()
            )

    def exchange(self, send, recv, timeout, operation):
        if self._shared["fails"] is not None:
            raise ConnectionError(self._shared["fails"])
        others = [p for p in range(self.world_size) if p != self.rank]
        for p in others:
            self._queue(self.rank, p).put(bytes(send[p]))
        for p in others:
            for _ in range(200):
                try:
                    recv[p][:] = self._queue(p, self.rank).get(timeout=timeout / 200)
                    break
                except queue.Empty:
                    if self._shared["fails"] is not None:
                        raise ConnectionError(self._shared["fails"]) from None
            else:
                raise TimeoutError(f"no answer from rank {p}")

    def duplicate(self):
        self._made += 1
        return type(self)(self._shared, self.rank, (self._number, self._made))

    def abort(self, message):
        self._shared["fails"] = message

    def close(self):
        pass


def make(ranks, **changes):
    arguments = dict(store=hotrow.Memory("16MiB"), max_batch_size=8, communicator=ranks, threads=1)
    arguments.update(changes)
    return hotrow.EmbeddingCollection(
        [hotrow.Table("items", 4, optimizer=hotrow.Sgd(lr=1.0))], **arguments
    )


def train(ranks):
    with make(ranks) as tables:
        for number in range(4):
            ids = np.arange(8 // ranks.world_size) * 10 + number + 100 * ranks.rank
            step = tables.prefetch({"items": ids})
            step.update(np.ones_like(step.lookup().pooled))
        return tables.digest()


def run(world_size, fails=None, function=train, channel=Channel):
    """function(communicator) on so many threads. Returns what each returns or raises."""
    shared = {"world_size": world_size, "queues": {}, "mutex": threading.Lock(), "fails": fails}
    results = ["did not return"] * world_size

    def rank_main(rank):
        try:
            results[rank] = function(
                hotrow.Communicator(channel(shared, rank), timeout_seconds=10)
            )
        except BaseException as error:
            results[rank] = error

    threads = [
        threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return results


class CollectingChannel(Channel):
    """Python's collector runs in each callback on a thread of the library, late, when the caller is
    in the next call."""

    def exchange(self, send, recv, timeout, operation):
        if not threading.current_thread().name.startswith("Thread-"):
            time.sleep(0.03)
            gc.collect()
        super().exchange(send, recv, timeout, operation)


class RefusalsTest(unittest.TestCase):
    """What one rank refuses ends the others at once, which wait in that call."""

    def refused(self, kind, cause, function):
        """function(communicator, wrong): rank 1 does what is wrong."""
        begin = time.monotonic()
        results = run(2, function=lambda ranks: function(ranks, ranks.rank == 1))
        self.assertLess(time.monotonic() - begin, 5)  # not the timeout
        self.assertIsInstance(results[1], kind)
        self.assertRegex(str(results[1]), cause)
        self.assertIsInstance(results[0], hotrow.errors.Unavailable)
        self.assertRegex(str(results[0]), "rank 1 ended the job: .*" + cause)

    def test_it_says_its_rank(self):
        said = [f"<hotrow.Communicator: rank {rank} of 2>" for rank in range(2)]
        self.assertEqual(run(2, function=repr), said)

    def test_options(self):
        for kind, cause, changes in (
            (TypeError, "max_batch_size: is '8'", dict(max_batch_size="8")),  # by the package
            (ValueError, "cache_policy", dict(cache="8MiB", cache_policy="random")),  # the library
            (ValueError, "threads: is -1", dict(threads=-1)),
        ):
            self.refused(
                kind, cause, lambda ranks, wrong: make(ranks, **(changes if wrong else {}))
            )

    def test_calls(self):
        ids = np.arange(4)

        def call(does):
            def main(ranks, wrong):
                tables = make(ranks)
                step = tables.prefetch({"items": ids})
                step.update(step.lookup().pooled)
                does(tables, wrong)
                tables.digest()

            return main

        def prefetch(batch):
            return call(lambda tables, wrong: tables.prefetch(batch if wrong else {"items": ids}))

        def step(use):
            def does(tables, wrong):
                step = tables.prefetch({"items": ids})
                use(step, wrong)

            return call(does)

        self.refused(ValueError, "'items' is missing", prefetch({}))
        self.refused(ValueError, "-1", prefetch({"items": (ids[:2], np.array([2, -1]))}))
        self.refused(ValueError, "max_batch_size", prefetch({"items": np.arange(9)}))
        self.refused(
            TypeError, "out: is list", step(lambda its, wrong: its.lookup([1] if wrong else None))
        )
        self.refused(
            ValueError, "gradient: has shape",
            step(lambda its, wrong: its.update(its.lookup().pooled[:, : 2 if wrong else 4])),
        )
        self.refused(
            ValueError, "lr_factor",
            step(
                lambda its, wrong: its.update(
                    its.lookup().pooled, float("nan") if wrong else 1.0
                )
            ),
        )
        self.refused(
            TypeError, "batch: is int",
            call(lambda tables, wrong: tables.evaluate(7 if wrong else {"items": ids})),
        )
        self.refused(
            ValueError, "no 'shops'",
            call(lambda tables, wrong: tables.read_rows("shops" if wrong else "items", ids)),
        )
        self.refused(
            TypeError, "keys: is float64",
            call(lambda tables, wrong: tables.erase("items", ids * (0.5 if wrong else 1))),
        )

    def test_tables_that_are_closed(self):
        for use in (
            lambda tables: tables.digest(),
            lambda tables: tables.settle(),
            lambda tables: tables.wait_checkpoint(),
        ):
            def main(ranks, wrong):
                tables = make(ranks)
                if wrong:
                    tables.close()
                    use(tables)
                tables.digest()

            self.refused(hotrow.errors.FailedPrecondition, "closed", main)

    def test_the_state_of_a_checkpoint(self):
        # The tables of the rank that is told still end while the folder goes.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            def saves(ranks, wrong):
                tables = make(ranks, checkpoint_dir=folder)
                tables.save_checkpoint({"state": "a text" if wrong else b"bytes"})

            self.refused(TypeError, "bytes-like", saves)

    def test_an_error_of_the_program(self):
        def leaves(ranks, wrong):
            with make(ranks) as tables:
                if wrong:
                    raise OSError("its data end")
                tables.digest()

        self.refused(OSError, "its data end", leaves)

        def aborts(ranks, wrong):
            tables = make(ranks)
            if wrong:
                ranks.abort("its data end")
            tables.digest()

        self.refused(hotrow.errors.Unavailable, "its data end", aborts)

    def test_one_rank_goes_on(self):
        def main(ranks):
            with make(ranks) as tables:
                with self.assertRaises(ValueError):
                    tables.prefetch({})
                return tables.digest()["tables"][0]["rows"]

        self.assertEqual(run(1, function=main), [0])


class CollectorTest(unittest.TestCase):
    """Python's collector may run in a callback, on a thread that the tables wait for."""

    def setUp(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

    def test_a_step_that_it_frees_ends_with_the_next_call(self):
        def main(ranks):
            tables = make(ranks, cache="8MiB", prefetch_depth=2)
            for number in range(4):
                steps = [tables.prefetch({"items": np.arange(4) + 4 * number})]
                steps[0].update(np.ones_like(steps[0].lookup().pooled))
                steps.append(tables.prefetch({"items": np.arange(8)}))
                steps.append(steps)  # a cycle
                del steps
                gc.collect()
                self.assertTrue(tables._dropped)
            digest = tables.digest()
            self.assertFalse(tables._dropped)
            tables.close()
            return digest["tables"][0]["rows"]

        self.assertEqual(run(1, function=main), [16])

    def test_a_step_that_it_frees_in_a_callback(self):
        def main(ranks):
            tables = make(ranks, cache="8MiB", prefetch_depth=1)
            for number in range(4):
                step = tables.prefetch({"items": np.arange(4) + 4 * number + 40 * ranks.rank})
                step.update(np.ones_like(step.lookup().pooled))
                cycle = [step]
                cycle.append(cycle)
                del cycle, step
            digest = tables.digest()
            tables.close()
            return digest["tables"][0]["rows"]

        self.assertEqual(run(2, function=main, channel=CollectingChannel), [32, 32])

    def test_tables_that_it_frees_in_a_callback(self):
        def main(ranks):
            tables = make(ranks, cache="8MiB", prefetch_depth=1)
            cycle = [tables, tables.prefetch({"items": np.arange(4)})]
            cycle.append(cycle)

        ended_on = []
        end = _abi.collection_destroy

        def destroy(handle):
            end(handle)
            ended_on.append(threading.current_thread().name)

        with unittest.mock.patch.object(_abi, "collection_destroy", destroy):
            self.assertEqual(run(2, function=main, channel=CollectingChannel), [None, None])
            deadline = time.monotonic() + 30
            while len(ended_on) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        self.assertEqual(ended_on, ["hotrow, outside a callback"] * 2)


class RanksTest(unittest.TestCase):
    def test_all_ranks_see_the_same_tables(self):
        for world_size in (1, 2, 4):
            results = run(world_size)
            for result in results:
                self.assertEqual(result, results[0])
            self.assertEqual(results[0]["tables"][0]["rows"], 32)

    def test_an_error_of_the_transport_is_that_of_the_call(self):
        for result in run(2, fails="the switch is on fire"):
            self.assertIsInstance(result, hotrow.errors.Unavailable)
            self.assertIn("the switch is on fire", str(result))


if __name__ == "__main__":
    unittest.main()
