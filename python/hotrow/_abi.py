"""The C interface (include/hotrow/hotrow.h) by ctypes.

Functions are looked up once. Those of a training step take numbers alone, addresses included, so
that a call costs about a microsecond. ctypes releases the GIL while one runs.
"""

import ctypes
import dataclasses
import json
import os
import re
import threading
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_float, c_int32, c_int64
from ctypes import c_uint64, c_void_p
from typing import Any, Callable, Optional

from . import errors, options
from ._processor import check_processor

UINT64, INT64, INT32, FLOAT32 = 1, 2, 3, 4

_SONAME = "libhotrow.so.1"


def _load() -> ctypes.CDLL:
    # HOTROW_LIBRARY: for work on hotrow itself, a library that lies elsewhere.
    path = os.environ.get("HOTROW_LIBRARY") or os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "lib", _SONAME
    )
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"hotrow: {error}") from error


check_processor()
lib = _load()


class Context(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("threads", c_int32),
        ("device", c_char_p),
        ("cuda_stream", c_void_p),
        ("device_index", c_int32),
    ]


class Optimizer(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("kind", c_char_p),
        ("learning_rate", c_float),
        ("eps", c_float),
        ("beta1", c_float),
        ("beta2", c_float),
        ("weight_decay", c_float),
        ("initial_accumulator", c_float),
        ("lr_power", c_float),
        ("l1", c_float),
        ("l2", c_float),
        ("ftrl_beta", c_float),
        ("weight_decay_mode", c_char_p),
    ]


_C_TYPES: Any = {str: c_char_p, int: c_int64, float: c_float}
_OF_TABLES = [(each.name, _C_TYPES.get(each.type)) for each in dataclasses.fields(options.Table)]


class Table(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("name", c_char_p),
        ("embedding_dim", c_int64),
        ("feature_names", POINTER(c_char_p)),
        ("num_features", c_int64),
        ("pooling", c_char_p),
        ("weights_precision", c_char_p),
        ("optimizer", POINTER(Optimizer)),
        ("initializer", c_char_p),
        ("initializer_value", c_float),
        ("max_row_gradient_norm", c_float),
        ("num_embeddings", c_int64),
        ("max_hotness", c_int64),
        ("read_only_features", POINTER(c_char_p)),
        ("num_read_only_features", c_int64),
        # What joined them later stands in hotrow.Table in the same order.
        *_OF_TABLES[_OF_TABLES.index(("admission", c_char_p)):],
    ]


class Options(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("tables", POINTER(Table)),
        ("num_tables", c_int64),
        ("feature_order", POINTER(c_char_p)),
        ("num_feature_order", c_int64),
        ("seed", c_uint64),
        ("max_batch_size", c_int64),
        ("store", c_char_p),
        ("store_path", c_char_p),
        ("store_memory_bytes", c_int64),
        ("store_disk_bytes", c_int64),
        ("cache_bytes", c_int64),
        ("cache_device_bytes", c_int64),
        ("cache_policy", c_char_p),
        ("prefetch_depth", c_int64),
        ("evaluation_staging_bytes", c_int64),
        ("communicator", c_void_p),
        ("exchange_forward", c_char_p),
        ("exchange_backward", c_char_p),
        ("exchange_rounding", c_char_p),
        ("exchange_feedback_bytes", c_int64),
        ("checkpoint_dir", c_char_p),
        ("checkpoint_keep", c_int64),
        ("checkpoint_model", c_char_p),
        ("resume", c_int32),
        ("max_gradient_norm", c_float),
        ("init_from", c_char_p),
        ("admission_bytes", c_int64),
        ("row_limit_steps", c_int64),
        ("cache_device_index_bytes", c_int64),
    ]


class Export(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("from_", c_char_p),
        ("to", c_char_p),
        ("shard_bytes", c_int64),
        ("memory_bytes", c_int64),
        ("store_memory_bytes", c_int64),
    ]


class Onnx(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("to", c_char_p),
        ("dense", c_void_p),
        ("dense_size", c_uint64),
        ("num_dense", c_int64),
        ("labels", POINTER(c_char_p)),
        ("num_labels", c_int64),
        ("schema", c_char_p),
        ("shard_bytes", c_int64),
        ("memory_bytes", c_int64),
    ]


class DataOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("seed", c_uint64),
        ("reader_threads", c_int32),
        ("reserved", c_int32),
        ("shuffle_bytes", c_int64),
        ("rank", c_int32),
        ("world_size", c_int32),
    ]


class PackerOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("dir", c_char_p),
        ("features", POINTER(c_char_p)),
        ("num_features", c_int64),
        ("tables", POINTER(c_char_p)),
        ("labels", POINTER(c_char_p)),
        ("num_labels", c_int64),
        ("num_dense", c_int64),
        ("block_samples", c_int64),
        ("source", c_char_p),
        ("dense", POINTER(c_char_p)),
        ("max_hotness", POINTER(c_int64)),
        ("dense_precision", c_char_p),
    ]


