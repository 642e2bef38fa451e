"""The command `hotrow`, as the package starts it."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from types import SimpleNamespace

import hotrow
import hotrow.__main__

HAS_PROGRAM = os.path.exists(hotrow.__main__.program())


def command(*arguments, **changes):
    return subprocess.run([sys.executable, "-m", "hotrow", *arguments], capture_output=True,
                          text=True, timeout=120, check=False, **changes)


@unittest.skipUnless(HAS_PROGRAM, "this build has no program")
class CommandTest(unittest.TestCase):
    def test_help(self):
        self.assertIn("train MODEL", command("--help").stdout)
        wrong = command("fly")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("fly", wrong.stderr)
        script = os.path.join(os.path.dirname(sys.executable), "hotrow")
        if os.path.exists(script):
            out = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
            self.assertIn("train MODEL", out.stdout)

    def test_train(self):
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            done = command("train", "dlrm", "--data=synthetic:tables=2,rows=50,samples=500",
                           "--batch_size=100", f"--report={report}", f"--save_dir={folder}/model")
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(report, encoding="utf-8") as file:
                self.assertIn("tables_hash", json.dumps(json.load(file)))
            # The package reads what the program wrote.
            self.assertEqual(hotrow.Saved(f"{folder}/model").model, "dlrm")
        self.assertEqual(command("train", "resnet").returncode, 2)

    def test_plan_of_tables(self):
        class Dense:
            def named_modules(self):  # as torch's
                return [("", self), ("top", SimpleNamespace(in_features=25, out_features=1))]

        tables = [hotrow.Table("items", 16), hotrow.Table("users", 8, num_embeddings=500)]
        options = dict(batch_size=64, rows={"items": 10**6}, hotness={"items": 3}, cache="4MB",
                       prefetch_depth=1, dense=Dense(), num_dense=1)
        for store, kind in ((None, "memory"), (hotrow.Ssd("rows", "10GB"), "ssd")):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "spec.json")
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(hotrow.plan_spec(tables, store=store, **options), file)
                done = command("plan", path, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            plan = json.loads(done.stdout)
            self.assertEqual((plan["store"], plan["rows"]), (kind, 10**6 + 500))
        unpooled = [hotrow.Table("items", 16, pooling="none", num_embeddings=10)]
        self.assertEqual(hotrow.plan_spec(unpooled, batch_size=8)["tables"][0]["pooling"], "none")
        with self.assertRaisesRegex(ValueError, "rows: table 'items' takes any id"):
            hotrow.plan_spec(tables, batch_size=64)
        with self.assertRaisesRegex(ValueError, "no table 'item'"):
            hotrow.plan_spec(tables, batch_size=64, rows={"item": 5})

    def test_no_program(self):
        out = command("--help", env={**os.environ, "HOTROW_PROGRAM": "/nowhere/hotrow"})
        self.assertEqual(out.returncode, 1)
        self.assertIn("/nowhere/hotrow", out.stderr)


class EnvironmentTest(unittest.TestCase):
    def test_env_says_what_was_installed_and_what_it_finds(self):
        found = hotrow.environment()
        out = command("env")
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertIn(f"hotrow     {hotrow.__version__}, commit", out.stdout)
        self.assertIn(f"library    {found['library']}\n", out.stdout)
        self.assertTrue(os.path.exists(found["library"]))
        self.assertIn("avx2", found["processor"])
        cuda = found["cuda"]
        if cuda is None:
            self.assertIn("CUDA       the library has no CUDA code\n", out.stdout)
        else:
            self.assertRegex(cuda["architectures"], r"^[0-9a-z,-]+$")
            self.assertEqual(bool(cuda["devices"]), not cuda["problem"])
            self.assertIn("GPU 0 " if cuda["devices"] else "GPU        none: ", out.stdout)
        self.assertEqual(command("env", "--all").returncode, 1)


if __name__ == "__main__":
    unittest.main()
