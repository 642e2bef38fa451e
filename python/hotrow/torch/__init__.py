"""hotrow's tables inside PyTorch models: docs/python.md. Needs torch 2.4 or newer; hotrow itself
imports and links none.

    import hotrow, hotrow.torch
    tables = hotrow.torch.EmbeddingCollection([hotrow.Table("items", dim=64)],
                                              store=hotrow.Memory("1GB"), max_batch_size=1024)
    vectors = tables({"items": ids})       # vectors.pooled: [B, 64]
    loss(vectors.pooled).backward()        # moves the rows, too
"""

import torch as _torch

if not hasattr(_torch.library, "register_autograd"):
    raise ImportError(f"hotrow.torch: needs torch 2.4 or newer, this is {_torch.__version__}")

from .dataset import Dataset
from .export import export
from .module import EmbeddingCollection
from .outputs import Embeddings, jagged
from .prefetch import prefetch
from .transport import Transport

__all__ = [
    "Dataset", "EmbeddingCollection", "Embeddings", "Transport", "export", "jagged", "prefetch",
]
