"""Arrow arrays of pyarrow, where it is there."""

import unittest

import numpy as np

import hotrow

try:
    import pyarrow
except ImportError:
    pyarrow = None


@unittest.skipIf(pyarrow is None, "pyarrow is not installed")
class ArrowTest(unittest.TestCase):
    def digest(self, batch):
        with hotrow.EmbeddingCollection(
            [hotrow.Table("items", 2), hotrow.Table("words", 2)], store=hotrow.Memory("16MiB"),
            max_batch_size=8,
        ) as tables:
            step = tables.prefetch(batch)
            step.update(np.ones_like(step.lookup().pooled))
            return tables.digest()["hash"]

    def test_arrays_and_record_batches_are_read_where_they_lie(self):
        items = [5, 6, 7]
        words = [[1, 2], [], [3]]
        expected = self.digest(
            {"items": np.array(items), "words": (np.array([1, 2, 3]), np.array([2, 0, 1]))}
        )
        for ids, lists in (
            (pyarrow.int64(), pyarrow.list_(pyarrow.int64())),
            (pyarrow.int32(), pyarrow.large_list(pyarrow.int32())),
            (pyarrow.uint64(), pyarrow.list_(pyarrow.uint64())),
        ):
            # Slices: nothing begins at 0.
            columns = {
                "items": pyarrow.array([9, *items, 9], ids).slice(1, 3),
                "label": pyarrow.array(["a", "b", "c"]),
                "words": pyarrow.array([[8, 8], *words, [8]], lists).slice(1, 3),
            }
            table = pyarrow.table(columns)
            batches = list(hotrow.arrow_batches(table))
            self.assertEqual(len(batches), 1)
            self.assertEqual(self.digest(batches[0]), expected)
            batch = pyarrow.record_batch(columns)
            self.assertEqual(self.digest(batch), expected)
            del columns["label"]
            self.assertEqual(self.digest(columns), expected)

    def test_arrays_in_chunks_are_joined(self):
        expected = self.digest(
            {"items": np.array([5, 6, 7]), "words": (np.array([1, 2, 3]), np.array([2, 0, 1]))}
        )
        words = pyarrow.chunked_array([[[1, 2]], pyarrow.array([[9], [], [3]]).slice(1)])
        for items in (pyarrow.chunked_array([[5], [6, 7]]), pyarrow.array([5, 6, 7])):
            self.assertEqual(self.digest({"items": items, "words": words}), expected)
        with self.assertRaisesRegex(ValueError, "'items': has nulls"):
            self.digest({"items": pyarrow.chunked_array([[5], [None, 7]]), "words": words})

    def test_a_name_of_two_columns_is_refused_where_a_table_wants_it(self):
        def columns(*names):
            arrays = [pyarrow.array([1, 2])] * len(names)
            return pyarrow.RecordBatch.from_arrays(arrays, names=list(names))

        self.digest(columns("items", "words", "other", "other"))
        with self.assertRaisesRegex(ValueError, "two columns 'items'"):
            self.digest(columns("items", "words", "items"))

    def test_what_cannot_be_ids(self):
        words = np.array([1])
        for array, kind, part in (
            (pyarrow.array([1.5]), TypeError, "items"),
            (pyarrow.array([None], pyarrow.int64()), ValueError, "nulls"),
            (pyarrow.array([[[1]]]), TypeError, "list of lists"),
        ):
            with self.assertRaisesRegex(kind, part):
                self.digest({"items": array, "words": words})

    def test_nulls_of_whole_samples(self):
        columns = [pyarrow.array([5, 6, 7, 8]), pyarrow.array([[1], [2], [3], [4]])]
        mask = pyarrow.array([True, False, False, True])
        some = pyarrow.StructArray.from_arrays(columns, ["items", "words"], mask=mask)
        expected = self.digest({"items": np.array([6, 7]), "words": np.array([2, 3])})
        for batch in (some, some.slice(1), some.slice(0, 2)):
            with self.assertRaisesRegex(ValueError, "batch: has nulls"):
                self.digest(batch)
        self.assertEqual(self.digest(some.slice(1, 2)), expected)

    def test_nulls_elsewhere_in_an_array_do_not_matter(self):
        items = pyarrow.array([*[1] * 9, None, 6, 7, None]).slice(10, 2)
        words = pyarrow.array([[None], [2], [3], None]).slice(1, 2)
        expected = self.digest({"items": np.array([6, 7]), "words": np.array([2, 3])})
        self.assertEqual(self.digest({"items": items, "words": words}), expected)
        for wrong in (pyarrow.array([[2], [3, None]]), pyarrow.array([[2], None])):
            with self.assertRaisesRegex(ValueError, "'words': has nulls"):
                self.digest({"items": items, "words": wrong})


if __name__ == "__main__":
    unittest.main()
