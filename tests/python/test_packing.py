"""hotrow.pack and hotrow.Packed."""

import os
import pickle
import tempfile
import unittest

import numpy as np

import hotrow

try:
    import pyarrow
except ImportError:
    pyarrow = None


def columns(first, size):
    """Sample i has the item i and i % 3 words i; price i / 2; click: whether i is odd."""
    i = np.arange(first, first + size)
    lengths = i % 3
    return {
        "item": i,
        "words": (np.repeat(i, lengths), lengths),
        "price": i / 2,
        "pair": np.stack([i, -i], axis=1).astype(np.int32),
        "click": i % 2 == 1,
        "note": ["passed over"] * size,
    }


NAMES = {"features": {"item": "items", "words": "words"}, "dense": ["price", "pair"],
         "labels": ["click"]}


class PackingTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = os.path.join(folder.name, "packed")

    def check(self, data, ids, **arguments):
        """That these samples come, in this order."""
        seen = []
        for samples in data.batches(7, **arguments):
            size = len(samples)
            items = samples.ids.values[:size]
            seen.extend(items)
            i = items.astype(np.int64)
            np.testing.assert_array_equal(samples.dense, np.stack([i / 2, i, -i], axis=1))
            np.testing.assert_array_equal(samples.labels[:, 0], i % 2)
            np.testing.assert_array_equal(np.diff(samples.ids.offsets)[size:], i % 3)
            np.testing.assert_array_equal(samples.ids.values[size:], np.repeat(i, i % 3))
        if ids is None:
            return seen
        self.assertEqual(seen, list(ids))

    def test_batches_come_back_in_order_and_shuffled(self):
        data = hotrow.pack(
            (columns(first, 10) for first in range(0, 100, 10)), self.dir, **NAMES,
            valid=columns(100, 5), block_samples=16, max_hotness={"words": 2},
            dense_precision="fp16",
        )
        self.assertEqual(data.num_samples, {"train": 100, "valid": 5, "test": 0})
        self.assertEqual(data.num_dense, 3)
        self.assertEqual(data.labels, ["click"])
        self.assertEqual(data.dense, ["price", "pair[0]", "pair[1]"])
        self.assertEqual([feature["max_hotness"] for feature in data.features], [0, 2])
        self.assertEqual([feature["table"] for feature in data.features], ["items", "words"])
        in_order = hotrow.Packed(self.dir, shuffle=0)
        self.check(in_order, range(100))
        self.check(in_order, range(33, 100), first_sample=33)
        self.check(in_order, range(100, 105), split="valid")
        orders = [self.check(data, None, epoch=epoch) for epoch in range(2)]
        for order in orders:
            self.assertEqual(sorted(order), list(range(100)))
        self.assertNotEqual(*orders)
        copy = pickle.loads(pickle.dumps(hotrow.Packed([self.dir], shuffle="2KB", seed=3)))
        self.assertIsInstance(copy, hotrow.Packed)
        groups = self.check(copy, None)
        self.assertEqual(sorted(groups), list(range(100)))
        self.assertEqual(groups, self.check(hotrow.Packed(self.dir, 3, 2, shuffle="2KB"), None))

    def test_ranks_have_slices_and_several_packs_are_one(self):
        hotrow.pack(columns(0, 20), self.dir, **NAMES)
        hotrow.pack(columns(20, 11), self.dir + "2", **NAMES)
        both = [self.dir, self.dir + "2"]
        self.check(hotrow.Packed(both, shuffle=0), range(31))
        parts = [
            list(hotrow.Packed(both, shuffle=0, rank=rank, world_size=2).batches(8))
            for rank in range(2)
        ]
        self.assertEqual([len(samples) for samples in parts[0]], [4, 4, 4, 3])
        self.assertEqual([samples.global_size for samples in parts[1]], [8, 8, 8, 7])
        self.assertEqual(list(parts[1][0].ids.values[:4]), [4, 5, 6, 7])

    @unittest.skipIf(pyarrow is None, "pyarrow is not installed")
    def test_arrow_tables_of_any_types(self):
        def table(first, size):
            made = columns(first, size)
            values, lengths = made["words"]
            ends = np.concatenate([[0], np.cumsum(lengths)])
            return pyarrow.table({
                "item": pyarrow.array(made["item"], pyarrow.uint64()),
                "words": pyarrow.ListArray.from_arrays(ends.astype(np.int32), values),
                "price": pyarrow.array(made["price"], pyarrow.float64()),
                "pair": pyarrow.FixedSizeListArray.from_arrays(made["pair"].reshape(-1), 2),
                "click": pyarrow.array(made["click"], pyarrow.bool_()),
                "note": pyarrow.array(made["note"]),
            })

        # Slices: nothing begins at 0. Chunks: one batch each.
        train = pyarrow.concat_tables([table(3, 30).slice(5), table(33, 9)])
        hotrow.pack(train, self.dir, **NAMES, test=[table(50, 1), columns(51, 2)])
        data = hotrow.Packed(self.dir, shuffle=0)
        self.check(data, range(8, 42))
        self.check(data, range(50, 53), split="test")
        for column, message in (("note", "Arrow type 'u'"), ("words", "Arrow type '\\+l'")):
            with self.assertRaisesRegex(TypeError, f"column '{column}'.*{message}"):
                hotrow.pack(train, self.dir + "2", ["item"], [column], ["click"])
        with self.assertRaisesRegex(TypeError, "'note'.*; hash texts to ids"):
            hotrow.pack(train, self.dir + "2", ["note"], [], ["click"])
        nulls = pyarrow.table({"item": [1, 2], "click": [None, 1]})
        with self.assertRaisesRegex(ValueError, "column 'click': has nulls"):
            hotrow.pack(nulls, self.dir + "2", ["item"], [], ["click"])

    def test_features_find_their_tables_by_name(self):
        packed = hotrow.pack(columns(0, 8), self.dir, **NAMES)
        def tables(*names):
            return hotrow.EmbeddingCollection(
                [hotrow.Table(name + "s", 2, [name], initializer=hotrow.constant(0.5))
                 for name in names],
                store=hotrow.Memory("16MiB"), max_batch_size=8,
            )
        batch = next(packed.batches(8)).ids
        with tables("words", "item") as other, tables("item", "words") as same:
            for collection in (other, same):
                step = collection.prefetch(batch)
                step.update(np.ones_like(step.lookup().pooled))
            for name in ("items", "wordss"):
                for one, two in zip(other.read_rows(name, np.arange(8)),
                                    same.read_rows(name, np.arange(8))):
                    np.testing.assert_array_equal(one, two)
        with tables("item", "user") as wrong:
            with self.assertRaisesRegex(ValueError, "have the features .*'words'"):
                wrong.prefetch(batch)
            wrong.prefetch(hotrow.Jagged(*batch)).cancel()  # by position
        with self.assertRaises(ValueError):
            batch.offsets[1] = 2**40  # the library reads them where they lie

    def test_batches_without_samples(self):
        empty = {name: part[:0] if isinstance(part, np.ndarray) else part
                 for name, part in columns(0, 4).items()}
        empty["words"] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        hotrow.pack([empty, columns(0, 5), empty], self.dir + "//", **NAMES, valid=empty)
        self.check(hotrow.Packed(self.dir, shuffle=0), range(5))

    def test_what_cannot_be_packed_is_named_and_leaves_nothing(self):
        good = columns(0, 4)
        for change, kind, message in (
            ({"train": []}, ValueError, "train: has no samples"),
            ({"train": 7}, TypeError, "data: is int"),
            ({"train": "logs.parquet"}, TypeError, "data: is str"),
            ({"features": "item"}, TypeError, "features: is a string"),
            ({"features": ["item", "item"]}, ValueError, "two of the name"),
            ({"dense": ["weight"]}, ValueError, "column 'weight' is missing"),
            ({"dense": ["note"]}, TypeError, "column 'note'"),
            ({"labels": []}, ValueError, "labels: is empty"),
            ({"train": {**good, "click": np.full(4, 0.5)}}, ValueError, "label 0.5"),
            ({"train": {**good, "price": np.zeros(3)}}, ValueError, "'price': has 3 samples"),
            ({"train": {**good, "item": np.arange(4, dtype=np.int32) - 1}}, ValueError, "item"),
            # As many numbers together.
            ({"train": [good, {**good, "price": np.zeros((4, 2)), "pair": np.zeros((4, 1))}]},
             ValueError, "'price': has 2 numbers a sample, 1 in the first batch"),
            ({"block_samples": 2**40}, ValueError, "block_samples"),
            ({"dir": self.dir + ",b"}, ValueError, "without a comma"),
            ({"features": []}, ValueError, "features: is empty"),
            ({"dense_precision": "half"}, ValueError, "dense_precision: is \"half\", must be one of"),
            ({"train": {**good, "price": np.full(4, 7e4)}, "dense_precision": "fp16"}, ValueError,
             r"sample 0 of the batch: dense feature 0 is 70000, expected one in \[-65504, 65504\]"),
            ({"train": {**good, "price": np.full(4, np.nan)}}, ValueError, "dense feature 0 is nan"),
        ):
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                arguments = {"train": good, "dir": self.dir, **NAMES, **change}
                hotrow.pack(**arguments)
            self.assertEqual(os.listdir(os.path.dirname(self.dir)), [])
        hotrow.pack(good, self.dir, **NAMES)
        with self.assertRaisesRegex(hotrow.errors.FailedPrecondition, self.dir):
            hotrow.pack(good, self.dir, **NAMES)
        with self.assertRaisesRegex(hotrow.errors.NotFound, "hotrow pack"):
            hotrow.Packed(self.dir + "2")


if __name__ == "__main__":
    unittest.main()
