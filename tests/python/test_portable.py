"""Tables as plain arrays and back."""

import json
import os
import tempfile
import unittest

import numpy as np

import hotrow

IDS = np.array([1, 2, 3])


def make(**arguments):
    return hotrow.EmbeddingCollection(
        [hotrow.Table("items", 4)], store=hotrow.Memory("16MiB"), max_batch_size=8, **arguments
    )


def train(tables, ids=IDS):
    with tables.prefetch({"items": ids}) as step:
        step.update(step.lookup())


class PortableTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def test_to_numpy_and_back(self):
        with make(checkpoint_dir=self.path("a")) as tables:
            train(tables)
            tables.save_checkpoint({"model": b"weights"})
            digest = tables.digest()
            rows = tables.read_table("items")[1]
        hotrow.export_portable(self.path("a"), self.path("arrays"), shard=64)
        with open(self.path("arrays/manifest.json"), encoding="utf-8") as file:
            arrays = {array["name"]: array for array in json.load(file)["tables"][0]["arrays"]}
        files = {
            name: [np.load(self.path("arrays/" + part["file"])) for part in array["files"]]
            for name, array in arrays.items()
        }
        self.assertEqual(sorted(np.concatenate(files["keys"])), [1, 2, 3])
        order = np.argsort(np.concatenate(files["keys"]))
        np.testing.assert_array_equal(np.concatenate(files["weights"])[order], rows)

        hotrow.import_portable(self.path("arrays"), self.path("b"), store=hotrow.Memory("16MiB"))
        self.assertEqual(hotrow.Saved(self.path("b"))["model"], b"weights")
        with make(checkpoint_dir=self.path("b"), resume=True) as tables:
            self.assertEqual(tables.digest(), digest)
            self.assertEqual(tables.steps, 1)

        # Another value, on purpose.
        first = self.path("arrays/" + arrays["weights"]["files"][0]["file"])
        np.save(first, files["weights"][0] + 1)
        with self.assertRaisesRegex(OSError, "edited"):
            hotrow.import_portable(self.path("arrays"), self.path("c"),
                                   store=hotrow.Memory("16MiB"))
        hotrow.import_portable(self.path("arrays"), self.path("c"), edited=True,
                               store=hotrow.Ssd(self.path("s"), disk_bytes="64MiB", memory="16MiB"))
        with make(init_from=self.path("c")) as tables:
            self.assertNotEqual(tables.digest(), digest)

    def test_refusals(self):
        for arguments, kind, part in (
            (("/nowhere", self.path("x")), RuntimeError, "nowhere"),
            ((7, self.path("x")), TypeError, "checkpoint"),
            (("", self.path("x")), ValueError, "from"),
        ):
            with self.assertRaisesRegex(kind, part):
                hotrow.export_portable(*arguments)
        with self.assertRaisesRegex(TypeError, "store"):
            hotrow.import_portable("/x", "/y", store="memory")
        with self.assertRaisesRegex(ValueError, "store.memory"):
            hotrow.import_portable("/x", "/y", store=hotrow.Memory(0))

    def test_decay_of_whole_tables(self):
        adam = hotrow.Adam(weight_decay=0.1, weight_decay_mode="table")

        def decaying(**arguments):
            return hotrow.EmbeddingCollection(
                [hotrow.Table("items", 4, optimizer=adam)], store=hotrow.Memory("16MiB"),
                max_batch_size=8, **arguments)

        with decaying() as tables:
            for ids in (IDS, IDS[:1], IDS[:1]):
                train(tables, ids)
            tables.settle()
            digest = tables.digest()
        with decaying(checkpoint_dir=self.path("a")) as tables:
            train(tables, IDS)
            train(tables, IDS[:1])
            tables.save_checkpoint()
        with self.assertRaisesRegex(RuntimeError, "EmbeddingCollection.settle"):
            hotrow.export_portable(self.path("a"), self.path("arrays"))
        with decaying(checkpoint_dir=self.path("a"), resume=True) as tables:
            train(tables, IDS[:1])
            tables.settle()
            self.assertEqual(tables.digest(), digest)
            tables.save_checkpoint()
        hotrow.export_portable(self.path("a"), self.path("arrays"))

    def test_frozen_tables_and_clipping(self):
        tables = hotrow.EmbeddingCollection(
            [hotrow.Table("items", 4, frozen=True), hotrow.Table("users", 4, ["a", "b"],
                                                                 read_only_features=["b"])],
            store=hotrow.Memory("16MiB"), max_batch_size=8, max_gradient_norm=1)
        with tables, tables.prefetch({"items": IDS, "a": IDS, "b": IDS + 10}) as step:
            step.update(step.lookup())
            rows = {table["name"]: table["rows"] for table in tables.digest()["tables"]}
            self.assertEqual(rows["items"], 0)
            self.assertTrue(tables.read_rows("users", IDS)[1].all())

        def moved(**arguments):
            sgd = hotrow.Sgd(lr=1)
            with hotrow.EmbeddingCollection(
                [hotrow.Table("items", 4, optimizer=sgd, initializer=hotrow.constant(0),
                              max_row_gradient_norm=arguments.pop("row", 0))],
                store=hotrow.Memory("16MiB"), max_batch_size=8, **arguments) as tables:
                with tables.prefetch({"items": IDS}) as step:
                    step.lookup()
                    step.update(np.full((3, 4), 5, np.float32))
                return np.linalg.norm(tables.read_rows("items", IDS)[0], axis=1)

        np.testing.assert_allclose(moved(), 10)
        np.testing.assert_allclose(moved(row=2), 2, rtol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(moved(max_gradient_norm=3)), 3, rtol=1e-5)


if __name__ == "__main__":
    unittest.main()
