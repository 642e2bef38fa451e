"""What this processor must have: the library is compiled for x86-64-v3."""

import platform


def check_processor() -> None:
    """ImportError on an older processor, where an instruction would end the process instead."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return
    if flags and not {"avx2", "fma", "bmi2"} <= set(flags.split()):
        raise ImportError("hotrow: needs a processor with AVX2 and FMA (x86-64-v3)")
