"""What this installation has and finds: `python -m hotrow env`."""

import importlib.metadata
import platform
import sys
from typing import Any, Dict, List

from . import _abi
from ._processor import processor_flags

#: What the library needs (x86-64-v3), and what it makes use of where it is there.
_FLAGS = ("avx2", "fma", "bmi2", "avx512f", "avx512_bf16", "amx_bf16")


def environment() -> Dict[str, Any]:
    """The version, the library and where it lies, the processor, CUDA ("cuda": None where the
    library has no CUDA code; "problem": why it finds no GPU), and the version of torch."""
    library: Dict[str, Any] = _abi.environment_of_library()
    flags = processor_flags()
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    return {
        "version": library["version"],
        "commit": library["commit"] or None,
        "library": _abi.lib._name,
        "python": platform.python_version(),
        "processor": [flag for flag in _FLAGS if flag in flags],
        "cuda": library["cuda"],
        "torch": torch,
    }


def _lines(found: Dict[str, Any]) -> List[str]:
    cuda = found["cuda"]
    out = [
        f"hotrow     {found['version']}, commit {found['commit'] or 'not known'}",
        f"library    {found['library']}",
        f"python     {found['python']}, torch {found['torch'] or 'not installed'}",
        f"processor  {' '.join(found['processor']) or 'not known'}",
    ]
    if cuda is None:
        return [*out, "CUDA       the library has no CUDA code"]
    driver = f"driver for {cuda['driver']}" if cuda["driver"] else "no driver"
    out.append(f"CUDA       code for {cuda['architectures']}, runtime {cuda['runtime']}, {driver}")
    for index, device in enumerate(cuda["devices"]):
        out.append(f"GPU {index}      {device['name']}, compute capability {device['capability']}, "
                   f"{device['memory_bytes'] / 2**30:.1f} GiB")
    if cuda["problem"]:
        out.append(f"GPU        none: {cuda['problem']}")
    return out


def main(arguments: List[str]) -> None:
    if arguments:
        sys.exit(f"hotrow env: takes no arguments, got {arguments[0]}")
    print("\n".join(_lines(environment())))
