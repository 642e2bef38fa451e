"""What a wheel must be: below 60 MB, with a licence for each library that is in it, none of CUDA or
torch.

    check_wheel.py WHEEL
"""

import os
import re
import sys
import zipfile

BYTES_MAX = 60_000_000
COMPILED_IN = ["nlohmann-json3"]
# Libraries whose Debian package has another name, and families with one licence.
PACKAGES = {"libOpenCL": "ocl-icd-libopencl", "libz": "zlib", "libbz2": "libbz2",
            "libcrypto": "libssl", "libbrotlicommon": "libbrotli", "libbrotlidec": "libbrotli",
            "libbrotlienc": "libbrotli"}
OTHERS = ("libcud", "libcublas", "libnccl", "libnv", "libtorch", "libc10")  # of the user's machine


def main(path: str) -> None:
    size = os.path.getsize(path)
    if size > BYTES_MAX:
        sys.exit(f"{path}: has {size} bytes, must have at most {BYTES_MAX}")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        program = wheel.getinfo("hotrow/bin/hotrow")
        has_cuda = b".nv_fatbin" in wheel.read("hotrow/lib/libhotrow.so.1")
    if not (program.external_attr >> 16) & 0o111:
        sys.exit(f"{path}: hotrow/bin/hotrow is no program")
    licences = [os.path.basename(name) for name in names if name.startswith("hotrow/licenses/")]
    carried = [os.path.basename(name) for name in names if name.startswith("hotrow.libs/")]
    if not any(name.endswith("LICENSE") for name in names):
        sys.exit(f"{path}: has no licence of its own")
    for library in filter(None, carried):
        if library.startswith(OTHERS):
            sys.exit(f"{path}: carries {library}, which the machine has, or nobody needs")
        stem = re.split(r"[-.]", library)[0]
        package = "libabsl" if stem.startswith("libabsl") else PACKAGES.get(stem, stem)
        if not any(name.startswith(package) for name in licences):
            sys.exit(f"{path}: carries {library}, and no licence of it is in hotrow/licenses")
    for package in COMPILED_IN + ["nvidia-cuda-runtime"] * has_cuda:
        if not any(name.startswith(package) for name in licences):
            sys.exit(f"{path}: has {package} compiled in, and no licence of it in hotrow/licenses")
    cuda = "with" if has_cuda else "without"
    print(f"{size} bytes, {len(carried)} libraries, {len(licences)} licences, {cuda} CUDA code")


main(sys.argv[1])
