import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from halfwise.records import NetworkLayer, NodeName
from halfwise.tensorrt.layer_names import Listed, NodeFinder, foreign_region, names_in
from tests.unit.graph.sketch import Sketch, f32

BLOCK = "{ForeignNode[weight + (Unnamed Layer* 1) [Shuffle]...(Unnamed Layer* 7) [ElementWise]]}"


def chain(*ops):
    """A chain of unary nodes named after their operators and places: Relu_0, Exp_1 …"""
    sketch = Sketch()
    value = sketch.input("x", [4])
    for op in ops:
        value = sketch.op(op, value)
    return sketch.network(value)


def renamed(network, *names):
    for node, name in zip(network.graph, names, strict=True):
        node.name = name
    return network


def by_name(name, network=None):
    return NodeFinder(network, []).nodes(Listed(name))


def by_metadata(metadata, network=None):
    return NodeFinder(network, []).nodes(Listed("whatever", metadata))


def test_metadata_with_every_separator():
    for text in (
        "[ONNX Layer: a]\x1e[ONNX Layer: b]",
        "[ONNX Layer: a]\x1f[ONNX Layer: b]",
        "[ONNX Layer: a], [ONNX Layer: b]",
        "[ONNX Layer: a][ONNX Layer: b]",
        "[ONNX Layer: a | Local Function: f]\x1e[ONNX Layer: b | doc]\x1f[ONNX Layer: a]",
    ):
        assert by_metadata(text) == ("a", "b")


def test_names_with_brackets_and_bars():
    network = renamed(chain("Relu", "Exp"), "/a[0]/x]", "b | c")
    found = by_metadata("[ONNX Layer: /a[0]/x]]\x1e[ONNX Layer: b | c]", network)
    assert found == ("/a[0]/x]", "b | c")


def test_odd_names_count_where_metadata_or_the_model_tells_them():
    names = ("__main/Relu", "Reformat_1", "[2]")
    network = renamed(chain("Relu", "Exp", "Tanh"), *names)
    metadata = "\x1e".join(f"[ONNX Layer: {name}]" for name in names)
    assert by_metadata(metadata) == by_metadata(metadata, network) == names
    assert [by_name(name, network) for name in names] == [(name,) for name in names]
    assert by_name("__main/Relu_myl0_1", network) == ()


def test_unnamed_nodes_of_the_users_own_file():
    sketch = Sketch()
    last = sketch.op("Exp", sketch.op("Relu", sketch.input("x", [4])), name="last")
    model = sketch.proto(last)
    model.graph.node[0].name = ""
    network = network_from_proto(model)
    first = node_name(next(network.nodes()))
    metadata = "[ONNX Layer: node_of_Relu_0_out]\x1e[ONNX Layer: last]"
    assert by_metadata(metadata, network) == (first, "last")
    assert by_name("node_of_Relu_0_out + last", network) == (first, "last")


def test_layers_of_8_5_by_name():
    assert by_name("Conv_0 + Relu_1") == ("Conv_0", "Relu_1")
    assert by_name("PWN(PWN(/b/Sigmoid), /b/Mul)") == ("/b/Sigmoid", "/b/Mul")
    assert by_name("/c/Conv + PWN(/c/LeakyRelu) [profile 1]") == ("/c/Conv", "/c/LeakyRelu")
    pointwise = "PWN((Unnamed Layer* 3) [ElementWise], PWN(Mul_4, (Unnamed Layer* 5) [Unary]))"
    assert by_name(pointwise) == ("Mul_4",)


def test_layers_that_compute_no_node():
    for name in (
        "Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1",
        "Reformatted Input Tensor 0 to Conv_0",
        "(Unnamed Layer* 714) [Constant]",
        "[trainStation1]",
        "/neck/Concat_1_/neck/Resize_1_output_0_clone_0 copy",
        "(Unnamed Layer* 718) [NMS]_1_output[DevicetoShapeHostCopy]",
        "__myl_MulSum_myl4_1",
        "_gemm_mha_v2_myl0_4",
        "",
    ):
        assert by_name(name) == ()


