"""A factorization machine in numpy alone: clicks from vectors of 26 features.

    python examples/numpy_loop.py
    python examples/numpy_loop.py --data=criteo:day_0 --store=/fast/rows --checkpoints=/data/fm

The logit of a click is b + sum_f w_f + sum_{f<g} <v_f, v_g> (Rendle 2010). A row of a table holds v
and w of one id, so its last column is the weight.
"""

import argparse
from typing import Iterable, Iterator, Tuple

import numpy as np

import hotrow
from training import Losses


def forward(rows: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """rows: [B, F, D + 1]. The logits [B], and their gradient by the rows."""
    vectors = rows[:, :, :-1]
    total = vectors.sum(axis=1, keepdims=True)
    logits = 0.5 * ((total**2).sum(axis=(1, 2)) - (vectors**2).sum(axis=(1, 2)))
    logits += rows[:, :, -1].sum(axis=1)
    gradient = np.ones_like(rows)
    gradient[:, :, :-1] = total - vectors
    return logits, gradient


def log_loss(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, logits) - labels * logits


def make_tables(data: hotrow.Data, arguments: argparse.Namespace) -> hotrow.EmbeddingCollection:
    features = [feature["name"] for feature in data.features]
    optimizer = hotrow.Adagrad(lr=0.05, eps=1e-4)
    tables = [
        hotrow.Table(name, arguments.dim + 1, optimizer=optimizer, initializer=hotrow.normal(0.05))
        for name in features
    ]
    if arguments.store:
        place = dict(
            store=hotrow.Ssd(arguments.store, disk_bytes="20GB", memory="512MB"), cache="256MB"
        )
    else:
        place = dict(store=hotrow.Memory("2GB"))
    return hotrow.EmbeddingCollection(
        tables, max_batch_size=arguments.batch, feature_order=features, seed=1, prefetch_depth=1,
        checkpoint_dir=arguments.checkpoints, resume=arguments.checkpoints is not None, **place,
    )


def prefetched(
    batches: Iterable[hotrow.Samples], tables: hotrow.EmbeddingCollection
) -> Iterator[Tuple[hotrow.Samples, hotrow.Step]]:
    """Batches with their steps. Each begins before the one before it ends: rows come meanwhile."""
    before = None
    for batch in batches:
        step = tables.prefetch(batch.ids)
        if before is not None:
            yield before
        before = (batch, step)
    if before is not None:
        yield before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="synthetic:tables=26,rows=100000,samples=400000")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--store", help="a directory on an SSD; without one rows are in memory")
    parser.add_argument("--checkpoints", help="a directory; a run that was killed goes on from it")
    parser.add_argument("--plot", default="numpy_loop.png")
    arguments = parser.parse_args()

    data = hotrow.Data(arguments.data, seed=1)
    with make_tables(data, arguments) as tables:
        shape = (-1, len(data.features), arguments.dim + 1)
        bias = 0.0
        if tables.restored is not None:
            bias = float(np.frombuffer(tables.restored["bias"])[0])
        losses = Losses(total=-(-data.num_samples["train"] // arguments.batch))
        done = tables.steps * arguments.batch
        batches = data.batches(arguments.batch, first_sample=done)
        for batch, step in losses.bar(prefetched(batches, tables)):
            labels = batch.labels[:, 0]
            pooled = step.lookup().pooled
            logits, slope = forward(pooled.reshape(shape))
            losses.add(log_loss(logits + bias, labels).mean())
            error = 1 / (1 + np.exp(-(logits + bias))) - labels  # of the loss by the logit
            gradient = (error / len(batch))[:, None, None] * slope
            step.update(gradient.reshape(pooled.shape).astype(np.float32))
            bias -= 0.1 * float(error.mean())
            if arguments.checkpoints and tables.steps % 1000 == 0:
                tables.wait_checkpoint()
                tables.save_checkpoint({"bias": np.float64(bias).tobytes()}, wait=False)

        held_out = []
        for batch in data.batches(arguments.batch, split="valid"):
            logits, _ = forward(tables.evaluate(batch.ids).pooled.reshape(shape))
            held_out.append(log_loss(logits + bias, batch.labels[:, 0]))
        if held_out:
            print(f"loss on data not trained on: {np.concatenate(held_out).mean():.4f}")
        losses.plot(arguments.plot)


if __name__ == "__main__":
    main()