class Import(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("from_", c_char_p),
        ("to", c_char_p),
        ("store", c_char_p),
        ("store_path", c_char_p),
        ("store_memory_bytes", c_int64),
        ("store_disk_bytes", c_int64),
        ("memory_bytes", c_int64),
        ("edited", c_int32),
        ("reserved", c_int32),
    ]


class ScorerOptions(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("model", c_char_p),
        ("rows", c_char_p),
        ("precision", c_char_p),
        ("memory_bytes", c_int64),
        ("store_memory_bytes", c_int64),
        ("max_batch_size", c_int64),
        ("max_concurrency", c_int32),
        ("reserved", c_int32),
        ("rows_dir", c_char_p),
        ("deadline_ms", c_int64),
        ("onnxruntime", c_char_p),
    ]


class Candidates(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("num_candidates", c_int64),
        ("user_features", c_void_p),
        ("num_user_features", c_int64),
        ("user", c_void_p),
        ("candidates", c_void_p),
        ("user_dense_columns", c_void_p),
        ("num_user_dense_columns", c_int64),
        ("user_dense", c_void_p),
        ("candidate_dense", c_void_p),
    ]


class Batch(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("batch_size", c_int64),
        ("bags", c_void_p),
        ("num_features", c_int64),
        ("scores", c_void_p),
        ("on_device", c_int32),
        ("reserved", c_int32),
    ]


# hotrow_bags and hotrow_matrix, as struct.Struct packs them.
BAGS_FORMAT = "@PPPPqii"
MATRIX_FORMAT = "@Pqqqii"


class Blob(Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("size", c_uint64)]


class SamplesView(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("batch_size", c_int64),
        ("num_features", c_int64),
        ("dense", c_void_p),
        ("labels", c_void_p),
        ("values", c_void_p),
        ("offsets", c_void_p),
        ("weights", c_void_p),
        ("num_values", c_int64),
        ("num_dense", c_int64),
        ("num_labels", c_int64),
        ("global_batch_size", c_int64),
    ]


EXCHANGE = ctypes.CFUNCTYPE(
    c_int32,
    c_void_p,
    c_char_p,
    POINTER(c_void_p),
    POINTER(c_int64),
    POINTER(c_void_p),
    POINTER(c_int64),
    c_double,
    c_void_p,
    c_uint64,
)
DUPLICATE = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_void_p), c_void_p, c_uint64)
RELEASE = ctypes.CFUNCTYPE(None, c_void_p)
ABORT = ctypes.CFUNCTYPE(None, c_void_p, c_char_p)
STATUS = ctypes.CFUNCTYPE(c_int32, c_void_p, c_void_p, c_uint64)
ROWS_FN = ctypes.CFUNCTYPE(
    c_int32, c_void_p, POINTER(c_uint64), POINTER(c_float), c_int64, c_int64
)


class Callbacks(Structure):
    _fields_ = [
        ("struct_size", c_uint64),
        ("user", c_void_p),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("exchange", EXCHANGE),
        ("duplicate", DUPLICATE),
        ("release", RELEASE),
        ("abort", ABORT),
        ("timeout_seconds", c_double),
        ("status", STATUS),
    ]


_MESSAGE = lib.hotrow_error_message
_MESSAGE.restype = c_char_p
_MESSAGE.argtypes = []


# What messages call arguments, and what Python calls them.
WORDS = {
    "bags_type": "the dtype of lengths or offsets",
    "cache_bytes": "cache",
    "cache_device_bytes": "device_cache",
    "cache_device_index_bytes": "device_index_memory",
    "embedding_dim": "dim",
    "evaluation_staging_bytes": "evaluation_staging",
    "exchange_feedback_bytes": "exchange_feedback",
    "feature_names": "features",
    "ftrl_beta": "beta",
    "initializer_value": "initializer.value",
    "hotrow_checkpoint_begin": "save_checkpoint",
    "hotrow_settle": "EmbeddingCollection.settle",
    "learning_rate": "lr",
    "learning_rate_factor": "lr_factor",
    "candidate_dense": "dense",
    "memory_bytes": "memory",
    "optimizer.ftrl_beta": "optimizer.beta",
    "optimizer.kind": "optimizer",
    "optimizer.learning_rate": "optimizer.lr",
    "options.block_samples": "block_samples",
    "options.deadline_ms": "deadline",
    "options.dense_precision": "dense_precision",
    "options.device": "device",
    "options.device_index": "device",
    "options.dir": "dir",
    "options.max_batch_size": "max_batch_size",
    "options.max_concurrency": "max_concurrency",
    "options.memory_bytes": "memory",
    "options.model": "model",
    "options.num_dense": "num_dense",
    "options.onnxruntime": "onnxruntime",
    "options.precision": "precision",
    "options.rank": "rank",
    "options.rows": "rows",
    "options.rows_dir": "rows_dir",
    "options.schema": "schema",
    "options.shard_bytes": "shard",
    "options.shuffle_bytes": "shuffle",
    "options.store_memory_bytes": "store_memory",
    "options.world_size": "world_size",
    "shard_bytes": "shard",
    "options.store": "store",
    "store_disk_bytes": "store.disk_bytes",
    "store_memory_bytes": "store.memory",
    "store_path": "store.path",
    "values_type": "the dtype of ids",
}
# Not as part of a path, of a longer name or of a quoted one, which are somebody's own.
_ANY_WORD = re.compile(
    r"""(?<![\w.'"/-])(?:"""
    + "|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True))
    + r""")(?![\w'"/-]|\.[\w'"/-])"""
)


