"""Numbers that become those of C. ctypes takes any, and cuts off what does not fit."""

import math
from typing import Any

import numpy as np

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)
UINT64 = (0, 2**64 - 1)

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def integer(value: Any, name: str, least: int = INT64[0], most: int = INT64[1]) -> int:
    """TypeError, or ValueError where it is not in [least, most]. `name` is that of the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: is {value!r}, must be an integer")
    if not least <= value <= most:
        raise ValueError(f"{name}: is {value}, must lie in [{least}, {most}]")
    return int(value)


def real(value: Any, name: str) -> float:
    """A finite number that a float32 can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: is {value!r}, must be a number")
    if not math.isfinite(value):
        raise ValueError(f"{name}: is {value}, must be finite")
    out = float(value)
    if abs(out) > _FLOAT32_MAX:
        raise ValueError(f"{name}: is {value}, does not fit in 32 bits")
    return out
