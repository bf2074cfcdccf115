import json
import shlex

import numpy as np
import onnx
import onnxruntime
import pytest

from halfwise import api
from halfwise.errors import BackendMissing, CaseError, UsageError
from halfwise.records import Modernized, NodeName
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
    assert record.fp16_after is not None
    saved = Modernized.model_validate_json((tmp_path / "new.onnx.map.json").read_text())
    assert saved == record
    assert saved.names[NodeName("/norm/Sub")] == record.rewritings[0].added
    new = onnx.load(out)
    assert [n.op_type for n in new.graph.node] == ["LayerNormalization", "Relu"]
    sessions = [onnxruntime.InferenceSession(path) for path in (model, out)]
    one, two = (s.run(None, {"x": x[0]})[0] for s in sessions)
    assert np.allclose(one, two, atol=1e-5)
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "new.onnx", "new.onnx.map.json"}


def test_without_inputs_and_version(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("HALFWISE_TRT_PYTHON", "HALFWISE_TRT_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    record = api.modernize(model, tmp_path / "new.onnx")
    assert record.target.startswith("TensorRT 10.0 and later")
    assert (record.real, record.new_opset) == (False, 20)


def test_the_version_is_that_of_the_worker(model, tmp_path, fake_worker):
    record = api.modernize(
        model, tmp_path / "new.onnx", trt_command=shlex.join(fake_worker("8.6.1"))
    )
    assert record.target == "TensorRT 8.6.1, that of worker tensorrt"
    assert record.new_opset == 17


def test_a_worker_that_does_not_answer(model, tmp_path):
    with pytest.raises(BackendMissing) as caught:
        api.modernize(model, tmp_path / "new.onnx", trt_command="false")
    assert "--trt-version" in caught.value.hint


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
    with pytest.raises(CaseError, match="is not a file"):
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
