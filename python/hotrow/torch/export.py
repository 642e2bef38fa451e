"""A trained model as one that `hotrow serve` scores with."""

import copy
import importlib.util
import inspect
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from ctypes import byref
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import nn

from .. import _abi
from .._checks import integer
from ..options import Bytes, parse_bytes
from ..saved import Path, text, texts
from .module import EmbeddingCollection, _plain

_INPUTS = ["embeddings", "dense"]
_LOGIT_MAX = 104.0  # its probability, and that of the least, are 1 and 0 in float32
_SAMPLES = 3  # of the example; torch.export takes 0 and 1 for sizes that never change


class _NoTables(nn.Module):
    """In the place of tables in the copy of a model that is written."""

    def forward(self, features: Any) -> Any:
        raise ValueError("dense_part: looks rows up; give what follows the lookup, a module or a "
                         "method that takes `tables(features).pooled`")


class _DensePart(nn.Module):
    """What is written: a copy, on the CPU, that gives logits [B, tasks]."""

    def __init__(self, part: Callable[..., torch.Tensor], is_probability: bool) -> None:
        super().__init__()
        owner, self._method = part, None
        if inspect.ismethod(part):
            owner, self._method = part.__self__, part.__name__
        owner = _plain(owner)
        if not isinstance(owner, nn.Module):
            raise TypeError(f"dense_part: is {part!r}, must be a torch.nn.Module or a method of one")
        tables = [each for each in owner.modules() if isinstance(each, EmbeddingCollection)]
        self.owner = copy.deepcopy(owner, {id(each): _NoTables() for each in tables}).cpu()
        self._is_probability = is_probability

    def forward(
        self, embeddings: torch.Tensor, dense: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        part = self.owner if self._method is None else getattr(self.owner, self._method)
        out = part(embeddings) if dense is None else part(embeddings, dense)
        if self._is_probability:
            # Of 0 and 1, which float32 rounds to early, it is infinite, which replies cannot hold.
            out = torch.logit(out).clamp(-_LOGIT_MAX, _LOGIT_MAX)
        return (out[:, None] if out.dim() == 1 else out).float()


def _to_onnx(part: nn.Module, example: Tuple[torch.Tensor, ...]) -> bytes:
    # Torch's older way, which needs no onnxscript, takes len(tensor) for a size that never changes.
    if importlib.util.find_spec("onnxscript") is None:
        raise ImportError("hotrow.torch.export: needs onnxscript: pip install onnxscript")
    names = _INPUTS[: len(example)]
    # Here, so that such a size is an error. Strict follows len(tensor), and takes less of Python.
    shapes = {name: {0: torch.export.Dim("batch")} for name in names}
    try:
        model = torch.export.export(part, example, dynamic_shapes=shapes, strict=False)
    except Exception:
        model = torch.export.export(part, example, dynamic_shapes=shapes, strict=True)
    # It warns of other packages that are not there, which no layer here needs.
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "dense.onnx")
            torch.onnx.export(
                model, example, path, input_names=names, output_names=["logits"], verbose=False,
                dynamo=True, external_data=False,
            )
            with open(path, "rb") as file:
                return file.read()
    finally:
        logger.setLevel(level)


def export(
    tables: EmbeddingCollection,
    dense_part: Callable[..., torch.Tensor],
    to: Path,
    *,
    num_dense: int = 0,
    output: str = "logit",
    labels: Sequence[str] = (),
    schema: Union[None, Path, Mapping[str, Any]] = None,
    shard: Bytes = "1GiB",
    memory: Bytes = "256MiB",
) -> None:
    """Writes the rows as they are now, and the layers above them as ONNX, as a model that
    `hotrow serve`, `hotrow score` and hotrow.Scorer open where onnxruntime is installed.

    dense_part: a module, or a method of one, that is called as dense_part(pooled), or with num_dense
    as dense_part(pooled, dense): `tables(features).pooled`, float32 [B, tables.pooled_dim], and
    [B, num_dense]. It gives scores [B], or [B, tasks]. output: what these are, "logit" or
    "probability". to: the directory to make. labels: a name for each task; by default those of the
    schema. schema: of the lines of text that are scored, as --data=table:PATH of the trainers names
    one, or its JSON as a dict: its features are those of the tables, in their order. shard: most
    bytes of an array in one file. memory: of buffers. A table with pooling="none", and tables of
    several ranks, are refused.
    """
    if output not in ("logit", "probability"):
        raise ValueError(f"output: is {output!r}, must be 'logit' or 'probability'")
    sizes = [tables.pooled_dim, integer(num_dense, "num_dense", 0, 2**20)]
    example = tuple(torch.zeros(_SAMPLES, size) for size in sizes if size)
    part = _DensePart(dense_part, output == "probability").eval()
    with torch.no_grad():
        shape = tuple(part(*example).shape)
    if len(shape) != 2 or shape[0] != _SAMPLES or not shape[1]:
        raise ValueError(f"dense_part: gives {list(shape)} for {_SAMPLES} samples, must be [B] or "
                         "[B, tasks]")
    names: List[str] = list(labels)
    if not names and schema is None and shape[1] > 1:
        names = [f"task{task}" for task in range(shape[1])]
    if names and len(names) != shape[1]:
        raise ValueError(f"labels: are {len(names)}, dense_part gives {shape[1]} tasks")
    options = _abi.default(_abi.Onnx, "onnx_options")
    options.to = text(to, "to")
    options.num_dense = sizes[1]
    if names:
        options.labels, options.num_labels = texts(names, "labels"), len(names)
    if schema is not None:
        if not isinstance(schema, Mapping):
            with open(schema, encoding="utf-8") as file:
                schema = json.load(file)
        lines = {name: value for name, value in schema.items() if name not in ("files", "split")}
        options.schema = json.dumps(lines).encode()
    options.shard_bytes = parse_bytes(shard, "shard")
    options.memory_bytes = parse_bytes(memory, "memory")
    file_of_onnx = np.frombuffer(_to_onnx(part, example), dtype=np.uint8)
    options.dense, options.dense_size = file_of_onnx.ctypes.data, file_of_onnx.size
    _abi.export_onnx(tables.collection._handle, byref(options))
