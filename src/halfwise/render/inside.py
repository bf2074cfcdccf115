"""What a report says of the inside of a mixed model."""

from collections.abc import Iterator

from halfwise.records import Verdict
from halfwise.render.parts import Lines
from halfwise.render.wording import count, shorten


def inside(verdict: Verdict) -> Lines | None:
    """Return the paragraph on values that are not finite; None where all are."""
    lines = tuple(non_finite(verdict))
    return Lines("Non-finite values", lines) if lines else None


def non_finite(verdict: Verdict) -> Iterator[str]:
    """Yield how many tensors are not finite inside, the first, and whether that is harmless."""
    tensors = verdict.intermediate_nonfinite
    if not tensors:
        return
    first = tensors[0]
    origin = f" (from node {shorten(first.producer)})" if first.producer else ""
    yield (
        f"Inside, {count(len(tensors), 'tensor')} with NaN or infinite values that FP32 lacks, "
        f"the first {shorten(first.tensor)}{origin}."
    )
    if all(t.harmless for t in tensors):
        yield (
            "They do no harm, with larger inputs neither: what reads them has a finite limit "
            "there, and FP32 is at it."
        )
