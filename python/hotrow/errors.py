"""What hotrow raises: the library's status codes as exceptions, with its texts.

Each is an `Error`, and also the exception of Python's own that says the same.
"""

from typing import Dict, Type


class Error(Exception):
    """What all exceptions of hotrow are. `code` is the number of the status."""

    code = 2


class Cancelled(Error):
    code = 1


class InvalidArgument(Error, ValueError):
    """An argument is wrong. The text names it, the limit and the value."""

    code = 3


class DeadlineExceeded(Error, TimeoutError):
    """A rank did not answer in time, or a scorer not within its `deadline`. The text says which."""

    code = 4


class NotFound(Error, LookupError):
    code = 5


class AlreadyExists(Error, FileExistsError):
    code = 6


class PermissionDenied(Error, PermissionError):
    code = 7


class ResourceExhausted(Error, MemoryError):
    """A budget, the memory or the disk is too small. The text says which, and the need."""

    code = 8


class FailedPrecondition(Error, RuntimeError):
    """Calls out of order, or something outside is not as it must be."""

    code = 9


class Aborted(Error):
    code = 10


class OutOfRange(Error, IndexError):
    code = 11


class Unimplemented(Error, NotImplementedError):
    code = 12


class Internal(Error, RuntimeError):
    code = 13


class Unavailable(Error, ConnectionError):
    """Another rank has ended the job; the text names it."""

    code = 14


class DataLoss(Error, OSError):
    """A file is damaged; the text names it."""

    code = 15


_BY_CODE: Dict[int, Type[Error]] = {
    kind.code: kind
    for kind in (
        Cancelled,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        Aborted,
        OutOfRange,
        Unimplemented,
        Internal,
        Unavailable,
        DataLoss,
    )
}


def of_status(code: int, message: str) -> Error:
    """The exception of a status."""
    return _BY_CODE.get(code, Error)(message)
