"""EmbeddingCollection: tables that are looked up and trained together."""

import collections
import ctypes
import operator
import os
import re
import threading
import warnings
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from types import TracebackType
from typing import (
    Any, Callable, Deque, Dict, FrozenSet, List, Optional, Sequence, Tuple, Type, Union,
)

import numpy as np

from . import _abi, errors
from ._checks import INT32, UINT64, integer, real
from .batches import (
    Batch, BatchReader, Embeddings, Layout, MatrixWriter, OfReader, address, without_mask,
)
from ._metrics import MetricsServer, Stats
from .options import (
    Bytes, Memory, Optimizer, RocksDb, Ssd, Store, Table, parse_bytes, store_paths,
)
from .ranks import Communicator, outside_callbacks, together
from .saved import Saved, put_store, text as _text, texts

# For tests: the library has an emulated GPU, whose memory is the host's.
EMULATED = bool(os.environ.get("HOTROW_EMULATED_GPU"))

Gradient = Union[Embeddings, np.ndarray, Mapping[str, np.ndarray]]


_READ: Dict[Any, Callable[[Any, str], Any]] = {
    c_char_p: _text, c_float: real, c_int64: integer,
    c_uint64: lambda value, name: integer(value, name, *UINT64),
}


def _put(out: Any, given: Mapping[str, Any], place: str = "") -> None:
    """The numbers and texts of a C struct from arguments. _abi.WORDS: where names differ."""
    for field, kind in out._fields_:
        name = _abi.WORDS.get(field, field)
        if name in given and kind in _READ:
            read = parse_bytes if field.endswith("_bytes") else _READ[kind]
            setattr(out, field, read(given[name], place + name))


def _c_optimizer(optimizer: Optimizer, place: str) -> Any:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{place}: is {optimizer!r}, must be one such as hotrow.RowwiseAdagrad()")
    out = _abi.default(_abi.Optimizer, "optimizer")
    _put(out, {**vars(optimizer), "kind": optimizer.kind}, f"{place}.")
    return out


def _c_table(table: Table, place: str, out: _abi.Table) -> None:
    if not isinstance(table, Table):
        raise TypeError(f"{place}: is {table!r}, must be a hotrow.Table")
    given = {**vars(table), "initializer": table.initializer.kind}
    _put(out, {**given, "initializer.value": table.initializer.value}, f"{place}.")
    features = table.features or (table.name,)
    out.feature_names = texts(features, f"{place}.features")
    out.num_features = len(features)
    out.optimizer = ctypes.pointer(_c_optimizer(table.optimizer, f"{place}.optimizer"))
    read_only = features if table.frozen else table.read_only_features
    if read_only:
        out.read_only_features = texts(read_only, f"{place}.read_only_features")
        out.num_read_only_features = len(read_only)


class _Scratch(threading.local):
    """What a thread's calls of one collection write into."""

    def __init__(self, layout: Layout, optional: FrozenSet[str]) -> None:
        self.reader = BatchReader(layout.names, layout.unpooled_indices, optional)
        self.writer = MatrixWriter(layout)
        self.handle = c_void_p()
        self.handle_address = ctypes.addressof(self.handle)


def _optional(names: Sequence[str], features: List[str]) -> FrozenSet[str]:
    if isinstance(names, str):
        raise TypeError(f"optional_features: is {names!r}, must be a list of names")
    for name in names:
        if name not in features:
            raise ValueError(f"optional_features: no table has a feature {name!r}")
    return frozenset(names)


def _device(device: Any) -> Tuple[str, int]:
    """Of "cpu", "cuda", "cuda:1" or a torch.device."""
    match = re.fullmatch(r"(cpu|cuda)(?::(\d{1,6}))?", str(device))
    if match is None or match.group() == "cpu:":
        raise ValueError(f"device: is {str(device)!r}, must be 'cpu', 'cuda' or 'cuda:1'")
    return match.group(1), int(match.group(2) or 0)


