import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.graph.constants import check_constants
from halfwise.graph.model import network_from_proto


def model(*constants, name="used"):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [600]) for n in "xy")
    add = helper.make_node("Add", ["x", name], ["y"], "add")
    graph = helper.make_graph([add], "g", [x], [y], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def large(name):
    return numpy_helper.from_array(np.ones(600, np.float32), name)


def test_a_large_constant_that_nobody_reads_is_dropped_and_the_model_runs():
    """Silero's VAD for opset 18 has one; its array was handed to ONNX Runtime in vain."""
    network = network_from_proto(model(large("used"), large("unused")))
    assert list(network.graph.initializers) == ["used"]
    x = np.zeros(600, np.float32)
    assert Session(network.model).run({"x": x})["y"].tolist() == [1.0] * 600


def test_a_constant_that_is_an_output_or_read_in_a_body_stays():
    outer = large("outer")
    body = helper.make_graph(
        [helper.make_node("Identity", ["outer"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [600])],
    )
    proto = model(large("used"), outer, large("given"))
    branch = helper.make_node("If", ["yes"], ["z"], "if", then_branch=body, else_branch=body)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node.append(branch)
    for output in ("z", "given"):
        info = helper.make_tensor_value_info(output, TensorProto.FLOAT, [600])
        proto.graph.output.append(info)
    kept = set(network_from_proto(proto).graph.initializers)
    assert kept == {"used", "outer", "given", "yes"}


def test_incomplete_data_is_told_by_name():
    short = large("used")
    short.raw_data = short.raw_data[:-4]
    graph = ir.serde.deserialize_model(model(short)).graph
    with pytest.raises(ValueError, match="'used' is incomplete"):
        check_constants([graph])
