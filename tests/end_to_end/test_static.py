"""Models that TensorRT takes only with the samples' shapes fixed: `fix` writes that form."""

import shlex

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.models import Ill, weights
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(0)
X = f32(RNG.normal(size=(6, 1, 5, 16)))
GIVEN = ("--allow", "random")


def axes_by_rank() -> Ill:
    """Centred rows: the axis of the mean is computed from the rank, which no parser folds."""
    s = Sketch(18)
    x = s.op("MatMul", s.input("x", ["n", "t", 16]), weights(16, 16, seed=1, scale=0.25))
    axes = s.op("Sub", s.op("Shape", s.op("Shape", x)), [1])
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes, name="mean"))
    return Ill(s.proto(s.op("Tanh", centred)), {"x": X})


def shapes(path):
    """Return the sizes of a file's inputs, names where they are free."""
    (value,) = onnx.load(path).graph.input
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


def test_the_form_with_fixed_shapes_is_written_and_named(fix, tmp_path):
    ended = fix(axes_by_rank(), *GIVEN, screen=True)
    assert ended.code == 0
    static = tmp_path / "run" / "model.static.onnx"
    assert shapes(ended.model)[1:] == ["t", 16]
    assert shapes(static) == [1, 5, 16]
    (build, *_) = (s for s in ended.record["next_step"] if s["kind"] == "build")
    assert "--onnx=run/model.static.onnx" in build["command"]
    assert not any("Shapes" in word for word in build["command"])
    assert "samples' shapes fixed (x: 1×5×16), as in model.static.onnx" in " ".join(
        ended.out.split()
    )
    onnx.checker.check_model(onnx.load(static), full_check=True)
    outputs = [ort.InferenceSession(p).run(None, {"x": X[0]}) for p in (ended.model, static)]
    np.testing.assert_array_equal(*outputs)


def test_the_builder_refuses_one_form_and_takes_the_other(fix, rtx, tmp_path):
    model = fix(axes_by_rank(), *GIVEN).model
    refused = rtx.build(model, shapes={"x": [(1, 5, 16)] * 3})
    assert not refused.built
    assert "constant" in refused.errors[0].text
    assert rtx.build(tmp_path / "run" / "model.static.onnx").built


@pytest.mark.usefixtures("in_rtx")
def test_a_target_that_builds_judges_that_form(fix, call, tmp_path):
    ended = fix(axes_by_rank(), *GIVEN, "--target", "rtx")
    assert ended.code == 0, ended.err
    built = ended.record["verdict"]["as_file"][-1]
    assert built["built"]
    assert "constant" in built["static"]
    assert (tmp_path / "run" / "model.static.onnx").exists()
    given = ("--inputs", "model.npz", *GIVEN, "--target", "rtx", "-o")
    judged = call("verify", "model.onnx", "run/model.onnx", *given, "again", folder="again")
    assert judged.code == 0
    assert "constant" in judged.record["verdict"]["as_file"][-1]["static"]


def test_what_no_fixed_shape_decides_stays_unbuilt(fix, tmp_path):
    s = Sketch(18)
    x, axes = s.input("x", ["n", "t", 16]), s.input("axes", [1], onnx.TensorProto.INT64)
    y = s.op("Sub", x, s.op("ReduceMean", x, axes, name="mean"))
    ended = fix(Ill(s.proto(y), {"x": X, "axes": np.full((6, 1), 2)}), *GIVEN)
    assert not (tmp_path / "run" / "model.static.onnx").exists()
    assert any(note["kind"] == "unbuilt" for note in ended.record["provenance"]["notes"])
    assert not any(step["kind"] == "build" for step in ended.record["next_step"])


def test_samples_of_several_shapes_have_no_one_form(call, tmp_path):
    onnx.save(axes_by_rank().proto, tmp_path / "model.onnx")
    for i, length in enumerate((4, 5, 6, 7)):
        (tmp_path / "data").mkdir(exist_ok=True)
        np.savez(tmp_path / "data" / f"{i}.npz", x=f32(RNG.normal(size=(1, length, 16))))
    ended = call("fix", "model.onnx", "--inputs", "data", "-o", "run", *GIVEN)
    assert ended.code == 0, ended.err
    assert not (tmp_path / "run" / "model.static.onnx").exists()


def test_engines_are_built_from_the_form_with_fixed_shapes(engines):
    ended = engines(axes_by_rank(), *GIVEN, version="11.4.0")
    assert ended.code == 0, ended.err
    assert shapes(ended.model) == [1, 5, 16]
    (note,) = (n for n in ended.record["provenance"]["notes"] if n["kind"] == "static")
    assert note["facts"]["file"] == "model.onnx"


def test_the_engine_of_the_named_form_is_judged(fix, call, fake_worker):
    ended = fix(axes_by_rank(), *GIVEN)
    (prove,) = (s for s in ended.record["next_step"] if s["kind"] == "prove")
    assert "run/model.static.onnx" in prove["command"]
    command = shlex.join(fake_worker("11.4.0"))
    words = ["model.npz" if word == "DATA" else word for word in prove["command"][1:]]
    judged = call(*words, "--trt-command", command, "-o", "engine", folder="engine")
    assert judged.code == 0, judged.err