class Step(_abi.Owner):
    """One batch on its way through the tables; `EmbeddingCollection.prefetch` makes it.

    Used once: lookup, then update. One that is left by `with`, or dropped, without an update is
    cancelled: its rows are unpinned and nothing changes. One that is dropped is so by the next call
    of the collection, since Python's collector may run anywhere, in a transport's callback say.
    """

    __slots__ = (
        "_handle", "_scratch", "_tables", "_communicator", "batch_size", "_sizes", "_ended",
        "_dropped", "_kept",
    )

    def __init__(
        self, tables: "EmbeddingCollection", handle: Any, batch_size: int, sizes: List[int]
    ) -> None:
        self._tables = tables  # keeps the collection
        self._communicator = tables._communicator
        self._scratch = tables._scratch
        self._dropped = tables._dropped
        self._handle: Optional[int] = handle
        self._sizes = sizes
        self._kept: List[Any] = []  # what the library reads of the batch until the step ends
        self._ended = False
        self.batch_size = batch_size

    @together
    def lookup(self, out: Optional[Embeddings] = None) -> Embeddings:
        """Forward: the rows' values after the update of the step before.

        out: where to write, such as what a lookup of the same sizes gave; by default new arrays.
        Waits until the rows are there.
        """
        self._tables._check_arrays()
        writer = self._scratch.writer
        if out is None:
            out = writer.new(self.batch_size, self._sizes)
        kept = writer.write(out, self.batch_size, self._sizes, "out", writable=True)
        self._lookup()
        self._tables._wait()
        del kept
        return out

    @together
    def update(self, gradient: Optional[Gradient] = None, lr_factor: float = 1.0) -> None:
        """Backward: moves the rows, and ends the step.

        gradient: of what lookup gave, in the same shapes, float32: an `Embeddings`, one array
        [B, sum of dims] where every feature is pooled, or a dict with an array for each feature.
        None after begin_update. lr_factor multiplies every table's learning rate.
        """
        if type(lr_factor) is not float:
            lr_factor = real(lr_factor, "lr_factor")
        self._tables._check_arrays()
        handle = self._use()
        if gradient is None:
            kept = None
        else:
            writer = self._scratch.writer
            kept = writer.write(gradient, self.batch_size, self._sizes, "gradient")
        if gradient is None:
            self._ended = True
            _abi.step_update(handle, None, None, 0, lr_factor)
        else:
            self._update(lr_factor)
        self._tables._wait()  # a GPU may still read the gradient
        self._kept = []
        del kept

    @together
    def begin_lookup(self) -> None:
        """The first half of lookup: between ranks, rows set out. May be left out."""
        _abi.step_begin_lookup(self._use())

    @together
    def begin_update(self, gradient: Gradient) -> None:
        """The first half of update: reads the gradient, and sends it off. May be left out."""
        self._tables._check_arrays()
        writer = self._scratch.writer
        kept = writer.write(gradient, self.batch_size, self._sizes, "gradient")
        _abi.step_begin_update(
            self._use(), writer.pooled_address, writer.unpooled_address, writer.num_unpooled
        )
        del kept

    def cancel(self) -> None:
        """Updates nothing. May be called after an update, and twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _abi.step_destroy(handle)
        self._kept = []

    def __repr__(self) -> str:
        state = "updated" if self._ended else "cancelled" if self._handle is None else "begun"
        return f"<hotrow.Step of {self.batch_size} samples: {state}>"

    # As the writer of this thread describes outputs or gradients.

    def _lookup(self) -> None:
        writer = self._scratch.writer
        _abi.step_lookup(
            self._use(), writer.pooled_address, writer.unpooled_address, writer.num_unpooled
        )

    def _update(self, lr_factor: float) -> None:
        writer = self._scratch.writer
        handle = self._use()
        self._ended = True
        _abi.step_update(
            handle, writer.pooled_address, writer.unpooled_address, writer.num_unpooled, lr_factor
        )

    def _use(self) -> int:
        if self._handle is None or self._ended:
            raise errors.FailedPrecondition(
                "the step has been updated already" if self._ended else "the step was cancelled"
            )
        return self._handle

    def __enter__(self) -> "Step":
        return self

    def __exit__(self, *_: Any) -> None:
        self.cancel()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            self._handle = None
            dropped = (handle, self._kept)
            if self._tables._address is None:
                outside_callbacks(_end_step, dropped)
            else:
                self._dropped.append(dropped)


class EmbeddingCollection(_abi.Owner):
    """Embedding tables that may be larger than memory, looked up and trained together.

        tables = hotrow.EmbeddingCollection(
            [hotrow.Table("items", dim=64, features=["item"])],
            store=hotrow.Ssd("/data/rows", disk_bytes="200GB", memory="2GB"),
            cache="8GB", max_batch_size=65536)
        with tables.prefetch({"item": ids}) as step:     # ids: [B] int64
            embeddings = step.lookup()                   # embeddings.pooled: [B, 64] float32
            step.update(gradient)                        # [B, 64] float32

    tables: at least one. store: where all rows are kept. cache: bytes of memory for rows over the
    store; 0 for hotrow.Memory alone, whose rows are trained where they are kept. max_batch_size: of
    samples. max_gradient_norm: the gradients of all rows of a step together are scaled down to it
    when they are longer; 0: never. seed: of the rows' first values. feature_order: of batches and
    outputs; by default table by table. prefetch_depth: how many steps may be prefetched beyond the
    current one, made ready by threads of the collection's own. checkpoint_dir, checkpoint_keep,
    checkpoint_model, resume: see `save_checkpoint`; without a checkpoint_dir rows on a disk have
    theirs in the store's folder: `close` makes one, and the next opening goes on from it.
    init_from: a saved model or a checkpoint of the same tables to start from. threads: 0 takes all
    processors. communicator: the ranks that share the tables; then calls are collective, and
    exchange_* say in which form rows and gradients travel (docs/ranks.md). admission_bytes: memory
    of the counters where tables admit ids by their number of lookups. row_limit_steps: min_rows and
    max_rows of tables are kept at its multiples.

    device: "cuda" or "cuda:1": rows that are in use lie in a cache of `device_cache` bytes of that
    GPU's memory, and lookups and updates run there; for hotrow.torch, whose tensors they read and
    write. `cache` is the tier below then, in host memory, over a disk. device_index_memory: of the
    GPU, where it is to find rows of a store in memory without the host, 32 bytes a row.

    optional_features: those that a batch may lack, such as a tower's users where items alone are
    looked up: each sample then has none of their ids, and no row is made.

    metrics_port: serves the tables' numbers at http://127.0.0.1:PORT/metrics, for Prometheus and
    `hotrow top PORT`; 0 takes any free port. Rank n listens at PORT + n. docs/metrics.md.

    Neither cache, prefetch depth, store nor threads change a bit of the result.

    Threads: calls wait for each other. The GIL is free while the library works.
    """

    @together
    def __init__(
        self,
        tables: Sequence[Table],
        *,
        store: Store,
        max_batch_size: int,
        max_gradient_norm: float = 0.0,
        cache: Bytes = 0,
        seed: int = 0,
        feature_order: Optional[Sequence[str]] = None,
        prefetch_depth: int = 0,
        cache_policy: str = "lru",
        evaluation_staging: Bytes = "64MiB",
        checkpoint_dir: Optional[str] = None,
        checkpoint_keep: int = 2,
        checkpoint_model: str = "custom",
        resume: bool = False,
        init_from: Optional[str] = None,
        threads: int = 0,
        communicator: Optional[Communicator] = None,
        exchange_forward: str = "fp32",
        exchange_backward: str = "fp32",
        exchange_rounding: str = "nearest",
        exchange_feedback: Bytes = 0,
        admission_bytes: Bytes = 0,
        row_limit_steps: int = 64,
        device: str = "cpu",
        device_cache: Bytes = 0,
        device_index_memory: Bytes = 0,
        optional_features: Sequence[str] = (),
        metrics_port: Optional[int] = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "store"}
        self._address: Optional[int] = None
        self._metrics: Optional[MetricsServer] = None
        self._process = os.getpid()  # in another one, a fork's, there is nothing to end
        self._keeps = False  # close makes a checkpoint
        self._kept_steps = 0  # of the newest one, then
        self._closed = False
        self._dropped: Deque[_Dropped] = collections.deque()  # steps to destroy
        self._stream: Optional[int] = None  # hotrow_collection_use_stream; none yet
        #: Ranks that share the tables.
        self.world_size: int = 1
        self._communicator: Optional[Communicator] = None
        if communicator is not None:
            if not isinstance(communicator, Communicator):
                raise TypeError(
                    f"communicator: is {communicator!r}, must be a hotrow.Communicator"
                )
            self.world_size = communicator.world_size
            self._communicator = communicator
        tables = list(tables)
        if not tables:
            raise ValueError("tables: is empty, must have at least one hotrow.Table")
        options = _abi.default(_abi.Options, "collection_options")
        array = (_abi.Table * len(tables))()
        for index, table in enumerate(tables):
            array[index] = _abi.default(_abi.Table, "table")
            _c_table(table, f"tables[{index}]", array[index])
        options.tables = array
        options.num_tables = len(tables)
        if feature_order is not None:
            options.feature_order = texts(feature_order, "feature_order")
            options.num_feature_order = len(feature_order)
        put_store(options, store)
        if checkpoint_dir is None and not isinstance(store, Memory):
            checkpoint_dir, checkpoint_keep, resume = self._keep_in_store(store, resume)
            given.update(checkpoint_dir=checkpoint_dir, checkpoint_keep=checkpoint_keep)
        _put(options, given)
        options.resume = 1 if resume else 0
        if communicator is not None:
            options.communicator = communicator._handle

        context_options = _abi.default(_abi.Context, "context_options")
        kind, context_options.device_index = _device(device)
        context_options.device = kind.encode()
        #: "cpu" or "cuda:0": where lookups and updates run.
        self.device: str = kind if kind == "cpu" else f"{kind}:{context_options.device_index}"
        context_options.threads = integer(threads, "threads", *INT32)
        context = c_void_p()
        _abi.context_create(byref(context_options), byref(context))
        # What the library itself refuses the others hear from it.
        handle = c_void_p()
        try:
            _abi.collection_create(context, byref(options), byref(handle))
        except errors.Error as error:
            folder = f"checkpoint_dir={checkpoint_dir}: "
            if not self._keeps or not str(error).startswith(folder):
                raise
            # Nobody gave one: it lies in the store.
            raise type(error)(f"store: {store!r}: {str(error)[len(folder):]}") from None
        finally:  # an interrupt may come as the call returns: __del__ ends what it made
            self._address = handle.value
            _abi.context_destroy(context)
        self.prefetch_depth: int = prefetch_depth
        self._dims = {table.name: table.dim for table in tables}
        description = _abi.json_of(_abi.collection_describe, self._handle)
        self._layout = Layout(description)
        try:
            self._optional = _optional(optional_features, self._layout.names)
            if metrics_port is not None:
                port = integer(metrics_port, "metrics_port", 0, 65535)
                if port and communicator is not None:
                    port += communicator.rank
                self._metrics = MetricsServer(self, port)
        except BaseException:  # the exception keeps this object, and so the store's lock
            self._abandon()
            raise
        self._scratch = _Scratch(self._layout, self._optional)
        start = description["start"]
        #: The saved model or checkpoint that the tables came from; None: they are new.
        self.restored: Optional[Saved] = Saved(start) if start else None
        self._kept_steps = self.steps
        self._shown = f"over {store!r}, on {self.device}"

    def _keep_in_store(
        self, store: Union[Ssd, RocksDb], resume: bool
    ) -> Tuple[Optional[str], int, bool]:
        """checkpoint_dir, checkpoint_keep and resume of a store on a disk that was given no
        checkpoint_dir: the rows stay with the store."""
        if self.world_size > 1:
            warnings.warn(
                "hotrow.EmbeddingCollection: without a checkpoint_dir the rows of several ranks "
                "are gone once they are closed; give a checkpoint_dir that all ranks see",
                stacklevel=3,
            )
            return None, 2, resume
        self._keeps = True
        folder = os.path.join(os.fspath(store_paths(store)[0]), "checkpoints")
        # With it the rows are the collection's, also where a kill came before a checkpoint.
        return folder, 1, resume or os.path.isdir(folder)

    # ---- What it is ----

    @property
    def feature_names(self) -> List[str]:
        """In the order of batches and outputs."""
        return list(self._layout.names)

    @property
    def pooled_dim(self) -> int:
        """Columns of `Embeddings.pooled`."""
        return self._layout.pooled_dim

    @property
    def steps(self) -> int:
        """Updates so far, those of what it started from included."""
        out = c_int64()
        _abi.steps(self._handle, byref(out))
        return int(out.value)

    def stats(self) -> Dict[str, Any]:
        """What was counted: of the collection, in "tiers" of each tier from the top down, and in
        "tables" of each table. A dict, which notebooks show as tables."""
        return Stats(_abi.json_of(_abi.stats, self._handle))

    def metrics(self) -> str:
        """The same as the text that Prometheus reads (docs/metrics.md)."""
        return _abi.text_of(_abi.metrics, self._handle)

    @property
    def metrics_port(self) -> Optional[int]:
        """Where the numbers are served; None: nowhere."""
        return None if self._metrics is None else self._metrics.port

    def __repr__(self) -> str:
        tables = ", ".join(f"{name} [{dim}]" for name, dim in self._dims.items())
        state = self._shown if self._is_open else "closed"
        return f"<hotrow.EmbeddingCollection of {tables}; {state}>"

    @together
    def digest(self) -> Dict[str, Any]:
        """Rows and hashes of all tables: {"hash": ..., "tables": [...]}. Reads every row.

        Collections with the same hash have the same rows and optimizer state, bit for bit.
        """
        out: Dict[str, Any] = _abi.json_of(_abi.digest, self._handle)
        return out

    # ---- Training ----

    @together
    def prefetch(self, batch: Batch, copy: Optional[bool] = None) -> Step:
        """Begins a step: makes the rows of a batch ready.

        batch: a dict with the ids of each feature:
            [B]: one id a sample; [B, h]: h ids a sample;
            (values [N], lengths [B]), or hotrow.Bags(values, lengths, offsets, weights, scores);
            an Arrow array of integers or of lists of integers;
        or a hotrow.Jagged with all features in one array; or an Arrow record batch.
        Ids are int64, uint64 or int32, and copied: arrays may be written to once this has returned.
        With copy=False those that have the library's form, ids and offsets of 64 bits and weights
        of all features one after the other, stay where they are; the step keeps them, and nobody
        must write to them until it is over, by its update or without. So it is with the batches of
        hotrow.Data and hotrow.Packed, unless copy=True.

        Steps are looked up and updated in the order of their prefetch. With prefetch_depth > 0 this
        returns at once, and up to that many steps may be ahead of the one that is trained.
        """
        self._scratch.reader.read(batch)
        return self._begin(not isinstance(batch, OfReader) if copy is None else copy)

    def _begin(self, copy: bool = True) -> Step:
        """A step with the batch of this thread's reader. Unless it is copied, reader.keep has all
        its arrays."""
        scratch = self._scratch
        reader = scratch.reader
        scratch.handle.value = None
        step = Step(self, None, reader.batch_size, reader.unpooled_sizes)
        try:
            if copy:
                _abi.prefetch(self._handle, reader.batch_address, scratch.handle_address)
            else:
                step._kept = reader.keep
                _abi.prefetch_in_place(
                    self._handle, reader.batch_address, None, None, scratch.handle_address
                )
        finally:  # an interrupt may come as the call returns: __del__ cancels what it began
            step._handle = scratch.handle.value
            reader.keep = []
        return step

    @together
    def evaluate(self, batch: Batch, out: Optional[Embeddings] = None) -> Embeddings:
        """What a lookup would give after the last update, and nothing changes: no row is made, none
        moves in or out. Ids without a row read their first values."""
        self._check_arrays()
        reader, writer = self._scratch.reader, self._scratch.writer
        reader.read(batch)
        if out is None:
            out = writer.new(reader.batch_size, reader.unpooled_sizes)
        kept = writer.write(out, reader.batch_size, reader.unpooled_sizes, "out", writable=True)
        self._evaluate()
        self._wait()
        del kept
        return out

    def _check_arrays(self) -> None:
        """TypeError where arrays of numpy, which lie in host memory, are none for the tables."""
        if self.device != "cpu" and not EMULATED:
            raise TypeError(
                f"the tables are on {self.device}, which reads and writes no arrays of numpy; use "
                "hotrow.torch, or read_rows for single rows"
            )

    def _wait(self) -> None:
        """Until the GPU has done what calls have enqueued."""
        if self.device != "cpu":
            _abi.wait(self._handle)

    def _evaluate(self) -> None:
        """As this thread's reader and writer describe it."""
        reader, writer = self._scratch.reader, self._scratch.writer
        _abi.evaluate(
            self._handle, reader.batch_address, writer.pooled_address, writer.unpooled_address,
            writer.num_unpooled,
        )
        reader.keep = []

    # ---- Rows ----

    @together
    def read_rows(self, table: str, keys: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """The weights of keys of one table, float32 [K, dim], and whether each has a row, bool [K].

        keys: [K] uint64 or int64. Keys without a row read their first values. Changes nothing.
        """
        dim = self._dim(table)
        keys = _keys(keys)
        rows = np.empty((len(keys), dim), dtype=np.float32)
        found = np.zeros(len(keys), dtype=np.bool_)
        matrix = ctypes.create_string_buffer(48)
        _abi_matrix_pack(matrix, rows)
        _abi.read_rows(
            self._handle, table.encode(), keys.ctypes.data, len(keys), matrix, found.ctypes.data
        )
        return rows, found

    @together
    def write_rows(self, table: str, keys: np.ndarray, rows: np.ndarray) -> None:
        """Gives keys of one table these weights, with fresh optimizer state: pretrained rows.

        keys: [K] uint64 or int64, distinct. rows: [K, dim], finite; taken as float32. For between
        two steps: none may be outstanding (hotrow.errors.FailedPrecondition; also for a table with
        weight_decay_mode "table"). Durable with the next checkpoint. Collective: each rank gives
        its own rows, of keys that any rank may keep.
        """
        dim = self._dim(table)
        keys = _keys(keys)
        rows = np.ascontiguousarray(without_mask(rows, "rows"), dtype=np.float32)
        if rows.shape != (len(keys), dim):
            raise ValueError(f"rows: has shape {rows.shape}, must be {(len(keys), dim)}")
        matrix = ctypes.create_string_buffer(48)
        _abi_matrix_pack(matrix, rows)
        _abi.write_rows(self._handle, table.encode(), keys.ctypes.data, len(keys), matrix)

    @together
    def erase(self, table: str, keys: np.ndarray) -> None:
        """Removes the rows of keys of one table: from here on the keys are new.

        keys: [K] uint64 or int64; they may repeat or have no row. For between two steps: none may
        have been looked up and wait for its update (hotrow.errors.FailedPrecondition). Durable with
        the next checkpoint. Collective; keys may be kept by any rank.
        """
        self._dim(table)
        keys = _keys(keys)
        _abi.erase(self._handle, table.encode(), keys.ctypes.data, len(keys))

    @together
    def erase_older_than(self, table: str, step: int) -> int:
        """Removes the rows of a table whose last update was before update number `step`, counted
        from 1 as `steps` counts. Rows that no step has updated stay.

        Returns how many rows of this rank went. As for erase, between two steps, durable with the
        next checkpoint, collective: every rank gives the same step. hotrow.errors.
        FailedPrecondition also for a table with weight_decay_mode "table". Reads every row.
        """
        erased = ctypes.c_int64()
        self._dim(table)
        step = integer(operator.index(step), "step")
        _abi.erase_older_than(self._handle, table.encode(), step, ctypes.byref(erased))
        return erased.value

    def for_each_row(self, table: str, fn: Callable[[np.ndarray, np.ndarray], Any]) -> None:
        """Calls fn(keys [n] uint64, rows [n, dim] float32) for all rows of a table, some thousand
        at a time, in no order. The arrays are valid during the call. fn must not call the
        collection.
        """
        self._dim(table)
        failure: List[BaseException] = []

        def call(_: Any, keys: Any, rows: Any, count: int, dim: int) -> int:
            try:
                fn(
                    np.ctypeslib.as_array(keys, (count,)),
                    np.ctypeslib.as_array(rows, (count, dim)),
                )
            except BaseException as error:  # may not pass through the library
                failure.append(error)
                return errors.Cancelled.code
            return 0

        try:
            _abi.for_each_row(self._handle, table.encode(), _abi.ROWS_FN(call), None)
        except errors.Cancelled:
            if failure:
                raise failure[0] from None
            raise

    def read_table(self, table: str) -> Tuple[np.ndarray, np.ndarray]:
        """All rows of one table: keys [n] uint64, ascending, and weights [n, dim] float32."""
        keys: List[np.ndarray] = [np.empty(0, dtype=np.uint64)]
        rows: List[np.ndarray] = [np.empty((0, self._dim(table)), dtype=np.float32)]

        def add(some_keys: np.ndarray, some_rows: np.ndarray) -> None:
            keys.append(some_keys.copy())
            rows.append(some_rows.copy())

        self.for_each_row(table, add)
        all_keys = np.concatenate(keys)
        order = np.argsort(all_keys)
        return all_keys[order], np.concatenate(rows)[order]

    def flush(self) -> None:
        """Writes changed rows down to the store."""
        _abi.flush(self._handle)

    @together
    def settle(self) -> None:
        """With weight_decay_mode="table": brings every row to where it stands after the last step,
        so that the next checkpoint can be exported or start other tables. Changes no bit of what
        follows."""
        _abi.settle(self._handle)

    # ---- Checkpoints ----

    def save_checkpoint(
        self, state: Optional[Mapping[str, Any]] = None, *, wait: bool = True
    ) -> None:
        """Makes a checkpoint of the tables as they are after the last update, in checkpoint_dir.

        state: bytes that belong to it, by name, such as a model's parameters, their optimizer's
        state, and where the data stand; they are copied at once, and read back from
        `restored`. The checkpoint appears by one rename when all of it is on disk: a kill at any
        moment leaves it whole or not there. wait=False returns after a pause of milliseconds, and a
        thread writes while training goes on; one checkpoint at a time. One may follow another
        without an update between them: after an erase, say.

        A new collection with the same checkpoint_dir and resume=True goes on from the newest one.
        """
        state = {} if state is None else state
        blobs, kept = self._blobs(state)
        _abi.checkpoint_begin(self._open_handle(), blobs, len(state))
        self._kept_steps = self.steps
        del kept
        if wait:
            self.wait_checkpoint()

    @together
    def _blobs(self, state: Mapping[str, Any]) -> Tuple[Any, List[Any]]:
        """As the library takes them, and what must be kept until it has."""
        blobs = (_abi.Blob * max(1, len(state)))()
        kept: List[Any] = []
        for index, (name, data) in enumerate(state.items()):
            view = memoryview(data).cast("B") if not isinstance(data, bytes) else data
            part = np.frombuffer(view, dtype=np.uint8) if len(view) else np.empty(0, np.uint8)
            blobs[index].name = _text(name, "state")
            blobs[index].data = part.ctypes.data
            blobs[index].size = len(view)
            kept.append((view, part))
        return blobs, kept

    @together
    def _open_handle(self) -> int:
        """For calls of checkpoints: what the library returns then, it returns to all ranks, which
        go on."""
        return self._handle

    def poll_checkpoint(self) -> bool:
        """Whether the checkpoint that is being written has just been committed. Does not wait."""
        out = c_int32()
        _abi.checkpoint_poll(self._open_handle(), byref(out))
        return bool(out.value)

    def wait_checkpoint(self) -> None:
        """Waits until the checkpoint that is being written is committed, if there is one."""
        _abi.checkpoint_wait(self._open_handle())

    @property
    def newest_checkpoint(self) -> Optional[str]:
        """The directory of the newest committed checkpoint."""
        return _abi.text_of(_abi.checkpoint_newest, self._handle) or None

    # ---- The end ----

    def close(self) -> None:
        """Ends the store in good order, so that it opens quickly the next time, and frees all
        memory. A checkpoint that is being written is waited for. With rows on a disk, and no
        checkpoint_dir, it first makes the checkpoint that the next opening goes on from. May be
        called twice."""
        if not self._is_open or self._process != os.getpid():
            return
        if self._keeps:
            self.wait_checkpoint()
            self.save_checkpoint()
        _abi.collection_close(self._handle)
        self._closed = True  # other threads may be in calls, so __del__ ends the handle
        self._end_metrics()

    @property
    def _is_open(self) -> bool:
        return self._address is not None and not self._closed

    @property
    def _handle(self) -> int:
        """For a call: ends the steps that were dropped before it."""
        if self._address is None or self._closed:
            raise errors.FailedPrecondition("the collection has been closed")
        if self._dropped:
            _end_steps(self._dropped)
        return self._address

    def _abandon(self) -> None:
        """As a kill would leave it: every checkpoint is there."""
        self._end_metrics()
        if self._address is not None:
            _abi.collection_abandon(self._address)
        self._closed = True

    def _end_metrics(self) -> None:
        metrics = getattr(self, "_metrics", None)
        if metrics is not None:
            metrics.close()

    def _dim(self, table: str) -> int:
        if table not in self._dims:
            raise ValueError(f"table: there is no {table!r}, only {', '.join(self._dims)}")
        return self._dims[table]

    def __enter__(self) -> "EmbeddingCollection":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if kind is None:
            self.close()
        else:
            if isinstance(error, Exception) and self._communicator is not None:
                self._communicator.end_job(error)
            try:
                loses = (
                    self._keeps and self._is_open and self._process == os.getpid()
                    and self.steps > self._kept_steps
                )
            except errors.Error:  # it has ended, or this is within a callback of it
                loses = False
            finally:
                self._abandon()
            if loses:
                warnings.warn(
                    f"hotrow.EmbeddingCollection: {kind.__name__} ended `with`, so what was trained "
                    f"since step {self._kept_steps} is not kept; close() within the block keeps it",
                    stacklevel=2,
                )

    def __del__(self) -> None:
        handle = getattr(self, "_address", None)
        if handle is not None:
            self._end_metrics()
            self._address = None
            outside_callbacks(_destroy, (handle, self._dropped))


#: The handle of a step, and what it reads.
_Dropped = Tuple[int, List[Any]]


def _end_step(dropped: _Dropped) -> None:
    _abi.step_destroy(dropped[0])


def _end_steps(dropped: Deque[_Dropped]) -> None:
    while True:
        try:
            _end_step(dropped.popleft())
        except IndexError:  # also where another thread was faster
            return


def _destroy(collection: Tuple[int, Deque[_Dropped]]) -> None:
    """Of a handle, and the steps that were dropped."""
    handle, dropped = collection
    _abi.collection_destroy(handle)
    _end_steps(dropped)


def _keys(keys: np.ndarray) -> np.ndarray:
    keys = np.ascontiguousarray(without_mask(keys, "keys"))
    if keys.dtype == np.int64:
        keys = keys.view(np.uint64)
    if keys.dtype != np.uint64 or keys.ndim != 1:
        raise TypeError(f"keys: is {keys.dtype} of shape {keys.shape}, must be [K] of uint64 "
                        "or int64")
    return keys


def _abi_matrix_pack(buffer: Any, rows: np.ndarray) -> None:
    from .batches import _MATRIX

    _MATRIX.pack_into(
        buffer, 0, address(rows), rows.shape[0], rows.shape[1], rows.shape[1], _abi.FLOAT32, 0
    )
