"""EmbeddingCollection: tables as a module of a model."""

import contextlib
import io
import pickle
import re
import warnings
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from .. import collection as core
from .. import errors
from ..options import Table
from ..ranks import together
from .features import Encoded, batch_size_of, encode
from .ops import evaluate, lookup
from .outputs import Embeddings
from .passes import Passes

_RNG, _CUDA_RNG, _TABLES = "torch.rng", "torch.cuda.rng", "torch.tables"


class _Schedule(torch.optim.Optimizer):
    """Its lr (1.0) multiplies the tables' learning rates. step does nothing."""

    def __init__(self, anchor: torch.Tensor, passes: Passes) -> None:
        super().__init__([anchor], {"lr": 1.0})
        passes.parameters = self.param_groups[0]
        self._passes = passes
        self._opt_called = True  # schedulers warn where step was not called before theirs

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        self._passes.parameters = self.param_groups[0]

    def step(self, closure: Any = None) -> Any:
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._passes.forget_gradients()


def _plain(value: Any) -> Any:
    """The module within those of torch that wrap one, so that names do not depend on them."""
    while True:
        if isinstance(value, nn.parallel.DistributedDataParallel):
            value = value.module
        elif isinstance(value, nn.Module) and "_orig_mod" in value._modules:  # torch.compile's
            value = value._modules["_orig_mod"]
        else:
            return value


