"""Control flow in the rewritten model (`halfwise.graph.casts`)."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from halfwise.emulation.ort import Session
from halfwise.formats import FP16
from halfwise.graph.casts import adjusted_constants, rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName
from tests import control
from tests.control import GO, MATRIX, STEP

HALF, FULL = ir.DataType.FLOAT16, ir.DataType.FLOAT


def node(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name, **attributes)


def network(*nodes) -> Network:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xy")
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [x, flag], [y])
    imports = [helper.make_opsetid("", 17)]
    return network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def names(*values: str) -> frozenset[NodeName]:
    return frozenset(map(NodeName, values))


def lower(net: Network, *fp32: str):
    result = rewrite(net, roles_of(net), names(*fp32), FP16)
    onnx.checker.check_model(ir.serde.serialize_model(result.model), full_check=True)
    Session(result.model)
    return result


def types(result) -> dict[str, ir.DataType | None]:
    nodes = result.model.graph.all_nodes()
    formals = (v for g in result.model.graph.subgraphs() for v in g.inputs)
    return {v.name: v.dtype for v in (*(v for n in nodes for v in n.outputs), *formals)}


def ops(graph) -> list[str]:
    return [n.op_type for n in graph]


def branch(graph, name):
    return next(n for n in graph if n.op_type == "If").attributes[name].as_graph()


def test_a_low_if_computes_low_and_reads_low():
    net = network(
        node("Relu", "x", "h", "relu"),
        node("If", "flag", "z", "if", **control.branches("b", "h", "x")),
        node("Neg", "z", "y", "neg"),
    )
    low = lower(net)
    assert ops(low.model.graph) == ["Cast", "Relu", "If", "Neg", "Cast"]
    then, other = (branch(low.model.graph, f"{n}_branch") for n in ("then", "else"))
    assert ops(then) == ["Mul", "Transpose", "Shape", "Reshape", "Add"]
    assert {v.dtype for n in then for v in n.outputs} == {HALF, ir.DataType.INT64}
    # 1e6 saturates, in a body too.
    own = then.initializers["b_then_own"].const_value
    assert own.dtype is HALF
    assert own.numpy().tolist() == [65504.0] * 4
    # A sequence takes FP32; one Cast was there before.
    assert ops(other).count("Cast") == 2 + 1
    assert other.outputs[0].dtype is HALF
    assert types(low)["z"] is HALF
    assert low.casts == 4


def test_a_kept_if_is_untouched():
    net = network(
        node("Relu", "x", "h", "relu"),
        node("If", "flag", "z", "if", **control.branches("b", "h", "x")),
        node("Neg", "z", "y", "neg"),
    )
    kept = lower(net, "if")
    assert ops(kept.model.graph) == ["Cast", "Relu", "Cast", "If", "Cast", "Neg", "Cast"]
    before, after = (
        ir.serde.serialize_graph(branch(m.graph, "then_branch")) for m in (net.model, kept.model)
    )
    assert [n.op_type for n in after.node] == [n.op_type for n in before.node]
    assert after.initializer == before.initializer
    assert after.output == before.output
    assert types(kept)["z"] is FULL


def loop() -> Network:
    nodes = [
        node("Identity", "go", "on", "on"),
        node("Mul", "state x", "next", "mul"),
        node("EyeLike", "next", "seen", "eye"),
    ]
    formals = [("step", STEP), ("go", GO), ("state", MATRIX)]
    body = control.graph("body", nodes, formals, [("on", GO), ("next", MATRIX), ("seen", MATRIX)])
    return network(
        node("Constant", "", "trips", "trips", value_int=3),
        node("Constant", "", "zero", "zero", value_int=0),
        helper.make_node("Loop", ["trips", "", "x"], ["last", "all"], "loop", body=body),
        node("Gather", "all zero", "first", "gather", axis=0),
        node("Add", "last first", "y", "add"),
    )


def test_states_and_scan_outputs_are_low_inside_and_outside():
    result = lower(loop())
    found = types(result)
    assert [found[n] for n in ("state", "last", "all")] == [HALF] * 3
    [body] = result.model.graph.subgraphs()
    assert [v.dtype for v in body.outputs[1:]] == [HALF, HALF]
    # What must be FP32 in the body stands between two Casts.
    assert ops(body) == ["Identity", "Mul", "Cast", "EyeLike", "Cast"]
    assert ops(result.model.graph) == ["Cast", "Loop", "Gather", "Add", "Cast"]
    assert result.casts == 4


def test_constants_beyond_the_range_name_the_node_that_decides():
    given = {"w": np.full((2, 4), -3e38)}
    then = control.graph("t", [], (), [("w", MATRIX)], given)
    other = control.branches("b", "x", "x")["then_branch"]
    net = network(
        helper.make_node("If", ["flag"], ["z"], "if", then_branch=then, else_branch=other),
        node("Neg", "z", "y", "neg"),
    )
    found = adjusted_constants(net, roles_of(net), names(), FP16)
    assert {(c.name, c.consumers) for c in found} == {("w", ("if",)), ("b_then_own", ("if",))}
    assert adjusted_constants(net, roles_of(net), names("if"), FP16) == ()
    stored = branch(lower(net).model.graph, "then_branch").initializers["w"].const_value
    assert (stored.numpy() == -65504).all()
