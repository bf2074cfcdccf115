"""Starts a worker before the library that will ask it is loaded: each takes seconds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from halfwise.tensorrt.worker.transport import Connection, worker_source

_started: dict[tuple[str, ...], Connection] = {}


@contextmanager
def started(command: Sequence[str]) -> Iterator[None]:
    """Start a worker, and have it load what TensorRT builds with; `taken` gives it away.

    It ends with the block where nobody took it. One that cannot be started is left to whoever needs
    it: there that is an error.
    """
    key = tuple(command)
    with suppress(OSError):
        _started[key] = Connection(key, worker_source())
        _started[key].tell({"op": "warm"})
    try:
        yield
    finally:
        left = _started.pop(key, None)
        if left is not None:
            left.close(patience=0.0)


def taken(command: Sequence[str]) -> Connection | None:
    """Return the worker that was started by `command`, once; else None."""
    return _started.pop(tuple(command), None)
