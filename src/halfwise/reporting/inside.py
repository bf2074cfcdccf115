"""What a report says of how a mixed model holds: inside, and as ONNX Runtime runs its file."""

from collections.abc import Iterator

from halfwise.records import FileRun, Verdict
from halfwise.reporting.parts import Lines
from halfwise.wording import count, number, shorten


def inside(verdict: Verdict) -> Lines | None:
    """Return the paragraph on values that are not finite; None where all are."""
    lines = tuple(non_finite(verdict))
    return Lines("Non-finite values", lines) if lines else None


def non_finite(verdict: Verdict) -> Iterator[str]:
    """Yield how many tensors are not finite inside, the first that matters, and what is harmless.

    A mask that becomes infinite before its Softmax comes first in many models, and is no cause.
    """
    tensors = verdict.intermediate_nonfinite
    if not tensors:
        return
    harmful = [t for t in tensors if not t.harmless]
    first = (harmful or tensors)[0]
    which = "the first" if first is tensors[0] else "the first that may do harm"
    origin = f" (from node {shorten(first.producer)})" if first.producer else ""
    yield (
        f"Inside, {count(len(tensors), 'tensor')} with NaN or infinite values that FP32 lacks, "
        f"{which} {shorten(first.tensor)}{origin}."
    )
    if len(harmful) < len(tensors):
        some = len(tensors) - len(harmful)
        who = "They do" if not harmful else f"{some} of them {'does' if some == 1 else 'do'}"
        yield (
            f"{who} no harm, with larger inputs neither: what reads them has a finite limit there, "
            "and FP32 is at it."
        )


def file_lines(verdict: Verdict) -> Iterator[str]:
    """Yield how the file does as ONNX Runtime runs it, beside the emulation."""
    run = verdict.as_file
    if run is None:
        return
    if run.passed is None:
        yield f"Not run as a file: {run.not_run}"
        return
    yield (
        "As ONNX Runtime runs the file, without rounding value by value: "
        f"{_figure(run)}; emulated: {_figure(verdict)}."
    )


def _figure(side: Verdict | FileRun) -> str:
    if side.metric is not None:
        return f"{side.metric.name} {number(side.metric.candidate)}"
    return f"rel max {number(max((o.rel_max for o in side.outputs.values()), default=0.0))}"
