"""Read a walk: which errors are born, which are inherited, and where the first one is."""

from collections.abc import Mapping, Sequence

from halfwise.graph.cut import read_by
from halfwise.graph.model import node_name, tensor_name
from halfwise.records import (
    Comparison,
    NodeComparison,
    NodeName,
    SideName,
    TensorName,
    TensorStatus,
)
from halfwise.tools.compare.sides import tolerance_of
from halfwise.tools.compare.walk import Found, Walk


def compared(walk: Walk) -> Comparison:
    """Return what a walk found, as a record.

    Only an error that leads to an output counts as a divergence: from there every tensor is beyond
    the tolerance, and alone it changes an output by more than that, so an infinity that a Tanh
    swallows does not count. Where there is no such error, the one with the largest effect counts.
    """
    tolerance = tolerance_of(walk.a, walk.b)
    reading = _Reading(walk, tolerance)
    nodes = tuple(reading.record(found) for found in reading.worst_of_nodes())
    first, path = reading.first(nodes)
    outputs = {
        tensor_name(v): found.error.value
        for v in walk.network.graph.outputs
        if (found := walk.found.get(tensor_name(v))) is not None and found.error is not None
    }
    return Comparison(
        a=walk.a.label,
        b=walk.b.label,
        samples=walk.samples.ids,
        tolerance=tolerance,
        nodes=nodes,
        first=first,
        path=path,
        outputs=outputs,
        builds=walk.a.builds + walk.b.builds,
        notes=(*walk.a.notes(), *walk.b.notes()),
    )


class _Reading:
    def __init__(self, walk: Walk, tolerance: float) -> None:
        self.walk, self.tolerance = walk, tolerance
        self.errors = _reached(walk.found)
        self.leads = self._leads_to_outputs()

    def worst_of_nodes(self) -> list[Found]:
        """Return, for each node, its output with the largest error."""
        worst: dict[NodeName, Found] = {}
        for found in self.walk.found.values():
            name = node_name(found.node)
            if name not in worst or _error(found) > _error(worst[name]):
                worst[name] = found
        return list(worst.values())

    def record(self, found: Found) -> NodeComparison:
        """Return what is known of a node."""
        known = NodeComparison(
            node=node_name(found.node),
            op=found.node.op_type,
            tensor=found.tensor,
            status=found.lack or "skipped",
        )
        if found.error is None:
            return known
        error = found.error.value
        side = found.worst.side if found.worst and error > self.tolerance else None
        reads = read_by(found.node)
        return known.model_copy(
            update={
                "status": _status(error <= self.tolerance, side),
                "error": error,
                "inherited": max((self.errors.get(name, 0.0) for name in reads), default=0.0),
                "born": max((e.value for e in found.born.values()), default=None),
                "side": side,
                "region": () if side is None else self.walk.region(found, side),
                "worst_sample": self.walk.samples.ids[found.error.worst_sample],
            }
        )

    def first(
        self, nodes: Sequence[NodeComparison]
    ) -> tuple[tuple[NodeName, ...], tuple[NodeName, ...]]:
        """Return the nodes of the first divergence, and the error's path to the worst output."""
        born = [n for n in nodes if n.status == "born"]
        candidates = [n for n in born if n.tensor in self.leads] or born
        if not candidates:
            return (), ()
        effects: list[float] = []
        for node in candidates:
            effects.append(self.walk.effect(self.walk.found[node.tensor]))
            if effects[-1] > self.tolerance:
                break
        chosen = candidates[effects.index(max(effects))]
        return chosen.region, self._path(chosen.tensor)

    def _is_bad(self, name: TensorName) -> bool:
        return self.errors.get(name, 0.0) > self.tolerance

    def _leads_to_outputs(self) -> frozenset[TensorName]:
        """Return the tensors beyond the tolerance from which others are, up to an output."""
        ends = {tensor_name(v) for v in self.walk.network.graph.outputs}
        leads = {name for name in ends if self._is_bad(name)}
        for node in reversed(list(self.walk.network.nodes())):
            if leads.intersection(tensor_name(v) for v in node.outputs if v.name):
                leads.update(name for name in read_by(node) if self._is_bad(name))
        return frozenset(leads)

    def _path(self, start: TensorName) -> tuple[NodeName, ...]:
        """Return the nodes along which the error goes, each time the reader with the largest."""
        readers: dict[TensorName, list[TensorName]] = {}
        for name, found in self.walk.found.items():
            for read in read_by(found.node):
                readers.setdefault(read, []).append(name)
        ends = {tensor_name(v) for v in self.walk.network.graph.outputs}
        path, at = [start], start
        while at not in ends:
            ahead = [name for name in readers.get(at, []) if name in self.leads]
            if not ahead:
                break
            at = max(ahead, key=lambda name: self.errors[name])
            path.append(at)
        return tuple(node_name(self.walk.found[name].node) for name in path)


def _status(good: bool, side: SideName | None) -> TensorStatus:
    if good:
        return "good"
    return "inherited" if side is None else "born"


def _error(found: Found) -> float:
    return -1.0 if found.error is None else found.error.value


def _reached(found: Mapping[TensorName, Found]) -> dict[TensorName, float]:
    """Return the error of each tensor; of one that was not compared, the largest that it reads."""
    errors: dict[TensorName, float] = {}
    for name, item in found.items():
        if item.error is not None:
            errors[name] = item.error.value
        elif item.lack != "constant":
            errors[name] = max((errors.get(read, 0.0) for read in read_by(item.node)), default=0.0)
    return errors
