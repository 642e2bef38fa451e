"""docs/operations.md: every block of commands runs, in order, as its reader would run it."""

import os
import subprocess
import sys
import tempfile
import unittest

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


if __name__ == "__main__":
    unittest.main()
