"""DLRM in PyTorch, the peer of bench/dlrm_vs_torch.sh. Prints one JSON line with samples/s.

The model of `dlrm` at the same flags: bottom MLP, one table a feature (sum, hotness 1), dot
interaction (lower triangle, no diagonal), top MLP, BCE loss, SGD or Adagrad on the tables, SGD on
the MLPs. Ids are Zipf-like, drawn once, outside the timed region.

--embeddings: what looks the rows up and updates them.
  bag       an nn.EmbeddingBag(sparse=True) a table, and a sparse optimizer
  fbgemm    FBGEMM's table-batched bags, all tables in one operator, updated in its backward
  torchrec  TorchRec's FusedEmbeddingBagCollection, fed with a KeyedJaggedTensor
"""
import argparse, json, time
import numpy as np, torch
import torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--tables", type=int, default=26)
p.add_argument("--rows", type=int, default=100_000)
p.add_argument("--dim", type=int, default=16)
p.add_argument("--batch", type=int, default=2048)
p.add_argument("--steps", type=int, default=50)
p.add_argument("--warmup", type=int, default=5)
p.add_argument("--bottom", default="512-256-64")
p.add_argument("--top", default="512-256")
p.add_argument("--alpha", type=float, default=1.05)
p.add_argument("--optimizer", default="sgd", choices=["sgd", "adagrad"])
p.add_argument("--threads", type=int, default=2)
p.add_argument("--device", default="cpu")
p.add_argument("--amp", action="store_true")
p.add_argument("--embeddings", default="bag", choices=["bag", "fbgemm", "torchrec"])
a = p.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(0)
rng = np.random.default_rng(0)

def mlp(sizes, last_act):
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        if i < len(sizes) - 2 or last_act:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)

class Bags(nn.Module):
    """All embeddings take (tables, batch) ids and give (batch, tables, dim) vectors."""
    name = "pytorch " + torch.__version__
    def __init__(self):
        super().__init__()
        self.emb = nn.ModuleList(nn.EmbeddingBag(a.rows, a.dim, mode="sum", sparse=True) for _ in range(a.tables))
        self.register_buffer("offsets", torch.arange(a.batch))
    def forward(self, ids):
        return torch.stack([e(ids[i], self.offsets) for i, e in enumerate(self.emb)], 1)

def make_fbgemm():
    import fbgemm_gpu
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen)
    where = (EmbeddingLocation.HOST, ComputeDevice.CPU) if a.device == "cpu" else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    class Fbgemm(nn.Module):
        name = f"fbgemm {fbgemm_gpu.__version__}, pytorch {torch.__version__}"
        def __init__(self):
            super().__init__()
            self.emb = SplitTableBatchedEmbeddingBagsCodegen(
                [(a.rows, a.dim, *where)] * a.tables, learning_rate=0.1 if a.optimizer == "sgd" else 0.01,
                optimizer=EmbOptimType.EXACT_SGD if a.optimizer == "sgd" else EmbOptimType.EXACT_ADAGRAD)
            self.emb.init_embedding_weights_uniform(-0.01, 0.01)
            self.register_buffer("offsets", torch.arange(a.tables * a.batch + 1))
        def forward(self, ids):
            return self.emb(ids.reshape(-1), self.offsets).view(-1, a.tables, a.dim)
    return Fbgemm()

def make_torchrec():
    import torchrec
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
    keys = [f"f{i}" for i in range(a.tables)]
    class TorchRec(nn.Module):
        name = f"torchrec {torchrec.__version__}, pytorch {torch.__version__}"
        def __init__(self):
            super().__init__()
            self.emb = FusedEmbeddingBagCollection(
                [torchrec.EmbeddingBagConfig(name=f"t{i}", embedding_dim=a.dim, num_embeddings=a.rows, feature_names=[k])
                 for i, k in enumerate(keys)],
                optimizer_type=torch.optim.SGD if a.optimizer == "sgd" else torch.optim.Adagrad,
                optimizer_kwargs={"lr": 0.1 if a.optimizer == "sgd" else 0.01}, device=torch.device(a.device),
                location=EmbeddingLocation.HOST if a.device == "cpu" else EmbeddingLocation.DEVICE)
            self.register_buffer("offsets", torch.arange(a.tables * a.batch + 1))
        def forward(self, ids):
            kjt = torchrec.KeyedJaggedTensor(keys=keys, values=ids.reshape(-1), offsets=self.offsets)
            return self.emb(kjt).values().view(-1, a.tables, a.dim)
    return TorchRec()

class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        self.bot = mlp([13] + [int(x) for x in a.bottom.split("-")] + [a.dim], True)
        self.emb = {"bag": Bags, "fbgemm": make_fbgemm, "torchrec": make_torchrec}[a.embeddings]()
        f = a.tables + 1
        self.register_buffer("li", torch.tensor([i for i in range(f) for j in range(i)]))
        self.register_buffer("lj", torch.tensor([j for i in range(f) for j in range(i)]))
        self.top = mlp([a.dim + f * (f - 1) // 2] + [int(x) for x in a.top.split("-")] + [1], False)
    def forward(self, dense, ids):
        x = self.bot(dense)
        v = self.emb(ids)
        T = torch.cat([x.to(v.dtype)[:, None], v], 1)
        Z = torch.bmm(T, T.transpose(1, 2))
        return self.top(torch.cat([x, Z[:, self.li, self.lj]], 1)).squeeze(1)

m = Dlrm().to(a.device)
sparse = None  # FBGEMM and TorchRec update rows in the backward pass
if a.embeddings == "bag":
    sparse = torch.optim.SGD(m.emb.parameters(), lr=0.1) if a.optimizer == "sgd" else torch.optim.Adagrad(m.emb.parameters(), lr=0.01)
densep = list(m.bot.parameters()) + list(m.top.parameters())
dense = torch.optim.SGD(densep, lr=0.1)
def zipf(n):
    w = 1.0 / np.arange(1, a.rows + 1) ** a.alpha
    c = np.cumsum(w); c /= c[-1]
    return np.searchsorted(c, rng.random(n)).astype(np.int64)
nb = 8
batches = []
for _ in range(nb):
    ids = torch.from_numpy(np.stack([zipf(a.batch) for _ in range(a.tables)])).to(a.device)
    batches.append((torch.rand(a.batch, 13, device=a.device), ids, (torch.rand(a.batch, device=a.device) < 0.25).float()))
lossf = nn.BCEWithLogitsLoss()
def step(i):
    d, ids, y = batches[i % nb]
    dense.zero_grad()
    if sparse: sparse.zero_grad()
    with torch.autocast(device_type=a.device.split(":")[0], dtype=torch.bfloat16, enabled=a.amp):
        loss = lossf(m(d, ids), y)
    loss.backward(); dense.step()
    if sparse: sparse.step()
    return loss
for i in range(a.warmup): step(i)
if a.device != "cpu": torch.cuda.synchronize()
t = time.perf_counter()
cpu = time.process_time()
for i in range(a.steps): l = step(i)
if a.device != "cpu": torch.cuda.synchronize()
s = time.perf_counter() - t
cpu = time.process_time() - cpu
print(json.dumps({"peer": m.emb.name + (", bf16 autocast" if a.amp else ""), "cpu_us_per_sample": 1e6 * cpu / (a.batch * a.steps), "samples_per_second": a.batch * a.steps / s, "step_ms": 1e3 * s / a.steps, "loss": float(l.detach()), **vars(a)}))
