"""Scoring with a trained model (docs/serving.md), with the bits of hotrow::Scorer in C++."""

import ctypes
import math
import threading
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_int64, c_void_p
from types import TracebackType
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type, Union

import numpy as np

from . import _abi
from ._checks import INT32, integer, real
from ._onnxruntime import library
from .batches import _MATRIX, Batch, BatchReader, _matrix
from .options import Bytes, parse_bytes
from .saved import Path, text


class _Scratch(threading.local):
    """What a thread's calls of one scorer write into."""

    def __init__(self, features: Sequence[str]) -> None:
        self._features = features
        self.reader = BatchReader(features, [])
        self.matrices = ctypes.create_string_buffer(2 * _MATRIX.size)  # dense, logits
        self.dense_address = ctypes.addressof(self.matrices)
        self.logits_address = self.dense_address + _MATRIX.size
        self._parts: Dict[Tuple[str, ...], Tuple[np.ndarray, BatchReader, BatchReader]] = {}

    def parts(self, user: Mapping[str, Any]) -> Tuple[np.ndarray, BatchReader, BatchReader]:
        """The user's features, and readers of these and of the others."""
        names = tuple(name for name in self._features if name in user)
        if names not in self._parts:
            if len(self._parts) > 64:
                self._parts.clear()
            positions = [self._features.index(name) for name in names]
            others = [name for name in self._features if name not in user]
            self._parts[names] = (
                np.array(positions, dtype=np.int32), BatchReader(names, []), BatchReader(others, [])
            )
        return self._parts[names]


