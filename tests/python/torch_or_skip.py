"""For tests of hotrow.torch: `from torch_or_skip import torch`.

With HOTROW_PYTHON_TORCH=1 they must run.
"""

import os
import unittest

try:
    import torch
except ImportError as error:
    if os.environ.get("HOTROW_PYTHON_TORCH") == "1":
        raise
    raise unittest.SkipTest(f"torch is not installed ({error})") from error
