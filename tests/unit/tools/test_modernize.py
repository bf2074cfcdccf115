import json

import numpy as np
import onnx
import onnxruntime
import pytest

from halfwise import api
from halfwise.case import CPU, Case, Samples
from halfwise.errors import CaseError, UsageError
from halfwise.graph.loading import network_from_proto
from halfwise.graph.one_node import FIRST_OPSET
from halfwise.observing import DETAIL_SAMPLES
from halfwise.records import Criterion, Modernized, NodeName, Note
from halfwise.reporting.parts import Lines, Table
from halfwise.tools.modernize import modernized, modernized_case
from tests.models import normalisation
from tests.spellings import proto


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(proto("torchscript_layer_norm"), path)
    return path


def test_the_file_and_its_map(model, tmp_path):
    out = tmp_path / "new.onnx"
    x = np.random.default_rng(0).normal(0.2, 2, (3, 2, 5, 24)).astype(np.float32)
    record = api.modernize(model, out, {"x": x}, trt_version="10.0")
    assert record.target == "TensorRT 10.0"
    saved = Modernized.model_validate_json((tmp_path / "new.onnx.map.json").read_text())
    assert saved == record
    assert saved.names[NodeName("/norm/Sub")] == record.rewritings[0].added
    new = onnx.load(out)
    assert [n.op_type for n in new.graph.node] == ["LayerNormalization", "Relu"]
    sessions = [onnxruntime.InferenceSession(path) for path in (model, out)]
    one, two = (s.run(None, {"x": x[0]})[0] for s in sessions)
    assert np.allclose(one, two, atol=1e-5)
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "new.onnx", "new.onnx.map.json"}


def test_without_inputs_and_version(model, tmp_path):
    record = api.modernize(model, tmp_path / "new.onnx")
    assert (record.target, record.real, record.new_opset) == ("TensorRT 10.0", False, 20)


@pytest.mark.parametrize("there", ["new.onnx", "new.onnx.map.json"])
def test_nothing_is_overwritten(model, tmp_path, there):
    (tmp_path / there).write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        api.modernize(model, tmp_path / "new.onnx")
    assert (tmp_path / there).read_text() == "mine"


def test_what_cannot_be_used(model, tmp_path):
    before = set(tmp_path.iterdir())
    new = tmp_path / "new.onnx"
    with pytest.raises(UsageError, match="no folder"):
        api.modernize(model, tmp_path / "none" / "new.onnx")
    with pytest.raises(UsageError, match="--trt-version"):
        api.modernize(model, new, trt_version="7")
    with pytest.raises(CaseError, match="There is no file"):
        api.modernize(tmp_path / "none.onnx", new)
    with pytest.raises(CaseError):
        api.modernize(model, new, {"x": np.zeros((2, 5, 24), np.int64)})
    assert set(tmp_path.iterdir()) == before


def test_fp16_exports_are_refused(tmp_path):
    half = proto("torchscript_layer_norm")
    for value in (half.graph.input[0], half.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for constant in half.graph.initializer:
        array = onnx.numpy_helper.to_array(constant)
        if array.dtype == np.float32:
            constant.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16), constant.name))
    del half.graph.value_info[:]
    with pytest.raises(CaseError, match="stores FP16"):
        api.modernize(half, tmp_path / "new.onnx")


def test_a_model_in_memory(tmp_path):
    record = api.modernize(normalisation.layer_norm().proto, tmp_path / "n.onnx", trt_version="11")
    assert record.model == "in memory"
    assert json.loads((tmp_path / "n.onnx.map.json").read_text())["new_opset"] == 25


def case(count=40):
    ill = normalisation.layer_norm()
    samples = Samples(tuple(map(str, range(count))), lambda _: ill.sample(0))
    network = network_from_proto(ill.proto)
    return Case(
        network,
        samples,
        samples.select(()),
        Criterion(),
        None,
        (Note(kind="dynamic"), Note(kind="single", severity="warning")),
        "",
    )


def test_a_norm_that_overflows_in_fp16_becomes_one_node():
    network, record = modernized_case(case(), CPU, 20, tuple(FIRST_OPSET), "TensorRT 10.0")
    assert [r.op for r in record.rewritings] == ["LayerNormalization"]
    assert record.names[NodeName("square")] == record.rewritings[0].added
    assert (record.opset, record.new_opset) == (17, 20)
    assert (record.nodes, record.new_nodes) == (8, len(list(network.nodes())))
    assert len(record.samples) == DETAIL_SAMPLES
    assert record.notes == ("warning: there is a single sample, so nothing can be held out",)
    assert np.isfinite(record.error)


REWRITING = {
    "op": "LayerNormalization",
    "output": "y",
    "removed": ("/a/Pow", "/a/Div"),
    "added": ("/a/LayerNormalization",),
}


def record(**changed):
    values = {
        "model": "m.onnx",
        "opset": 13,
        "new_opset": 20,
        "target": "TensorRT 10.0",
        "rewritings": (REWRITING,),
        "left": (),
        "names": {},
        "nodes": 9,
        "new_nodes": 8,
        "samples": ("a", "b"),
        "real": True,
        "error": 2e-7,
    }
    return Modernized.model_validate(values | changed)


def part(shown, title):
    return next(p for p in shown.parts if p.title.startswith(title))


def test_what_was_done():
    shown = modernized(record(notes=("not raised to opset 25: it\x1b",)))
    assert shown.title == "opset 13 → 20, 1 LayerNormalization, 9 → 8 nodes"
    assert shown.about == "m.onnx · for TensorRT 10.0"
    assert shown.caution == ""
    table = part(shown, "Rewritten")
    assert isinstance(table, Table)
    assert table.rows == (("/a/LayerNormalization", "LayerNormalization", "2", "/a/Pow"),)
    assert part(shown, "Proof") == Lines(
        "Proof",
        (
            "Outputs in FP32 on 2 samples: off by at most 2e−7 of the largest value.",
            "not raised to opset 25: it\N{REPLACEMENT CHARACTER}",
        ),
    )


def test_nothing_to_do_on_random_numbers():
    shown = modernized(record(rewritings=(), new_opset=13, new_nodes=9, real=False))
    assert shown.title == "opset 13, nothing rewritten, 9 → 9 nodes"
    assert "--inputs" in shown.caution
    assert [p.title for p in shown.parts] == ["Proof"]


def test_data_that_look_generated_are_not_called_random(model, tmp_path):
    x = np.random.default_rng(0).normal(0, 1, (12, 2, 5, 24)).astype(np.float32)
    record = api.modernize(model, tmp_path / "new.onnx", {"x": x})
    assert (record.real, len(record.made_up)) == (False, 1)
    caution = modernized(record).caution
    assert caution.startswith("Input 'x' looks like standard normal noise")
    assert caution.endswith("not real data.")


def test_equal_reasons_stand_together():
    left = tuple({"op": "Gelu", "nodes": (f"/{i}/Erf",), "reason": "no Gelu"} for i in range(3))
    shown = modernized(record(left=left, rewritings=(REWRITING,) * 20))
    assert part(shown, "Left alone").lines == ("Gelu ×3: no Gelu; from /0/Erf",)
    assert len(part(shown, "Rewritten").rows) == 20
