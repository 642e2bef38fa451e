"""What this processor must have: the library is compiled for x86-64-v3."""

import platform
from typing import Set


def processor_flags() -> Set[str]:
    """As Linux names them; none where they are not known."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return set()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return set(next((line for line in lines if line.startswith("flags")), "").split())
    except OSError:
        return set()


def check_processor() -> None:
    """ImportError on an older processor, where an instruction would end the process instead."""
    flags = processor_flags()
    if flags and not {"avx2", "fma", "bmi2"} <= flags:
        raise ImportError("hotrow: needs a processor with AVX2 and FMA (x86-64-v3)")
