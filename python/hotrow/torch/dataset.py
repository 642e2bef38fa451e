"""The batches of hotrow's readers as tensors."""

from typing import Any, Dict, Iterator, Tuple, Union

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from .._checks import integer
from ..batches import Bags
from ..data import Data, Samples
from .features import split

Ids = Dict[str, Union[torch.Tensor, Bags]]
Batch = Tuple[Ids, torch.Tensor, torch.Tensor]


class Dataset(IterableDataset[Batch]):
    """Batches of hotrow.Packed or hotrow.Data: (ids, dense [B, num_dense], labels [B, num_labels]).

        data = hotrow.torch.Dataset(hotrow.Packed("logs.packed", seed=1), batch_size=4096)
        for ids, dense, labels in hotrow.torch.prefetch(data, tables, depth=2):

    ids: of each feature a tensor [B] where every sample has one, hotrow.Bags of tensors otherwise;
    for EmbeddingCollection. Tensors lie in the reader's memory, without a copy. Each iteration is
    the next epoch, in another order, unless `go_on` says otherwise. It needs no workers: threads of
    the reader are ahead (Data's reader_threads); in a DataLoader take batch_size=None.
    """

    def __init__(self, data: Data, batch_size: int, split: str = "train") -> None:
        if not isinstance(data, Data):
            raise TypeError(f"data: is {data!r}, must be a hotrow.Packed or a hotrow.Data")
        self.data = data
        self.batch_size = integer(batch_size, "batch_size", 1)
        self.split = split
        self.epoch = 0
        self._first_sample = 0

    def go_on(self, epoch: int, first_sample: int = 0) -> None:
        """Where the next iteration begins: after a restart, say. first_sample: of all ranks."""
        self.epoch = integer(epoch, "epoch", 0)
        self._first_sample = integer(first_sample, "first_sample", 0)

    def __len__(self) -> int:
        """Batches of an epoch; TypeError where the data do not know."""
        samples = self.data.num_samples[self.split]
        if not any(self.data.num_samples.values()):
            raise TypeError("the number of samples is not known before they are read")
        return -(-(samples - self._first_sample) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        if get_worker_info() is not None:
            raise ValueError(
                "hotrow.torch.Dataset: each worker of a DataLoader would read all samples; take "
                "num_workers=0, and reader_threads of the data"
            )
        epoch, first = self.epoch, self._first_sample
        self.epoch, self._first_sample = epoch + 1, 0
        for samples in self.data.batches(self.batch_size, self.split, epoch, first):
            yield (
                self._ids(samples),
                torch.from_numpy(samples.dense),
                torch.from_numpy(samples.labels),
            )

    def _ids(self, samples: Samples) -> Ids:
        names = [feature["name"] for feature in self.data.features]
        jagged = samples.ids
        values = jagged.values.view(np.int64)
        if jagged.weights is None and len(values) == len(names) * len(samples):
            lengths = np.diff(jagged.offsets)
            if (lengths == 1).all():
                rows = torch.from_numpy(values.reshape(len(names), len(samples)))
                return dict(zip(names, rows))
        bags = split(Bags(values, None, jagged.offsets, jagged.weights), len(names))
        return {
            name: Bags(*(None if part is None else torch.from_numpy(part) for part in parts))
            for name, parts in zip(names, bags)
        }


__all__: Any = ["Dataset"]
