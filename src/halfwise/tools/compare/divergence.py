"""Read a walk: which errors are born, amplified or inherited, and where the first is."""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from halfwise.graph.dataflow import read_by
from halfwise.graph.model import node_name, tensor_name
from halfwise.records import (
    Comparison,
    NodeComparison,
    NodeName,
    SideName,
    TensorName,
    TensorStatus,
    replace,
)
from halfwise.tools.compare.walk import Found, Walk, tolerance_of


def find_divergence(walk: Walk) -> Comparison:
    """Measure every tensor that both sides have; return the comparison.

    Only an error that leads to an output is a divergence: every tensor from there on is beyond the
    tolerance; an infinity that a Tanh absorbs is not one. Without such an error, the first counts.
    """
    walk.all()
    tolerance = tolerance_of(walk.a, walk.b)
    reading = _Reading(walk, tolerance)
    nodes = tuple(reading.record(measured) for measured in reading.worst_of_nodes())
    born = reading.first(nodes)
    outputs = {
        tensor_name(v): measured.error.value
        for v in walk.network.graph.outputs
        if (measured := walk.found.get(tensor_name(v))) is not None and measured.error is not None
    }
    return Comparison(
        a=walk.a.label,
        b=walk.b.label,
        samples=walk.samples.ids,
        tolerance=tolerance,
        nodes=nodes,
        first=born.region if born else (),
        path=reading.path(born.tensor) if born else (),
        amplified=reading.amplified_before(nodes, born),
        outputs=outputs,
    )


class _Reading:
    def __init__(self, walk: Walk, tolerance: float) -> None:
        self.walk, self.tolerance = walk, tolerance
        self.errors = _reached(walk.found)
        self.leads = self._leads_to_outputs()

    def worst_of_nodes(self) -> list[Found]:
        """Return, for each node, its output with the largest error."""
        worst: dict[NodeName, Found] = {}
        for tensor in self.walk.found.values():
            name = node_name(tensor.node)
            if name not in worst or _error(tensor) > _error(worst[name]):
                worst[name] = tensor
        return list(worst.values())

    def record(self, tensor: Found) -> NodeComparison:
        """Return what is known about a node."""
        comparison = NodeComparison(
            node=node_name(tensor.node),
            op=tensor.node.op_type,
            tensor=tensor.tensor,
            status=tensor.lack or "skipped",
        )
        if tensor.error is None:
            return comparison
        error = tensor.error.value
        side = tensor.side if error > self.tolerance else None
        inherited = max((self.errors.get(name, 0.0) for name in read_by(tensor.node)), default=0.0)
        status = self._status(error, inherited, side)
        amplified = status == "amplified"
        among = side or ("b" if "b" in tensor.given else "a")
        located = side is not None or (amplified and among in tensor.given)
        return replace(
            comparison,
            status=status,
            error=error,
            inherited=inherited,
            factor=error / inherited if amplified and inherited else None,
            born=max((e.value for e in tensor.born.values()), default=None),
            side=side,
            region=self.walk.region(tensor, among) if located else (),
            worst_sample=self.walk.samples.ids[tensor.error.worst_sample],
        )

    def first(self, nodes: Sequence[NodeComparison]) -> NodeComparison | None:
        """Return the record of the node where the first error is born; None if none is."""
        born = [n for n in nodes if n.status == "born"]
        return next(iter([n for n in born if n.tensor in self.leads] or born), None)

    def amplified_before(
        self, nodes: Sequence[NodeComparison], born: NodeComparison | None
    ) -> tuple[NodeName, ...]:
        """Return the path of the first error amplified before the born one.

        It leads to an output; the path ends where the other is born, or at the worst output.
        """
        ahead = takewhile(lambda node: node is not born, nodes)
        leading = (n for n in ahead if n.status == "amplified" and n.tensor in self.leads)
        start = next(leading, None)
        if start is None:
            return ()
        ends = born.region if born else ()
        return tuple(takewhile(lambda name: name not in ends, self.path(start.tensor)))

    def _status(self, error: float, inherited: float, side: SideName | None) -> TensorStatus:
        if error <= self.tolerance:
            return "good"
        if side is not None:
            return "born"
        return "amplified" if inherited <= self.tolerance else "inherited"

    def _is_bad(self, name: TensorName) -> bool:
        return self.errors.get(name, 0.0) > self.tolerance

    def _leads_to_outputs(self) -> frozenset[TensorName]:
        """Return the tensors beyond the tolerance with a path of such tensors to an output."""
        ends = {tensor_name(v) for v in self.walk.network.graph.outputs}
        leads = {name for name in ends if self._is_bad(name)}
        for node in reversed(list(self.walk.network.nodes())):
            if leads.intersection(tensor_name(v) for v in node.outputs if v.name):
                leads.update(name for name in read_by(node) if self._is_bad(name))
        return frozenset(leads)

    def path(self, start: TensorName) -> tuple[NodeName, ...]:
        """Return the error's path: at each step, the reader with the largest error."""
        readers: dict[TensorName, list[TensorName]] = {}
        for name, tensor in self.walk.found.items():
            for read in read_by(tensor.node):
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


def _error(tensor: Found) -> float:
    return -1.0 if tensor.error is None else tensor.error.value


def _reached(tensors: Mapping[TensorName, Found]) -> dict[TensorName, float]:
    """Return each tensor's error; if it was not compared, the largest error that it reads."""
    errors: dict[TensorName, float] = {}
    for name, item in tensors.items():
        if item.error is not None:
            errors[name] = item.error.value
        elif item.lack != "constant":
            errors[name] = max((errors.get(read, 0.0) for read in read_by(item.node)), default=0.0)
    return errors
