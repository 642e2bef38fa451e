"""DLRM in plain PyTorch, the peer of bench/dlrm_vs_torch.sh. Prints one JSON line with samples/s.

The model of `dlrm` at the same flags: bottom MLP, one EmbeddingBag per table (sum, hotness 1),
dot interaction (lower triangle, no diagonal), top MLP, BCE loss, sparse SGD or Adagrad on the tables, SGD on the MLPs.
Ids are Zipf-like drawn once, outside the timed region.
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

class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        self.bot = mlp([13] + [int(x) for x in a.bottom.split("-")] + [a.dim], True)
        self.emb = nn.ModuleList(nn.EmbeddingBag(a.rows, a.dim, mode="sum", sparse=True) for _ in range(a.tables))
        f = a.tables + 1
        self.register_buffer("li", torch.tensor([i for i in range(f) for j in range(i)]))
        self.register_buffer("lj", torch.tensor([j for i in range(f) for j in range(i)]))
        self.top = mlp([a.dim + f * (f - 1) // 2] + [int(x) for x in a.top.split("-")] + [1], False)
    def forward(self, dense, ids, off):
        x = self.bot(dense)
        T = torch.stack([x] + [e(ids[i], off) for i, e in enumerate(self.emb)], 1)
        Z = torch.bmm(T, T.transpose(1, 2))
        return self.top(torch.cat([x, Z[:, self.li, self.lj]], 1)).squeeze(1)

m = Dlrm().to(a.device)
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
off = torch.arange(a.batch, device=a.device)
lossf = nn.BCEWithLogitsLoss()
def step(i):
    d, ids, y = batches[i % nb]
    sparse.zero_grad(); dense.zero_grad()
    with torch.autocast(device_type=a.device.split(":")[0], dtype=torch.bfloat16, enabled=a.amp):
        loss = lossf(m(d, ids, off), y)
    loss.backward(); sparse.step(); dense.step()
    return loss
for i in range(a.warmup): step(i)
if a.device != "cpu": torch.cuda.synchronize()
t = time.perf_counter()
cpu = time.process_time()
for i in range(a.steps): l = step(i)
if a.device != "cpu": torch.cuda.synchronize()
s = time.perf_counter() - t
cpu = time.process_time() - cpu
print(json.dumps({"peer": "pytorch " + torch.__version__ + (", bf16 autocast" if a.amp else ""), "cpu_us_per_sample": 1e6 * cpu / (a.batch * a.steps), "samples_per_second": a.batch * a.steps / s, "step_ms": 1e3 * s / a.steps, "loss": float(l.detach()), **vars(a)}))
