"""For tests of hotrow.torch: `from torch_or_skip import torch`.

With HOTROW_PYTHON_TORCH=1 they must run. HOTROW_TEST_DEVICE=cuda has their tables on a GPU, which
is the emulated one where HOTROW_EMULATED_GPU=1 says that the library has it.
"""

import os
import unittest

try:
    import torch
except ImportError as error:
    if os.environ.get("HOTROW_PYTHON_TORCH") == "1":
        raise
    raise unittest.SkipTest(f"torch is not installed ({error})") from error

DEVICE = os.environ.get("HOTROW_TEST_DEVICE", "cpu")
#: Where torch sees what tables give: memory of the emulated GPU is the host's.
WHERE = "cpu" if os.environ.get("HOTROW_EMULATED_GPU") else DEVICE


def tiers(cache, rank=0):
    """The option of tables that puts a cache over their store."""
    return {"cache": cache} if DEVICE == "cpu" else {
        "device": f"{DEVICE}:{rank}", "device_cache": cache}


def array(tensor):
    return tensor.detach().cpu().numpy()


def gpus(count):
    """For tests of so many ranks, each with a GPU where the tables are on one."""
    there = count if WHERE == "cpu" else torch.cuda.device_count()
    return unittest.skipUnless(there >= count, f"there are {there} GPUs, not {count}")


#: For what arrays of numpy, or another device, show.
in_host_memory = unittest.skipUnless(WHERE == "cpu", "tables are on a GPU, whose arrays numpy lacks")
