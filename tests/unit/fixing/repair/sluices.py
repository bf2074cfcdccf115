"""A model that overflows between two nodes that scale, and rules of repair for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.graph.model import add_constant, constant_array
from halfwise.records import NodeName, Repair, RepairRule
from tests import models
from tests.models.illness import signals, weights
from tests.unit.graph.sketch import Sketch, f32

WIDE = 6e4
"""What lies behind such a factor overflows FP16."""


def sluiced(*factors: float) -> models.Ill:
    """Each sluice multiplies by its factor before a MatMul, and divides by it behind."""
    s = Sketch()
    value = s.input("x", [1, 4, 16])
    for i, factor in enumerate(factors or (WIDE,)):
        up = s.op("Mul", value, factor, name=f"up_{i}")
        wide = s.op("MatMul", up, weights(16, 16, seed=3 + i, scale=0.6), name=f"wide_{i}")
        value = s.op("Mul", wide, 1 / factor, name=f"down_{i}")
    return models.Ill(s.proto(value), {"x": signals(1, 4, 16, seed=5)}, name="sluiced")


@dataclass(frozen=True)
class Sluice:
    """Stores what lies between two nodes times a power of two; `spoil` is done beside."""

    name: RepairRule = "scale"
    exponent: float = -10
    off: float = 1.0
    above: float = WIDE
    spoil: Callable[[ir.Model, ir.Node], None] = lambda _model, _node: None
    identity: str = "(x·s)·W/s = x·W"

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        for name in evidence.nodes:
            if (
                name.startswith("wide")
                and evidence.absmax(evidence.nodes[name].outputs[0]) > self.above
            ):
                i = name.removeprefix("wide_")
                nodes = tuple(NodeName(f"{part}_{i}") for part in ("up", "wide", "down"))
                yield Repair(rule=self.name, nodes=nodes, numbers={"exponent": self.exponent})

    def apply(self, model: ir.Model, *repairs: Repair) -> None:
        for repair in repairs:
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


def replaced(model: ir.Model, down: ir.Node) -> None:
    """Put the same product by another operator in the place of a node, under its name."""
    factor = down.inputs[1]
    assert factor is not None
    inverse = add_constant(model.graph, "inverse", 1 / f32(constant_array(factor)))
    node = ir.node("Div", [down.inputs[0], inverse], name=down.name)
    old = down.outputs[0]
    node.outputs[0].name, node.outputs[0].type, node.outputs[0].shape = (
        old.name,
        old.type,
        old.shape,
    )
    model.graph.insert_before(down, node)
    ir.convenience.replace_all_uses_with(old, node.outputs[0], replace_graph_outputs=True)
    model.graph.remove(down)


def dear(model: ir.Model, down: ir.Node, times: int = 100) -> None:
    """Pool what a node reads so many times, one by one: no value changes, each is a kernel."""
    for i in range(times):
        source = down.inputs[0]
        assert source is not None
        node = ir.node("MaxPool", [source], {"kernel_shape": (1,)}, name=f"pool_{i}")
        model.graph.insert_before(down, node)
        down.replace_input_with(0, node.outputs[0])
