"""What a collection is made from: tables, optimizers, stores."""

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, List, Optional, Sequence, Union

import numpy as np

Bytes = Union[int, str]

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[_letter] = _UNITS[_letter + "b"] = 1000**_power
    _UNITS[_letter + "ib"] = 1024**_power


def parse_bytes(value: Bytes, name: str) -> int:
    """A number of bytes: 4096, "64MiB" (powers of 1024), "1.5GB" or "1.5G" (powers of 1000)."""
    wanted = "must be a number of bytes such as 4096 or '64MiB'"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer, str)):
        raise TypeError(f"{name}: is {value!r}, {wanted}")
    count: Union[int, np.integer, float] = 0
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
        unit = _UNITS.get(match.group(2).lower()) if match else None
        if match is None or unit is None:
            raise ValueError(f"{name}: is {value!r}, {wanted}")
        number = match.group(1)
        count = float(number) * unit if "." in number else int(number) * unit
    else:
        count = value
    if not 0 <= count < 2**63:
        raise ValueError(f"{name}: is {value!r}, {wanted}, and lie in [0, 2^63)")
    return int(count)


class _Options:
    """Shows the fields that are not as they are by default."""

    def __repr__(self) -> str:
        given = []
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value, default = getattr(self, each.name), each.default
            if each.default_factory is not dataclasses.MISSING:
                default = each.default_factory()
            if default is dataclasses.MISSING or value != default:
                given.append(f"{each.name}={value!r}")
        return f"{type(self).__name__}({', '.join(given)})"


# ---- Optimizers ----


@dataclass(frozen=True, repr=False)
class Optimizer(_Options):
    """How rows move. Fields that an optimizer does not use are ignored by it."""

    kind: ClassVar[str] = ""

    lr: float = 0.01
    weight_decay: float = 0.0
    # "l2": the gradient gets weight_decay * w; "decoupled": the row shrinks beside the step;
    # "table": as "l2", but of all rows in each step, also of those that it does not look up.
    weight_decay_mode: str = "l2"


@dataclass(frozen=True, repr=False)
class Sgd(Optimizer):
    kind: ClassVar[str] = "sgd"


@dataclass(frozen=True, repr=False)
class Momentum(Optimizer):
    kind: ClassVar[str] = "momentum"
    beta1: float = 0.9


@dataclass(frozen=True, repr=False)
class Adagrad(Optimizer):
    kind: ClassVar[str] = "adagrad"
    eps: float = 1e-8
    initial_accumulator: float = 0.0


@dataclass(frozen=True, repr=False)
class RowwiseAdagrad(Optimizer):
    """One number of state for each row: the usual choice for large tables."""

    kind: ClassVar[str] = "rowwise_adagrad"
    eps: float = 1e-8
    initial_accumulator: float = 0.0


@dataclass(frozen=True, repr=False)
class Adam(Optimizer):
    """Lazy: rows that a batch does not touch do not move, and their momentum does not decay."""

    kind: ClassVar[str] = "adam"
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999


@dataclass(frozen=True, repr=False)
class PartialRowwiseAdam(Adam):
    kind: ClassVar[str] = "partial_rowwise_adam"


@dataclass(frozen=True, repr=False)
class Lamb(Adam):
    kind: ClassVar[str] = "lamb"


@dataclass(frozen=True, repr=False)
class PartialRowwiseLamb(Adam):
    kind: ClassVar[str] = "partial_rowwise_lamb"


@dataclass(frozen=True, repr=False)
class Ftrl(Optimizer):
    """FTRL-proximal, with TensorFlow's sign of lr_power."""

    kind: ClassVar[str] = "ftrl"
    lr_power: float = -0.5
    l1: float = 0.0
    l2: float = 0.0
    initial_accumulator: float = 0.0
    beta: float = 0.0


# ---- First values of rows ----


@dataclass(frozen=True, repr=False)
class Initializer(_Options):
    kind: str = "uniform"
    value: float = 0.01


def uniform(bound: float = 0.01) -> Initializer:
    """In [-bound, bound)."""
    return Initializer("uniform", bound)


