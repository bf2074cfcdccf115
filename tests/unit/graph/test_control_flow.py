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


def test_a_low_body_computes_low_between_fp32_ends():
    net = network(
        node("Relu", "x", "h", "relu"),
        node("If", "flag", "z", "if", **control.branches("b", "h", "x")),
        node("Neg", "z", "y", "neg"),
    )
    low = lower(net)
    then, other = (branch(low.model.graph, f"{n}_branch") for n in ("then", "else"))
    assert ops(then) == ["Mul", "Transpose", "Shape", "Reshape", "Add", "Cast"]
    made = [v.dtype for n in then for v in n.outputs if n.op_type != "Shape"]
    assert made == [HALF] * 4 + [FULL]
    # 1e6 saturates, in a body too.
    own = then.initializers["b_then_own"].const_value
    assert own.dtype is HALF
    assert own.numpy().tolist() == [65504.0] * 4
    # A sequence takes FP32; one Cast was there before.
    assert ops(other).count("Cast") == 1 + 2 + 1
    assert types(low)["z"] is FULL


def test_a_node_in_a_body_is_kept_alone():
    net = loop()
    kept = types(lower(net, "mul"))
    assert (kept["next"], kept["state"], kept["last"]) == (FULL, FULL, FULL)
    low = types(lower(net))
    assert low["next"] is FULL
    assert HALF in low.values()


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


def test_constants_beyond_the_range_name_their_readers():
    given = {"w": np.full((2, 4), -3e38)}
    then = control.graph("t", [], (), [("w", MATRIX)], given)
    other = control.branches("b", "x", "x")["then_branch"]
    net = network(
        helper.make_node("If", ["flag"], ["z"], "if", then_branch=then, else_branch=other),
        node("Neg", "z", "y", "neg"),
    )
    found = adjusted_constants(net, roles_of(net), names(), FP16)
    [own] = found
    assert own.name == "b_then_own"
    assert own.consumers != ("if",)
    assert adjusted_constants(net, roles_of(net), frozenset(own.consumers), FP16) == ()
    # What a branch hands out stays FP32.
    stored = branch(lower(net).model.graph, "then_branch").initializers["w"].const_value
    assert (stored.numpy() < -1e38).all()
