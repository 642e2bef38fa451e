"""The ctypes mirror of include/hotrow/hotrow.h, and that Python reaches every field of it."""

import ctypes
import os
import re
import unittest
from unittest import mock

import numpy as np

import hotrow
from hotrow import _abi

HEADER = os.path.join(os.path.dirname(__file__), "..", "..", "include", "hotrow", "hotrow.h")

STRUCTS = {
    "hotrow_context_options": _abi.Context,
    "hotrow_communicator_callbacks": _abi.Callbacks,
    "hotrow_optimizer": _abi.Optimizer,
    "hotrow_table": _abi.Table,
    "hotrow_collection_options": _abi.Options,
    "hotrow_batch": _abi.Batch,
    "hotrow_blob": _abi.Blob,
    "hotrow_samples_view": _abi.SamplesView,
    "hotrow_data_options": _abi.DataOptions,
    "hotrow_packer_options": _abi.PackerOptions,
    "hotrow_export_options": _abi.Export,
    "hotrow_import_options": _abi.Import,
    "hotrow_onnx_options": _abi.Onnx,
    "hotrow_scorer_options": _abi.ScorerOptions,
    "hotrow_candidates": _abi.Candidates,
}
PACKED = {"hotrow_bags": _abi.BAGS_FORMAT, "hotrow_matrix": _abi.MATRIX_FORMAT}


def header():
    with open(HEADER, encoding="utf-8") as file:
        return re.sub(r"//[^\n]*", "", file.read())


def fields_of(body):
    """Names and whether each is a pointer, in order."""
    body = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"*\1", body)  # callbacks
    for declaration in body.split(";"):
        match = re.search(r"(\**)\s*(\w+)\s*$", declaration.strip())
        if match:
            yield match.group(2), "*" in declaration


class HeaderTest(unittest.TestCase):
    def test_structs(self):
        found = dict(re.findall(r"typedef struct (\w+) \{(.*?)\n\}", header(), re.S))
        found = {name: list(fields_of(body)) for name, body in found.items()}
        self.assertEqual(set(found), set(STRUCTS) | set(PACKED))
        for name, mirror in STRUCTS.items():
            names = [field[0].rstrip("_") for field in mirror._fields_]
            self.assertEqual(names, [field for field, _ in found[name]], name)
            for (field, is_pointer), (_, kind) in zip(found[name], mirror._fields_):
                one_word = ctypes.sizeof(kind) == 8 and not issubclass(
                    kind, (ctypes.c_int64, ctypes.c_uint64, ctypes.c_double)
                )
                self.assertEqual(is_pointer, one_word, f"{name}.{field}")
        for name, layout in PACKED.items():
            self.assertEqual(len(layout) - 1, len(found[name]), name)

    def test_functions(self):
        for name in set(re.findall(r"\bhotrow_(\w+)\(", header())) - {"error_message"}:
            if name in ("status_name", "version") or name.endswith("_default"):
                continue
            name = {"export": "export_portable", "import": "import_portable"}.get(name, name)
            self.assertTrue(hasattr(_abi, name), name)


class Taken(Exception):
    pass


