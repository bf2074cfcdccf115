"""A worker that comes up while the library is still being imported."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from halfwise.errors import UsageError
from halfwise.tensorrt.worker.transport import started
from halfwise.tensorrt.workers import resolve

_NAMES = ("trt_python", "trt_command", "trt_worker")


@contextmanager
def worker_ahead(options: Mapping[str, Any]) -> Iterator[None]:
    """Start the worker that `options` name; the first that is asked for in the block is that one.

    What is wrong with the options is left to the command itself.
    """
    try:
        specs = resolve(**{name: options[name] for name in _NAMES if name in options})
    except UsageError:
        specs = []
    for spec in specs[:1]:
        spec.announce()
    with started(specs[0].command) if specs else nullcontext():
        yield
