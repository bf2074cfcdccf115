import numpy as np
import onnx_ir as ir
from onnx import helper

from halfwise.emulation.probe import observable
from halfwise.graph.model import node_name
from halfwise.graph.saturating import fates, original, saturating_activations
from halfwise.records import NodeName, TensorName
from tests.control import BOOL, GO, MATRIX, STEP, graph
from tests.unit.graph.sketch import Sketch, f32


def fate_of(network, *infinite, masked=False, own=None):
    names = [TensorName(f"{name}_out") for name in infinite]
    return fates(
        network.graph,
        names,
        own=own or {node_name(n) for n in network.nodes()},
        gates=saturating_activations(network),
        masked=lambda _: masked,
    )


def test_readers_behind_data_movement_and_casts_are_named_by_what_computes() -> None:
    s = Sketch()
    large = s.op("Exp", s.input("x", [1, 4]), name="large")
    moved = s.op("Transpose", large, name="moved")
    inserted = s.op("Cast", moved, name="inserted", to=1)
    network = s.network(s.op("Sin", inserted, name="sine"))
    own = {NodeName(n) for n in ("large", "moved", "sine")}
    found = fate_of(network, "large", "moved", "inserted", own=own)
    assert all(list(fate.harmful) == ["sine"] for fate in found.values())
    inner = next(v for n in network.nodes() for v in n.outputs if v.name == "inserted_out")
    assert original(inner, own).name == "moved_out"


def test_what_an_output_gives_out_is_not_harmless() -> None:
    s = Sketch()
    network = s.network(s.op("Exp", s.input("x", [1, 4]), name="large"))
    (fate,) = fate_of(network, "large").values()
    assert fate.given_out
    assert not fate.is_harmless


def test_a_shape_reads_no_values() -> None:
    s = Sketch()
    large = s.op("Exp", s.input("x", [1, 4]), name="large")
    (fate,) = fate_of(s.network(s.op("Shape", large, name="shape")), "large").values()
    assert fate.is_harmless
    assert not fate.ends


def test_a_negative_power_hands_nothing_on() -> None:
    for exponent, harmless in ((2.0, True), (-0.5, False)):
        s = Sketch()
        large = s.op("Exp", s.input("x", [1, 4]), name="large")
        power = s.op("Pow", large, f32(exponent), name="power")
        found = fate_of(s.network(s.op("Tanh", power, name="gate")), "large", "power")
        assert found[TensorName("large_out")].is_harmless is harmless


def test_a_softmax_ends_masks_alone() -> None:
    for masked in (True, False):
        s = Sketch()
        large = s.op("Add", s.input("x", [1, 4]), s.input("m", [1, 4]), name="large")
        network = s.network(s.op("Softmax", large, name="softmax"))
        (fate,) = fate_of(network, "large", masked=masked).values()
        assert fate.is_harmless is masked


def test_custom_operators_are_not_known_to_end_anything() -> None:
    s = Sketch()
    large = s.op("Exp", s.input("x", [1, 4]), name="large")
    network = s.network(s.op("Tanh", large, name="gate"))
    (gate,) = (n for n in network.nodes() if n.name == "gate")
    assert isinstance(gate, ir.Node)
    gate.domain = "custom"
    (fate,) = fate_of(network, "large").values()
    assert list(fate.harmful) == ["gate"]


def test_an_inverse_that_something_multiplies_is_not_at_its_limit_wherever_it_is_moved() -> None:
    for reader, harmless in (("Mul", False), ("Add", True)):
        s = Sketch()
        large = s.op("Mul", s.input("x", [1, 4]), f32(1e6), name="large")
        inverse = s.op("Reciprocal", large, name="inverse")
        inserted = s.op("Cast", s.op("Transpose", inverse, name="moved"), name="inserted", to=1)
        network = s.network(s.op(reader, inserted, f32(3e4), name="last"))
        own = {NodeName(n) for n in ("large", "inverse", "moved", "last")}
        (fate,) = fate_of(network, "large", own=own).values()
        assert fate.is_harmless is harmless


def test_what_a_body_does_with_an_infinity_is_unknown_and_so_harm() -> None:
    """Its Tanh would end it; but a body may run at any time, and what it gives is not looked at."""
    for last in ("Tanh", "Sqrt"):
        s = Sketch()
        large = s.op("Exp", s.input("x", [2, 2]), name="large")
        then = graph("then", [helper.make_node(last, [large], ["t"], "inner")], (), [("t", MATRIX)])
        other = graph("other", [helper.make_node("Neg", ["x"], ["e"])], (), [("e", MATRIX)])
        branches = {"then_branch": then, "else_branch": other}
        flag = s.input("flag", [], BOOL)
        s.nodes.append(helper.make_node("If", [flag], ["y"], "choose", **branches))
        (fate,) = fate_of(s.network("y"), "large").values()
        assert list(fate.harmful) == ["choose"]
        assert not fate.ends


def test_what_a_loop_carries_is_read_by_its_next_run() -> None:
    """Nothing reads the last of the state; what was infinite before it the body has read."""
    s = Sketch()
    x = s.input("x", [2, 2])
    step = [
        helper.make_node("Add", ["sum", x], ["next"], "add"),
        helper.make_node("Tanh", ["next"], ["row"], "bounded"),
        helper.make_node("Identity", ["go"], ["on"], "on"),
    ]
    taken, given = [("i", STEP), ("go", GO), ("sum", MATRIX)], [("on", GO), ("next", MATRIX)]
    body = graph("body", step, taken, [*given, ("row", MATRIX)])
    trips = s.constant(np.array(3), "trips")
    s.nodes.append(helper.make_node("Loop", [trips, "", x], ["sum_out", "y"], "loop", body=body))
    network = s.network("y")
    (fate,) = fate_of(network, "sum").values()
    assert list(fate.harmful) == ["loop"]
    assert TensorName("sum_out") in observable(network.model)
