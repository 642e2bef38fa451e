"""A job of ranks that train one model: python -m torch.distributed.run --nproc-per-node=2 THIS ...

Every rank has its slice of each batch. Rank 0 prints {"losses": [...], "hash": ..., "ranks": ...}.
"""

import argparse
import json
import os
import signal

from torch_or_skip import WHERE, tiers, torch

import hotrow
import hotrow.torch

GLOBAL_BATCH = 32
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))


def batch_of(number, rank, ranks):
    random = torch.Generator().manual_seed(number % 5)
    ids = torch.randint(0, 500, (GLOBAL_BATCH, 3), generator=random)
    target = ((ids.sum(dim=1) % 7).float() - 3).to(WHERE)
    mine = slice(GLOBAL_BATCH // ranks * rank, GLOBAL_BATCH // ranks * (rank + 1))
    return {"item": ids[mine, :2].contiguous(), "user": ids[mine, 2].contiguous()}, target[mine]


class Model(torch.nn.Module):
    def __init__(self, tables):
        super().__init__()
        torch.manual_seed(1)
        self.tables = tables
        self.head = torch.nn.Linear(tables.pooled_dim, 1).to(WHERE)

    def forward(self, features):
        return self.head(self.tables(features).pooled)[:, 0]


class TorchRanks:
    def __init__(self):
        if WHERE != "cpu":
            torch.cuda.set_device(LOCAL_RANK)
        torch.distributed.init_process_group(None if WHERE != "cpu" else "gloo")
        self.rank, self.size = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def transport(self):
        return hotrow.torch.Transport()

    def wrap(self, model):
        return torch.nn.parallel.DistributedDataParallel(model)

    def mean_gradients(self, model):
        pass  # DistributedDataParallel did

    def mean(self, value):
        value = torch.tensor(value, dtype=torch.float64)
        torch.distributed.all_reduce(value)
        return value.item() / self.size

    def end(self):
        torch.distributed.destroy_process_group()


class MpiRanks:
    def __init__(self):
        import hotrow.mpi
        from mpi4py import MPI

        self.make, self.world = hotrow.mpi.Transport, MPI.COMM_WORLD
        self.rank, self.size = self.world.Get_rank(), self.world.Get_size()

    def transport(self):
        return self.make(self.world)

    def wrap(self, model):
        return model

    def mean_gradients(self, model):
        for parameter in model.parameters():
            parameter.grad = torch.from_numpy(
                self.world.allreduce(parameter.grad.numpy()) / self.size
            )

    def mean(self, value):
        return self.world.allreduce(value) / self.size

    def end(self):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", choices=["torch", "mpi"], default="torch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoints")
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--die-at", type=int, help="a step, at which --die-rank kills itself")
    parser.add_argument("--die-rank", type=int, default=1)
    parser.add_argument("--die-with-agent", action="store_true", help="at --die-at each rank that "
                        "has this flag ends, and the torchrun above it: a machine that is lost")
    parser.add_argument("--timeout", type=float, default=60)
    flags = parser.parse_args()
    ranks = TorchRanks() if flags.ranks == "torch" else MpiRanks()
    options = {}
    if flags.checkpoints:
        options = dict(checkpoint_dir=flags.checkpoints, resume=True)
    tables = hotrow.torch.EmbeddingCollection(
        [
            hotrow.Table("items", 8, ["item"], optimizer=hotrow.RowwiseAdagrad(lr=0.1)),
            hotrow.Table("users", 4, ["user"], optimizer=hotrow.Adam(lr=0.01)),
        ],
        store=hotrow.Memory("64MiB"), max_batch_size=GLOBAL_BATCH, prefetch_depth=1, threads=1,
        communicator=hotrow.Communicator(ranks.transport(), flags.timeout),
        **tiers("16MiB", LOCAL_RANK), **options,
    )
    model = Model(tables)
    wrapped = ranks.wrap(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01)
    restored = tables.restore({"model": wrapped, "optimizer": optimizer})
    losses = restored.get("losses", [])
    loader = (batch_of(n, ranks.rank, ranks.size) for n in range(tables.steps, flags.steps))
    for features, target in hotrow.torch.prefetch(loader, tables):
        if tables.steps == flags.die_at and flags.die_with_agent:
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if tables.steps == flags.die_at and ranks.rank == flags.die_rank and not restored:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = (wrapped(features) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        ranks.mean_gradients(model)
        optimizer.step()
        losses.append(ranks.mean(loss.item()))
        if flags.checkpoints and tables.steps % flags.every == 0:
            tables.save_checkpoint({"model": wrapped, "optimizer": optimizer, "losses": losses})
    digest = tables.digest()
    if ranks.rank == 0:
        out = {"losses": losses, "hash": digest["hash"], "ranks": ranks.size}
        print(json.dumps(out), flush=True)
    tables.close()
    ranks.end()


if __name__ == "__main__":
    main()
