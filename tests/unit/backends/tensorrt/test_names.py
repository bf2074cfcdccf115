from hypothesis import given
from hypothesis import strategies as st

from halfwise.backends.tensorrt.names import NodeFinder
from tests.unit.graph.sketch import Sketch, f32


def chain(*ops):
    """A chain of unary nodes named after their operators and places: Relu_0, Exp_1 …"""
    sketch = Sketch()
    value = sketch.input("x", [4])
    for op in ops:
        value = sketch.op(op, value)
    return sketch.network(value)


def test_metadata_with_every_separator():
    finder = NodeFinder(None, [])
    for text in (
        "[ONNX Layer: a]\x1e[ONNX Layer: b]",
        "[ONNX Layer: a]\x1f[ONNX Layer: b]",
        "[ONNX Layer: a], [ONNX Layer: b]",
        "[ONNX Layer: a][ONNX Layer: b]",
        "[ONNX Layer: a | Local Function: f]\x1e[ONNX Layer: b | doc]\x1f[ONNX Layer: a]",
    ):
        assert finder.nodes("whatever", text) == ("a", "b")


def test_names_with_brackets_and_bars():
    network = chain("Relu", "Exp")
    for node, name in zip(network.graph, ("/a[0]/x]", "b | c"), strict=True):
        node.name = name
    found = NodeFinder(network, []).nodes("", "[ONNX Layer: /a[0]/x]]\x1e[ONNX Layer: b | c]")
    assert found == ("/a[0]/x]", "b | c")


def test_odd_names_count_where_metadata_or_the_model_tells_them():
    network = chain("Relu", "Exp", "Tanh")
    names = ("__main/Relu", "Reformat_1", "[2]")
    for node, name in zip(network.graph, names, strict=True):
        node.name = name
    metadata = "\x1e".join(f"[ONNX Layer: {name}]" for name in names)
    assert NodeFinder(None, []).nodes("", metadata) == names
    finder = NodeFinder(network, [])
    assert finder.nodes("", metadata) == names
    assert [finder.nodes(name, "") for name in names] == [(name,) for name in names]
    assert finder.nodes("__main/Relu_myl0_1", "") == ()


def test_layers_of_8_5_by_name():
    finder = NodeFinder(None, [])
    assert finder.nodes("Conv_0 + Relu_1", "") == ("Conv_0", "Relu_1")
    assert finder.nodes("PWN(PWN(/b/Sigmoid), /b/Mul)", "") == ("/b/Sigmoid", "/b/Mul")
    assert finder.nodes("/c/Conv + PWN(/c/LeakyRelu) [profile 1]", "") == (
        "/c/Conv",
        "/c/LeakyRelu",
    )
    pointwise = "PWN((Unnamed Layer* 3) [ElementWise], PWN(Mul_4, (Unnamed Layer* 5) [Unary]))"
    assert finder.nodes(pointwise, "") == ("Mul_4",)


def test_layers_that_compute_no_node():
    finder = NodeFinder(None, [])
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
        assert finder.nodes(name, "") == ()


def test_only_nodes_of_the_model_count_where_it_is_known():
    network = chain("Relu", "Exp", "Tanh")
    finder = NodeFinder(network, [])
    assert finder.nodes("onnx::Weight + Relu_0 + Exp_1", "") == ("Relu_0", "Exp_1")
    assert finder.nodes("Relu_0+Tanh_2_myl0_7", "") == ("Relu_0", "Tanh_2")
    assert finder.nodes("", "[ONNX Layer: Tanh_2]\x1e[ONNX Layer: Cast_inserted]") == ("Tanh_2",)


def test_a_fused_block_is_what_lies_between_and_has_no_layer_of_its_own():
    network = chain("Relu", "Exp", "Tanh", "Abs", "Neg", "Sqrt")
    block = "{ForeignNode[Exp_1...Neg_4]}"
    finder = NodeFinder(network, ["Relu_0", block, "PWN(Abs_3)", "Sqrt_5"])
    assert finder.nodes(block, "") == ("Exp_1", "Tanh_2", "Neg_4")
    assert finder.nodes(f"{block} [profile 1]", "") == ("Exp_1", "Tanh_2", "Neg_4")
    assert NodeFinder(None, [block]).nodes(block, "") == ("Exp_1", "Neg_4")


def test_a_block_may_begin_at_a_constant():
    sketch = Sketch()
    x = sketch.input("x", [4])
    first = sketch.op("Relu", x)
    weight = sketch.constant(f32([1, 2, 3, 4]), "weight")
    last = sketch.op("Exp", sketch.op("Mul", first, weight))
    block = "{ForeignNode[weight + ONNXTRT_Broadcast.../Exp_2]}".replace("/Exp", "Exp")
    finder = NodeFinder(sketch.network(last), ["Relu_0", block])
    assert finder.nodes(block, "") == ("Mul_1", "Exp_2")


def test_two_blocks_side_by_side_share_no_node():
    sketch = Sketch()
    x = sketch.input("x", [4])
    left = sketch.op("Relu", x, name="left0")
    right = sketch.op("Exp", x, name="right0")
    left = sketch.op("Abs", left, name="left1")
    right = sketch.op("Neg", right, name="right1")
    left = sketch.op("Tanh", left, name="left2")
    right = sketch.op("Sqrt", right, name="right2")
    names = ["{ForeignNode[left0...left2]}", "{ForeignNode[right0...right2]}"]
    finder = NodeFinder(sketch.network(left, right), names)
    assert finder.nodes(names[0], "") == ("left0", "left1", "left2")
    assert finder.nodes(names[1], "") == ("right0", "right1", "right2")


def test_a_block_whose_ends_are_layers_of_tensorrt():
    network = chain("Relu", "Exp")
    block = "{ForeignNode[(Unnamed Layer* 1) [Constant]...(Unnamed Layer* 7) [Shuffle]]}"
    assert NodeFinder(network, [block]).nodes(block, "") == ()


@given(st.text(), st.text())
def test_any_name_has_an_answer(layer, metadata):
    network = chain("Relu")
    for finder in (NodeFinder(None, [layer]), NodeFinder(network, [layer])):
        assert isinstance(finder.nodes(layer, metadata), tuple)
