"""What holds of all rules."""

import math
import re
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from halfwise.errors import CaseError
from halfwise.fixing.attribute import guards_of
from halfwise.fixing.repair.making import RULES
from halfwise.fixing.repair.rule import (
    answered,
    named,
    own_names,
    own_nodes,
    scaling_advice,
    unscaled,
)
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from halfwise.graph.scaling import relations, rescale
from halfwise.records import Guard, NodeName, Place, Repair, TensorName
from halfwise.reporting.remarks import remark
from tests.models import layer_norm
from tests.unit.fixing.repair.functions import evidence
from tests.unit.fixing.running import found
from tests.unit.graph.sketch import Sketch, f32


def test_a_repair_of_another_model_is_refused() -> None:
    s = Sketch()
    model = s.network(s.op("Neg", s.op("Abs", s.input("x", [2]), name="one"), name="two")).model

    def asked(*names: str) -> Repair:
        return Repair(rule="mask", nodes=tuple(map(NodeName, names)))

    assert [n.name for n in named(model, asked("two", "one"), "Abs", "Neg")] == ["two", "one"]
    for name in ("nowhere", "two"):
        with pytest.raises(CaseError, match=f"'mask' at {name} does not fit"):
            named(model, asked(name), "Abs")


def test_rules_are_named_once_and_rest_on_an_identity():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.identity.formula and rule.identity.holds for rule in RULES)


def test_what_comes_from_outside_or_is_read_there_is_not_answered() -> None:
    seen = evidence(layer_norm())
    guards = guards_of(seen)
    nodes = {str(name): node for name, node in seen.nodes.items()}
    assert [(at.kind, at.node) for at in answered(guards, nodes.values())] == [
        ("square", "square"),
        ("overflow", "variance"),
        ("overflow", "eps"),
    ]
    (at,) = answered(guards, [nodes["variance"], nodes["eps"]])
    assert at == Place(kind="overflow", node=NodeName("variance"))
    assert not answered(guards, [nodes["square"]])


def test_what_is_answered_is_told_of_tensors_as_they_were() -> None:
    fixed = found(layer_norm())
    assert fixed.plan.repairs
    seen = fixed.seen
    assert {guard.kind for guard in seen.mended} == {"square", "overflow"}
    before = {one.tensor: one.absmax for one in seen.before}
    assert before.keys() == {guard.tensor for guard in seen.mended}
    assert max(before.values()) > 65504 > max(one.absmax for one in seen.tensors)


EXPONENTS = {
    TensorName("a_out"): -3,
    TensorName("square_out"): -6,
    TensorName("safe_out"): -6,
    TensorName("a_out@side:0"): 0,
    TensorName("b_out"): 2,
    TensorName("b_out@output"): 0,
}
SAMPLE = {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}


def graph() -> onnx.ModelProto:
    """Return a weight read twice, a square under a logarithm, a norm, and a scaled output."""
    s = Sketch()
    x, w = s.input("x", [3, 4]), s.constant(f32(np.eye(4) + 0.3), "w")
    a, b = (s.op("MatMul", x, w, name=name) for name in "ab")
    safe = s.op("Add", s.op("Mul", a, a, name="square"), s.constant(1e-5, "eps"), name="safe")
    log = s.op("Log", safe, name="log")
    norm = s.op("LayerNormalization", b, f32(np.ones(4)), f32(np.zeros(4)), name="n", epsilon=1e-5)
    end = s.op("Add", s.op("Tanh", a, name="side"), s.op("Add", log, norm, name="sum"), name="end")
    return s.proto(end, b)


