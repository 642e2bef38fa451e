"""examples/: each trains on small data, its loss falls, and it writes a plot where it can."""

import contextlib
import importlib
import importlib.util
import io
import os
import random
import sys
import tempfile
import unittest
from unittest import mock

import hotrow

EXAMPLES = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "examples"))
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None
HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "hotrow.torch"))
HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnxscript"))


def criteo_file(path, samples):
    """Lines of Criteo's layout: a label, 13 counts, 26 categories; some are missing."""
    draw = random.Random(1)
    with open(path, "w", encoding="ascii") as file:
        for _ in range(samples):
            ids = [int(draw.paretovariate(0.7)) % 100 for _ in range(26)]
            label = int(draw.random() < (0.9 if ids[0] % 2 else 0.1))
            counts = ["" if draw.random() < 0.1 else str(draw.randrange(50)) for _ in range(13)]
            words = ["" if draw.random() < 0.05 else f"{(1 + id) * 0x9E3779B1 % 2**32:08x}"
                     for id in ids]
            file.write("\t".join([str(label), *counts, *words]) + "\n")


class ReadmeTest(unittest.TestCase):
    def test_its_example_keeps_rows_from_one_run_to_the_next(self):
        with open(os.path.join(EXAMPLES, "..", "README.md"), encoding="utf-8") as page:
            code = page.read().split("```python\n")[1].split("```")[0]
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            for _ in range(2):
                exec(code, {})
        first, again = out.getvalue().splitlines()
        self.assertRegex(first, r"^100 steps, \d{5} rows$")
        self.assertEqual(again, first.replace("100", "200", 1))


class ExamplesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        sys.path.insert(0, EXAMPLES)
        self.addCleanup(sys.path.remove, EXAMPLES)

    def run_example(self, name, *arguments, falls=True):
        """What it prints, and its losses, which fall unless a run goes on."""
        example = importlib.import_module(name)
        plot = os.path.join(self.folder, name + ".png")
        kept = []

        class Losses(example.Losses):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                kept.append(self)

        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(example, "Losses", Losses), mock.patch.object(
            sys, "argv", [name, f"--plot={plot}", *arguments]
        ), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            example.main()
        self.assertNotIn("\r", err.getvalue())  # no terminal: lines, for notebooks and logs
        self.assertIn("100 %", err.getvalue())
        if HAS_MATPLOTLIB:
            with open(plot, "rb") as file:
                self.assertEqual(file.read(4), b"\x89PNG")
        else:
            self.assertIn("matplotlib is not installed", err.getvalue())
        losses = kept[0].values
        if falls:
            self.assertLess(sum(losses[-10:]) / 10, 0.97 * sum(losses[:10]) / 10)
        return out.getvalue(), losses

    def test_numpy_loop(self):
        data = "--data=synthetic:tables=4,rows=500,samples=20000"
        out, whole = self.run_example("numpy_loop", data, "--batch=512")
        self.assertIn("not trained on", out)
        store = f"--store={self.folder}/rows"
        again, losses = self.run_example("numpy_loop", data, "--batch=512", store)
        self.assertEqual(out, again)  # a store changes no bit
        self.assertEqual(whole, losses)

    def test_numpy_loop_reads_criteo(self):
        path = os.path.join(self.folder, "day_0")
        criteo_file(path, 4000)
        self.run_example("numpy_loop", f"--data=criteo:{path}", "--batch=128")

    def example_of_torch(self, *arguments, **options):
        if not HAS_TORCH:
            self.skipTest("torch is not installed")
        return self.run_example(*arguments, **options)

    def test_torch_dlrm(self):
        path = os.path.join(self.folder, "day_0")
        criteo_file(path, 4000)
        export = [f"--export={self.folder}/model"] if HAS_ONNX else []
        self.example_of_torch("torch_dlrm", f"--data=criteo:{path}", "--batch=128", "--dim=8",
                              f"--checkpoints={self.folder}/checkpoints", *export)
        if export:
            with hotrow.Scorer(f"{self.folder}/model") as scorer:
                self.assertEqual((len(scorer.features), scorer.num_dense), (26, 13))

    def test_torch_dlrm_without_a_gpu_says_so_in_a_line(self):
        if not HAS_TORCH:
            self.skipTest("torch is not installed")
        arguments = ["torch_dlrm", "--data=synthetic:tables=3,rows=200,samples=20000",
                     "--batch=256", "--dim=8"]
        with mock.patch("torch.cuda.is_available", lambda: False):
            out, losses = self.run_example(*arguments, "--device=cuda")
        self.assertEqual(out.splitlines()[0],
                         "there is no GPU for torch and hotrow: training on the CPU")
        again, expected = self.run_example(*arguments)
        self.assertEqual((out.splitlines()[1:], losses), (again.splitlines(), expected))

    def test_torch_two_tower(self):
        out, _ = self.example_of_torch("torch_two_tower", "--users=400", "--items=400",
                                       "--batch=128", "--steps=150")
        recall = float(out.split(":")[1])
        self.assertGreater(recall, 0.2)  # by chance 0.025

    def test_torch_sequence(self):
        out, _ = self.example_of_torch("torch_sequence", "--items=50", "--length=6", "--layers=1",
                                       "--batch=64", "--steps=30")
        self.assertIn("of histories not trained on", out)

    def test_torch_hstu(self):
        arguments = ["torch_hstu", "--items=100", "--length=8", "--targets=4", "--dim=16",
                     "--blocks=1", "--batch=64", "--steps=60"]
        out, in_memory = self.example_of_torch(*arguments)
        self.assertIn("rows are in memory", out)
        arguments.append(f"--rows={self.folder}/rows")
        out, losses = self.example_of_torch(*arguments)
        self.assertEqual(losses, in_memory)  # a store changes no bit
        again, losses = self.example_of_torch(*arguments, falls=False)
        self.assertIn("after 120 steps", again)
        self.assertLess(sum(losses[:10]), 0.97 * sum(in_memory[:10]))


if __name__ == "__main__":
    unittest.main()
