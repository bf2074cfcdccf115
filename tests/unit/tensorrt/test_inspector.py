import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError, RunFailed
from halfwise.graph.loading import load_network
from halfwise.graph.model import node_name
from halfwise.tensorrt.inspector import demand_engine, engine_layers, is_engine
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
    assert layer.milliseconds is None


def test_factors_of_a_matrix_product_are_no_operands():
    (layer,) = engine_layers(written(GEMM_10).encode())
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
    layers = engine_layers((DATA / file).read_bytes())
    computing = [layer for layer in layers if layer.nodes]
    assert [(layer.nodes, layer.type) for layer in computing] == CONVOLUTIONS
    assert [layer.precision for layer in computing] == precisions
    assert {layer.precision for layer in layers if not layer.nodes} <= {"other"}


def test_a_transformer_of_8_6_on_an_h200_is_one_block():
    network = load_network(ROOT / "examples" / "digits" / "model.onnx")
    layers = engine_layers((DATA / "digits-fp16.txt").read_bytes(), network)
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
        ("", "is empty"),
        (written(CONVOLUTION_8)[:200], "ends early, after character 200"),
        ('{"Layers": [{"Name": oops}]}', "is damaged at character 21"),
        ("Segmentation fault", "is not JSON; it begins with 'Segmentation fault'"),
        ('{"Bindings": []}', "has no list of layers"),
        (b"\xff\xfe", "is not JSON"),
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


@given(st.text() | st.binary())
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