class EmbeddingCollection(nn.Module):
    """hotrow.EmbeddingCollection as a module whose backward moves the rows.

        tables = hotrow.torch.EmbeddingCollection(
            [hotrow.Table("items", 64, ["item"], optimizer=hotrow.RowwiseAdagrad(lr=0.02))],
            store=hotrow.Memory("1GB"), max_batch_size=1024)
        vectors = tables({"item": ids})           # vectors["item"], vectors.pooled: [B, 64]
        head(vectors.pooled).sum().backward()     # rows have moved

    tables: a list of hotrow.Table, with the arguments of hotrow.EmbeddingCollection, or one that is
    there already (`collection`). gradient_division: with several ranks gradients are divided by
    their number, as DistributedDataParallel and TorchRec do; rows then move by the mean over ranks
    of each rank's gradient.

    It has no parameters: rows belong to their own optimizer, and no state_dict, DistributedData-
    Parallel or torch optimizer sees them (save_checkpoint does). Each lookup in training mode, with
    gradients enabled, is a step; its backward comes before the next lookup, and updates the rows
    once. In eval mode, or under torch.no_grad, nothing changes.

    With device="cuda" and device_cache="20GB" rows in use lie in that much memory of the GPU:
    outputs and gradients are tensors there, read and written without a copy in the order of torch's
    current stream, and training does not wait for the GPU; ids may be there, too (docs/python.md).
    Without it tables are in host memory; ids on a GPU are copied, and the outputs go back to that GPU
    through pinned memory.
    """

    def __init__(
        self,
        tables: Union[core.EmbeddingCollection, Sequence[Table]],
        *,
        gradient_division: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        if isinstance(tables, core.EmbeddingCollection):
            if options:
                raise TypeError(f"{next(iter(options))}: belongs to the collection that is given")
            self.collection = tables
        else:
            self.collection = core.EmbeddingCollection(tables, **options)
        self._communicator = self.collection._communicator
        layout = self.collection._layout
        ranks = self.collection.world_size
        self._passes = Passes(self.collection, 1.0 / ranks if gradient_division else 1.0)
        self._number = self._passes.number
        self._features = list(layout.names)
        self._columns = {name: (at.start, at.stop) for name, at in layout.columns.items()}
        self._unpooled = [name for name, _ in layout.unpooled]
        # Whose random numbers checkpoints have, where torch uses one.
        self._gpu = "cuda" if self._passes.device.type == "cpu" else self._passes.device
        self._anchor = torch.zeros((), device="cpu", requires_grad=True)
        #: A torch.optim.Optimizer for schedulers: its lr multiplies the tables' learning rates.
        self.optimizer = _Schedule(self._anchor, self._passes)

    def forward(self, features: Any) -> Any:
        """features: a dict with tensors for each feature (entries of other names are passed over):
            [B] or [B, h] ids; (values [N], lengths [B]); hotrow.Bags; a nested tensor; anything
            with values() and lengths() or offsets();
        or anything like TorchRec's KeyedJaggedTensor: keys(), values(), lengths() or offsets();
        or a list of dicts, each with its own number of samples: several lookups of one step, of two
        towers say, for which a list of Embeddings comes back.
        Ids are int64 or int32. Under autocast outputs have its type.
        """
        if torch.jit.is_tracing():
            raise errors.Unimplemented(
                "torch.jit.trace: rows belong to the tables, and a trace would read none; use "
                "torch.compile, trace the layers above with the pooled vectors as input, or write "
                "rows and layers by hotrow.torch.export, for hotrow serve"
            )
        encoded = self._encode(features)
        if self.training and torch.is_grad_enabled():
            out = lookup(self._anchor, self._passes, self._number, encoded)
        else:
            out = evaluate(self._passes, self._number, encoded)
        kind = out[0].device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            out = [part.to(dtype) for part in out]
        if not isinstance(features, list):
            return Embeddings(self._columns, out[0], dict(zip(self._unpooled, out[1:])))
        parts = [self._encode([part]) for part in features]  # all with lengths
        rows = [out[0].split([batch_size_of(part) for part in parts])]
        for name, all_rows in zip(self._unpooled, out[1:]):
            index = self._features.index(name)
            rows.append(all_rows.split([len(part.values[index]) for part in parts]))
        return [
            Embeddings(self._columns, pooled, dict(zip(self._unpooled, unpooled)))
            for pooled, *unpooled in zip(*rows)
        ]

    def _encode(self, features: Any) -> Encoded:
        if torch.compiler.is_compiling():
            return encode(features, self._features, self._passes.optional)
        return self._passes.encode(features)

    @contextlib.contextmanager
    def no_update(self) -> Iterator[None]:
        """Passes within it add up their gradients, as within DistributedDataParallel.no_sync; the
        first pass after it moves the rows once, by the sum. Forward and backward of a pass are both
        within it. max_batch_size holds for all passes of a sum together. Rows are read twice, which
        hotrow.torch.prefetch(accumulate=) spares."""
        before, self._passes.collecting = self._passes.collecting, True
        try:
            yield
        finally:
            self._passes.collecting = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients of rows that wait for further passes (no_update, accumulate=), as it
        does for those of parameters: after an error, say. `optimizer` has it, too. A plain loop has
        no such gradients, and needs no call."""
        super().zero_grad(set_to_none)
        self._passes.forget_gradients()

    def set_grad_scaler(self, scaler: Optional[Any]) -> None:
        """A torch.amp.GradScaler whose scale the losses carry: gradients are divided by it. Where
        some are not finite, on any rank, the step is left out on all of them, as the scaler leaves
        out the dense step. All ranks set one, or none."""
        self._passes.grad_scaler = scaler

    # ---- Copies and state_dict, which have no rows ----

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(
            "hotrow.torch.EmbeddingCollection: tables cannot be copied. To average a model (EMA, "
            "SWA) copy the layers beside them, as in AveragedModel(model.top); or let the copy "
            "share the rows: copy.deepcopy(model, {id(tables): tables})"
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None and self.collection._is_open:
            metadata["steps"] = self.collection.steps

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *others: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)
        theirs, mine = local_metadata.get("steps"), self.collection.steps
        if theirs != mine and (theirs is not None or mine == 0):
            warnings.warn(
                "load_state_dict: a state_dict has no rows of hotrow's tables. They stay as they "
                f"are after {mine} updates"
                + (f", and these layers were saved after {theirs}" if theirs is not None else "")
                + "; save_checkpoint and restore keep both together",
                stacklevel=2,
            )

    # ---- Checkpoints ----

    def save_checkpoint(
        self, state: Optional[Mapping[str, Any]] = None, *, wait: bool = True
    ) -> None:
        """One atomic checkpoint of the tables and of what belongs to them, in checkpoint_dir.

        state: by name, modules, optimizers, schedulers and samplers (anything with state_dict), and
        values that torch.load takes with weights_only: tensors, numbers, texts, bytes, and lists
        and dicts of these, but no arrays or numbers of numpy (TypeError). The schedule of the
        tables comes with it, and with one rank the states of torch's random numbers, on the CPU and
        on the tables' GPU or the current one. With several ranks what rank 0 gives counts. wait: as
        in hotrow.EmbeddingCollection.save_checkpoint.
        """
        self.collection.save_checkpoint(self._blobs(state), wait=wait)

    @together
    def _blobs(self, state: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
        state = dict(state or {})
        if self.collection.world_size == 1:
            state[_RNG] = torch.get_rng_state()
            if torch.cuda.is_initialized():
                state[_CUDA_RNG] = torch.cuda.get_rng_state(self._gpu)
        state[_TABLES] = self.optimizer
        blobs = {}
        for name, value in state.items():
            value = _plain(value)
            buffer = io.BytesIO()
            torch.save(value.state_dict() if hasattr(value, "state_dict") else value, buffer)
            _check_loads(name, buffer)
            blobs[name] = buffer.getbuffer()
        return blobs

    def restore(self, state: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Loads what the checkpoint that the tables came from holds of `state`, into its modules,
        optimizers and so on; values that have no load_state_dict are passed over. Returns all other
        values of the checkpoint by name; {}: the tables are new. A name that it lacks is a
        KeyError; a checkpoint that save_checkpoint of this module has not made a ValueError."""
        saved = self.collection.restored
        if saved is None:
            return {}
        names = set(saved)
        if _TABLES not in names:
            raise ValueError(
                f"restore: {saved.path} was not saved by hotrow.torch, but by a trainer or by "
                "hotrow.EmbeddingCollection.save_checkpoint; the rows are there, and what was "
                "saved with them is in collection.restored, as bytes"
            )
        load = dict(state or {})
        load[_TABLES] = self.optimizer
        targets = {name: each for name, each in load.items() if hasattr(each, "load_state_dict")}
        for name in targets:
            if name not in names:
                raise KeyError(f"restore: {saved.path} has no {name!r}")
        for name, target in targets.items():
            _plain(target).load_state_dict(_load(saved[name]))
        if _RNG in names and self.collection.world_size == 1:
            torch.set_rng_state(_load(saved[_RNG]))
            if _CUDA_RNG in names and torch.cuda.is_available():
                torch.cuda.set_rng_state(_load(saved[_CUDA_RNG]), self._gpu)
        skipped = {_RNG, _CUDA_RNG, *targets}
        return {name: _load(saved[name]) for name in saved if name not in skipped}

    # ---- What the collection says ----

    def extra_repr(self) -> str:
        return repr(self.collection)

    @property
    def feature_names(self) -> List[str]:
        return list(self._features)

    @property
    def pooled_dim(self) -> int:
        return self.collection.pooled_dim

    @property
    def steps(self) -> int:
        """Updates so far, those of what it started from included."""
        return self.collection.steps

    def digest(self) -> Dict[str, Any]:
        return self.collection.digest()

    def close(self) -> None:
        """Ends the store in good order. The module is not used any more."""
        self._passes.end()
        self.collection.close()

    def __enter__(self) -> "EmbeddingCollection":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._passes.end()
            self.collection.__exit__(kind, error, traceback)


def _check_loads(name: str, buffer: io.BytesIO) -> None:
    """Now, not when a run is to go on from it. On "meta" no tensor is read."""
    buffer.seek(0)
    try:
        torch.load(buffer, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        what = re.search(r"Unsupported \w+: (?:GLOBAL )?(\S+)", str(error))
        raise TypeError(
            f"state: {name!r} holds {what.group(1) if what else 'something'}, which torch.load "
            "does not take with weights_only; give tensors, numbers, texts, bytes, lists and dicts "
            "(of numpy: array.tolist(), number.item())"
        ) from None
    except Exception:  # sparse and quantized tensors are not for "meta"
        pass


def _load(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
