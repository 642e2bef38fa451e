"""Tables on a GPU: an emulated one, whose memory is the host's, or a real one with torch.

HOTROW_EMULATED_GPU=1 says that the library was built with the emulated one (cmake --preset asan).
"""

import contextlib
import os
import tempfile
import unittest
from unittest import mock

import numpy as np

import hotrow
from hotrow import _abi
from test_ranks import run

try:
    import torch
except ImportError:
    torch = None

EMULATED = bool(os.environ.get("HOTROW_EMULATED_GPU"))
GPU = {"device": "cuda", "device_cache": "1MiB"}


def batches(count, size=16, seed=1):
    random = np.random.default_rng(seed)
    for _ in range(count):
        lengths = random.integers(0, 4, size)
        yield {
            "item": random.integers(0, 60, size),
            "words": (random.integers(0, 200, lengths.sum()), lengths),
        }


def make(**options):
    tables = [hotrow.Table("item", 8, optimizer=hotrow.RowwiseAdagrad(lr=0.1)),
              hotrow.Table("words", 4, optimizer=hotrow.Adam(lr=0.01))]
    options = {"store": hotrow.Memory("16MiB"), "max_batch_size": 16, **options}
    return hotrow.EmbeddingCollection(tables, seed=3, **options)


def train(collection, count=12, seed=1):
    for batch in batches(count, seed=seed):
        with collection.prefetch(batch) as step:
            pooled = step.lookup().pooled
            step.update(pooled * 0.5 + 1)


@unittest.skipUnless(EMULATED, "the library has no emulated GPU")
class EmulatedTest(unittest.TestCase):
    def test_rows_move_as_on_the_cpu(self):
        with make() as expected, make(**GPU) as tables:
            self.assertEqual(tables.device, "cuda:0")
            train(expected)
            train(tables)
            for name, dim in (("item", 8), ("words", 4)):
                keys = np.arange(60)
                rows, found = tables.read_rows(name, keys)
                wanted, there = expected.read_rows(name, keys)
                np.testing.assert_array_equal(found, there)
                np.testing.assert_allclose(rows, wanted, rtol=1e-5, atol=1e-6)
            batch = next(batches(1, seed=9))
            np.testing.assert_allclose(
                tables.evaluate(batch).pooled, expected.evaluate(batch).pooled, rtol=1e-5,
                atol=1e-6,
            )

    def test_bits_depend_on_no_tier_and_a_run_goes_on_with_them(self):
        digests = []
        with tempfile.TemporaryDirectory() as folder:
            for options in (
                {},
                {"device_index_memory": "64KiB", "prefetch_depth": 2},
                {"store": hotrow.Ssd(folder + "/ssd", disk_bytes="1GiB", memory="32MiB"),
                 "cache": "1MiB", "prefetch_depth": 1},
            ):
                with make(**GPU, **options) as tables:
                    train(tables)
                    digests.append(tables.digest())
            checkpoints = {"checkpoint_dir": folder + "/checkpoints", "resume": True}
            with make(**GPU, **checkpoints) as tables:
                train(tables, 6)
                tables.save_checkpoint({})
            with make(**GPU, **checkpoints) as tables:
                self.assertEqual(tables.steps, 6)
                for number, batch in enumerate(batches(12)):
                    if number < 6:
                        continue
                    with tables.prefetch(batch) as step:
                        step.update(step.lookup().pooled * 0.5 + 1)
                digests.append(tables.digest())
        self.assertEqual(digests, digests[:1] * len(digests))

    def test_ranks_each_with_a_gpu_train_as_those_of_the_cpu(self):
        def trained(on_gpu):
            def on_rank(ranks):
                gpu = {**GPU, "device": f"cuda:{ranks.rank}"} if on_gpu else {}
                with make(communicator=ranks, threads=1, max_batch_size=32, **gpu) as tables:
                    train(tables, 6, seed=ranks.rank)
                    return tables.read_rows("words", np.arange(60))[0], tables.digest()

            return run(2, function=on_rank)

        (rows, digest), other = trained(on_gpu=True)
        self.assertEqual(digest, other[1])
        self.assertEqual(digest, trained(on_gpu=True)[0][1])
        np.testing.assert_allclose(rows, trained(on_gpu=False)[0][0], rtol=1e-5, atol=1e-6)

    def begin_on_gpu(self, tables, batch):
        reader = tables._scratch.reader
        reader.read(batch)
        _abi.Batch.from_buffer(reader._batch).on_device = 1
        return tables._begin()

    def test_ids_on_the_gpu_give_the_same_bits(self):
        def together(batch):
            item, words = batch["item"], batch["words"]
            ones = np.ones(len(item))
            return hotrow.Jagged(
                len(item), np.concatenate([item, words.values]),
                np.concatenate([ones.astype("int64"), words.lengths]),
                weights=np.concatenate([ones.astype("float32"), words.weights]),
            )

        digests = []
        for begin, depth, form in (
            (hotrow.EmbeddingCollection.prefetch, 0, dict),
            (self.begin_on_gpu, 0, dict),
            (self.begin_on_gpu, 2, dict),
            (self.begin_on_gpu, 2, together),
        ):
            with make(**GPU, prefetch_depth=depth) as tables:
                ahead = []
                for batch in batches(12):
                    values, lengths = batch["words"]
                    weights = np.linspace(0, 1, len(values), dtype="float32")
                    batch["words"] = hotrow.Bags(values, lengths, weights=weights)
                    ahead.append(begin(tables, form(batch)))
                    values[:] = 0  # those before have been read
                    if len(ahead) > depth:
                        step = ahead.pop(0)
                        step.update(step.lookup().pooled * 0.5 + 1)
                for step in ahead:
                    step.update(step.lookup().pooled * 0.5 + 1)
                digests.append(tables.digest())
        self.assertEqual(digests, digests[:1] * len(digests))

    def test_what_is_wrong_with_ids_on_the_gpu_is_an_error_of_their_step(self):
        wrong = {"item": np.arange(16), "words": (np.arange(5), np.ones(16, int))}
        for depth in (0, 1):
            with make(**GPU, prefetch_depth=depth) as tables:
                with self.assertRaisesRegex(ValueError, "lengths"):
                    with self.begin_on_gpu(tables, wrong) as step:
                        self.assertEqual(depth, 1)
                        step.lookup()
                train(tables, 2)
                self.assertEqual(tables.steps, 2)
        with make() as tables, self.assertRaisesRegex(ValueError, "on_device"):
            self.begin_on_gpu(tables, next(batches(1)))

    def test_what_is_refused(self):
        for options, message in (
            ({"device": "tpu"}, "device: is 'tpu'"),
            ({"device": "cuda:77"}, "device: is 77, must lie in"),
            ({"device": "cuda"}, "device_cache"),
        ):
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                make(**options)


