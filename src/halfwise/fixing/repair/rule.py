"""What rules share that replace a part of a graph."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import onnx_ir as ir
from msgspec import Struct

from halfwise.errors import CaseError
from halfwise.fixing.attribute import Attribution
from halfwise.graph.conversion import raise_opset
from halfwise.graph.dataflow import Part, drop_unused_nodes
from halfwise.graph.model import Names, Network, Writer, graphs_of, node_name, opset_of
from halfwise.records import Guard, GuardKind, NodeName, Place, Repair, RepairRule


class Change(Struct, frozen=True, eq=False):
    """A part of a graph that a rule can replace.

    Attributes:
        nodes: Names of the nodes that the repair names; the last one stands for it.
        inner: The nodes whose values are no longer what they were.
        make: Replaces it, in place.
        stem: Prefix of the names of new nodes; the last node's name if empty.
        opset: The first that has the new operator; 0 for any.
        advice: How to do without the repair.
        numbers: What tells it from other changes of the same nodes.
    """

    nodes: tuple[NodeName, ...]
    inner: Collection[ir.Node]
    make: Callable[[Writer], None]
    stem: str = ""
    opset: int = 0
    advice: str = ""
    numbers: Mapping[str, float] = {}


class Rewriting(ABC):
    """A rule that replaces parts of a graph where guards point inside.

    Attributes:
        name: Its name.
        identity: What it rests on, such as "norm(x; eps) = norm(s·x; s²·eps)".
        alone: Whether it is only for models of which no node may stay in FP32, which costs less.
        kind: The only kind of guards that it answers; "" for all.
    """

    name: RepairRule
    identity: str
    alone: bool = False
    kind: GuardKind | str = ""

    @abstractmethod
    def changes(self, network: Network) -> Iterable[Change]:
        """Yield the parts of a network, or of a `Part` of one, that can be replaced."""

    def propose(self, evidence: Attribution) -> Iterator[Repair]:
        """Yield a repair for each part inside which something raises a guard; they do not overlap.

        Reads the network without changing it. Proposes nothing unless numbers show a need.
        """
        raised = () if self.alone and evidence.keeps else evidence.guards
        guards = [guard for guard in raised if self.kind in ("", guard.kind)]
        for change in self.changes(evidence.network) if guards else ():
            if needs := self.needs(evidence, change, guards):
                end = evidence.nodes[change.nodes[-1]]
                later = change.opset > evidence.network.opset
                yield Repair(
                    rule=self.name,
                    nodes=change.nodes,
                    numbers={**change.numbers, **({"opset": change.opset} if later else {})},
                    guards=needs,
                    advice=change.advice and evidence.norm_fix(end, change.advice),
                )

    def needs(
        self, evidence: Attribution, change: Change, guards: Iterable[Guard]
    ) -> tuple[Place, ...]:
        """Return the guards that a change answers; none if numbers do not permit it."""
        del evidence
        return answered(guards, change.inner)

    def apply(self, model: ir.Model, *repairs: Repair) -> None:
        """Replace the parts that repairs name, in place, one after the other.

        Everything that remains keeps its name; graph inputs and outputs keep name, type and shape.
        Needs only the model and the records, so that a repair can be made again from a run.

        Raises:
            CaseError: there is no such part here, or ONNX cannot raise the opset.
        """
        opset = int(max(repair.numbers.get("opset", 0) for repair in repairs))
        if opset > opset_of(model):
            raised = raise_opset(Network(model, None, "", {}), opset).model
            model.graph, model.ir_version = raised.graph, raised.ir_version
        names = Names(graphs_of(model))
        for repair in repairs:
            wanted = {name: n for name, n in repair.numbers.items() if name != "opset"}
            there = self.changes(Part.of(model, repair.nodes))
            fits = (c for c in there if (c.nodes[-1], c.numbers) == (repair.nodes[-1], wanted))
            change = next(fits, None)
            if change is None:
                raise CaseError(
                    f"The repair '{repair.rule}' at {repair.nodes[0]} does not fit this model.",
                    "Use the model that it was proposed for, or run `halfwise fix` on this one.",
                )
            change.make(Writer(model, change.stem or repair.nodes[-1], names))


def put_in_place(writer: Writer, output: ir.Value, result: ir.Value) -> None:
    """Replace the nodes that compute `output` by those of a writer, whose `result` takes its name.

    Nodes whose outputs nothing reads are removed.
    """
    root = output.producer()
    assert root is not None
    assert isinstance(root.graph, ir.Graph)
    graph = root.graph
    root.prepend(writer.made)
    result.type, result.shape = output.type, output.shape
    name = output.name
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    output.name, result.name = writer.names.take(f"{name}_before"), name
    drop_unused_nodes(graph)


def answered(guards: Iterable[Guard], nodes: Iterable[ir.Node]) -> tuple[Place, ...]:
    """Return kind and node of the guards on what only `nodes` see.

    This covers values passed between them, their constants, what happens inside them, and
    cancellation in values passed between them: not inputs from outside, nor outputs that others
    read.
    """
    inner = dict.fromkeys(nodes)
    outputs = {v for n in inner for v in n.outputs}
    read = {v for n in inner for v in n.inputs if v is not None}
    constants = {v for v in read if v.const_value is not None}
    outside = {
        v for v in outputs if v.is_graph_output() or any(u.node not in inner for u in v.uses())
    }
    tensors = {v.name for v in (outputs - outside) | constants}
    names = {node_name(n) for n in inner}
    fed = {node_name(n) for n in inner if outputs.issuperset(v for v in n.inputs if v is not None)}
    answering = (
        g
        for g in guards
        if g.tensor in tensors
        or (g.tensor is None and g.node in names)
        or (g.kind == "cancellation" and g.node in fed)
    )
    return tuple(map(place, answering))


def place(guard: Guard) -> Place:
    """Return kind and node of a guard, as in `Repair.guards`."""
    return Place(kind=guard.kind, node=guard.node)
