"""What strong typing keeps in FP32 as a whole or not at all: the core of an attention.

A fused attention kernel needs both products and everything between them in one type; with only
Softmax in FP32, TensorRT does not fuse, which took 4.3 times as long
(Stability-AI/stable-audio-3#79). From 11.3 on, a core in FP32 whose queries, keys and values are
cast up from FP16 is a fused kernel that sums in FP32 (TensorRT release notes). Constraints of weak
typing are hints: there only engines decide.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.fixing.engines.ddmin import ddmin
from halfwise.graph.model import Network, node_name
from halfwise.graph.reading import behind
from halfwise.graph.roles import Role, Roles
from halfwise.graph.written_out import attentions
from halfwise.records import AttentionCore, CoreForm, NodeName
from halfwise.tensorrt.versions import has

Assignment = frozenset[NodeName]
_NOTHING: Assignment = frozenset()


@dataclass(frozen=True)
class Units:
    """The units of a model; without any, every node is its own unit.

    Attributes:
        all: Disjoint sets of nodes.
        start: What the emulation's plan keeps.
    """

    all: tuple[Assignment, ...] = ()
    start: Assignment = _NOTHING

    def whole(self, keep: Assignment) -> Assignment:
        """Return `keep` extended to all of every unit that it touches."""
        return keep.union(*(unit for unit in self.all if unit & keep))

    def apart(self, keep: Assignment) -> Assignment:
        """Return `keep` with no more of a unit than the emulation's plan keeps, if it keeps any."""
        started = [unit for unit in self.all if unit & self.start]
        return keep - (_NOTHING.union(*started) - self.start)

    def smallest(
        self,
        keep: Assignment,
        order: Sequence[NodeName],
        ruled: Assignment,
        passes: Callable[[Assignment], bool | None],
    ) -> tuple[Assignment, bool]:
        """Return what `ddmin` does, dropping whole units, but none with a ruled node.

        Args:
            keep: A set that passes, `whole`.
            order: All nodes in graph order.
            ruled: Nodes that must stay.
            passes: Returns whether a smaller set passes; None ends the search.
        """
        parts = {name: frozenset((name,)) for name in keep}
        for unit in self.all:
            if unit <= keep:
                parts = {n: part for n, part in parts.items() if n not in unit}
                parts[min(unit)] = unit
        order = [n for n in order if n in parts and not parts[n] & ruled]

        def union(names: Assignment) -> Assignment:
            return _NOTHING.union(*(parts[n] for n in names))

        found, minimal = ddmin(frozenset(parts), order, lambda names, _: passes(union(names)))
        return union(found), minimal


def units_of(network: Network, roles: Roles, start: Assignment, lowered: Assignment) -> Units:
    """Return the attention cores of a model, joined if they share nodes.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes.
        start: What the emulation's plan keeps.
        lowered: Nodes that the user wants low: a core with one of them is not a unit.
    """
    found: list[Assignment] = []
    for nodes in attentions(network):
        names = map(node_name, nodes)
        unit = frozenset(n for n in names if roles[n].role is Role.COMPUTE and roles[n].free)
        joined = [other for other in found if other & unit]
        found = [other for other in found if other not in joined]
        found.append(unit.union(*joined))
    return Units(tuple(unit for unit in found if unit and not unit & lowered), start)


def cores(
    units: Units, network: Network, keep: Assignment, version: str | None
) -> Iterator[AttentionCore]:
    """Yield the cores that a delivered plan touches, in graph order.

    Args:
        units: Units of the model.
        network: The FP32 model.
        keep: Nodes that the plan keeps.
        version: TensorRT version.
    """
    order = [node_name(n) for n in network.nodes()]
    for unit in sorted(units.all, key=lambda unit: min(map(order.index, unit))):
        if not unit & keep:
            continue
        form: CoreForm = "whole" if unit <= keep else "split"
        if form == "whole" and has("FP32 sums in fused attention", version):
            form = "upcast" if _reads_low(network, unit, keep) else "whole"
        yield AttentionCore(
            nodes=tuple(n for n in order if n in unit),
            asked=tuple(n for n in order if n in unit & units.start),
            form=form,
        )


def _reads_low(network: Network, unit: Assignment, keep: Assignment) -> bool:
    """Return whether queries, keys and values come from low nodes."""
    products = (n for n in network.nodes() if n.op_type == "MatMul" and node_name(n) in unit)
    makers = [behind(v).value.producer() for n in products for v in _given(n)]
    outside = [n for n in makers if n is None or node_name(n) not in unit]
    return all(n is not None and node_name(n) not in keep for n in outside)


def _given(node: ir.Node) -> Iterable[ir.Value]:
    return (value for value in node.inputs if value is not None)