class Scorer(_abi.Owner):
    """A trained model, opened to score: all of it is in memory then, or in rows_dir, and nothing
    that happens to its directory later changes a score.

    model: of a trainer's --save_dir, a checkpoint, a directory of checkpoints (the newest counts),
    or what `export_portable` made. rows: how rows are kept, "as_trained", "fp16", "bf16", "int8" or
    "int4". memory: of rows, their index and what calls read, a hard limit; 0: none. rows_dir: a
    directory on an SSD for the rows of a model that is larger than memory, one for each model;
    memory, which must be given, has their index and a cache. store_memory: of the index of an ssd
    store while it is read; 0: no limit. precision: of the dense part's products, "fp32", "bf16" or
    "int8"; None: as it was trained, or quantized for. max_batch_size: samples that go through the
    dense part at once; the bits are those of the trainer's evaluation with this batch size.
    max_concurrency: calls that run at once, each with a copy of the dense parameters; 0: one for
    each hardware thread.
    deadline: seconds that a call may score, looked at between passes of max_batch_size samples: then
    it raises hotrow.errors.DeadlineExceeded, a TimeoutError. None: as long as it takes.
    onnxruntime: its library, for what hotrow.torch.export wrote; None: HOTROW_ONNXRUNTIME, that of
    the package onnxruntime, or the system's.

    Any number of threads may score at once; the interpreter's lock is free meanwhile. A score is a
    logit; with probabilities=True it is 1 / (1 + exp(-logit)).
    """

    def __init__(
        self,
        model: Path,
        *,
        rows: str = "as_trained",
        memory: Bytes = 0,
        rows_dir: Optional[Path] = None,
        store_memory: Bytes = 0,
        precision: Optional[str] = None,
        max_batch_size: int = 1024,
        max_concurrency: int = 0,
        deadline: Optional[float] = None,
        onnxruntime: Optional[Path] = None,
    ) -> None:
        self._handle: Optional[int] = None
        options = _abi.default(_abi.ScorerOptions, "scorer_options")
        options.model = text(model, "model")
        options.rows = text(rows, "rows")
        options.rows_dir = None if rows_dir is None else text(rows_dir, "rows_dir")
        options.precision = text(precision, "precision")
        options.memory_bytes = parse_bytes(memory, "memory")
        options.store_memory_bytes = parse_bytes(store_memory, "store_memory")
        options.max_batch_size = integer(max_batch_size, "max_batch_size")
        options.max_concurrency = integer(max_concurrency, "max_concurrency", *INT32)
        if deadline is not None:
            seconds = real(deadline, "deadline")
            if not 0 < seconds <= 1e9:
                raise ValueError(f"deadline: must be above 0 and at most 1e9 seconds, is {deadline!r}")
            options.deadline_ms = math.ceil(1000 * seconds)
        options.onnxruntime = text(onnxruntime or library(), "onnxruntime")
        handle = c_void_p()
        _abi.scorer_open(byref(options), byref(handle))
        self._handle = handle.value
        told: Dict[str, Any] = _abi.json_of(_abi.scorer_describe, self._handle)
        #: The kind of model: "dlrm".
        self.model: str = told["model"]
        #: Updates that the model has seen.
        self.step: int = told["step"]
        #: Names, in the order of batches.
        self.features: List[str] = [feature["name"] for feature in told["features"]]
        self.num_dense: int = told["num_dense"]
        #: Names of the dense features; None: not known.
        self.dense: Optional[List[str]] = told["dense"]
        self.num_tasks: int = told["num_tasks"]
        #: One for each task; empty: not known.
        self.labels: List[str] = told["labels"]
        #: The rows of all tables.
        self.rows: int = told["rows"]
        #: Taken of `memory`.
        self.table_bytes: int = told["table_bytes"]
        self.max_batch_size: int = told["max_batch_size"]
        #: The columns of what `score_lines` takes; None: the model has no schema of lines.
        self.line_columns: Optional[List[str]] = told["line_columns"]
        #: What the model lacks, and what stands in its place.
        self.notes: List[str] = told["notes"]
        self._scratch = _Scratch(self.features)

    def score(
        self,
        batch: Batch,
        dense: Any = None,
        *,
        probabilities: bool = False,
        out: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        """Scores of a batch, float32 [B, num_tasks].

        batch: ids of all features, as `EmbeddingCollection.prefetch` takes them. dense: float32
        [B, num_dense]; None where the model has none. out: where to write; by default a new array.
        Arrays are read where they lie.
        """
        scratch = self._scratch
        address = scratch.reader.read(batch)
        samples = scratch.reader.batch_size
        kept, dense_address = self._put_dense(dense, samples, self.num_dense, "dense")
        logits = self._put_logits(out, samples)
        _abi.scorer_score(self._handle, address, dense_address, scratch.logits_address)
        del kept
        return _scores(logits, probabilities)

    def score_candidates(
        self,
        user: Mapping[str, Any],
        candidates: Batch,
        *,
        user_dense: Optional[Mapping[Union[int, str], float]] = None,
        dense: Any = None,
        probabilities: bool = False,
        out: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        """Scores of one user with each of N candidates, float32 [N, num_tasks]: those of N samples
        that all have the user's features, whose rows are looked up once.

        user: ids of some features, of one sample each: {"user": [7], "history": [[1, 2, 3]]}.
        candidates: ids of all others, of N samples. user_dense: some dense features by position or
        name. dense: float32 [N, the others].
        """
        if not isinstance(user, Mapping):
            raise TypeError(f"user: is {type(user).__name__}, must be a dict of features")
        for name in user:
            if name not in self.features:
                raise ValueError(f"user: the model has no feature {name!r}")
            if isinstance(candidates, Mapping) and name in candidates:
                raise ValueError(f"feature {name!r}: is given in user and in candidates")
        scratch = self._scratch
        positions, user_reader, reader = scratch.parts(user)
        columns, values = self._user_dense(user_dense or {})
        num_others = self.num_dense - len(columns)
        told = _abi.Candidates(struct_size=ctypes.sizeof(_abi.Candidates))
        told.user = user_reader.read(user) if len(positions) else None
        if user_reader.batch_size != 1 and len(positions):
            raise ValueError(f"user: has {user_reader.batch_size} samples, must have one")
        if len(positions) < len(self.features):
            told.candidates = reader.read(candidates)
            samples = reader.batch_size
        elif candidates:
            raise ValueError("candidates: user has all features; must be empty")
        elif not num_others or dense is None:
            raise ValueError("candidates: has no features, and there is no dense; there is nothing "
                             "that tells how many candidates there are")
        else:
            samples = len(dense)
        told.num_candidates = samples
        told.user_features, told.num_user_features = positions.ctypes.data, len(positions)
        told.user_dense_columns, told.num_user_dense_columns = columns.ctypes.data, len(columns)
        told.user_dense = values.ctypes.data
        kept, told.candidate_dense = self._put_dense(dense, samples, num_others, "dense")
        logits = self._put_logits(out, samples)
        _abi.scorer_score_candidates(self._handle, byref(told), scratch.logits_address)
        del kept
        return _scores(logits, probabilities)

    def score_lines(
        self,
        lines: Sequence[Union[str, bytes]],
        *,
        probabilities: bool = False,
        out: Optional[np.ndarray] = None,
    ) -> np.ndarray:
        """Scores of lines of text, float32 [len(lines), num_tasks]: fields of `line_columns`, by
        the schema that the model was trained with. The end of a line is no part of it, so
        `score_lines(open(path))` scores a file that has no header."""
        if isinstance(lines, (str, bytes)):
            raise TypeError("lines: is one line, must be a list of lines")
        encoded = []
        for index, line in enumerate(lines):
            if isinstance(line, str):
                line = line.encode()
            elif not isinstance(line, bytes):
                raise TypeError(f"lines[{index}]: is {line!r}, must be a string or bytes")
            encoded.append(line)
        count = len(encoded)
        texts = (c_char_p * max(1, count))(*encoded)
        lengths = (c_int64 * max(1, count))(*map(len, encoded))
        logits = self._put_logits(out, count)
        _abi.scorer_score_lines(
            self._handle, texts, lengths, count, self._scratch.logits_address
        )
        return _scores(logits, probabilities)

    def close(self) -> None:
        """Frees the model once calls of other threads have ended, without waiting for them. Calls
        that begin later raise hotrow.errors.FailedPrecondition. May be called twice."""
        _abi.scorer_close(self._handle)

    def _put_dense(
        self, dense: Any, rows: int, cols: int, name: str
    ) -> Tuple[Any, Optional[int]]:
        """Returns what must be kept until the call has returned, and the address of a matrix."""
        if dense is None:
            if not cols:
                return None, None
            raise ValueError(f"{name}: is missing, must be float32 [{rows}, {cols}]")
        if not isinstance(dense, np.ndarray):
            dense = np.asarray(dense)
        scratch = self._scratch
        _matrix(dense, rows, cols, name, scratch.matrices, 0)
        return dense, scratch.dense_address

    def _put_logits(self, out: Optional[np.ndarray], rows: int) -> np.ndarray:
        if out is None:
            out = np.empty((rows, self.num_tasks), dtype=np.float32)
        _matrix(out, rows, self.num_tasks, "out", self._scratch.matrices, _MATRIX.size)
        if not out.flags.writeable:
            raise ValueError("out: is read-only")
        if not out.flags.c_contiguous:
            raise ValueError("out: is not contiguous")
        return out

    def _user_dense(
        self, told: Mapping[Union[int, str], float]
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Columns that ascend, and their values."""
        if not isinstance(told, Mapping):
            raise TypeError(
                f"user_dense: is {type(told).__name__}, must be a dict of numbers by position or "
                "name"
            )
        values: Dict[int, float] = {}
        for key, value in told.items():
            if isinstance(key, str):
                if self.dense is None or key not in self.dense:
                    raise ValueError(f"user_dense: the model has no dense feature {key!r}")
                column = self.dense.index(key)
            else:
                column = integer(key, "user_dense", 0, self.num_dense - 1)
            if column in values:
                raise ValueError(f"user_dense: column {column} is given twice")
            values[column] = real(value, f"user_dense[{key!r}]")
        columns = sorted(values)
        return (
            np.array(columns, dtype=np.int32),
            np.array([values[column] for column in columns], dtype=np.float32),
        )

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hotrow.Scorer of {self.model}, step {self.step}, {self.rows} rows>"

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            _abi.scorer_destroy(self._handle)


def _scores(logits: np.ndarray, probabilities: bool) -> np.ndarray:
    if probabilities:
        _abi.probabilities(logits.ctypes.data, logits.size, logits.ctypes.data)
    return logits
