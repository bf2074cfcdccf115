"""What a worker's TensorRT can be asked for: a typing regime, a low format."""

from typing import Literal

from halfwise.errors import UsageError
from halfwise.formats import BF16, Format
from halfwise.records import Typing, WorkerInfo, version_of
from halfwise.tensorrt.versions import FIRST_BF16

LowFormat = Literal["fp16", "bf16"]

_BF16_CAPABILITY = 8.0


def low_format(fmt: Format) -> LowFormat:
    """Return the builder's name of a low format."""
    return "bf16" if fmt == BF16 else "fp16"


def regime(worker: WorkerInfo, wanted: Typing | None, fmt: Format) -> Typing:
    """Return the typing regime to build in: `wanted`, or what the version prefers.

    Raises:
        UsageError: the worker's TensorRT or GPU lacks the regime or the low format.
    """
    version = f"TensorRT {worker.tensorrt}"
    if wanted is not None and wanted not in worker.typing:
        raise UsageError(
            f"{version} has no {wanted} typing.",
            f"Use --typing {worker.typing[0]}, or another worker.",
        )
    if fmt == BF16:
        if version_of(worker.tensorrt or "0") < FIRST_BF16:
            raise UsageError(f"{version} has no BF16.", "Use --to fp16, or TensorRT 9 or later.")
        if float(worker.compute_capability or _BF16_CAPABILITY) < _BF16_CAPABILITY:
            raise UsageError(
                f"{worker.gpu} (compute capability {worker.compute_capability}) has no BF16.",
                "Use --to fp16, or a GPU of compute capability 8.0 or more.",
            )
    return wanted or worker.typing[0]
