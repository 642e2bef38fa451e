"""cmake/sbom.py: what packages say that they are made from."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from hotrow.__main__ import program
from test_command import HAS_PROGRAM

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "cmake", "sbom.py")


@unittest.skipUnless(HAS_PROGRAM, "this build has no program")
class SbomTest(unittest.TestCase):
    def test_it_names_what_the_program_loads(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, SCRIPT, "0.2.0", folder, program()], check=True,
                           env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}, timeout=60)
            with open(os.path.join(folder, "sbom.spdx.json"), encoding="utf-8") as file:
                document = json.load(file)
            licences = os.listdir(os.path.join(folder, "licenses"))
        self.assertEqual(document["spdxVersion"], "SPDX-2.3")
        self.assertEqual(document["creationInfo"]["created"], "2023-11-14T22:13:20Z")
        by_id = {each["SPDXID"]: each for each in document["packages"]}
        self.assertEqual(len(by_id), len(document["packages"]))
        for each in document["packages"]:
            self.assertRegex(each["SPDXID"], r"^SPDXRef-[A-Za-z0-9.-]+$")
            self.assertIn("downloadLocation", each)
        related = {}
        for relation in document["relationships"]:
            kind, other = relation["relationshipType"], relation["relatedSpdxElement"]
            related.setdefault(kind, []).append(by_id[other]["name"])
        self.assertEqual(related["DESCRIBES"], ["hotrow"])
        self.assertTrue(any(name.startswith("libc") for name in related["DEPENDS_ON"]))
        if shutil.which("dpkg"):
            self.assertIn("zlib1g", related["DEPENDS_ON"])
            self.assertRegex(by_id["SPDXRef-zlib1g"]["externalRefs"][0]["referenceLocator"],
                             r"^pkg:deb/debian/zlib1g@1")
            self.assertEqual(sorted(licences), sorted(related.get("CONTAINS", [])))


if __name__ == "__main__":
    unittest.main()