def test_only_nodes_of_the_model_count_where_it_is_known():
    network = chain("Relu", "Exp", "Tanh")
    assert by_name("onnx::Weight + Relu_0 + Exp_1", network) == ("Relu_0", "Exp_1")
    assert by_name("Relu_0+Tanh_2_myl0_7", network) == ("Relu_0", "Tanh_2")
    metadata = "[ONNX Layer: Tanh_2]\x1e[ONNX Layer: Cast_inserted]"
    assert by_metadata(metadata, network) == ("Tanh_2",)


def test_a_block_without_a_model_is_its_first_and_last():
    assert by_name("{ForeignNode[Exp_1...Neg_4]}") == ("Exp_1", "Neg_4")
    assert by_name(BLOCK) == ("weight",)


def test_a_block_is_what_lies_between_its_tensors_and_has_no_layer_of_its_own():
    network = chain("Relu", "Exp", "Tanh", "Abs", "Neg", "Sqrt")
    layers = [
        Listed("Relu_0", "", ("x",), ("Relu_0_out",)),
        Listed(
            f"Reformatting CopyNode for Input Tensor 0 to {BLOCK}",
            "",
            ("Relu_0_out",),
            ("Reformatted Input Tensor 0",),
        ),
        Listed(BLOCK, "", ("Reformatted Input Tensor 0",), ("Reformatted Output Tensor 0",)),
        Listed(
            f"Reformatting CopyNode for Output Tensor 0 to {BLOCK}",
            "",
            ("Reformatted Output Tensor 0",),
            ("Neg_4_out",),
        ),
        Listed("PWN(Abs_3)", "", ("elsewhere",), ("elsewhere",)),
        Listed("Sqrt_5", "", ("Neg_4_out",), ("Sqrt_5_out",)),
    ]
    found = NodeFinder(network, layers)
    assert found.nodes(layers[2]) == ("Neg_4",)
    without_pointwise = NodeFinder(network, [*layers[:4], layers[5]])
    block = ("Exp_1", "Tanh_2", "Abs_3", "Neg_4")
    assert without_pointwise.nodes(layers[2]) == block
    assert without_pointwise.nodes(Listed(f"{BLOCK} [profile 1]")) == block


def test_two_blocks_side_by_side_share_no_node():
    sketch = Sketch()
    x = sketch.input("x", [4])
    left = sketch.op("Relu", x, name="left0")
    right = sketch.op("Exp", x, name="right0")
    left = sketch.op("Abs", left, name="left1")
    right = sketch.op("Neg", right, name="right1")
    layers = [
        Listed("{ForeignNode[left0...left1]}", "", ("x",), ("left1_out",)),
        Listed("{ForeignNode[right0...right1]}", "", ("x",), ("right1_out",)),
    ]
    finder = NodeFinder(sketch.network(left, right), layers)
    assert finder.nodes(layers[0]) == ("left0", "left1")
    assert finder.nodes(layers[1]) == ("right0", "right1")


def test_a_block_known_by_its_name_only_has_what_leads_to_its_last():
    network = chain("Relu", "Exp", "Tanh", "Abs")
    layers = [Listed("Relu_0"), Listed("{ForeignNode[Exp_1...Tanh_2]}"), Listed("Abs_3")]
    assert NodeFinder(network, layers).nodes(layers[1]) == ("Exp_1", "Tanh_2")


def test_a_single_block_whose_outputs_only_tensorrt_knows_has_what_is_left():
    sketch = Sketch()
    x = sketch.input("x", [4])
    first = sketch.op("Relu", x)
    last = sketch.op("Exp", sketch.op("Mul", first, f32([1, 2, 3, 4])))
    block = Listed(BLOCK, "", ("Relu_0_out",), ("(Unnamed Layer* 689) [Shuffle]_output",))
    finder = NodeFinder(sketch.network(last), [Listed("Relu_0"), block])
    assert finder.nodes(block) == ("Mul_1", "Exp_2")


