"""The command `hotrow` (`python -m hotrow`): plans, trains, inspects, verifies and converts.

It is a program beside this package, which takes the place of the interpreter. `hotrow env` alone is
of the package: it says what was installed and what it finds.
"""

import os
import sys
from typing import NoReturn

from ._onnxruntime import library
from ._processor import check_processor


def program() -> str:
    """Its path. HOTROW_PROGRAM: for work on hotrow itself, one that lies elsewhere."""
    return os.environ.get("HOTROW_PROGRAM") or os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "bin", "hotrow"
    )


def main() -> NoReturn:
    if sys.argv[1:2] == ["env"]:
        from ._environment import main as env

        env(sys.argv[2:])
        sys.exit()
    path = program()
    try:
        check_processor()
        onnxruntime = library()
        if onnxruntime is not None:
            os.environ["HOTROW_ONNXRUNTIME"] = onnxruntime
        os.execv(path, ["hotrow", *sys.argv[1:]])
    except (ImportError, OSError) as error:
        sys.exit(f"hotrow: {path}: {error}")


if __name__ == "__main__":
    main()
