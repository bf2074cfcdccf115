"""A model that overflows between two nodes that scale, and rules of repair for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.repair.rule import Identity
from halfwise.graph.model import add_constant, constant_array
from halfwise.records import NodeName, Repair, RepairRule
from tests import models
from tests.models.illness import signals, weights
from tests.unit.graph.sketch import Sketch, f32

WIDE = 6e4


def sluiced(count: int = 1, name: str = "") -> models.Ill:
    """Each sluice multiplies by 6e4 before a MatMul, and divides it out behind: 1.8e5 between."""
    s = Sketch()
    value = s.input("x", [1, 4, 16])
    for i in range(count):
        up = s.op("Mul", value, WIDE, name=f"up_{i}")
        wide = s.op("MatMul", up, weights(16, 16, seed=3 + i, scale=0.6), name=f"wide_{i}")
        value = s.op("Mul", wide, 1 / WIDE, name=f"down_{i}")
    data = {"x": signals(1, 4, 16, seed=5)}
    return models.Ill(s.proto(value), data, name=name or "sluiced")


@dataclass(frozen=True)
class Sluice:
    """Stores what lies between two nodes times a power of two; `spoil` is done beside."""

    name: RepairRule = "scale"
    exponent: float = -10
    off: float = 1.0
    spoil: Callable[[ir.Model, ir.Node], None] = lambda _model, _node: None
    identity: Identity = field(default=Identity("(x·s)·W/s = x·W", "all x", bitwise=True))

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        for guard in evidence.nodes:
            if (
                guard.startswith("wide")
                and evidence.absmax(evidence.nodes[guard].outputs[0]) > WIDE
            ):
                i = guard.removeprefix("wide_")
                nodes = tuple(NodeName(f"{part}_{i}") for part in ("up", "wide", "down"))
                yield Repair(rule=self.name, nodes=nodes, numbers={"exponent": self.exponent})

    def apply(self, model: ir.Model, repair: Repair) -> None:
        nodes = {n.name: n for n in model.graph}
        if not nodes.keys() >= set(repair.nodes):
            raise CaseError("Not the model of the repair.", "")
        up, _, down = (nodes[name] for name in repair.nodes)
        factor = 2.0 ** repair.numbers["exponent"]
        for node, by in ((up, factor), (down, self.off / factor)):
            scale = node.inputs[1]
            assert scale is not None
            array = f32(f32(constant_array(scale)) * by)
            node.replace_input_with(1, add_constant(model.graph, f"{node.name}_scale", array))
        self.spoil(model, down)


def renamed(_model: ir.Model, down: ir.Node) -> None:
    """Put a node of another name in the place of one."""
    down.name = f"{down.name}_again"


def dear(model: ir.Model, down: ir.Node) -> None:
    """Move what a node gives a hundred times through memory."""
    value = down.outputs[0]
    readers = [(use.node, use.idx) for use in value.uses()]
    last: ir.Value = value
    for i in range(100):
        node = ir.node("Exp" if i % 2 == 0 else "Log", [last], name=f"{down.name}_{i}")
        model.graph.append(node)
        last = node.outputs[0]
    for reader, place in readers:
        reader.replace_input_with(place, last)
    model.graph.outputs[:] = [last if v is value else v for v in model.graph.outputs]
