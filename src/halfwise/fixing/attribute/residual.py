"""Residual streams that swallow their branches: x + f(x) with f(x) below the spacing of x."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from halfwise.fixing.attribute.evidence import Evidence, number, percent, several
from halfwise.fixing.attribute.severity import SIGNIFICANT, Band, graded
from halfwise.graph.model import node_name
from halfwise.graph.walk import producers
from halfwise.records import Guard, NodeName


@dataclass(eq=False)
class _Stream:
    """Sums on one stream so far.

    Attributes:
        nodes: The sums from the first that loses its branch on.
        losses: Size of each lost branch relative to the stream.
    """

    nodes: list[ir.Node] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def residual_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield a residual guard for each stream whose sums lose more than `SIGNIFICANT` of it.

    A sum s = x + f(x) is stored with an error of up to half the spacing at s. Where |f(x)| is below
    that, s rounds back to x, and the branch is lost ("stagnation": Higham 2002, "Accuracy and
    Stability of Numerical Algorithms", 4.2; Connolly, Higham & Mary 2021, doi 10.1137/20M1334796).
    Below a whole spacing most of it is. Magnitudes are the medians over the non-zero elements, read
    from the histograms to within a factor of √2, so a branch counts as lost p binades below the
    stream: about 2048 times smaller in FP16, 256 times in BF16.

    One lost branch changes the stream by 0.4 % at most, but the sums of a chain lose theirs one
    by one: up to Σ |f(x)| / |s|, where the branches point the same way. Below `SIGNIFICANT` nothing
    is raised. Possible only: branches that point any way lose the root of that sum of squares.

    A residual sum is an Add of two computed values, the smaller of which is computed from the
    larger: so scores that a mask outweighs do not count. The nodes are the sums from the first that
    loses its branch to the last on the stream, those between included: one low sum rounds away what
    gathered before it.
    """
    streams: dict[NodeName, _Stream] = {}
    for node in evidence.nodes.values():
        if node.op_type != "Add" or node.inputs[0] is node.inputs[1]:
            continue
        sizes = {v: _typical(evidence, v) for v in node.inputs if v is not None}
        if len(sizes) < 2 or not all(sizes.values()):
            continue
        branch, stream = sorted(sizes, key=sizes.__getitem__)
        earlier = [streams.get(node_name(n)) for n in producers(stream, evidence.roles)]
        on = next((s for s in earlier if s is not None), None)
        total = _typical(evidence, node.outputs[0])
        lost = sizes[branch] < evidence.fmt.ulp(total) and _made_from(evidence, branch, stream)
        if not lost and on is None:
            continue
        on = streams[node_name(node)] = on or _Stream()
        on.nodes.append(node)
        if lost:
            on.losses.append(sizes[branch] / total)
    for found in dict.fromkeys(streams.values()):
        yield from _guard(evidence, found)


def _guard(evidence: Evidence, stream: _Stream) -> list[Guard]:
    loss = math.fsum(stream.losses)
    if loss <= SIGNIFICANT:
        return []
    first = stream.nodes[0]
    return evidence.guard(
        "residual",
        first,
        first.outputs[0],
        message=f"from {first.name} (Add) on, {several(len(stream.losses), 'sum')} on the stream "
        f"add branches down to 1/{number(1 / min(stream.losses))} of it, less than "
        f"{evidence.format_name}'s spacing there: up to {percent(min(loss, 1.0))} of it is lost",
        fix="Keep the stream in FP32 and cast what the branches read.",
        nodes=stream.nodes,
        severity=graded(Band.POSSIBLE, loss / SIGNIFICANT),
    )


def _typical(evidence: Evidence, value: ir.Value) -> float:
    """Return the median magnitude of the non-zero elements, to within √2; 0 where unknown."""
    seen = evidence.observed(value)
    if seen is None or seen.detail is None or not seen.detail.histogram.counts:
        return 0.0
    histogram = seen.detail.histogram
    below = np.cumsum(histogram.counts)
    binade = histogram.first + int(np.searchsorted(below, below[-1] / 2))
    return float(2.0 ** (binade + 0.5))


def _made_from(evidence: Evidence, branch: ir.Value, stream: ir.Value) -> bool:
    """Return whether `branch` is computed from what `stream` holds."""
    origins = producers(stream, evidence.roles)
    start = min((evidence.order[node_name(n)] for n in origins), default=0)
    seen: set[ir.Node] = set()
    waiting = [branch]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value is stream or node in origins:
            return True
        # Nothing that comes before the stream in the graph can be computed from it.
        if node is not None and node not in seen and evidence.order[node_name(node)] >= start:
            seen.add(node)
            waiting += [v for v in node.inputs if v is not None]
    return False