def test_of_several_such_blocks_each_has_what_lies_between_its_ends_in_the_network():
    network = chain("Relu", "Exp", "Tanh", "Abs", "Neg", "Sqrt", "Sin")
    kinds = ("Relu_0", "", "Exp_1", "Tanh_2", "Abs_3", "", "Neg_4", "Sqrt_5", "", "Sin_6", "")
    built = [
        NetworkLayer(
            name=node or f"(Unnamed Layer* {index}) [Shuffle]",
            type="SHUFFLE",
            nodes=(NodeName(node),) if node else (),
        )
        for index, node in enumerate(kinds)
    ]
    first = "{ForeignNode[w + (Unnamed Layer* 1) [Shuffle]...(Unnamed Layer* 5) [Shuffle]]}"
    # A block may hold what the network has before its first: what leads there.
    second = "{ForeignNode[Sqrt_5...(Unnamed Layer* 10) [Shuffle]]}"
    unknown = ("(Unnamed Layer* 5) [Shuffle]_output",)
    layers = [
        Listed("Relu_0", "", ("x",), ("Relu_0_out",)),
        Listed(first, "", ("Relu_0_out",), unknown),
        Listed(second, "", unknown, ("Reformatted Output Tensor 0",)),
    ]
    finder = NodeFinder(network, layers, built)
    assert finder.nodes(layers[1]) == ("Exp_1", "Tanh_2", "Abs_3")
    assert finder.nodes(layers[2]) == ("Neg_4", "Sqrt_5", "Sin_6")
    assert NodeFinder(network, layers).nodes(layers[1]) == ()


@given(st.text(), st.text(), st.text(), st.text())
def test_any_name_has_an_answer(layer, metadata, before, after):
    network = chain("Relu")
    for name in (layer, f"{{ForeignNode[{layer}...{before}]}}", f"Reformatting CopyNode {layer}"):
        listed = Listed(name, metadata, (before,), (after,))
        for finder in (NodeFinder(None, [listed]), NodeFinder(network, [listed, listed])):
            assert isinstance(finder.nodes(listed), tuple)


@pytest.mark.parametrize(
    ("text", "region"),
    [
        (
            "Could not find any implementation for node {ForeignNode[177...Reshape_81 + (Unnamed "
            "Layer* 146) [Shuffle]]}.)",
            ("177", "(Unnamed Layer* 146) [Shuffle]"),
        ),
        (
            "10: Could not find any implementation for node {ForeignNode[(Unnamed Layer* 1247) "
            "[Shuffle].../layers.7/Transpose_2 + /layers.7/Reshape_4]}.",
            ("(Unnamed Layer* 1247) [Shuffle]", "/layers.7/Reshape_4"),
        ),
        ("{ForeignNode[/only/MatMul]}", ("/only/MatMul", "/only/MatMul")),
        ("cut off {ForeignNode[/a/Pow.../b/Ad", ("/a/Pow", "/b/Ad")),
        ("node Conv_3 + Relu_4.", None),
    ],
)
def test_ends_of_a_foreign_node(text, region):
    assert foreign_region(text) == region


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        (
            "Conv_620 + PWN(PWN(Sigmoid_621), Mul_622).weight",
            ("Conv_620", "Sigmoid_621", "Mul_622"),
        ),
        ("Conv_147 || Conv_145", ("Conv_147", "Conv_145")),
        ("/Constant_5_output_0 + (Unnamed Layer* 1897) [Shuffle]", ("/Constant_5_output_0",)),
        ("Conv_70[Conv] + Relu_71[Relu]", ("Conv_70", "Relu_71")),
        ("ONNXTRT_Broadcast_163_output, /a/Add", ("/a/Add",)),
        ("/n/Pow, /n/Sub, /n/Pow", ("/n/Pow", "/n/Sub")),
        (
            "{ForeignNode[/a/Pow.../b/Add + /b/Mul]} (Myelin[0x80000023])",
            ("/a/Pow", "/b/Add", "/b/Mul"),
        ),
        ("/neck/neck.1/ReduceMean_1.)", ("/neck/neck.1/ReduceMean_1",)),
        ("", ()),
    ],
)
def test_names_in_a_layer(expression, names):
    assert names_in(expression) == names


@given(st.text(alphabet="ab/(){}[]. +|,*_PWNForeignNode", max_size=80))
def test_any_text_is_read(text):
    foreign_region(text)
    assert all(name.strip() for name in names_in(text))