def normal(deviation: float) -> Initializer:
    """Of mean 0."""
    return Initializer("normal", deviation)


def constant(value: float) -> Initializer:
    return Initializer("constant", value)


# ---- Tables ----


@dataclass(frozen=True, repr=False)
class Table(_Options):
    """An embedding table. It has no fixed size: any 64-bit id gets a row at its first update.

    name: distinct. dim: columns. features: the features of a batch that look rows up here; by
    default one with the table's name.
    pooling: "sum", "mean", or "none" (one output row for each lookup).
    weights_precision: "fp32", "fp16" or "bf16", in memory and on disk.
    num_embeddings: 0 for any id; otherwise ids lie in [0, num_embeddings).
    max_hotness: the most lookups of a feature in one sample, 0 when that is not known.
    max_row_gradient_norm: a row's gradient of a step that is longer is scaled down to it; 0: none.
    read_only_features: of `features`, those whose lookups get no gradient. frozen: all of them:
    nothing is trained, no row is made, and unseen ids read their first values.
    admission: which ids get a row: "always", "lookups:3" (in the step of the third lookup),
    "lookups:3:100000" (counted again after so many steps without one), "coin:0.1" (each lookup with
    this probability). ttl_steps: rows that no step has updated for more than so many read as new;
    0: never. min_rows: with ttl_steps, so many rows of the latest updates stay. max_rows: above it
    those of the oldest updates go, or with max_rows_by="score" those of the lowest scores. Both of
    all ranks, kept at multiples of row_limit_steps of the collection; 0: no limit.
    score: whether rows keep a score, which the scores of batches make (hotrow.Bags): "none", "max",
    "sum" or "last" of what came. docs/row_life.md.
    serve_rows: how lookups read rows: "as_trained", or with the weights of a model that is served
    with rows in "fp16", "bf16", "int8" or "int4"; updates keep all bits. docs/serving.md.
    """

    name: str
    dim: int
    features: Sequence[str] = ()
    pooling: str = "sum"
    optimizer: Optimizer = field(default_factory=RowwiseAdagrad)
    initializer: Initializer = field(default_factory=Initializer)
    weights_precision: str = "fp32"
    num_embeddings: int = 0
    max_hotness: int = 0
    max_row_gradient_norm: float = 0.0
    read_only_features: Sequence[str] = ()
    frozen: bool = False
    admission: str = "always"
    ttl_steps: int = 0
    min_rows: int = 0
    max_rows: int = 0
    score: str = "none"
    max_rows_by: str = "age"
    serve_rows: str = "as_trained"


# ---- Stores: where all rows are kept ----


@dataclass(frozen=True, repr=False)
class Memory(_Options):
    """In memory, at most `memory` bytes. snapshot_dir: only for callers that take snapshots
    themselves; checkpoints have their own directory."""

    kind: ClassVar[str] = "memory"
    memory: Bytes = "1GiB"
    snapshot_dir: Optional[str] = None


@dataclass(frozen=True, repr=False)
class Ssd(_Options):
    """In a log on a disk, below a cache. disk_bytes: of all files, checkpoints included; memory: of
    the index and buffers. Both are hard limits; where disk_bytes are used up, checkpoints but the
    newest go. The rows stay when the collection is closed: see checkpoint_dir of
    EmbeddingCollection. path: also a list of directories on several drives, over which rows are
    striped; the first is the home, and more can be added behind."""

    kind: ClassVar[str] = "ssd"
    path: Union[str, Sequence[str]]
    disk_bytes: Bytes
    memory: Bytes = "256MiB"


@dataclass(frozen=True, repr=False)
class RocksDb(_Options):
    """In RocksDB, where the build has it."""

    kind: ClassVar[str] = "rocksdb"
    path: str
    disk_bytes: Bytes
    memory: Bytes = "256MiB"


Store = Union[Memory, Ssd, RocksDb]


def store_paths(store: Union[Ssd, RocksDb]) -> List[Any]:
    """The directories of a store on a disk, the home first."""
    path: Any = store.path
    return list(path) if isinstance(path, (list, tuple)) else [path]
