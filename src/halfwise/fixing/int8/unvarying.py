"""Products that read a tensor whose calibration values give no range."""

from collections.abc import Collection, Mapping

from halfwise.errors import CaseError
from halfwise.fixing.int8.placing import activations
from halfwise.fixing.int8.ranges import Ranges
from halfwise.graph.model import Network, node_name
from halfwise.records import NodeName, Remark, TensorName
from halfwise.wording import listed


def unvarying(
    network: Network, candidates: Collection[NodeName], ranges: Ranges
) -> Mapping[NodeName, tuple[TensorName, ...]]:
    """Return the candidates that read a tensor without a range, with these tensors; in graph order.

    Without a finite value there is no range. Nor does a single value give one: zero would get an
    arbitrary scale, and any other value would clip other inputs.

    Raises:
        CaseError: all candidates do.
    """
    still = {name for name in activations(network) if _is_one(ranges.get(name, (0.0, 0.0)))}
    found: dict[NodeName, tuple[TensorName, ...]] = {}
    for node in network.nodes():
        read = (TensorName(v.name) for v in node.inputs[:2] if v is not None and v.name)
        if node_name(node) in candidates and (names := tuple(n for n in read if n in still)):
            found[node_name(node)] = names
    if found and len(found) == len(candidates):
        raise CaseError(
            "On the calibration samples these tensors have a single value, or no finite one: "
            f"{listed(sorted(still))}. Every product that could be INT8 reads one of them, so "
            "there is no range.",
            "Give real samples with varying values.",
        )
    return found


def _is_one(ends: tuple[float, float]) -> bool:
    return ends[0] == ends[1]


def remark(found: Mapping[NodeName, tuple[TensorName, ...]]) -> Remark:
    """Return a remark on a plan without them."""
    tensors = dict.fromkeys(name for names in found.values() for name in names)
    names = {"tensors": listed([*tensors])}
    return Remark(
        kind="unranged", severity="warning", names=names, numbers={"elements": len(found)}
    )
