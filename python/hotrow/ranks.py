"""Ranks that a program connects itself: its transport lent to the tables.

A job that has ranks already, of torch.distributed or mpi4py say, wraps their transport in a class
with the methods of `Transport`:

    ranks = hotrow.Communicator(MyTransport())
    tables = hotrow.EmbeddingCollection(..., communicator=ranks)
"""

import contextlib
import ctypes
import functools
import itertools
import struct
import threading
from ctypes import byref, c_void_p
from typing import Any, Callable, Dict, Iterator, Optional, Protocol, Sequence, Tuple, TypeVar

from . import _abi, errors
from ._checks import INT32, integer, real


class Transport(Protocol):
    """One rank's end of a channel. All ranks make the same calls in the same order."""

    rank: int
    world_size: int

    def exchange(
        self, send: Sequence[memoryview], recv: Sequence[memoryview], timeout: float, operation: str
    ) -> None:
        """Sends send[p] to each rank p and fills recv[p] with what p sends; any may be empty, those
        of this rank are. Raises TimeoutError when a rank is silent for `timeout` seconds, and
        should name it; operation ("AllGather") is for such errors. One thread at a time for each
        channel, different channels at once. The views are valid during the call."""

    def duplicate(self) -> "Transport":
        """Another channel between the same ranks, whose calls are independent of this one's."""

    def abort(self, message: str) -> None:
        """Makes the calls of all ranks fail, as far as it can. Any thread, at any time."""

    def failure(self) -> Optional[str]:
        """The message of an abort, of any rank; None: there is none that it knows of. Does not wait
        for other ranks. Any thread, at any time. A transport may have no such method: then work on
        a GPU that awaits a rank which ended the job goes on until the timeout."""

    def close(self) -> None:
        """Ends this channel."""


# ---- What transports have in common ----

# Goes before each message: the size of what follows, and the operation by name.
_HEADER = struct.Struct("<q56s")
HEADER_BYTES = _HEADER.size


def header(size: int, operation: str) -> bytes:
    return _HEADER.pack(size, operation.encode())


def read_header(data: bytes) -> Tuple[int, str]:
    """The size, and the operation."""
    size, name = _HEADER.unpack(data)
    return size, name.rstrip(b"\0").decode("utf-8", "replace")


def mismatch(
    theirs: Tuple[int, str], ours: Tuple[int, str], their_rank: int, our_rank: int
) -> str:
    """What is wrong with a message of another rank; "": nothing. Both: size and operation."""
    if theirs[1] != ours[1]:
        return f"rank {their_rank} calls {theirs[1]} while rank {our_rank} calls {ours[1]}"
    if theirs[0] != ours[0]:
        return (
            f"rank {their_rank} sends {theirs[0]} bytes to rank {our_rank}, which expects {ours[0]}"
        )
    return ""


# ---- Callbacks of the library ----


class _Callback(threading.local):
    """Of this thread: how many callbacks of the library it is in."""

    depth = 0

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


_callback = _Callback()


def outside_callbacks(function: Callable[[Any], None], argument: Any) -> None:
    """Calls it, on another thread if this one is in a callback: what ends tables waits for the
    thread that a callback is on. For __del__, which comes wherever the collector of Python runs."""
    if _callback.depth:
        threading.Thread(
            target=function, args=(argument,), name="hotrow, outside a callback", daemon=True
        ).start()
    else:
        function(argument)


