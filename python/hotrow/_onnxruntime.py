"""Where the library of onnxruntime lies, which scores with dense parts in ONNX."""

import glob
import importlib.util
import os
from typing import Optional


def library() -> Optional[str]:
    """HOTROW_ONNXRUNTIME, or that of the package onnxruntime, which is not imported."""
    given = os.environ.get("HOTROW_ONNXRUNTIME")
    if given:
        return given
    package = importlib.util.find_spec("onnxruntime")
    for folder in (package and package.submodule_search_locations) or ():
        found = glob.glob(os.path.join(glob.escape(folder), "capi", "libonnxruntime.so*"))
        if found:
            return max(found)
    return None