def in_words_of_python(message: str) -> str:
    return _ANY_WORD.sub(lambda match: WORDS[match.group()], message)


#: .error, of this thread: what a callback of the library raised that is no Exception.
raised = threading.local()


def _raise_error(code: int, *_: Any) -> int:
    if code:
        error: Optional[BaseException] = getattr(raised, "error", None)
        if error is not None:
            raised.error = None
            raise error
        message = _MESSAGE().decode("utf-8", "replace")
        raise errors.of_status(code, in_words_of_python(message))
    return code


def _function(name: str, *arguments: Any) -> Callable[..., int]:
    """A function that returns a status, which becomes an exception."""
    function: Any = getattr(lib, "hotrow_" + name)
    function.argtypes = arguments
    function.restype = c_int32
    function.errcheck = _raise_error
    out: Callable[..., int] = function
    return out


def _void(name: str, *arguments: Any) -> Callable[..., None]:
    function: Any = getattr(lib, "hotrow_" + name)
    function.argtypes = arguments
    function.restype = None
    out: Callable[..., None] = function
    return out


_TEXT = (c_void_p, c_uint64, POINTER(c_uint64))

context_create = _function("context_create", POINTER(Context), POINTER(c_void_p))
context_destroy = _void("context_destroy", c_void_p)
communicator_create = _function("communicator_create", POINTER(Callbacks), POINTER(c_void_p))
communicator_destroy = _void("communicator_destroy", c_void_p)
communicator_abort = _function("communicator_abort", c_void_p, c_char_p)
collection_create = _function(
    "collection_create", c_void_p, POINTER(Options), POINTER(c_void_p)
)
collection_close = _function("collection_close", c_void_p)
collection_use_stream = _function("collection_use_stream", c_void_p, c_void_p)
wait = _function("wait", c_void_p)
collection_abandon = _void("collection_abandon", c_void_p)
collection_destroy = _void("collection_destroy", c_void_p)
collection_describe = _function("collection_describe", c_void_p, *_TEXT)
min_cache_bytes = _function("min_cache_bytes", c_void_p, POINTER(Options), POINTER(c_int64))
prefetch = _function("prefetch", c_void_p, c_void_p, c_void_p)
prefetch_in_place = _function(
    "prefetch_in_place", c_void_p, c_void_p, c_void_p, c_void_p, c_void_p
)
step_lookup = _function("step_lookup", c_void_p, c_void_p, c_void_p, c_int64)
step_update = _function("step_update", c_void_p, c_void_p, c_void_p, c_int64, c_float)
step_begin_lookup = _function("step_begin_lookup", c_void_p)
step_begin_update = _function("step_begin_update", c_void_p, c_void_p, c_void_p, c_int64)
step_destroy = _void("step_destroy", c_void_p)
evaluate = _function("evaluate", c_void_p, c_void_p, c_void_p, c_void_p, c_int64)
read_rows = _function(
    "read_rows", c_void_p, c_char_p, c_void_p, c_int64, c_void_p, c_void_p
)
write_rows = _function("write_rows", c_void_p, c_char_p, c_void_p, c_int64, c_void_p)
erase = _function("erase", c_void_p, c_char_p, c_void_p, c_int64)
erase_older_than = _function(
    "erase_older_than", c_void_p, c_char_p, c_int64, POINTER(c_int64)
)
for_each_row = _function("for_each_row", c_void_p, c_char_p, ROWS_FN, c_void_p)
flush = _function("flush", c_void_p)
digest = _function("digest", c_void_p, *_TEXT)
settle = _function("settle", c_void_p)
steps = _function("steps", c_void_p, POINTER(c_int64))
stats = _function("stats", c_void_p, *_TEXT)
metrics = _function("metrics", c_void_p, *_TEXT)
snapshot_announce = _function("snapshot_announce", c_void_p)
snapshot_begin = _function("snapshot_begin", c_void_p, c_uint64)
snapshot_prepared = _function("snapshot_prepared", c_void_p, POINTER(c_int32))
snapshot_wait = _function("snapshot_wait", c_void_p)
snapshot_commit = _function("snapshot_commit", c_void_p, c_uint64)
snapshot_drop = _function("snapshot_drop", c_void_p, c_uint64)
snapshot_list = _function(
    "snapshot_list", c_void_p, POINTER(c_uint64), c_int64, POINTER(c_int64)
)
checkpoint_begin = _function("checkpoint_begin", c_void_p, POINTER(Blob), c_int64)
checkpoint_poll = _function("checkpoint_poll", c_void_p, POINTER(c_int32))
checkpoint_wait = _function("checkpoint_wait", c_void_p)
checkpoint_newest = _function("checkpoint_newest", c_void_p, *_TEXT)
saved_open = _function("saved_open", c_char_p, POINTER(c_void_p))
saved_destroy = _void("saved_destroy", c_void_p)
saved_describe = _function("saved_describe", c_void_p, *_TEXT)
saved_blob = _function(
    "saved_blob", c_void_p, c_char_p, c_void_p, c_uint64, POINTER(c_uint64)
)
export_portable = _function("export", POINTER(Export))
import_portable = _function("import", POINTER(Import))
export_onnx = _function("export_onnx", c_void_p, POINTER(Onnx))
data_open = _function("data_open", c_char_p, c_uint64, POINTER(c_void_p))
data_open_with = _function(
    "data_open_with", c_char_p, POINTER(DataOptions), POINTER(c_void_p)
)
data_destroy = _void("data_destroy", c_void_p)
data_describe = _function("data_describe", c_void_p, *_TEXT)
reader_open = _function(
    "reader_open", c_void_p, c_char_p, c_int64, c_int64, POINTER(c_void_p)
)
reader_destroy = _void("reader_destroy", c_void_p)
samples_create = _function("samples_create", POINTER(c_void_p))
samples_destroy = _void("samples_destroy", c_void_p)
reader_next = _function(
    "reader_next", c_void_p, c_int64, c_void_p, POINTER(SamplesView)
)
packer_create = _function("packer_create", POINTER(PackerOptions), POINTER(c_void_p))
packer_append = _function(
    "packer_append", c_void_p, c_char_p, c_void_p, c_void_p, c_void_p
)
packer_finish = _function("packer_finish", c_void_p)
packer_destroy = _void("packer_destroy", c_void_p)
scorer_open = _function("scorer_open", POINTER(ScorerOptions), POINTER(c_void_p))
scorer_close = _function("scorer_close", c_void_p)
scorer_destroy = _void("scorer_destroy", c_void_p)
scorer_describe = _function("scorer_describe", c_void_p, *_TEXT)
scorer_score = _function("scorer_score", c_void_p, c_void_p, c_void_p, c_void_p)
scorer_score_candidates = _function(
    "scorer_score_candidates", c_void_p, POINTER(Candidates), c_void_p
)
scorer_score_lines = _function(
    "scorer_score_lines", c_void_p, c_void_p, c_void_p, c_int64, c_void_p
)
probabilities = _function("probabilities", c_void_p, c_int64, c_void_p)