class _Channels:
    """The library knows a channel by a number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._channels: Dict[int, Transport] = {}
        self._mutex = threading.Lock()

    def add(self, transport: Transport) -> int:
        with self._mutex:
            number = next(self._numbers)
            self._channels[number] = transport
        return number

    def find(self, number: int) -> Transport:
        with self._mutex:
            return self._channels[number]

    def remove(self, number: int) -> Optional[Transport]:
        with self._mutex:
            return self._channels.pop(number, None)


_channels = _Channels()


def _status(error: BaseException, text: Optional[int], text_size: int) -> int:
    if not isinstance(error, Exception):  # of Ctrl-C: the call that is under way raises it
        _abi.raised.error = error
    message = f"{error}" or type(error).__name__
    if text and text_size:
        data = message.encode("utf-8", "replace")[: text_size - 1] + b"\0"
        ctypes.memmove(text, data, len(data))
    if isinstance(error, errors.Error):
        return error.code
    return (errors.DeadlineExceeded if isinstance(error, TimeoutError) else errors.Unavailable).code


def _view(address: Optional[int], size: int, writable: bool) -> memoryview:
    if not address or not size:
        return memoryview(bytearray() if writable else b"")
    view = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    return view if writable else view.toreadonly()


@_abi.EXCHANGE
def _exchange(  # type: ignore[no-untyped-def]
    user, operation, send, send_bytes, recv, recv_bytes, timeout, text, text_size
) -> int:
    try:
        with _callback.entered():
            transport = _channels.find(user)
            ranks = range(transport.world_size)
            transport.exchange(
                [_view(send[p], send_bytes[p], False) for p in ranks],
                [_view(recv[p], recv_bytes[p], True) for p in ranks],
                timeout,
                operation.decode(),
            )
        return 0
    except BaseException as error:  # may not pass through the library
        return _status(error, text, text_size)


@_abi.DUPLICATE
def _duplicate(user, channel, text, text_size) -> int:  # type: ignore[no-untyped-def]
    try:
        with _callback.entered():
            channel[0] = _channels.add(_channels.find(user).duplicate())
        return 0
    except BaseException as error:
        return _status(error, text, text_size)


@_abi.RELEASE
def _release(user) -> None:  # type: ignore[no-untyped-def]
    transport = _channels.remove(user)
    if transport is not None:
        transport.close()


@_abi.ABORT
def _abort(user, message) -> None:  # type: ignore[no-untyped-def]
    try:
        _channels.find(user).abort(message.decode("utf-8", "replace"))
    except KeyError:
        pass  # the first channel has been released


@_abi.STATUS
def _failure(user, text, text_size) -> int:  # type: ignore[no-untyped-def]
    try:
        with _callback.entered():
            message = _channels.find(user).failure()
        return 0 if message is None else _status(ConnectionError(message), text, text_size)
    except BaseException as error:
        return _status(error, text, text_size)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def together(method: _Method) -> _Method:
    """Of an object with a _communicator, or None there: a call that all ranks make. What this rank
    refuses before the library hears of it ends the call on all."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(self, *arguments, **named)
        except Exception as error:
            communicator = getattr(self, "_communicator", None)
            if communicator is not None:
                communicator.end_job(error)
            raise

    return call  # type: ignore[return-value]


class Communicator(_abi.Owner):
    """Ranks that share tables, over a transport of the caller's.

    timeout_seconds: how long a rank may be silent; longer than any work that one does alone while
    others wait.
    """

    def __init__(self, transport: Transport, timeout_seconds: float = 30.0) -> None:
        self._handle: Optional[int] = None
        self._transport = transport
        self._channel: Optional[Transport] = None  # of `any`
        self.rank = integer(transport.rank, "transport.rank", *INT32)
        self.world_size = integer(transport.world_size, "transport.world_size", *INT32)
        callbacks: Any = _abi.default(_abi.Callbacks, "communicator_callbacks")
        callbacks.rank = self.rank
        callbacks.world_size = self.world_size
        callbacks.exchange = _exchange
        callbacks.duplicate = _duplicate
        callbacks.release = _release
        callbacks.abort = _abort
        if hasattr(transport, "failure"):
            callbacks.status = _failure
        self._timeout = callbacks.timeout_seconds = real(timeout_seconds, "timeout_seconds")
        callbacks.user = _channels.add(transport)
        handle = c_void_p()
        try:
            _abi.communicator_create(byref(callbacks), byref(handle))
        except BaseException:
            _channels.remove(callbacks.user)
            raise
        self._handle = handle.value

    def __repr__(self) -> str:
        return f"<hotrow.Communicator: rank {self.rank} of {self.world_size}>"

    def end_job(self, error: BaseException) -> None:
        """abort, with the text of an error; nothing where this rank is alone."""
        if self.world_size > 1:
            self.abort(f"{error}" or type(error).__name__)

    def any(self, mine: bool) -> bool:
        """Whether it is true of any rank. Collective."""
        if self.world_size == 1:
            return mine
        if self._channel is None:
            self._channel = self._transport.duplicate()
        heard = bytearray(self.world_size)
        send = [memoryview(bytes([mine])) for _ in heard]
        recv = [memoryview(heard)[rank : rank + 1] for rank in range(self.world_size)]
        send[self.rank] = recv[self.rank] = memoryview(b"")
        self._channel.exchange(send, recv, self._timeout, "Any")
        return mine or 1 in heard

    def abort(self, message: str) -> None:
        """For an error of this rank alone, of its data say: the calls of all ranks fail with
        errors.Unavailable "rank 1 ended the job: MESSAGE", instead of waiting for this one. What
        the tables refuse on one rank tells the others by itself."""
        _abi.communicator_abort(self._handle, message.encode("utf-8", "replace"))

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            if self._channel is not None:
                self._channel.close()
            _abi.communicator_destroy(self._handle)
