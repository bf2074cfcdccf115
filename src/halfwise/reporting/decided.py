"""Words on decisions that explain why outputs are wrong, for a diagnosis."""

from halfwise.records import Criterion, Decided, NodeName, Sign
from halfwise.reporting.guards import flipped
from halfwise.wording import count, listed, percent


def decided_cause(found: Decided, what: str, criterion: Criterion) -> str:
    """Return the cause of an error that the reference's decisions undo, in one sentence.

    Args:
        found: The decisions.
        what: What rounds differently, with its verb, such as `TF32 changes`.
        criterion: What is acceptable.
    """
    decisions = "a decision" if len(found.flips) == 1 else "decisions"
    return f"{what} {decisions}: {_told(found, criterion)}."


def decided_part(found: Decided, criterion: Criterion) -> Sign:
    """Return what decisions contribute to an error that remains out of tolerance without them."""
    text = f"Part of the error comes from decisions: {_told(found, criterion)}."
    return Sign(severity="warning", text=text, nodes=tuple(flip.node for flip in found.flips))


def decided_signs(found: Decided) -> list[Sign]:
    """Return how many of each decision's values differ, and what leads to them."""
    signs = [
        Sign(
            severity="error",
            text=f"{flip.op} decides {flip.elements} of {count(flip.of, 'value')} "
            f"({percent(flip.elements / flip.of)}) differently than FP32 in ONNX Runtime.",
            nodes=(flip.node,),
        )
        for flip in found.flips
    ]
    if before := _feeding(found):
        signs.append(Sign(severity="info", text="They lead to these decisions.", nodes=before))
    return signs


def decided_advice(found: Decided, criterion: Criterion, *, low: bool) -> tuple[str, ...]:
    """Return what to do about decisions, one sentence each; with `low`, FP32 would help."""
    before = listed(_feeding(found)) if low else ""
    keep = f"Keep in FP32 what leads to these decisions: {before}." if before else ""
    tolerant = (
        ""
        if criterion.metric is not None
        else "Where both decisions are as good, judge by a metric of the task, which tolerates "
        "them: --metric auto, or your own."
    )
    return tuple(text for text in (keep, tolerant) if text)


def _told(found: Decided, criterion: Criterion) -> str:
    allowed = "what is allowed" if criterion.metric is None else "the default tolerance"
    return flipped(found, allowed=allowed)


def _feeding(found: Decided) -> tuple[NodeName, ...]:
    own = {flip.node for flip in found.flips}
    return tuple(name for name in found.nodes if name not in own)
