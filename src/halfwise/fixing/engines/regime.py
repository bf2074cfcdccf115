"""What a worker can build: the typing regime, and the types of its version and GPU."""

from halfwise.errors import UsageError
from halfwise.formats import BF16, Format
from halfwise.records import Typing, WorkerInfo
from halfwise.records.planned import LowFormat
from halfwise.tensorrt.versions import has, since

FP32 = "FP32, TF32 off"
TF32 = "FP32, TF32 on"
"""Names of the two FP32 engines in the final table."""
AMPERE = 8.0
"""Lowest compute capability with BF16 and TF32."""


def has_tf32(worker: WorkerInfo) -> bool:
    """Return whether a GPU has TF32; one of unknown capability is assumed to."""
    return float(worker.compute_capability or AMPERE) >= AMPERE


def low_format(fmt: Format) -> LowFormat:
    """Return the builder's name for a low format."""
    return "bf16" if fmt == BF16 else "fp16"


def regime(
    worker: WorkerInfo, wanted: Typing | None, fmt: Format, *, beside: bool = False
) -> Typing:
    """Return the typing regime for builds: `wanted`, or the version's default.

    With `beside`, nodes may be BF16 in addition to the low format, which only strong typing can
    express.

    Raises:
        UsageError: the worker's TensorRT or GPU lacks the regime or the low format.
    """
    version = f"TensorRT {worker.tensorrt}"
    if wanted is not None and wanted not in worker.typing:
        raise UsageError(
            f"{version} has no {wanted} typing.",
            f"Use --typing {worker.typing[0]}, or another worker.",
        )
    typing = wanted or worker.typing[0]
    if beside or fmt == BF16:
        without = "no --allow bf16" if beside else "--to fp16"
        if not has("bf16", worker.tensorrt):
            raise UsageError(
                f"{version} has no BF16.", f"Use {without}, or TensorRT {since('bf16')} or later."
            )
        if float(worker.compute_capability or AMPERE) < AMPERE:
            raise UsageError(
                f"{worker.gpu} (compute capability {worker.compute_capability}) has no BF16.",
                f"Use {without}, or a GPU of compute capability 8.0 or more.",
            )
    if beside and typing == "weak":
        raise UsageError(
            "In weak typing the builder alone chooses between FP16 and BF16.",
            "Use --typing strong, which TensorRT 9.0 and later have, or no --allow bf16.",
        )
    return typing