environment = _function("environment", *_TEXT)

_VERSION = lib.hotrow_version
_VERSION.restype = c_char_p
_VERSION.argtypes = []


def version() -> str:
    """Of the library."""
    out: bytes = _VERSION()
    return out.decode()


class Owner:
    """Has a handle and destroys it, so it is never copied: a copy would destroy it once more, and
    in another process it is a wrong address."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"hotrow: {type(self).__name__} can neither be copied nor pickled; make one where it "
            "is used"
        )


def default(kind: type, name: str) -> Any:
    """A struct with the defaults of the library; `name` is that of its C type."""
    out = kind()
    _void(name + "_default", c_void_p, c_uint64)(byref(out), ctypes.sizeof(kind))
    return out


def text_of(function: Callable[..., int], handle: Optional[int]) -> str:
    """A text of the library, of any length."""
    needed = c_uint64(4096)
    while True:
        buffer = ctypes.create_string_buffer(needed.value)
        try:
            function(handle, buffer, len(buffer), byref(needed))
        except errors.OutOfRange:
            if needed.value <= len(buffer):
                raise
            continue
        return buffer.value.decode("utf-8")


def json_of(function: Callable[..., int], handle: Optional[int]) -> Any:
    return json.loads(text_of(function, handle))


def environment_of_library() -> Any:
    return json_of(lambda _, *text: environment(*text), None)
