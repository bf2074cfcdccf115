"""`halfwise reduce`: planted failures in long networks."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

F32 = TensorProto.FLOAT
WIDTH = 8


def chain(planted, length=200, place=0.5):
    """Return products, sums and activations in a row, with `planted(read)` at a share of them."""
    rng = np.random.default_rng(0)
    nodes, tensors, value = [], [], "x"
    for i in range(length):
        if i == int(length * place):
            more, constants, value = planted(value)
            nodes += more
            tensors += constants
        made = f"v{i}"
        if i % 4 == 0:
            weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) * 0.35
            tensors.append(numpy_helper.from_array(weight, f"w{i}"))
            nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [made], f"mm{i}"))
        else:
            op = ("Tanh", "Sigmoid", "Relu")[i % 4 - 1]
            nodes.append(helper.make_node(op, [value], [made], f"{op}{i}".lower()))
        value = made
    ends = [helper.make_tensor_value_info(n, F32, ["n", 4, WIDTH]) for n in ("x", value)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def overflow(read):
    scales = {"up": 300, "further": 3000, "down": 1 / 300, "back": 1 / 3000}
    tensors = [numpy_helper.from_array(np.array(s, np.float32), n) for n, s in scales.items()]
    nodes, value = [], read
    for name in scales:
        nodes.append(helper.make_node("Mul", [value, name], [f"{name}_y"], name))
        value = f"{name}_y"
    return nodes, tensors, value


def out_of_range(read):
    tensors = [numpy_helper.from_array(np.array([WIDTH]), "index")]
    nodes = [
        helper.make_node("Gather", [read, "index"], ["one"], "gather", axis=2),
        helper.make_node("Add", [read, "one"], ["planted"], "broadcast"),
    ]
    return nodes, tensors, "planted"


@pytest.fixture
def reduced(call):
    def reduced(planted, fails, length=200, place=0.5):
        onnx.save(chain(planted, length, place), "m.onnx")
        x = np.random.default_rng(1).standard_normal((4, 1, 4, WIDTH)).cumsum(-1)
        np.savez("x.npz", x=x.astype(np.float32))
        arguments = ("reduce", "m.onnx", "--inputs", "x.npz", "--fails", fails)
        ended = call(*arguments, "-o", "small.onnx", "--json")
        assert ended.code == 0, ended.out + ended.err
        return json.loads(ended.out)

    return reduced


@pytest.mark.parametrize("place", [0.5, 0.98])
def test_an_overflow_and_its_numbers_remain(place, reduced):
    record = reduced(overflow, "verdict", place=place)
    assert "further" in record["nodes"]
    assert len(record["nodes"]) <= 5
    assert record["checks"] <= 60
    small = onnx.load("small.onnx")
    onnx.checker.check_model(small, full_check=True)
    sample = dict(np.load("small.npz"))
    results = ort.InferenceSession("small.onnx").run(None, sample)
    assert any(np.abs(result).max() > 65504 for result in results)


def test_what_onnx_runtime_refuses_to_run(reduced):
    record = reduced(out_of_range, "run")
    assert record["nodes"] == ["gather"]


def failing_with(*texts):
    """The command that fails if a file has all these texts, such as names of nodes."""
    code = f"sys.exit(all(text in open(sys.argv[1], 'rb').read() for text in {texts}))"
    Path("check.py").write_text(f"import sys\n{code}\n")
    return f"{sys.executable} -S check.py {{model}}"


@pytest.mark.parametrize(("length", "place"), [(1000, 0.5), (200, 0.999)])
def test_a_command_of_the_user(length, place, reduced):
    """The two nodes together fail, also where one node follows them."""
    fails = failing_with(b"gather", b"broadcast")
    record = reduced(out_of_range, fails, length=length, place=place)
    assert record["nodes"] == ["gather", "broadcast"]
    assert record["checks"] <= 60


def in_an_if(model):
    """The network as the branch of an If that a mean decides, beside one that gives zeros."""
    graph = model.graph
    (x,), (y,) = graph.input, graph.output
    branch = helper.make_graph(graph.node, "then", [], [y], graph.initializer)
    zeros = helper.make_node("Sub", ["x", "x"], ["zeros"], "zeros")
    end = helper.make_tensor_value_info("zeros", F32, ["n", 4, WIDTH])
    other = helper.make_graph([zeros], "else", [], [end])
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], "mean", keepdims=0),
        helper.make_node("Greater", ["mean", "limit"], ["is"], "is"),
        helper.make_node("If", ["is"], ["out"], "if", then_branch=branch, else_branch=other),
    ]
    limit = numpy_helper.from_array(np.array(0, np.float32), "limit")
    out = helper.make_tensor_value_info("out", F32, ["n", 4, WIDTH])
    graph = helper.make_graph(nodes, "g", [x], [out], [limit])
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=9)


@pytest.mark.parametrize(("fails", "remain"), [("verdict", "further"), ("command", "if")])
def test_a_network_that_is_one_if(fails, remain, call):
    """Its branch is cut down, unless the If itself is what fails."""
    onnx.save(in_an_if(chain(overflow)), "m.onnx")
    x = np.random.default_rng(1).standard_normal((4, 1, 4, WIDTH)).cumsum(-1)
    x -= x.mean((1, 2, 3), keepdims=True) + np.array([1, -1, 1, -1]).reshape(4, 1, 1, 1)
    np.savez("x.npz", x=x.astype(np.float32))
    check = fails if fails == "verdict" else failing_with(b"then_branch")
    arguments = ("reduce", "m.onnx", "--inputs", "x.npz", "--fails", check)
    ended = call(*arguments, "-o", "small.onnx", "--json")
    assert ended.code == 0, ended.out + ended.err
    record = json.loads(ended.out)
    assert remain in record["nodes"]
    assert len(record["nodes"]) <= 5


def test_what_does_not_fail_is_refused(call):
    onnx.save(chain(lambda read: ([], [], read), 20), "m.onnx")
    np.savez("x.npz", x=np.linspace(0, 1, 4 * WIDTH, dtype=np.float32).reshape(1, 1, 4, WIDTH))
    arguments = ("reduce", "m.onnx", "--inputs", "x.npz", "-o", "small.onnx", "--fails")
    assert call(*arguments, "verdict").code == 3
    assert call(*arguments, "true").code == 2


def test_the_question_is_that_of_fix(call):
    """Class scores, off by more than 1 % of the largest value, whose class stays."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 10)).astype(np.float32)
    tensors = [
        numpy_helper.from_array(weight, "w"),
        numpy_helper.from_array(np.array(30, np.float32), "far"),
    ]
    nodes = [
        helper.make_node("Add", ["x", "far"], ["shifted"], "shift"),
        helper.make_node("Sub", ["shifted", "far"], ["back"], "unshift"),
        helper.make_node("MatMul", ["back", "w"], ["scores"], "scores"),
        helper.make_node("Softmax", ["scores"], ["y"], "softmax"),
    ]
    ends = [helper.make_tensor_value_info(n, F32, ["n", w]) for n, w in (("x", 64), ("y", 10))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), "m.onnx")
    np.savez("x.npz", x=rng.standard_normal((8, 1, 64)).astype(np.float32))
    arguments = ("reduce", "m.onnx", "--inputs", "x.npz", "-o", "small.onnx", "--fails", "verdict")
    refused = call(*arguments)
    assert refused.code == 3
    assert "top1" in refused.err
    ended = call(*arguments, "--strict", "--json")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert record["criterion"]["rel_max"] == 0.01
    assert record["error"] > 1
    assert call(*arguments, "--rel-max", "0.9").code == 3


