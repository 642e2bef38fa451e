"""Benchmarks in Python: each model, tier and way, at sizes that say nothing; models of peers."""

import contextlib
import importlib.util
import io
import json
import os
import random
import sys
import tempfile
import unittest
import unittest.mock

from torch_or_skip import DEVICE, WHERE, torch

import hotrow.__main__

PATH = os.path.join(os.path.dirname(__file__), "..", "..", "bench", "python_vs_torch.py")
SPEC = importlib.util.spec_from_file_location("python_vs_torch", PATH)
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)
SMALL = [f"--device={DEVICE}", "--dim=8", "--rows=60", "--turns=1", "--steps=1", "--threads=1"]


def run(*arguments):
    """Its figures, and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        figures = bench.main([*SMALL, *arguments])
    return figures, out.getvalue()


class BenchTest(unittest.TestCase):
    def test_each_model_with_all_tables(self):
        figures, out = run("--models=dlrm,two_tower,sequence", "--batches=4,8",
                           "--precisions=fp32,bf16", "--peers=torch,unique",
                           "--optimizer=rowwise_adagrad")
        self.assertEqual(len(figures), 3 * 2 * 2 * 3)
        for figure in figures:
            self.assertGreater(figure["samples_per_second"], 0)
            self.assertGreater(figure["table_microseconds"], 0)
        self.assertEqual(out.count("of the best peer"), 12)

    def test_each_tier(self):
        tiers = ["cache", "memory", "ssd"] if DEVICE == "cuda" else ["memory", "ssd"]
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            figures, _ = run("--models=two_tower", "--batches=8", f"--tiers={','.join(tiers)}",
                             f"--ssd={folder}/ssd", "--memory=16MiB", "--peers=",
                             f"--report={report}")
            with open(report, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["figures"], figures)
        self.assertEqual([figure["tier"] for figure in figures], tiers)
        self.assertEqual([figure["hit_rate"] for figure in figures[:1]], [1.0])

    def test_rows_of_unique_learn_as_those_of_a_bag(self):
        features = bench.FEATURES["two_tower"]
        torch.manual_seed(3)
        bags = bench.Bags(features, 20, 4)
        rows = bench.UniqueRows(features, 20, 4, "sgd")
        rows.weight.copy_(torch.cat([bag.weight.detach() for bag in bags.bags]))
        optimizer = torch.optim.SGD(bags.parameters(), lr=0.01)
        for _, ids, _ in bench.batches_of(features, 3, 6, 20):
            for each, update in ((bags, optimizer), (rows, rows)):
                pooled, _ = each(ids)
                update.zero_grad()
                pooled.square().sum().backward()
                update.step()
        expected = torch.cat([bag.weight.detach() for bag in bags.bags])
        torch.testing.assert_close(rows.weight, expected)

    def test_what_is_refused(self):
        for arguments, told in (
            (["--device=cpu", "--tiers=cache"], "of --device=cuda"),
            (["--tiers=ssd"], "needs --ssd"),
            (["--models=dlrm,bert"], "bert: is none of dlrm, two_tower, sequence"),
            (["--models=two_tower", "--peers=fbgemm"], "on a CPU alone"),
        ):
            err = io.StringIO()
            with contextlib.redirect_stderr(err), self.assertRaises(SystemExit):
                bench.main(arguments)
            self.assertIn(told, err.getvalue())

    @unittest.skipIf(DEVICE == "cuda" or WHERE != "cpu" or torch.cuda.is_available(),
                     "there is a GPU")
    def test_without_a_gpu_it_says_so(self):
        with self.assertRaisesRegex(SystemExit, "torch finds no GPU here"):
            bench.main(["--device=cuda"])


PROGRAM = hotrow.__main__.program()


@unittest.skipUnless(DEVICE == "cpu" and os.path.exists(PROGRAM), "needs the program, on a CPU")
class WindowsTest(unittest.TestCase):
    """bench/peers/torch_windows.py."""

    def test_models_of_torch_judge_windows_as_those_of_hotrow(self):
        peers = os.path.join(os.path.dirname(PATH), "peers")
        with unittest.mock.patch.object(sys, "path", [peers, *sys.path]):
            import torch_windows
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())

        draw = random.Random(1)
        ratings, movies = [], [f"{n}::Title ({n})::{'AB'[n % 2]}|C" for n in range(40)]
        for when in range(140):
            user, movie = draw.randrange(12), draw.randrange(40)
            stars = 5 if draw.random() < (0.9 if (user + movie) % 2 else 0.2) else 3
            ratings.append(f"{user}::{movie}::{stars}::{900_000_000 + 1440 * when}")
        with tempfile.TemporaryDirectory() as folder:
            for name, lines in (("ratings", ratings), ("movies", movies)):
                with open(f"{folder}/{name}.dat", "w", encoding="latin-1") as file:
                    file.write("\n".join(lines) + "\n")
            with contextlib.redirect_stdout(io.StringIO()):
                differences = torch_windows.main([
                    f"--ratings={folder}/ratings.dat", f"--movies={folder}/movies.dat",
                    f"--hotrow={PROGRAM}", f"--work={folder}", "--window=1d", "--length=6",
                    "--batch_size=16"])
        self.assertEqual(list(differences), ["din", "bst", "hstu"])
        for model, difference in differences.items():
            self.assertLess(abs(difference), 0.01, model)  # rounding moves samples past others


if __name__ == "__main__":
    unittest.main()
