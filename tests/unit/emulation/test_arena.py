from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper

from halfwise.emulation import arena
from halfwise.emulation.ort import Session
from halfwise.graph.loading import network_from_proto
from halfwise.graph.weights import MappedTensor

MIB = 1 << 20
LARGE = 64 * MIB


def resident() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def swelling() -> Session:
    """Return a session that computes two tensors of 64 MiB on its way from x to y."""
    f32 = TensorProto.FLOAT
    ends = [
        helper.make_tensor_value_info("x", f32, [1]),
        helper.make_tensor_value_info("y", f32, [1]),
    ]
    shape = helper.make_tensor("n", TensorProto.INT64, [1], [LARGE // 4])
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["wide"]),
        helper.make_node("Abs", ["wide"], ["magnitude"]),
        helper.make_node("ReduceMax", ["magnitude"], ["y"], keepdims=1),
    ]
    graph = helper.make_graph(nodes, "swelling", ends[:1], ends[1:], [shape])
    opset = [helper.make_opsetid("", 17)]
    return Session(
        network_from_proto(helper.make_model(graph, opset_imports=opset, ir_version=8)).model
    )


def test_sessions_that_take_turns_take_the_memory_of_one():
    sessions = [swelling() for _ in range(3)]
    sample = {"x": np.full(1, -2.0, np.float32)}
    np.testing.assert_array_equal(sessions[0].run(sample)["y"], [2.0])
    after_one = resident()
    results = [session.run(sample)["y"] for session in sessions]
    assert resident() < after_one + LARGE // 2
    np.testing.assert_array_equal(results, [[2.0]] * 3)


def test_a_new_session_finds_what_others_no_longer_use_given_back():
    session = swelling()
    arena.give_back()
    before = resident()
    kept = session.run({"x": np.ones(1, np.float32)})
    assert resident() > before + LARGE // 2
    other = swelling()
    assert resident() < before + LARGE // 2
    np.testing.assert_array_equal(other.run({"x": kept["y"]})["y"], [1.0])


def test_low_weights_are_widened_one_after_another():
    """ONNX Runtime's own Casts; in the order that is its default, all of them run first."""
    weight, count = np.zeros((1024, 1024), np.float16), 32
    value = ir.val("x", ir.DataType.FLOAT16, [1, 1024])
    ends, weights, nodes = [value], [], []
    for i in range(count):
        weights.append(ir.val(f"w{i}", const_value=MappedTensor(weight, name=f"w{i}")))
        weights[i].dtype = ir.DataType.FLOAT16
        nodes.append(ir.node("MatMul", [value, weights[i]], name=f"matmul{i}"))
        value = nodes[i].outputs[0]
        value.name, value.dtype = f"y{i}", ir.DataType.FLOAT16
    graph = ir.Graph(ends, [value], nodes=nodes, initializers=weights, opset_imports={"": 17})
    session = Session(ir.Model(graph, ir_version=8), large_from=0)
    arena.give_back()
    before = resident()
    session.run({"x": np.ones((1, 1024), np.float16)})
    assert resident() < before + count * 2 * weight.nbytes // 2
