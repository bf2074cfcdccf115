"""Which typing regime engines are built in."""

from halfwise.backends.tensorrt.client import Worker
from halfwise.case import EngineSettings
from halfwise.errors import UsageError
from halfwise.records import Typing


def typing_regime(worker: Worker, settings: EngineSettings) -> Typing:
    """Return the regime that was asked for, else the one that the worker's version prefers.

    Raises:
        UsageError: this version lacks what was asked for.
    """
    offered = worker.info.typing
    if settings.typing is None:
        return offered[0]
    if settings.typing not in offered:
        raise UsageError(
            f"TensorRT {worker.info.tensorrt} has no {settings.typing} typing.",
            f"Use --typing {offered[0]}, or another worker.",
        )
    return settings.typing
