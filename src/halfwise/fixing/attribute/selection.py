"""Choices that rounding can flip: ArgMax, TopK and the like between scores one spacing apart."""

from collections.abc import Iterator

from halfwise.fixing.attribute.evidence import Evidence
from halfwise.graph.walk import producers
from halfwise.records import Guard

_SEVERITY_OF_TIE = 0.1
"""Equal in FP32 already: which one is chosen means nothing."""


def selection_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield margin guards: choices decided by less than one spacing of the low format.

    The gap between the last chosen and the first rejected score is given in spacings at that
    score; below 1 both may round to one number. Possible only: severity runs from 0.5 for a gap of
    one spacing towards 1 for none; exact ties, which FP32 decides by order too, come last. The
    nodes are the choice and the producers of the scores. NonMaxSuppression itself takes no FP16;
    how close its boxes overlap to the limit is not looked at.
    """
    for node, seen in evidence.inside("margin"):
        scores = node.inputs[1 if node.op_type == "NonMaxSuppression" else 0]
        if seen.value >= 1.0:
            continue
        gap = (
            "nothing at all"
            if seen.value == 0.0
            else f"{seen.value:.2g} of {evidence.format_name}'s spacing there"
        )
        yield from evidence.guard(
            "margin",
            node,
            scores,
            message=f"{seen.node} ({seen.op}) decides between scores that differ by {gap}"
            f"{evidence.where(seen.worst_sample)}",
            fix="Judge the task's metric rather than equal indices, or keep the scores in FP32.",
            nodes=[node, *producers(scores, evidence.roles)],
            severity=_SEVERITY_OF_TIE if seen.value == 0.0 else 1.0 - seen.value / 2,
        )