def test_an_operator_that_onnx_runtime_lacks_fails_to_run(call):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Sigmoid", ["r"], ["y"], "sigmoid"),
        helper.make_node("Some_TRT", ["y"], ["z"], "plugin"),
    ]
    ends = [helper.make_tensor_value_info(n, F32, ["n", 4]) for n in "xyz"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), "m.onnx")
    np.savez("x.npz", x=np.ones((4, 1, 4), np.float32))
    arguments = ("reduce", "m.onnx", "--inputs", "x.npz", "-o", "small.onnx", "--fails", "run")
    ended = call(*arguments, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["nodes"] == ["plugin"]


def test_a_network_of_which_onnx_runtime_has_no_operator(call):
    names = [*"xabcdey"]
    pairs = enumerate(pairwise(names))
    nodes = [
        helper.make_node(f"Op{i}", [read], [made], f"n{i}", domain="com.example")
        for i, (read, made) in pairs
    ]
    ends = [helper.make_tensor_value_info(n, F32, ["n", 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), "m.onnx")
    np.savez("x.npz", x=np.ones((4, 1, 4), np.float32))
    arguments = ("reduce", "m.onnx", "--inputs", "x.npz", "-o", "small.onnx", "--json", "--fails")
    ended = call(*arguments, failing_with(b"Op3"))
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["nodes"] == ["n3"]
    ended = call(*arguments, "run")
    assert ended.code == 0, ended.err
    assert len(json.loads(ended.out)["nodes"]) == 1
