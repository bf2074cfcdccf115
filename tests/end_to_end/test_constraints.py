"""`constraints check` and `lint --trt-version` as users call them."""

import json

import onnx
import pytest
from onnx import TensorProto

from tests import models
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def casts(tmp_path):
    """A Cast to integers between floats, and one that makes a shape."""
    s = Sketch()
    x = s.input("x", ["n", 8])
    relu = s.op("Relu", x, name="relu")
    whole = s.op("Cast", relu, to=TensorProto.INT32, name="to_int")
    back = s.op("Cast", whole, to=TensorProto.FLOAT, name="to_float")
    size = s.op("Cast", s.op("Shape", x, name="shape"), to=TensorProto.INT64, name="size")
    y = s.op("Reshape", s.op("Mul", back, relu, name="mul"), size, name="reshape")
    onnx.save(s.proto(y), tmp_path / "casts.onnx")


def check(call, *words, version="8.6"):
    ended = call("constraints", "check", "--json", "--trt-version", version, *words)
    found = json.loads(ended.out)
    return ended.code, found["findings"]


@pytest.mark.usefixtures("casts")
@pytest.mark.parametrize("version", ["8.6", "9.3.0.post12.dev1", "10"])
def test_two_types_for_everything_are_named_for_precisions_and_output_types(call, version):
    command = ["trtexec", "--onnx=casts.onnx", "--fp16", "--precisionConstraints=obey"]
    command += ["--layerPrecisions=*:fp16,*:fp32", "--layerOutputTypes=*:fp16,*:fp32"]
    code, findings = check(call, *command, version=version)
    assert code == 10
    clashes = [f["message"] for f in findings if f["rule"] == "two-types"]
    assert len(clashes) == 2
    assert "--layerPrecisions" in clashes[0]
    assert "--layerOutputTypes" in clashes[1]


@pytest.mark.usefixtures("casts")
def test_a_wildcard_of_output_types_reaches_casts_to_integers(call):
    spec = "--layerOutputTypes=*:fp32"
    code, findings = check(call, spec, "--model", "casts.onnx")
    assert code == 10
    assert [(f["rule"], f["node"]) for f in findings] == [("untouchable", "to_int")]
    # In 8.5 a Cast is no layer of its own; precisions reach no output.
    assert check(call, spec, "--model", "casts.onnx", version="8.5")[0] == 0
    assert check(call, "*:fp32", "--model", "casts.onnx")[0] == 0


@pytest.mark.parametrize("word", ["layernorm", "LayerNorm*", "layer_norm", "norm"])
def test_a_kind_of_layer_becomes_the_names_of_its_nodes(call, saved, word):
    model, _ = saved(models.layer_norm())
    names = [n.name for n in onnx.load(model).graph.node]
    command = f"trtexec --onnx={model} --fp16 \\\n--precisionConstraints=obey \\\n"
    command += f"--layerPrecisions={word}:fp32 \\\n--layerOutputTypes={word}:fp32"
    code, findings = check(call, command, version="10.3")
    assert code == 10
    assert {f["rule"] for f in findings} == {"unmatched"}
    spec = findings[0]["fix"].rpartition("Write ")[2].removesuffix(".")
    kept = [item.rpartition(":")[0] for item in spec.split(",")]
    assert len(kept) >= 7
    assert set(kept) <= set(names)
    assert check(call, spec, "--model", model, version="10.3") == (0, [])


def test_scripts_of_export_are_read(call, fix, tmp_path):
    ended = fix(models.conv_chain(), "--no-repair")
    assert ended.code == 0, ended.err
    out = tmp_path / "my scripts"
    assert call("export", "run", "--as", "trtexec", "--trt-version", "8.6", "-o", out).code == 0
    script = out / "build_engine.sh"
    model = ("--model", "model.onnx")
    assert check(call, script.read_text(), *model) == (0, [])
    text = script.read_text().replace("conv_b:fp32", "conv_x:fp32")
    assert [f["rule"] for f in check(call, text, *model)[1]] == ["unmatched", "unmatched"]
    assert call("constraints", "check", script, *model, "--trt-version", "8.6").code == 2


@pytest.mark.usefixtures("casts")
def test_lint_knows_11_and_10(call):
    model = onnx.load("casts.onnx")
    model.opset_import[0].version = 26
    onnx.save(model, "late.onnx")
    assert call("lint", "late.onnx", "--trt-version", "11").code == 0
    for version, reads in (("10", "20"), ("v8.6", "17"), ("9.3.0.post12.dev1", "19")):
        ended = call("lint", "late.onnx", "--trt-version", version)
        assert f"reads up to {reads}" in ended.out, version
        assert "1 warning" in ended.out, version
