"""hotrow: embedding tables that outgrow memory, with the same bits over any cache and store.

    import hotrow
    tables = hotrow.EmbeddingCollection([hotrow.Table("items", dim=64)],
                                        store=hotrow.Memory("1GB"), max_batch_size=1024)
    step = tables.prefetch({"items": ids})
    vectors = step.lookup().pooled
    step.update(gradient)
"""

from . import errors
from ._abi import version as _version
from ._arrow import batches as arrow_batches
from ._environment import environment
from .batches import Bags, Embeddings, Jagged
from .collection import EmbeddingCollection, Step
from .data import Data, Packed, Samples
from .errors import Error
from .options import (
    Adagrad,
    Adam,
    Ftrl,
    Initializer,
    Lamb,
    Memory,
    Momentum,
    Optimizer,
    PartialRowwiseAdam,
    PartialRowwiseLamb,
    RocksDb,
    RowwiseAdagrad,
    Sgd,
    Ssd,
    Table,
    constant,
    normal,
    uniform,
)
from .packing import pack
from .planning import plan_spec
from .ranks import Communicator, Transport
from .saved import Saved, export_portable, import_portable
from .scorer import Scorer

__version__ = _version()

__all__ = [
    "Adagrad",
    "Adam",
    "Bags",
    "Communicator",
    "Data",
    "EmbeddingCollection",
    "Embeddings",
    "Error",
    "Ftrl",
    "Initializer",
    "Jagged",
    "Lamb",
    "Memory",
    "Momentum",
    "Optimizer",
    "Packed",
    "PartialRowwiseAdam",
    "PartialRowwiseLamb",
    "RocksDb",
    "RowwiseAdagrad",
    "Samples",
    "Saved",
    "Scorer",
    "Sgd",
    "Ssd",
    "Step",
    "Table",
    "Transport",
    "arrow_batches",
    "constant",
    "environment",
    "errors",
    "export_portable",
    "import_portable",
    "normal",
    "pack",
    "plan_spec",
    "uniform",
]
