"""Cases that a review found: runs that ended with an error, or without the user's nodes."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import halfwise
from halfwise.records import NodeName


def proto(nodes, inputs, outputs):
    def info(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes, "g", [info(*one) for one in inputs], [info(*one) for one in outputs]
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("large", range(5))
def test_kept_nodes_stay_kept_whichever_sample_judges(large):
    nodes = [
        helper.make_node("Sqrt", ["x"], ["p"], "sqrt"),
        helper.make_node("Sqrt", ["x"], ["q"], "other"),
        helper.make_node("Sub", ["p", "q"], ["d"], "sub"),
        helper.make_node("Add", ["d", "z"], ["y"], "add"),
    ]
    shape = [1, 64]
    model = proto(nodes, [("x", shape), ("z", shape)], [("y", shape)])
    rng = np.random.default_rng(1)
    samples = [
        {
            "x": (rng.uniform(0.5, 1, shape) * (50000 if i == large else 1)).astype(np.float32),
            "z": rng.normal(size=shape).astype(np.float32),
        }
        for i in range(5)
    ]
    keep = ["sqrt", "sub"]
    result = halfwise.fix(model, samples, strict=True, keep=keep, allow_random=True)
    plan = result.run.plan
    assert plan is not None
    assert set(map(NodeName, keep)) <= {kept.node for kept in plan.keep}


def test_an_exponential_in_double_has_no_exponent():
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"], "square"),
        helper.make_node("ReduceMean", ["s"], ["m"], "mean", axes=[1], keepdims=1),
        helper.make_node("Sqrt", ["m"], ["r"], "root"),
        helper.make_node("Div", ["x", "r"], ["n"], "divide"),
        helper.make_node("Cast", ["n"], ["d"], "widen", to=TensorProto.DOUBLE),
        helper.make_node("Exp", ["d"], ["e"], "exp"),
        helper.make_node("Cast", ["e"], ["y"], "narrow", to=TensorProto.FLOAT),
    ]
    model = proto(nodes, [("x", [1, 64])], [("y", [1, 64])])
    rng = np.random.default_rng(0)
    samples = [{"x": (1000 * rng.normal(size=(1, 64))).astype(np.float32)} for _ in range(8)]
    result = halfwise.fix(model, samples, strict=True, allow_random=True)
    assert result.run.verdict.passed


def test_a_norm_may_get_no_rows():
    weights = np.random.default_rng(0).normal(size=(4, 2, 1, 1)).astype(np.float32)
    constants = {"w": weights, "one": np.ones(4, np.float32), "zero": np.zeros(4, np.float32)}
    nodes = [
        *(
            helper.make_node(
                "Constant",
                [],
                [name],
                value=helper.make_tensor(
                    name, TensorProto.FLOAT, array.shape, array.ravel().tolist()
                ),
            )
            for name, array in constants.items()
        ),
        helper.make_node("Compress", ["x", "pick"], ["few"], "pick_rows", axis=0),
        helper.make_node("Conv", ["few", "w"], ["c"], "conv"),
        helper.make_node("InstanceNormalization", ["c", "one", "zero"], ["y"], "norm"),
    ]
    model = proto(nodes, [("x", [3, 2, 8, 8])], [("y", ["n", 4, 8, 8])])
    pick = helper.make_tensor_value_info("pick", TensorProto.BOOL, [3])
    model.graph.input.append(pick)
    rng = np.random.default_rng(0)
    samples = [
        {
            "x": rng.normal(size=(3, 2, 8, 8)).astype(np.float32),
            "pick": np.array([i % 3 > 0, i % 2 > 0, False]),
        }
        for i in range(12)
    ]
    result = halfwise.fix(model, samples, strict=True, allow_random=True, allow_unjudged=True)
    assert result.run.verdict.passed
