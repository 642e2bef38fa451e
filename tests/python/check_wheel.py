"""What a wheel must be: below 30 MB, with a licence for each library that is in it.

    check_wheel.py WHEEL
"""

import os
import re
import sys
import zipfile

BYTES_MAX = 30_000_000
HEADERS = ("nlohmann-json3",)  # compiled in
# Libraries whose Debian package has another name, and families with one licence.
PACKAGES = {"libOpenCL": "ocl-icd-libopencl", "libz": "zlib", "libbz2": "libbz2"}


def main(path: str) -> None:
    size = os.path.getsize(path)
    if size > BYTES_MAX:
        sys.exit(f"{path}: has {size} bytes, must have at most {BYTES_MAX}")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        program = wheel.getinfo("hotrow/bin/hotrow")
    if not (program.external_attr >> 16) & 0o111:
        sys.exit(f"{path}: hotrow/bin/hotrow is no program")
    licences = [os.path.basename(name) for name in names if name.startswith("hotrow/licenses/")]
    carried = [os.path.basename(name) for name in names if name.startswith("hotrow.libs/")]
    if not any(name.endswith("LICENSE") for name in names):
        sys.exit(f"{path}: has no licence of its own")
    for library in filter(None, carried):
        stem = re.split(r"[-.]", library)[0]
        package = "libabsl" if stem.startswith("libabsl") else PACKAGES.get(stem, stem)
        if not any(name.startswith(package) for name in licences):
            sys.exit(f"{path}: carries {library}, and no licence of it is in hotrow/licenses")
    for package in HEADERS:
        if not any(name.startswith(package) for name in licences):
            sys.exit(f"{path}: has {package} compiled in, and no licence of it in hotrow/licenses")
    print(f"{size} bytes, {len(carried)} libraries, {len(licences)} licences")


main(sys.argv[1])
