"""Raise guards with numbers: what may go wrong in the low format, and which nodes it concerns.

One file per family of causes; each docstring gives rules, thresholds and their sources.
"""

from collections.abc import Collection, Mapping

from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.attribute.inside import Infinity, infinite_guards
from halfwise.fixing.attribute.integers import integer_guards, selection_guards
from halfwise.fixing.attribute.ranges import constant_guards, mask_guards, range_guards
from halfwise.fixing.attribute.small import floor_guards, small_guards
from halfwise.fixing.attribute.sums import cancellation_guards, residual_guards, sum_guards
from halfwise.formats import Format
from halfwise.graph.model import Network
from halfwise.graph.roles import Roles
from halfwise.records import Guard, NodeName, Observations, TensorName

__all__ = ["Infinity", "attribute", "attribute_inside", "guards_of"]


def attribute(
    network: Network,
    roles: Roles,
    observations: Observations,
    fmt: Format,
    *,
    headroom: float = 2.0,
    accumulate: str = "fp32",
) -> tuple[Guard, ...]:
    """Return every guard that the observations raise, most severe first.

    A guard is a suspicion, not a verdict: even an infinity that a tanh absorbs raises one. Severity
    is 3 to 4 if values leave the range, 2 to 3 if a denominator or logarithm reads zero, 1 to 2 if
    accuracy is lost, and below 1 if the loss is only possible (values within the headroom last).
    See `halfwise.fixing.attribute.evidence`. For a format with FP32's range there are none about
    values that leave it.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes for `fmt`.
        observations: Observations of its tensors, with statistics taken for `fmt`.
        fmt: The low format.
        headroom: Factor ≥ 1 on observed ranges within which an overflow counts.
        accumulate: "fp16" to check running sums inside ops too; "fp32" otherwise.

    Returns:
        Guards by descending severity, then in graph order of their nodes. `Guard.nodes` are in
        graph order and hold nodes with role COMPUTE only, at least one.
    """
    return guards_of(Evidence(network, roles, observations, fmt, headroom, accumulate))


def guards_of(evidence: Evidence) -> tuple[Guard, ...]:
    """Return every guard that `evidence` raises, most severe first; see `attribute`."""
    if evidence.known is not None:
        return evidence.known
    fmt = evidence.fmt
    masks = [] if fmt.has_range_of_fp32 else list(mask_guards(evidence))
    ranges = () if fmt.has_range_of_fp32 else range_guards(evidence)
    guards = [
        *masks,
        *(g for g in ranges if not _is_mask(g, masks)),
        *(g for g in constant_guards(evidence) if not _is_mask(g, masks)),
        *sum_guards(evidence),
        *small_guards(evidence),
        *cancellation_guards(evidence),
        *floor_guards(evidence),
        *residual_guards(evidence),
        *integer_guards(evidence),
        *selection_guards(evidence),
    ]
    return tuple(sorted(guards, key=lambda g: (-g.severity, evidence.order[g.node])))


def attribute_inside(
    network: Network,
    roles: Roles,
    observations: Observations,
    fmt: Format,
    inside: Mapping[TensorName, Infinity],
    guards: Collection[Guard],
    held: Collection[NodeName],
) -> tuple[Guard, ...]:
    """Return what must be FP32 so that nothing is infinite inside; see `infinite_guards`.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes for `fmt`.
        observations: Observations of its tensors.
        fmt: The low format.
        inside: Harmful infinities in a mixed model, by tensor of the network.
        guards: Guards.
        held: Nodes already FP32 for such a reason.
    """
    evidence = Evidence(network, roles, observations, fmt, 1.0, "fp32")
    return tuple(infinite_guards(evidence, inside, guards, held))


def _is_mask(guard: Guard, masks: list[Guard]) -> bool:
    """Return whether a mask explains this guard: its constant, or what it is added to."""
    return any(guard.tensor == m.tensor or guard.node in m.nodes for m in masks)
