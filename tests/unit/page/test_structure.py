"""The graph of a model in columns."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.graph.loading import network_from_proto
from halfwise.page.finish import graph_of, scope_of, source_of
from halfwise.records import Source
from tests.unit.graph.sketch import Sketch


def told(network, own=()):
    return graph_of(network.model, own, {})


def test_columns_tell_what_reads_what() -> None:
    s = Sketch(17)
    x = s.input("x", ["n", 4])
    y = s.op("Mul", x, s.constant(np.ones(4, np.float32), "w"), name="/a/mul")
    z = s.op("Cast", y, name="cast", to=TensorProto.FLOAT16)
    graph = told(s.network(s.op("Neg", z, name="/b/neg")), {"/a/mul", "/b/neg"})
    assert graph.nodes == ("/a/mul", "cast", "/b/neg")
    assert graph.ops == ("Mul", "Cast", "Neg")
    names = [graph.tensors[i] for i in graph.reads[0]]
    assert names == ["x", "w"]
    assert graph.gives[0] == graph.reads[1]
    assert graph.added == (1,)
    assert graph.scopes == ("a", "a", "b")
    assert [graph.tensors[i] for i in graph.constants] == ["w"]
    assert graph.inputs == (graph.tensors.index("x"),)
    assert graph.outputs == graph.gives[2]
    kinds = {graph.tensors[i]: (graph.types[i], s) for i, s in enumerate(graph.shapes)}
    assert kinds == {
        "x": ("FLOAT", "n×4"),
        "w": ("FLOAT", "4"),
        "/a/mul_out": ("FLOAT", "n×4"),
        "cast_out": ("FLOAT16", "n×4"),
        "/b/neg_out": ("FLOAT16", "n×4"),
    }


def test_nodes_in_bodies_are_told_with_their_owner() -> None:
    value = helper.make_tensor_value_info
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    bodies = [
        helper.make_graph(
            [helper.make_node(op, ["x", "one"], [f"y{op}"], name=op)],
            op,
            [],
            [value(f"y{op}", TensorProto.FLOAT, [1])],
            [one],
        )
        for op in ("Add", "Mul")
    ]
    branch = helper.make_node(
        "If", ["c"], ["z"], name="if", then_branch=bodies[0], else_branch=bodies[1]
    )
    graph = helper.make_graph(
        [branch],
        "g",
        [value("c", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, [1])],
        [value("z", TensorProto.FLOAT, [1])],
    )
    opsets = [helper.make_opsetid("", 17)]
    found = told(network_from_proto(helper.make_model(graph, opset_imports=opsets)))
    assert found.nodes[0] == "if"
    assert set(found.nodes[1:]) == {"Add", "Mul"}
    assert found.bodies == {1: 0, 2: 0}
    assert found.reads[1][0] == found.inputs[1]


STACK = (
    'File "/home/me/net.py", line 20, in forward\n    for b in self.blocks: x = b(x)\n'
    '  File "/home/me/net.py", line 7, in forward\n    q, k, v = self.qkv(x).chunk(3, -1)\n'
    '  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward\n'
    "    return F.linear(input, self.weight, self.bias)"
)
NAMES = "['', 'blocks.0', 'blocks.0.attn', 'blocks.0.attn.qkv', 'linear']"
CLASSES = "['net.T', 'net.Block', 'net.Attn', 'torch.nn.modules.linear.Linear', 'aten.linear']"


def node(name="node_linear", **metadata):
    made = ir.node("Add", inputs=[], name=name)
    made.metadata_props.update({f"pkg.torch.onnx.{k}": v for k, v in metadata.items()})
    return made


def exported():
    return node(stack_trace=STACK, name_scopes=NAMES, class_hierarchy=CLASSES)


def test_the_line_is_the_innermost_one_outside_the_framework() -> None:
    source = source_of(exported())
    assert source == Source(
        module="blocks.0.attn.qkv",
        kind="torch.nn.modules.linear.Linear",
        file="/home/me/net.py",
        line=7,
        function="forward",
        text="q, k, v = self.qkv(x).chunk(3, -1)",
    )


def test_a_model_of_the_framework_itself_has_no_line_of_its_author() -> None:
    text = 'File "/v/dist-packages/torch/nn/modules/linear.py", line 3, in forward'
    assert source_of(node(stack_trace=text)) == Source(module="")


@pytest.mark.parametrize("text", ["", "no stack", 'File "a", line x, in f', 'File "a'])
def test_other_metadata_tells_nothing(text) -> None:
    assert source_of(node(stack_trace=text, name_scopes=text)) is None


@pytest.mark.parametrize(
    ("name", "scopes", "expected"),
    [
        ("node_linear", NAMES, "blocks.0/attn/qkv"),
        ("node_add", "['', 'add']", ""),
        ("/blocks.0/attn/MatMul", "", "blocks.0/attn"),
        ("StatefulPartitionedCall/model/conv/Conv2D", "", "StatefulPartitionedCall/model/conv"),
        ("/MatMul", "", ""),
        ("/stem/stem.0/stem.0.1/Conv", "", "stem/0/1"),
        ("node_Split_20", "", None),
    ],
)
def test_scopes(name, scopes, expected) -> None:
    assert scope_of(node(name, name_scopes=scopes)) == expected
