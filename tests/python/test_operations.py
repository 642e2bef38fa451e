"""docs/operations.md: every block of commands runs, in order, as its reader would run it."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import hotrow.__main__

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "operations.md")


@unittest.skipUnless(os.path.exists(hotrow.__main__.program()), "this build has no program")
class OperationsTest(unittest.TestCase):
    def test_its_commands_run(self):
        with open(PAGE, encoding="utf-8") as page:
            blocks = [part.split("\n```")[0] for part in page.read().split("```sh\n")[1:]]
        self.assertGreater(len(blocks), 6)
        path = [os.path.dirname(part) for part in (hotrow.__main__.program(), sys.executable)]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                ["bash", "-euxo", "pipefail", "-c", "\n".join(blocks)], cwd=folder, timeout=120,
                env={**os.environ, "PATH": os.pathsep.join([*path, os.environ["PATH"]])},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        self.assertEqual(done.returncode, 0, done.stdout[-4000:])
        for said in ("1 damaged", "2 of 2 keys had rows", "2 keys, 1 places: absent"):
            self.assertIn(said, done.stdout)

    def test_inspect_tells_the_rows_of_each_table(self):
        # A store has narrow rows first.
        with tempfile.TemporaryDirectory() as folder:
            with hotrow.EmbeddingCollection(
                [hotrow.Table("wide", 16), hotrow.Table("narrow", 4)],
                store=hotrow.Memory("64MB"), max_batch_size=8, checkpoint_dir=folder,
            ) as tables:
                step = tables.prefetch({"wide": np.arange(8), "narrow": np.zeros(8, int)})
                step.update(np.ones_like(step.lookup().pooled))
                tables.save_checkpoint({"model": b"123"})
            with self.assertRaisesRegex(hotrow.Error, "hotrow.torch.export"):
                hotrow.Scorer(folder)
            said = [
                subprocess.run([hotrow.__main__.program(), "inspect", folder, *more], check=True,
                               capture_output=True, text=True).stdout
                for more in ([], ["--json"])
            ]
        self.assertEqual([table["rows"] for table in json.loads(said[1])["tables"]], [8, 1])
        self.assertIn("  state          model (3 B)\n", said[0])


if __name__ == "__main__":
    unittest.main()
