import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError, RunFailed
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import node_name
from halfwise.tensorrt.failures import last_words
from halfwise.tensorrt.layers import (
    Listed,
    NodeFinder,
    demand_engine,
    engine_layers,
    foreign_region,
    is_engine,
    names_in,
)
from tests.unit.graph.sketch import Sketch, f32

DATA = Path(__file__).parent / "data"
"""What the inspector of TensorRT 8.6.0 wrote on an H200, byte by byte."""
ROOT = Path(__file__).parents[3]


def tensor(name, kind="Half", **more):
    return {"Name": name, "Dimensions": [1, 8], "Format/Datatype": kind, **more}


CONVOLUTION_8 = {
    "Name": "Conv_0 + Relu_1",
    "LayerType": "CaskConvolution",
    "Inputs": [tensor("x", "Channel major FP16 format where channel % 4 == 0")],
    "Outputs": [tensor("y", "Channel major FP16 format where channel % 8 == 0")],
    "Weights": {"Type": "Half", "Count": 9408},
    "TacticName": "sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc",
    "TacticValue": "0x0866ddee325d07a6",
    "Metadata": "[ONNX Layer: Conv_0]\x1e[ONNX Layer: Relu_1]",
}
GEMM_10 = {
    "Name": "/classifier/Gemm_myl9_4",
    "LayerType": "gemm",
    "Inputs": [
        tensor("a"),
        tensor("__mye595_dconst"),
        tensor("__mye574/classifier/Gemm_alpha", "Float"),
        tensor("__mye575/classifier/Gemm_beta", "Float"),
    ],
    "Outputs": [tensor("output")],
    "TacticName": "something_new",
    "StreamId": 0,
    "Metadata": "[ONNX Layer: /classifier/Gemm]",
}


def written(*layers, **more):
    return json.dumps({"Layers": list(layers), "Bindings": ["x", "y"], **more})


def raw(text):
    """Put control characters into strings as they are, as TensorRT 8.6 does."""
    return text.replace("\\u001e", "\x1e").replace("\\u001f", "\x1f")


def test_a_convolution_of_8_6_with_raw_separators():
    (layer,) = engine_layers(raw(written(CONVOLUTION_8)))
    assert layer.nodes == ("Conv_0", "Relu_1")
    assert (layer.inputs, layer.outputs, layer.weights) == (("fp16",), ("fp16",), "fp16")
    assert layer.precision == "fp16"
    assert layer.type == "CaskConvolution"


def test_factors_of_a_matrix_product_are_no_operands():
    (layer,) = engine_layers(written(GEMM_10))
    assert layer.precision == "fp16"
    assert layer.inputs == ("fp16", "fp16", "fp32", "fp32")


@pytest.mark.parametrize(
    "keys",
    [
        {"Format": "LINEAR", "Datatype": "FP16"},
        {"Format": "Row major", "DataType": "Half"},
        {"Format": "Row major linear FP16 format"},
        {"Format/Datatype": "Half"},
    ],
)
def test_data_types_under_the_keys_of_every_version(keys):
    layer = {"Name": "r", "LayerType": "Softmax", "Inputs": [{"Name": "x", **keys}], "Outputs": []}
    (found,) = engine_layers(written(layer, **{"I/O Tensors": []}))
    assert found.inputs == ("fp16",)
    assert found.precision == "fp16"


def test_dynamic_shapes_leave_the_weights_and_the_kernel():
    unknown = "N/A due to dynamic shapes"
    changed = {"Inputs": [tensor("x", unknown)], "Outputs": [tensor("y", unknown)]}
    silent = {**CONVOLUTION_8, **changed, "TacticName": ""}
    with_weights, without = engine_layers(
        written(silent, {**silent, "LayerType": "PointWiseV2", "Weights": None})
    )
    assert with_weights.precision == "fp16"
    assert with_weights.inputs == ("",)
    assert without.precision == "unknown"


def test_every_profile_is_kept():
    again = {**CONVOLUTION_8, "Name": "Conv_0 + Relu_1 [profile 1]", "Metadata": ""}
    first, second = engine_layers(written(CONVOLUTION_8, again))
    assert first.nodes == second.nodes == ("Conv_0", "Relu_1")
    assert second.name.endswith("[profile 1]")