def followed(proto: onnx.ModelProto, advice: str) -> onnx.ModelProto:
    """Return a model in which a reader of `advice` has done what it says."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for line in re.split(r"\. (?=Insert )", advice.removesuffix(".")):
        if line.startswith("Scale "):
            for names, e in re.findall(r"(\S.*?) by 2\^(-?\d+)(?:, |$)", line[len("Scale ") :]):
                for what in names.split(", "):
                    scale(made, what, int(e))
        elif multiplied := re.fullmatch(r"Insert a Mul by 2\^(-?\d+): (.*)", line):
            for what in multiplied[2].split(", "):
                tensor, reader = what.split(" for ")
                behind(made, tensor, reader, "Mul", 2.0 ** int(multiplied[1]))
        else:
            added = re.fullmatch(r"Insert an Add of (-?\d+)·ln 2 behind (.*)", line)
            assert added, line
            for log in added[2].split(", "):
                (tensor,) = node(made, log).output
                behind(made, tensor, "everything", "Add", int(added[1]) * math.log(2))
    names = [v.name for v in proto.graph.output]
    sort(made)
    assert [v.name for v in made.graph.output] == names
    return made


def node(proto: onnx.ModelProto, name: str) -> Any:
    (found,) = (n for n in proto.graph.node if n.name == name)
    return found


def scale(proto: onnx.ModelProto, what: str, e: int) -> None:
    constants = {c.name: c for c in proto.graph.initializer}
    if copied := re.fullmatch(r"a copy of (.*) for (.*)", what):
        array = np.ldexp(numpy_helper.to_array(constants[copied[1]]), e)
        proto.graph.initializer.append(numpy_helper.from_array(array, f"{what} (copy)"))
        reader = node(proto, copied[2])
        reader.input[list(reader.input).index(copied[1])] = f"{what} (copy)"
    elif attribute := re.fullmatch(r"the epsilon of (.*)", what):
        (found,) = node(proto, attribute[1]).attribute
        found.f = math.ldexp(found.f, e)
    else:
        array = np.ldexp(numpy_helper.to_array(constants[what]), e)
        constants[what].CopyFrom(numpy_helper.from_array(array, what))


def behind(proto: onnx.ModelProto, tensor: str, reader: str, op: str, number: float) -> None:
    own, made = f"{tensor} {op} {reader} by", f"{tensor} {op} {reader}"
    proto.graph.initializer.append(numpy_helper.from_array(f32(number), own))
    if reader in ("the output", "everything"):
        # What is given out keeps its name; everything else reads what was stored there.
        stored = f"{tensor} stored"
        for one in proto.graph.node:
            one.output[:] = [stored if name == tensor else name for name in one.output]
            if reader == "the output":
                one.input[:] = [stored if name == tensor else name for name in one.input]
        tensor, made = stored, tensor
    else:
        one = node(proto, reader)
        one.input[:] = [made if name == tensor else name for name in one.input]
    proto.graph.node.append(helper.make_node(op, [tensor, own], [made], name=f"{made} node"))


def sort(proto: onnx.ModelProto) -> None:
    model = ir.serde.deserialize_model(proto)
    model.graph.sort()
    proto.CopyFrom(ir.serde.serialize_model(model))


def outputs(proto: onnx.ModelProto) -> list[NDArray[np.float32]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    found = session.run([v.name for v in proto.graph.output], SAMPLE)
    return [np.asarray(one, np.float32) for one in found]


def test_who_follows_the_advice_has_the_repaired_function_bit_for_bit() -> None:
    proto = graph()
    network = network_from_proto(proto)
    advice = scaling_advice(relations(network.model), EXPONENTS, own_names(network))
    assert advice == (
        "Scale eps by 2^-6, a copy of w for a by 2^-3, a copy of w for b by 2^2, the epsilon of n "
        "by 2^4. Insert a Mul by 2^-2: b_out for the output. Insert a Mul by 2^3: a_out for side. "
        "Insert an Add of 6·ln 2 behind log."
    )
    model = network.copy()
    rescale(model, EXPONENTS)
    expected, before = outputs(ir.serde.serialize_model(model)), outputs(proto)
    for one, other, original in zip(
        outputs(followed(proto, advice)), expected, before, strict=True
    ):
        assert one.tobytes() == other.tobytes()
        np.testing.assert_allclose(one, original, rtol=1e-5, atol=1e-6)
    # Without its last line it is another function.
    part = outputs(followed(proto, advice[: advice.index(" Insert an Add")]))
    assert any(a.tobytes() != b.tobytes() for a, b in zip(part, expected, strict=True))


def test_names_that_are_not_the_users_are_not_told() -> None:
    network = network_from_proto(graph())
    found, own = relations(network.model), own_names(network)
    assert scaling_advice(found, EXPONENTS, own - {"b"}) != ""
    for name in ("eps", "a_out"):
        assert scaling_advice(found, EXPONENTS, own - {name}) == ""
    model = network.copy()
    rescale(model, EXPONENTS)
    scaled = network_from_proto(ir.serde.serialize_model(model))
    now = {node_name(n) for n in scaled.nodes()}
    for name, is_own in (("a", True), ("b_out/Mul", False)):
        assert name in now
        assert (name in own_nodes(network, scaled)) == is_own
    assert "gone" not in own_nodes(network, scaled)


def guard(tensor: str, *nodes: str) -> Guard:
    names = tuple(map(NodeName, nodes))
    about = {"kind": "overflow", "fix": "", "severity": 3.0}
    return Guard(node=names[0], tensor=TensorName(tensor), nodes=names, **about)  # type: ignore[arg-type]


def test_each_operator_that_needs_or_gives_a_tensor_as_it_is_is_named_once():
    s = Sketch()
    large = s.op("Mul", s.input("x", [1, 4]), f32(1e5), name="large")
    ends = [
        s.op("Mul", s.op("Exp", large, name=f"exp{i}"), f32(1e-5), name=f"m{i}") for i in (0, 1)
    ]
    network = s.network(*ends)
    guards = [guard("large_out", "large"), guard("exp0_out", "exp0"), guard("exp1_out", "exp1")]
    kept = frozenset(map(node_name, network.nodes()))
    words = [remark(found) for found in unscaled(network, guards, kept)]
    assert words == [
        "large_out is not scaled by a power of two: exp0 (Exp) needs it as it is.",
        "exp0_out is not scaled by a power of two: exp0 (Exp) gives it as it is.",
    ]
    assert not list(unscaled(network, guards, frozenset()))


def test_what_could_be_scaled_has_no_remark():
    s = Sketch()
    network = s.network(s.op("Relu", s.op("Mul", s.input("x", [1, 4]), f32(1e5), name="m")))
    assert not list(unscaled(network, [guard("m_out", "m")], frozenset((NodeName("m"),))))
