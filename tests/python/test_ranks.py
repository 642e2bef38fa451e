"""Ranks over a transport of the program's own: threads that pass messages."""

import queue
import threading
import unittest

import numpy as np

import hotrow


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
        return Channel(self._shared, self.rank, (self._number, self._made))

    def abort(self, message):
        self._shared["fails"] = message

    def close(self):
        pass


def run(world_size, fails=None):
    shared = {"world_size": world_size, "queues": {}, "mutex": threading.Lock(), "fails": fails}
    results = [None] * world_size

    def rank_main(rank):
        try:
            ranks = hotrow.Communicator(Channel(shared, rank), timeout_seconds=10)
            with hotrow.EmbeddingCollection(
                [hotrow.Table("items", 4, optimizer=hotrow.Sgd(lr=1.0))],
                store=hotrow.Memory("16MiB"), max_batch_size=8, communicator=ranks, threads=1,
            ) as tables:
                for number in range(4):
                    ids = np.arange(8 // world_size) * 10 + number + 100 * rank
                    step = tables.prefetch({"items": ids})
                    step.update(np.ones_like(step.lookup().pooled))
                results[rank] = tables.digest()
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


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