def test_names_only():
    first, second = engine_layers(written("Conv_0 + Relu_1", "[trainStation1]"))
    assert (first.nodes, first.precision, first.type) == (("Conv_0", "Relu_1"), "unknown", "")
    assert second.nodes == ()


def test_a_fused_block_has_the_nodes_of_the_model_between_its_ends():
    sketch = Sketch()
    hidden = sketch.op("MatMul", sketch.input("x", [1, 4]), f32([[1] * 4] * 4))
    network = sketch.network(sketch.op("Softmax", sketch.op("Erf", hidden)))
    block = {"Name": "{ForeignNode[MatMul_0...Softmax_2]}", "LayerType": "Myelin", "Inputs": []}
    block["Outputs"] = [tensor("Softmax_2_out", "Float")]
    (layer,) = engine_layers(written(block), network)
    assert layer.nodes == ("MatMul_0", "Erf_1", "Softmax_2")
    assert layer.precision == "unknown"


CONVOLUTIONS = [
    (("conv1", "bn", "relu1"), "CaskConvolution"),
    (("conv2", "relu2"), "CaskConvolution"),
    (("add",), "ElementWise"),
    (("conv3",), "CaskConvolution"),
    (("pool",), "CaskPooling"),
]


@pytest.mark.parametrize(
    ("file", "precisions"),
    [
        ("conv-fp16.txt", ["fp16"] * 5),
        ("conv-tf32.txt", ["tf32", "tf32", "fp32", "tf32", "fp32"]),
        ("conv-fp16-that-is-fp32.txt", ["fp32"] * 5),
    ],
)
def test_convolutions_of_8_6_on_an_h200(file, precisions):
    layers = engine_layers((DATA / file).read_text("utf-8"))
    computing = [layer for layer in layers if layer.nodes]
    assert [(layer.nodes, layer.type) for layer in computing] == CONVOLUTIONS
    assert [layer.precision for layer in computing] == precisions
    assert {layer.precision for layer in layers if not layer.nodes} <= {"other"}


def test_a_transformer_of_8_6_on_an_h200_is_one_block():
    network = load_network(ROOT / "examples" / "digits" / "model.onnx")
    layers = engine_layers((DATA / "digits-fp16.txt").read_text("utf-8"), network)
    assert [layer.precision for layer in layers] == ["fp32", "other", "unknown", "other"]
    assert layers[0].nodes == ("/patch_embed/Conv",)
    block = layers[2]
    assert (block.type, block.inputs, block.outputs) == ("Myelin", ("fp16",), ("fp16",))
    names = [node_name(node) for node in network.nodes()]
    assert block.nodes == tuple(name for name in names if name != "/patch_embed/Conv")


def test_a_list_of_layers_alone():
    assert len(engine_layers(json.dumps([CONVOLUTION_8]) + "\n\0")) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged: Expecting value"),
        (written(CONVOLUTION_8)[:200], "is damaged: Unterminated string"),
        ('{"Layers": [{"Name": oops}]}', "(char 21)"),
        ("Segmentation fault", "is damaged: Expecting value"),
        ('{"Bindings": []}', "has no list of layers"),
    ],
)
def test_what_is_no_list_of_layers_is_refused_in_one_sentence(text, said):
    with pytest.raises(RunFailed, match="The engine inspector's output") as caught:
        engine_layers(text)
    assert said in caught.value.message
    assert caught.value.hint


values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
odd_layers = st.dictionaries(
    st.sampled_from(
        ["Name", "LayerType", "Inputs", "Outputs", "Weights", "TacticName", "Metadata"]
    ),
    values,
)


@given(st.lists(values | odd_layers))
def test_every_layer_is_kept_whatever_it_holds(layers):
    assert len(engine_layers(json.dumps({"Layers": layers}))) == len(layers)


def read_or_refused(text):
    try:
        return engine_layers(text)
    except RunFailed:
        return None


def test_nesting_without_end():
    assert read_or_refused("[" * 100_000) is None


@given(st.text())
def test_any_text_is_read_or_refused(text):
    read_or_refused(text)


