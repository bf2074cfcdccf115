"""What cannot be used ends with one clear message, the right exit code, and no run folder."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import models
from tests.end_to_end.conftest import fixing
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def unfit(refused, files, tmp_path):
    """Give a good model inputs that it cannot take; return the message."""

    def unfit(exit_code=3, **arrays):
        np.savez(tmp_path / "unfit.npz", **arrays)
        return refused(exit_code, "fix", files[0], "--inputs", "unfit.npz", "-o", "run")

    return unfit


@pytest.mark.usefixtures("files")
def test_from_a_shell(tmp_path, environment):
    (tmp_path / "text.onnx").write_text("This is no model.\n" * 100)
    command = [sys.executable, "-m", "halfwise", *fixing("text.onnx")]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert "error: text.onnx is not an ONNX model" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("files")
def test_not_onnx(refused, tmp_path):
    for name, content in {"text": b"no model", "empty": b"", "image": b"\x89PNG\r\n\x1a\n"}.items():
        (tmp_path / f"{name}.onnx").write_bytes(content)
        assert "not an ONNX model" in refused(3, *fixing(f"{name}.onnx"))
    assert "no file" in refused(3, *fixing("missing.onnx"))
    (tmp_path / "folder.onnx").mkdir()
    assert "not a file" in refused(3, *fixing("folder.onnx"))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_truncated(refused, files, part):
    content = files[0].read_bytes()
    files[0].write_bytes(content[: int(part * len(content))])
    message = refused(3, *fixing(files[0]))
    assert "truncated" in message or "refuses" in message or "cannot be read" in message


@pytest.fixture
def external(saved):
    """A model with its weights in a file of their own."""

    def external():
        ill = models.small()
        model, _ = saved(ill)
        onnx.save(
            ill.proto, model, save_as_external_data=True, location="weights.bin", size_threshold=0
        )
        return model

    return external


def test_external_data_missing(refused, external, tmp_path):
    model = external()
    (tmp_path / "weights.bin").unlink()
    message = refused(3, *fixing(model))
    assert "weights.bin" in message
    assert "missing" in message


def test_external_data_truncated(refused, external, tmp_path):
    model = external()
    (tmp_path / "weights.bin").write_bytes(b"\0" * 10)
    assert "truncated" in refused(3, *fixing(model))


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd"])
def test_external_data_outside_the_folder(refused, external, tmp_path, location):
    model = external()
    (tmp_path.parent / "weights.bin").write_bytes((tmp_path / "weights.bin").read_bytes())
    proto = onnx.load(model, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(proto, model)
    message = refused(3, *fixing(model))
    assert "outside its own folder" in message
    assert location in message


def test_external_data_through_a_link_outside(refused, external, tmp_path):
    model = external()
    (tmp_path / "weights.bin").rename(tmp_path.parent / "elsewhere.bin")
    (tmp_path / "weights.bin").symlink_to(tmp_path.parent / "elsewhere.bin")
    assert "outside its own folder" in refused(3, *fixing(model))


@pytest.mark.usefixtures("files")
def test_custom_operator(refused):
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16]) for n in ("x", "y")]
    node = helper.make_node("Swirl", ["x"], ["y"], domain="com.example")
    graph = helper.make_graph([node], "custom", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), "custom.onnx")
    message = refused(3, *fixing("custom.onnx"))
    assert "com.example::Swirl" in message
    assert "--ort-library" in message


def test_operator_library_that_is_none(refused, files, tmp_path):
    assert "missing.so" in refused(3, *fixing(*files, "--ort-library", "missing.so"))
    (tmp_path / "text.so").write_text("no library")
    assert "text.so" in refused(3, *fixing(*files, "--ort-library", "text.so"))


@pytest.mark.usefixtures("files")
def test_a_model_without_floats(refused, tmp_path):
    sketch = Sketch()
    x = sketch.input("x", [1, 4], TensorProto.INT64)
    onnx.save(sketch.proto(sketch.op("Add", x, [1], name="add")), tmp_path / "integers.onnx")
    np.savez(tmp_path / "x.npz", x=np.arange(16).reshape(4, 1, 4))
    assert "no FP32 tensor" in refused(3, *fixing("integers.onnx", "x.npz"))


def of_type(path, nodes, given=TensorProto.FLOAT, got=TensorProto.FLOAT):
    values = [helper.make_tensor_value_info(n, t, [1, 4]) for n, t in (("x", given), ("y", got))]
    made = [helper.make_node(op, i.split(), [o], name=o, **a) for op, i, o, a in nodes]
    graph = helper.make_graph(made, "g", values[:1], values[1:])
    opset = helper.make_opsetid("", 21)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((4, 1, 4)).astype(np.float32))
    return fixing(path, "x.npz")


@pytest.mark.usefixtures("files")
def test_a_cyclic_graph(refused):
    nodes = [("Add", "x b", "a"), ("Relu", "a", "b"), ("Neg", "b", "y")]
    cyclic = of_type("cyclic.onnx", [(*node, {}) for node in nodes])
    assert "contains a cycle" in refused(3, *cyclic)


@pytest.mark.usefixtures("files")
def test_an_ill_typed_graph(refused):
    nodes = [("Cast", "x", "whole", {"to": TensorProto.INT64}), ("Add", "x whole", "y", {})]
    message = refused(3, *of_type("typed.onnx", nodes))
    assert "INT64" in message
    assert "refuses" in message


@pytest.mark.parametrize("name", ["DOUBLE", "FLOAT8E4M3FN", "INT4", "COMPLEX64", "STRING"])
@pytest.mark.usefixtures("files")
def test_a_model_of_other_types_alone(refused, name):
    dtype = TensorProto.DataType.Value(name)
    fixed = of_type("other.onnx", [("Identity", "x", "y", {})], dtype, dtype)
    message = refused(3, *fixed)
    # Arrays of some types cannot be given at all, and that is told first.
    assert (
        f"no FP32 tensor whose precision halfwise could choose; its types are {name}" in message
        or ("has dtype float32; expected" in message)
    )


@pytest.mark.parametrize("name", ["DOUBLE", "FLOAT8E4M3FN", "INT4"])
@pytest.mark.usefixtures("files")
def test_other_types_between_fp32_nodes_stay_as_they_are(call, name):
    to = [{"to": TensorProto.DataType.Value(t)} for t in (name, "FLOAT")]
    nodes = [("Tanh", "x", "t", {}), ("Cast", "t", "c", to[0]), ("Cast", "c", "y", to[1])]
    ended = call(*of_type("between.onnx", nodes))
    assert ended.code in (0, 10)
    model = onnx.shape_inference.infer_shapes(onnx.load(ended.model))
    types = {v.name: v.type.tensor_type.elem_type for v in model.graph.value_info}
    assert types["c"] == TensorProto.DataType.Value(name)


@pytest.mark.usefixtures("files")
def test_a_model_without_inputs(refused, tmp_path):
    sketch = Sketch()
    constant = sketch.constant(np.ones(3))
    onnx.save(sketch.proto(sketch.op("Relu", constant, name="relu")), tmp_path / "constant.onnx")
    assert "The model has no inputs" in refused(3, *fixing("constant.onnx"))


def test_unknown_input_name(refused, saved, tmp_path):
    model, _ = saved(models.mask())
    scores = np.zeros((4, 1, 8, 8), np.float32)
    np.savez(tmp_path / "names.npz", scores=scores, mask=scores[:, :, :1])
    message = refused(3, *fixing(model, "names.npz"))
    assert "mask" in message
    assert "allowed" in message


def test_missing_input(refused, saved, tmp_path):
    model, _ = saved(models.mask())
    np.savez(tmp_path / "names.npz", scores=np.zeros((4, 1, 8, 8), np.float32))
    assert "allowed" in refused(3, *fixing(model, "names.npz"))


def test_wrong_dtype(unfit):
    assert "complex64" in unfit(x=np.zeros((4, 1, 16), np.complex64))
    assert "<U1" in (message := unfit(x=np.full((4, 1, 16), "a"))) or "str" in message


def test_wrong_rank_and_shape(unfit):
    assert "'x'" in unfit(x=np.zeros((2, 4, 1, 16), np.float32))
    assert "'x'" in unfit(x=np.zeros((4, 1, 15), np.float32))
    assert "'x'" in unfit(x=np.zeros(16, np.float32))


def test_empty_data(refused, unfit, files, tmp_path):
    unfit(x=np.zeros((0, 1, 16), np.float32))
    unfit()
    (tmp_path / "nothing").mkdir()
    refused(3, *fixing(files[0], "nothing"))
    (tmp_path / "empty.npz").write_bytes(b"")
    refused(3, *fixing(files[0], "empty.npz"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite(unfit, value):
    data = np.zeros((8, 1, 16), np.float32)
    data[5, 0, 3] = value
    message = unfit(x=data)
    assert "unfit.npz[5]" in message
    assert ("NaN" if np.isnan(value) else "inf") in message


def test_object_arrays(refused, files, tmp_path):
    ragged = np.array([np.zeros(3), np.zeros(4)], dtype=object)
    np.savez(tmp_path / "objects.npz", x=ragged, allow_pickle=True)
    np.save(tmp_path / "objects.npy", ragged, allow_pickle=True)
    assert "object array" in refused(3, *fixing(files[0], "objects.npz"))
    assert "object array" in refused(3, *fixing(files[0], "objects.npy"))


def test_inputs_that_are_not_there(refused, files):
    assert "missing.npz" in refused(3, *fixing(files[0], "missing.npz"))


def test_images_without_a_function(refused, files, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"\x89PNG")
    assert "--preprocess" in refused(2, *fixing(files[0], "images"))


def test_a_users_function_that_fails(refused, files, tmp_path):
    (tmp_path / "samples.py").write_text("def make():\n    yield {}\n    raise ValueError('bad')\n")
    refused(3, *fixing(files[0], "samples.py:make"))
    (tmp_path / "broken.py").write_text("def make(:\n")
    assert "broken.py" in refused(3, *fixing(files[0], "broken.py:make"))
    assert "absent" in refused(3, *fixing(files[0], "samples.py:absent"))


def test_random_inputs_are_not_real_data(call, files):
    ended = call(*fixing(files[0], "random"))
    assert ended.code == 10
    verdict = ended.record["verdict"]
    assert not verdict["passed"]
    assert [failure["kind"] for failure in verdict["failures"]] == ["not-real"]
    assert "not real data" in ended.out
    allowed = call(
        *("fix", files[0], "--inputs", "random", "-o", "allowed", "--allow", "random"),
        folder="allowed",
    )
    assert allowed.code == 0
    assert allowed.record["verdict"]["passed"]
    assert any("random" in warning for warning in allowed.record["warnings"])


@pytest.mark.parametrize("draw", ["normal", "uniform"])
def test_noise_in_a_file_is_judged_as_the_word_random(call, files, draw):
    with np.load(files[1]) as given:
        shape = (200, *given["x"].shape[1:])
    noise = getattr(np.random.default_rng(0), draw)(0, 1, shape).astype(np.float32)
    np.savez("noise.npz", x=noise)
    ended = call(*fixing(files[0], "noise.npz"))
    assert ended.code == 10
    (failure,) = ended.record["verdict"]["failures"]
    assert failure["kind"] == "not-real"
    assert "--allow random" in failure["text"]
    allowed = call(
        *("fix", files[0], "--inputs", "noise.npz", "-o", "allowed", "--allow", "random"),
        folder="allowed",
    )
    assert allowed.code == 0


def test_random_inputs_are_repeatable(call, files):
    first, again = (
        call("fix", files[0], "--inputs", "random", "-o", f"run{i}", folder=f"run{i}").record
        for i in range(2)
    )
    assert first["provenance"]["inputs_sha256"] == again["provenance"]["inputs_sha256"]


@pytest.mark.parametrize("content", ["{", "[]", "{}", json.dumps({"schema_version": 99})])
def test_a_run_folder_that_is_none(refused, tmp_path, content):
    (tmp_path / "odd").mkdir()
    refused(7, "report", "odd")
    (tmp_path / "odd" / "run.json").write_text(content)
    assert "run.json" in refused(7, "report", "odd")
    refused(7, "report", "absent")


@pytest.mark.usefixtures("files")
def test_what_is_mistaken_for_a_model(refused):
    Path("pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "a pointer of Git LFS, not an ONNX model" in refused(3, *fixing("pointer.onnx"))
    assert "a zip archive" in refused(3, *fixing("model.npz"))
    Path("page.onnx").write_text("\n\n<!DOCTYPE html><html></html>")
    assert "a web page, not an ONNX model" in refused(3, *fixing("page.onnx"))
    Path("openvino.onnx").write_text('<?xml version="1.0"?><net name="m" version="11"></net>')
    assert "is not an ONNX model" in refused(3, *fixing("openvino.onnx"))


def test_a_model_that_nothing_here_reads(refused, files):
    proto = onnx.load(files[0])
    proto.opset_import[0].version = 99
    onnx.save(proto, files[0])
    assert "opset 99; onnx" in refused(3, *fixing(files[0]))
    del proto.graph.output[:]
    onnx.save(proto, files[0])
    assert "has no outputs" in refused(3, *fixing(files[0]))


def test_an_array_of_another_name_is_told_and_one_without_a_name_is_not(call, files):
    for name, told in (("other", True), ("arr_0", False)):
        with np.load(files[1]) as given:
            np.savez("named.npz", **{name: given["x"]})
        ended = call("observe", files[0], "--inputs", "named.npz")
        assert ended.code == 0
        assert ("is taken for this input" in ended.err) is told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--rel-max", "abc"), "--rel-max is 'abc'; expected a number."),
        (("--to", "fp8"), "--to is 'fp8'; expected fp16, bf16 or int8."),
        (("--budget", "builds=1.5"), "--budget builds is '1.5'; expected an integer."),
        (("--rel-max", "2"), "outputs zeros; expected less than 1."),
        (("--labels", ""), "--labels is empty"),
        (("--labels=",), "--labels is empty"),
    ],
)
def test_values_that_an_option_does_not_take(refused, files, options, told):
    assert told in refused(2, *fixing(*files, *options))
