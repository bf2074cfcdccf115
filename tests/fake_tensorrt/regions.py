"""What the builder compiles wrongly: `HALFWISE_FAKE_TENSORRT_WRONG` is a JSON list of `Wrong`."""

import zlib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tests.fake_tensorrt.model import is_float


@dataclass(frozen=True)
class Region:
    """Nodes that a fault needs, in whatever model they are built: the whole one or a part of it.

    Attributes:
        nodes: Their names; all have to be in the model, each reading one before it, Casts aside;
            the last gives the result.
        ops: Or a chain of operators, each of which reads the one before, Casts aside; wherever it
            is in the model.
        unless: Where marks end the fault: "between", a tensor that one of the nodes gives another
            is an output; "touched", one is that any of them reads or gives; "" for nowhere.
        level: The builder's optimization level from which on there is the fault.
    """

    nodes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    unless: str = ""
    level: int = 0

    def places(self, graph: ir.Graph, marked: AbstractSet[str], level: int) -> list[list[ir.Node]]:
        """Return the nodes of each place where there is the fault; `marked` are outputs."""
        if level < self.level:
            return []
        return [nodes for nodes in self._matches(graph) if not marked & self.watched(nodes)]

    def _matches(self, graph: ir.Graph) -> list[list[ir.Node]]:
        if self.ops:
            chains = (next(_chains(node, self.ops), None) for node in graph)
            return [chain for chain in chains if chain is not None]
        found = {node.name: node for node in graph if node.name in self.nodes}
        if len(found) < len(self.nodes):
            return []
        nodes = [found[name] for name in self.nodes]
        is_chain = all(
            set(nodes[:i]).intersection(_read(node)) for i, node in enumerate(nodes) if i
        )
        return [nodes] if is_chain else []

    def watched(self, nodes: Sequence[ir.Node]) -> set[str]:
        """Return the tensors that end the fault at these nodes where one of them is marked."""
        given = {str(v.name) for node in nodes for v in node.outputs if v.name}
        read = {str(v.name) for node in nodes for v in node.inputs if v is not None}
        return {"": set[str](), "between": given & read, "touched": given | read}[self.unless]


def _chains(node: ir.Node, ops: Sequence[str]) -> Iterator[list[ir.Node]]:
    """Yield the chains of these operators that end in `node`."""
    if node.op_type != ops[-1]:
        return
    if len(ops) == 1:
        yield [node]
        return
    for before in _read(node):
        for chain in _chains(before, ops[:-1]):
            yield [*chain, node]


def _read(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes whose results a node reads, Casts aside."""
    for value in node.inputs:
        before = None if value is None else value.producer()
        while before is not None and before.op_type == "Cast":
            before = before.inputs[0].producer() if before.inputs[0] is not None else None
        if before is not None:
            yield before


@dataclass(frozen=True)
class Wrong(Region):
    """A region that computes something else.

    Attributes:
        do: What its last node gives: "noise", added; "scale", times 1 + `size`; "roll", with the
            elements of the last axis moved by one; "nan", one NaN; "zero".
        size: Of noise: its RMS, relative to that of the result.
        batch: The only size of the result's first axis at which it is wrong; None for all.
        low: Whether it is only wrong where the engine has all of the region in a low format.
    """

    do: str = "noise"
    size: float = 1.0
    batch: int | None = None
    low: bool = False

    def spoil(self, value: ir.Value, array: np.ndarray) -> np.ndarray:
        """Return what the region gives for `value` in place of `array`, float64."""
        if not array.size or (self.batch is not None and self.batch != (*array.shape, 1)[0]):
            return array
        if self.do == "noise":
            draw = np.random.default_rng(zlib.crc32(str(value.name).encode()))
            noise = draw.standard_normal(array.shape)
            return np.asarray(array + self.size * np.sqrt(np.mean(np.square(array))) * noise)
        if self.do == "scale":
            return np.asarray(array * (1 + self.size))
        if self.do == "roll":
            return np.roll(array, 1, axis=-1 if array.ndim else None)
        spoilt = np.array(array)
        if self.do == "nan":
            spoilt.flat[0] = np.nan
        elif self.do == "zero":
            spoilt[...] = 0
        else:
            raise ValueError(self.do)
        return spoilt


def spoilt_by(
    wrongs: Sequence[Wrong],
    graph: ir.Graph,
    marked: AbstractSet[str],
    level: int,
    low: AbstractSet[str],
) -> dict[ir.Value, list[Wrong]]:
    """Return which tensors are wrong in an engine, and by what; `low` are its low nodes."""
    found: dict[ir.Value, list[Wrong]] = {}
    for wrong in wrongs:
        for nodes in wrong.places(graph, marked, level):
            if wrong.low and not {str(node.name) for node in nodes} <= low:
                continue
            for value in filter(is_float, nodes[-1].outputs):
                found.setdefault(value, []).append(wrong)
    return found


def inside(wrongs: Sequence[Wrong], graph: ir.Graph, marked: AbstractSet[str]) -> set[str]:
    """Return the tensors that wrong fusions leave out: those that would end them."""
    fusions = [wrong for wrong in wrongs if wrong.unless == "between"]
    return {
        name
        for wrong in fusions
        for nodes in wrong.places(graph, marked, wrong.level)
        for name in wrong.watched(nodes)
    }