@given(st.integers(0, 400))
def test_any_part_of_a_text_is_refused(length):
    assert read_or_refused(written(CONVOLUTION_8)[:length]) is None


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("model.bin", b"ftrt\0\0", True),
        ("model.engine", b"anything", True),
        ("model.PLAN", b"", True),
        ("model.trt", b"x", True),
        ("model.onnx", b"\x08\x08", False),
        ("model.onnx", b"", False),
        ("outputs.json", b"{", False),
    ],
)
def test_engines_by_content_else_by_name(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert is_engine(tmp_path / name) == expected


def test_what_is_not_there(tmp_path):
    assert is_engine(tmp_path / "absent.engine")
    assert not is_engine(tmp_path / "absent.onnx")
    (tmp_path / "folder.engine").mkdir()
    assert not is_engine(tmp_path / "folder.engine")
    with pytest.raises(CaseError, match=r"There is no engine .*absent\.engine"):
        demand_engine(tmp_path / "absent.engine")


def test_what_is_named_as_a_model_is_no_engine_unless_it_begins_as_one(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"hello")
    with pytest.raises(CaseError, match="is not an engine"):
        demand_engine(path)
    path.write_bytes(b"ftrt and more")
    assert demand_engine(path) == path


def test_files_that_hold_more_or_nothing(tmp_path):
    path = tmp_path / "e.engine"
    path.write_bytes(b"ftrt{")
    assert demand_engine(path) == path
    path.write_bytes(b"")
    with pytest.raises(CaseError, match="is empty"):
        demand_engine(path)
    path.write_bytes(b"\x02\0\0\0{}ftrt")
    with pytest.raises(CaseError, match="2 bytes of Ultralytics' metadata") as told:
        demand_engine(path)
    # `tail -c +7` begins with the seventh byte.
    assert "tail -c +7" in told.value.hint
    assert path.read_bytes()[6:] == b"ftrt"


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


def test_blocks_that_name_their_ends_alone_have_what_no_other_layer_has():
    network = chain("Relu", "Exp", "Tanh", "Abs", "Neg", "Sqrt")
    other = "{ForeignNode[Sqrt_5...(Unnamed Layer* 5) [Shuffle]]}"
    layers = [Listed("Relu_0"), Listed(BLOCK), Listed("PWN(Abs_3)"), Listed(other)]
    found = NodeFinder(network, layers)
    rest = ("Exp_1", "Tanh_2", "Neg_4", "Sqrt_5")
    assert found.nodes(layers[1]) == found.nodes(layers[3]) == rest
    assert found.nodes(Listed(f"{BLOCK} [profile 1]")) == rest
    named = Listed(BLOCK, "[ONNX Layer: Exp_1]")
    assert NodeFinder(network, [*layers, named]).nodes(named) == ("Exp_1",)


@given(st.text(), st.text(), st.text())
def test_any_name_has_an_answer(layer, metadata, before):
    network = chain("Relu")
    for name in (layer, f"{{ForeignNode[{layer}...{before}]}}", f"Reformatting CopyNode {layer}"):
        listed = Listed(name, metadata)
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


REGION = "{ForeignNode[a/Pow...b/Add]}"
NO_KERNEL = (
    "10: [optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not find any "
    f"implementation for node {REGION}.)"
)
NOT_BUILT = "2: [builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error (Assertion engine != nullptr failed. )"  # noqa: E501
WARNING = "warning: onnx2trt_utils.cpp:374: Your ONNX model has INT64 weights."


def timed(layer):
    return f"[V] [TRT] =============== Computing costs for {layer}"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([NO_KERNEL, NOT_BUILT], f"Could not find any implementation for node {REGION}."),
        (["mha_fusion.cpp:344: DCHECK(fc1_ && fc2_ && softmax_) failed.", NO_KERNEL],
         f"Could not find any implementation for node {REGION}."),
        ([NO_KERNEL, NO_KERNEL.replace("b/Add", "c/Mul")],
         f"Could not find any implementation for node {REGION.replace('b/Add', 'c/Mul')}."),
        ([f"9: Error Code 9: Myelin ({REGION}: no tactics)"],
         f"Error Code 9: Myelin ({REGION}: no tactics)"),
        ([timed("a"), timed(REGION), "[V] [TRT] Tactic: 0x3e8", ""],
         f"=============== Computing costs for {REGION}"),
        (["error: nobody knows this", timed("a"), WARNING], "nobody knows this"),
        ([WARNING, f"error: {NO_KERNEL}", NOT_BUILT, WARNING],
         f"Could not find any implementation for node {REGION}."),
        ([WARNING], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_the_line_that_tells_why_there_is_no_engine(lines, said):
    assert last_words(lines) == said
