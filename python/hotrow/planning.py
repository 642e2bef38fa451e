"""A spec for `hotrow plan` out of what a collection is made from."""

from typing import Any, Dict, Mapping, Optional, Sequence

from ._checks import integer
from .options import Bytes, Memory, Ssd, Store, Table, parse_bytes


def plan_spec(
    tables: Sequence[Table],
    *,
    batch_size: int,
    rows: Optional[Mapping[str, int]] = None,
    hotness: Optional[Mapping[str, float]] = None,
    store: Optional[Store] = None,
    cache: Optional[Bytes] = None,
    prefetch_depth: int = 0,
    ranks: int = 1,
    dense: Any = None,
    num_dense: int = 0,
) -> Dict[str, Any]:
    """What docs/planner.md calls a spec: written by `json.dump`, `hotrow plan` reads it, and tells
    memory, hit rates and speed before anything is trained.

        spec = hotrow.plan_spec(tables, batch_size=65536, rows={"items": 40_000_000})

    rows: of each table without num_embeddings and max_rows. hotness: lookups of a feature and
    sample, by table; 1 without. store, cache: as of EmbeddingCollection; without them the planner
    chooses. batch_size: of all ranks. dense: the torch module above the tables, whose linear layers
    count, with num_dense dense features.
    """
    spec: Dict[str, Any] = {
        "batch_size": integer(batch_size, "batch_size", 1),
        "ranks": integer(ranks, "ranks", 1),
        "prefetch_depth": integer(prefetch_depth, "prefetch_depth", 0),
        "store": "auto",
        "cache_bytes": "auto" if cache is None else parse_bytes(cache, "cache"),
        "model": {"dense_features": integer(num_dense, "num_dense", 0), "interaction": "concat"},
        "tables": [],
    }
    if store is not None:
        if not isinstance(store, (Memory, Ssd)):
            raise ValueError(f"store: is {store!r}; hotrow.Memory and hotrow.Ssd are planned")
        spec["store"] = store.kind
        if isinstance(store, Ssd):
            spec["max_ssd"] = parse_bytes(store.disk_bytes, "store.disk_bytes")
    if dense is not None:
        spec["model"]["parts"] = [
            {"name": name or "dense", "inputs": layer.in_features, "outputs": layer.out_features}
            for name, layer in dense.named_modules()
            if hasattr(layer, "in_features") and hasattr(layer, "out_features")
        ]
    unknown = sorted({*(rows or {}), *(hotness or {})} - {table.name for table in tables})
    if unknown:
        raise ValueError(f"rows, hotness: there is no table {unknown[0]!r}")
    for table in tables:
        count = (rows or {}).get(table.name) or table.num_embeddings or table.max_rows
        if not count:
            raise ValueError(
                f"rows: table {table.name!r} takes any id, so give how many rows it may have"
            )
        spec["tables"].append({
            "name": table.name, "rows": int(count), "dim": table.dim,
            "optimizer": table.optimizer.kind, "weights_precision": table.weights_precision,
            "features": max(1, len(table.features)), "pooling": table.pooling,
            "hotness": float((hotness or {}).get(table.name) or max(1, table.max_hotness)),
        })
    return spec
