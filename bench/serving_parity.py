#!/usr/bin/env python3
"""Scores of the same lines by every way there is, bit for bit.

Trains each model of the zoo for some steps on Frappe, MovieLens-1M, Criteo and the census data,
then scores lines of these files by `hotrow score` (hotrow::Scorer in C++), by hotrow.Scorer (Python
over the C interface), and by `hotrow serve`: JSON, and tritonclient's binary tensors where it is
installed. Logits must have the same bits. That hotrow::Scorer has those of the trainer's evaluation
is the test ScorerRealData*, with HOTROW_SLOW_TESTS=1.

  PYTHONPATH=python python3 bench/serving_parity.py --data=DIR [--hotrow=build/bin/hotrow]

DIR has frappe/, ml-1m/, criteo/ and census/. Ends with status 1 where bits differ.
"""

import argparse
import gzip
import http.client
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import hotrow
import numpy as np

LINES = 2000
BATCH = 100
MODELS = {
    "dlrm": ["--over_arch_layer_sizes=32-1"],
    "dlrm, cat": ["--interaction=cat", "--over_arch_layer_sizes=32-1"],
    "dcn": ["--over_arch_layer_sizes=32-1", "--dcn_num_layers=2"],
    "deepfm": ["--over_arch_layer_sizes=32-1"],
    "wide_deep": ["--over_arch_layer_sizes=32-1"],
    "xdeepfm": ["--over_arch_layer_sizes=32-1", "--cin_layer_sizes=8-4"],
    "pnn": ["--over_arch_layer_sizes=32-1", "--pnn_products=both"],
    "din": ["--over_arch_layer_sizes=32-1", "--history=genres:movie_id"],
    "bst": ["--over_arch_layer_sizes=32-1", "--history=genres:movie_id"],
    "hstu": ["--over_arch_layer_sizes=32-1", "--history=genres:movie_id"],
    "mmoe": ["--over_arch_layer_sizes=16-1", "--expert_layer_sizes=16"],
}


def read(path, header, separator):
    """The first lines of a file, and the names of its columns or None."""
    with gzip.open(path, "rt", newline="") as file:
        names = file.readline().rstrip("\r\n").split(separator) if header else None
        lines = [line.rstrip("\r\n") for _, line in zip(range(LINES), file)]
    return names, lines


def cases(data):
    frappe, movies = data / "frappe", data / "ml-1m" / "ml1m_ctr.csv.gz"
    criteo, census = data / "criteo", data / "census" / "census-income.gz"
    one_label = [model for model in MODELS if model not in ("din", "bst", "hstu", "mmoe")]
    for model in one_label:
        yield model, f"frappe:{frappe}", read(frappe / "test.csv.gz", True, ",")
    for model in one_label + ["din", "bst", "hstu"]:
        yield model, f"ml1m:{movies}", read(movies, True, ",")
    yield "mmoe", f"ml1m-tasks:{movies}", read(movies, True, ",")
    for model in one_label:
        yield model, f"criteo:{criteo}/train_10k.tsv.gz", read(
            criteo / "test_10k_unlabeled.tsv.gz", False, "\t")
    lines = [line.split(",") for line in read(census, False, ",")[1]]
    # Without the labels: whether someone never married, and the income.
    lines = [",".join(line[:7] + line[8:41]) for line in lines]
    yield "mmoe", f"census-tasks:{census}", (None, lines)


def run(*command):
    """What a command prints; ends the program where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr[-2000:]}")
    return done.stdout


def by_command(command, model, header, lines, dir):
    """Logits of `hotrow score`."""
    path = dir / "lines.txt"
    path.write_bytes(b"".join(line.encode() + b"\n" for line in header + lines))
    out = run(command, "score", model, path, "--score=logit", f"--batch_size={BATCH}")
    return np.array([line.split("\t") for line in out.splitlines()], dtype=np.float32)


def batches(lines):
    return [lines[i:i + BATCH] for i in range(0, len(lines), BATCH)]


def by_python(model, lines):
    with hotrow.Scorer(model, max_batch_size=BATCH) as scorer:
        return np.concatenate([scorer.score_lines(part) for part in batches(lines)])


def by_json(port, name, lines):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    out = []
    for part in batches(lines):
        tensor = {"name": "lines", "datatype": "BYTES", "shape": [len(part)], "data": part}
        connection.request("POST", f"/v2/models/{name}/infer",
                           json.dumps({"inputs": [tensor], "outputs": [{"name": "logits"}]}))
        reply = connection.getresponse()
        body = json.loads(reply.read())
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {body}")
        logits = body["outputs"][0]
        out.append(np.array(logits["data"], dtype=np.float32).reshape(logits["shape"]))
    return np.concatenate(out)


def by_triton(port, name, lines):
    try:
        import tritonclient.http as triton
    except ImportError:
        return None
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    out = []
    for part in batches(lines):
        tensor = triton.InferInput("lines", [len(part)], "BYTES")
        tensor.set_data_from_numpy(np.array([line.encode() for line in part], dtype=np.object_))
        outputs = [triton.InferRequestedOutput("logits", binary_data=True)]
        out.append(client.infer(name, [tensor], outputs=outputs).as_numpy("logits"))
    return np.concatenate(out)


def serve(command, model):
    """A server of the model on a free port."""
    server = subprocess.Popen(
        [command, "serve", model, "--port=0", f"--max_batch_size={BATCH}", "--timeout_ms=60000"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in server.stdout:
        if at := re.search(r"127\.0\.0\.1:(\d+)", line):
            return server, int(at[1])
    raise RuntimeError("hotrow serve did not start")


def same(a, b):
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--hotrow", default="build/bin/hotrow")
    parser.add_argument("--steps", type=int, default=50, help="of each training")
    args = parser.parse_args()
    print("| model | data | lines | Python | HTTP, JSON | HTTP, tritonclient |")
    print("| --- | --- | --- | --- | --- | --- |")
    wrong = 0
    for model, data, (names, lines) in cases(args.data):
        with tempfile.TemporaryDirectory() as dir:
            dir = pathlib.Path(dir)
            saved = str(dir / "model")
            program = model.split(",")[0]
            dense = program == "dlrm" and data.startswith("criteo")
            run(args.hotrow, "train", program, f"--data={data}", "--embedding_dim=16",
                "--batch_size=256", f"--limit_train_batches={args.steps}", "--epochs=1",
                "--learning_rate=0.05", "--store_bytes=256MiB", "--threads=1",
                f"--save_dir={saved}", *MODELS[model],
                *(["--dense_arch_layer_sizes=32-16"] if dense else []))
            header = []
            if names is not None:  # of the columns those that scoring reads
                with hotrow.Scorer(saved) as scorer:
                    at = [names.index(name) for name in scorer.line_columns]
                    header = [",".join(scorer.line_columns)]
                lines = [",".join(line.split(",")[i] for i in at) for line in lines]
            expected = by_command(args.hotrow, saved, header, lines, dir)
            server, port = serve(args.hotrow, saved)
            try:
                ways = [by_python(saved, lines), by_json(port, program, lines),
                        by_triton(port, program, lines)]
            finally:
                server.terminate()
                server.wait()
            told = ["not installed" if way is None else "same" if same(way, expected) else
                    f"{np.sum(way != expected)} differ" for way in ways]
            wrong += sum(way is not None and not same(way, expected) for way in ways)
            print(f"| {model} | {data.split(':')[0]} | {len(lines):,} | {' | '.join(told)} |",
                  flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