class HostTest(unittest.TestCase):
    @unittest.skipIf((hotrow.environment()["cuda"] or {}).get("devices"), "there is a GPU")
    def test_without_a_gpu_it_says_so(self):
        with self.assertRaises((hotrow.errors.FailedPrecondition, hotrow.errors.Unimplemented)):
            make(**GPU)


@unittest.skipIf(torch is None, "torch is not installed")
@unittest.skipUnless(EMULATED or torch and torch.cuda.is_available(), "there is no GPU")
class TorchTest(unittest.TestCase):
    def test_ids_on_the_gpu_are_as_those_of_the_host(self):
        import hotrow.torch

        class Keyed:
            def __init__(self, parts):
                self._values = torch.cat([part.values for part in parts])
                self._lengths = torch.cat([part.lengths for part in parts])
                self._weights = torch.cat([part.weights for part in parts])
                self.keys, self.values = lambda: ["item", "words"], lambda: self._values
                self.lengths, self.weights_or_none = lambda: self._lengths, lambda: self._weights

        def dicts(move):
            for batch in batches(12):
                values, lengths = (move(torch.from_numpy(part)) for part in batch["words"])
                weights = torch.linspace(0, 1, len(values), device=values.device)
                yield {"item": move(torch.from_numpy(batch["item"])),
                       "words": hotrow.Bags(values, lengths, weights=weights)}

        def keyed(move):
            for batch in dicts(move):
                ones = torch.ones_like(batch["item"])
                yield Keyed([hotrow.Bags(batch["item"], ones, weights=ones.float()),
                             batch["words"]])

        def on_gpu(ids):
            return ids if EMULATED else ids.cuda()

        seen = []
        there = mock.patch.object(hotrow.torch.direct, "_on_gpu", lambda *_: True)
        for loader, move in ((dicts, torch.clone), (dicts, on_gpu), (keyed, on_gpu)):
            with make(prefetch_depth=2, **GPU) as collection:
                tables = hotrow.torch.EmbeddingCollection(collection)
                sums = []
                with there if EMULATED and move is on_gpu else contextlib.nullcontext():
                    for features in hotrow.torch.prefetch(loader(move), tables, depth=2):
                        vectors = tables(features).pooled
                        vectors.square().sum().backward()
                        sums.append(float(vectors.detach().sum()))
                    with torch.no_grad():
                        tables.eval()
                        sums.append(float(tables(next(loader(move))).pooled.sum()))
                seen.append((sums, collection.digest()))
        self.assertEqual(seen, seen[:1] * 3)

    def losses(self, accumulate=1, **options):
        torch.manual_seed(1)
        import hotrow.torch

        collection = make(prefetch_depth=2, **options)
        tables = hotrow.torch.EmbeddingCollection(collection)
        with tables:
            where = tables._passes.device
            top = torch.nn.Linear(tables.pooled_dim, 1).to(where)
            optimizer = torch.optim.SGD(top.parameters(), lr=0.1)
            out = []
            loader = [
                {"item": torch.from_numpy(batch["item"]),
                 "words": tuple(map(torch.from_numpy, batch["words"]))}
                for batch in batches(12, 8)
            ]
            ahead = hotrow.torch.prefetch(loader, tables, depth=2, accumulate=accumulate)
            for number, features in enumerate(ahead):
                vectors = tables(features).pooled
                self.assertEqual(vectors.device.type, where.type)
                loss = (top(vectors) - 1).square().mean()
                loss.backward()
                if (number + 1) % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                out.append(loss.item())
            with torch.no_grad():
                tables.eval()
                out.append(float(tables(loader[0]).pooled.sum()))
            return out, tables.digest()

    def test_a_model_trains_as_over_tables_in_memory(self):
        for accumulate in (1, 2):
            on_gpu, digest = self.losses(accumulate, **GPU)
            np.testing.assert_allclose(on_gpu, self.losses(accumulate)[0], rtol=1e-4)
            self.assertLess(on_gpu[-2], on_gpu[0])
            self.assertEqual(self.losses(accumulate, **GPU), (on_gpu, digest))


if __name__ == "__main__":
    unittest.main()
