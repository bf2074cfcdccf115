import json

import onnx
import pytest

from tests.spellings import proto
from tests.unit.tools.modernize.test_command import record


@pytest.fixture
def model(tmp_path):
    onnx.save(proto("torchscript_layer_norm"), tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def test_options_are_handed_on(call, answer):
    calls = answer("modernize", record())
    code, out, _ = call(
        *("modernize", "m.onnx", "-o", "n.onnx", "--inputs", "x.npz", "--trt-version", "8.6"),
        *("--transpose", "--rel-max", "0.1"),
    )
    assert (code, out.split(",")[0]) == (0, "opset 13 → 20")
    ((arguments, options),) = calls
    assert [str(a) for a in arguments] == ["m.onnx", "n.onnx", "x.npz"]
    assert (options["trt_version"], options["transpose"], options["rel_max"]) == ("8.6", True, 0.1)


def test_json(call, model, tmp_path):
    new = tmp_path / "n.onnx"
    code, out, _ = call("modernize", model, "-o", str(new), "--trt-version", "10.0", "--json")
    assert code == 0
    assert json.loads(out)["rewritings"][0]["op"] == "LayerNormalization"
    assert new.is_file()


def test_errors(call, model, tmp_path):
    new = str(tmp_path / "n.onnx")
    for code, arguments in (
        (2, (model, "-o", model)),
        (2, (model, "-o", new, "--trt-version", "six")),
        (3, (str(tmp_path / "none"), "-o", new)),
        (3, (model, "-o", new, "--inputs", str(tmp_path / "none.npz"))),
    ):
        found, out, err = call("modernize", *arguments)
        assert (found, out) == (code, "")
        assert "error: " in err
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx"}
