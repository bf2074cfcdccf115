import io

import onnx
import pytest

from halfwise.api import explain_log
from halfwise.errors import CaseError
from tests.unit.graph.sketch import Sketch

LOG = """\
&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=m.onnx --fp16
[11/20/2026-10:00:00] [W] [TRT] Detected layernorm nodes in FP16: /norm/Pow, /no/such/Node
[11/20/2026-10:00:01] [W] [TRT] Something that nobody has seen
&&&& PASSED TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=m.onnx --fp16
"""


@pytest.fixture
def model(tmp_path):
    sketch = Sketch()
    sketch.op("Pow", sketch.input("x", [1, 4]), 2.0, name="/norm/Pow")
    onnx.save(sketch.proto("/norm/Pow_out"), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_log_and_its_model(tmp_path, model):
    (tmp_path / "a.log").write_text(LOG)
    report = explain_log(tmp_path / "a.log", model=model)
    assert (report.lines, report.tensorrt, report.model_nodes) == (4, "8.6.1", 1)
    assert [f.kind for f in report.findings] == ["layernorm-fp16", "unknown"]
    assert report.nodes is not None
    assert [(n.name, n.node, n.op, n.place) for n in report.nodes] == [
        ("/norm/Pow", "/norm/Pow", "Pow", 1),
        ("/no/such/Node", None, "", None),
    ]


def test_a_stream_without_a_model():
    report = explain_log(io.BytesIO(LOG.encode("utf-16")))
    assert (report.source, report.nodes) == ("the log", None)
    assert len(report.findings) == 2


def test_what_cannot_be_read(tmp_path, model):
    with pytest.raises(CaseError, match=r"none\.log cannot be read: No such file"):
        explain_log(tmp_path / "none.log")
    with pytest.raises(CaseError, match="cannot be read: it is a folder"):
        explain_log(tmp_path)
    (tmp_path / "engine").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(CaseError, match="is not text"):
        explain_log(tmp_path / "engine")
    (tmp_path / "a.log").write_text(LOG)
    with pytest.raises(CaseError, match="is not a file"):
        explain_log(tmp_path / "a.log", model=tmp_path / "none.onnx")
    assert explain_log(tmp_path / "a.log", model=str(model)).nodes