class FieldsTest(unittest.TestCase):
    """Every field of the options gets what its argument of Python says."""

    def differing(self, struct, default):
        return {
            name
            for name, _ in struct._fields_
            if bytes(getattr_bytes(struct, name)) != bytes(getattr_bytes(default, name))
        }

    def test_collection(self):
        taken = []

        def create(_, options, __):
            taken.append(options._obj)
            raise Taken

        class Communicator(hotrow.Communicator):
            def __init__(self):
                self._handle, self.world_size = 7, 1

            def __del__(self):
                pass

        everything = hotrow.Ftrl(
            lr=0.5, weight_decay=2, weight_decay_mode="table", lr_power=-0.25, l1=4, l2=5,
            initial_accumulator=3, beta=6,
        )
        adam = hotrow.Adam(eps=0.25, beta1=0.125, beta2=0.75)
        table = dict(
            features=["a", "b"], pooling="mean", initializer=hotrow.normal(0.5),
            weights_precision="bf16", num_embeddings=1000, max_hotness=9,
            max_row_gradient_norm=7, read_only_features=["b"], admission="coin:0.5", ttl_steps=5,
            min_rows=6, max_rows=7, score="sum", max_rows_by="score",
        )
        with mock.patch.object(_abi, "collection_create", create), self.assertRaises(Taken):
            hotrow.EmbeddingCollection(
                [hotrow.Table("items", 12, optimizer=everything, **table),
                 hotrow.Table("shops", 1, optimizer=adam)],
                store=hotrow.Ssd("/x", disk_bytes=1, memory=1), max_batch_size=1,
                max_gradient_norm=1, cache=1, seed=1, feature_order=["b"], prefetch_depth=1,
                cache_policy="lfu", evaluation_staging=1, checkpoint_dir="/y", checkpoint_keep=3,
                checkpoint_model="m", resume=True, init_from="/z", threads=1,
                communicator=Communicator(), exchange_forward="fp16", exchange_backward="int8",
                exchange_rounding="stochastic", exchange_feedback=1, admission_bytes=1,
                row_limit_steps=2,
            )
        options = taken[0]
        self.assertEqual(
            self.differing(options, _abi.default(_abi.Options, "collection_options")),
            # Those of tables on a GPU, which the package does not have.
            {name for name, _ in _abi.Options._fields_}
            - {"struct_size", "cache_device_bytes", "cache_device_index_bytes"},
        )
        self.assertEqual(
            self.differing(options.tables[0], _abi.default(_abi.Table, "table")),
            {name for name, _ in _abi.Table._fields_} - {"struct_size"},
        )
        default = _abi.default(_abi.Optimizer, "optimizer")
        reached = self.differing(options.tables[0].optimizer.contents, default)
        reached |= self.differing(options.tables[1].optimizer.contents, default)
        self.assertEqual(
            reached, {name for name, _ in _abi.Optimizer._fields_} - {"struct_size"}
        )

    def test_data(self):
        taken = []

        def open_with(_, options, __):
            taken.append(options._obj)
            raise Taken

        with mock.patch.object(_abi, "data_open_with", open_with), self.assertRaises(Taken):
            hotrow.Data("synthetic", seed=1, reader_threads=2, shuffle=3, rank=4, world_size=5)
        self.assertEqual(
            self.differing(taken[0], _abi.default(_abi.DataOptions, "data_options")),
            {name for name, _ in _abi.DataOptions._fields_} - {"struct_size", "reserved"},
        )

    def test_packer(self):
        taken = []

        def create(options, _):
            taken.append(options._obj)
            raise Taken

        batch = {"item": np.arange(2), "click": np.ones(2), "price": np.zeros(2)}
        with mock.patch.object(_abi, "packer_create", create), self.assertRaises(Taken):
            hotrow.pack(batch, "/x", ["item"], ["price"], ["click"], block_samples=1,
                        dense_precision="fp16")
        self.assertEqual(
            self.differing(taken[0], _abi.default(_abi.PackerOptions, "packer_options")),
            {name for name, _ in _abi.PackerOptions._fields_} - {"struct_size"},
        )

    def test_scorer(self):
        taken = []

        def open_scorer(options, _):
            taken.append(options._obj)
            raise Taken

        with mock.patch.object(_abi, "scorer_open", open_scorer), self.assertRaises(Taken):
            hotrow.Scorer("/x", rows="int8", memory=1, rows_dir="/r", store_memory=1,
                          precision="bf16", max_batch_size=1, max_concurrency=1, deadline=1,
                          onnxruntime="/o")
        self.assertEqual(
            self.differing(taken[0], _abi.default(_abi.ScorerOptions, "scorer_options")),
            {name for name, _ in _abi.ScorerOptions._fields_} - {"struct_size", "reserved"},
        )

    def test_defaults(self):
        """Those of the classes are those of the library."""
        optimizer = _abi.default(_abi.Optimizer, "optimizer")
        for kind in (hotrow.Sgd, hotrow.Momentum, hotrow.Adagrad, hotrow.Adam, hotrow.Lamb,
                     hotrow.Ftrl, hotrow.RowwiseAdagrad):
            made = kind()
            for name in ("eps", "beta1", "beta2", "weight_decay", "initial_accumulator",
                         "lr_power", "l1", "l2"):
                if hasattr(made, name):
                    self.assertAlmostEqual(getattr(made, name), getattr(optimizer, name), 6, name)
            self.assertAlmostEqual(made.lr, optimizer.learning_rate)
        self.assertAlmostEqual(hotrow.Initializer().value,
                               _abi.default(_abi.Table, "table").initializer_value)


def getattr_bytes(struct, name):
    field = getattr(type(struct), name)
    start = ctypes.addressof(struct) + field.offset
    return ctypes.string_at(start, field.size)


class WordsTest(unittest.TestCase):
    def test_messages(self):
        for text, expected in (
            ("tables[0]: embedding_dim: is 0", "tables[0]: dim: is 0"),
            ("cache_bytes is 3", "cache is 3"),
            ("my_cache_bytes stays, cache_bytes_x too", "my_cache_bytes stays, cache_bytes_x too"),
            ("raise store_memory_bytes.", "raise store.memory."),
            # Of the caller's own: paths, and names in quotes.
            *((text, text) for text in (
                "/data/store_path-1", "/data/memory_bytes: full", "store_path/x: full",
                'feature "learning_rate": has 3 samples', "store_path.old: no such file",
            )),
        ):
            self.assertEqual(_abi.in_words_of_python(text), expected)


if __name__ == "__main__":
    unittest.main()
