"""Where a quantised file's error comes from, on files that onnxruntime.quantization writes."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from tests.models import signals
from tests.unit.graph.qdq import LAYERS, SIZE, Reader, chain, last
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.quantised_layers import GOOD, SAMPLES, model

RNG = np.random.default_rng(0)
IMAGES = f32(RNG.normal(size=(6, 1, 3, 16, 16)))
GIVEN = ("--inputs", "x.npz", "--allow", "random")


def detector() -> onnx.ModelProto:
    """Boxes up to some 320 and scores up to 1, joined at the end."""
    s = Sketch(17)
    x = s.input("x", [1, 3, 16, 16])
    for i, (before, after) in enumerate(((3, 16), (16, 32))):
        kernel = f32(RNG.normal(size=(after, before, 3, 3)) * np.sqrt(2 / (9 * before)))
        x = s.op("Relu", s.op("Conv", x, kernel, f32(np.zeros(after)), name=f"conv{i}"))
    box, score = (f32(RNG.normal(size=(n, 32, 1, 1)) * 0.2) for n in (4, 3))
    boxes = s.op("Conv", x, box, f32([320, 320, 60, 60]), name="boxes")
    scores = s.op("Sigmoid", s.op("Conv", x, score, f32([-4] * 3)), name="scores")
    return s.proto(s.op("Reshape", s.op("Concat", boxes, scores, axis=1, name="join"), [1, 7, -1]))


@pytest.fixture(params=["QDQ", "QOperator"])
def files(request, tmp_path):
    onnx.save(detector(), tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "low.onnx",
        Reader({"x": image} for image in IMAGES),
        quant_format=QuantFormat[request.param],
        per_channel=True,
        weight_type=QuantType.QInt8,
    )
    np.savez(tmp_path / "x.npz", x=IMAGES)


@pytest.mark.usefixtures("files")
def test_boxes_and_scores_with_one_scale_are_named(call):
    judged = call("verify", "float.onnx", "low.onnx", *GIVEN, "--rel-max", "0.05", "-o", "run")
    assert judged.code == 10
    found = judged.record["blame"]
    first = found["left_out"][0]
    assert (first["nodes"], first["op"]) == (["join"], "Concat")
    assert first["share"] > 0.9
    assert first["error"] < 0.1 * found["error"]
    joined = first["joined"]
    assert joined["largest"] <= 1
    assert joined["most"] > 250
    assert joined["largest"] < 1.27 * joined["scale"]
    (flat,) = found["flat"]
    assert flat["axis"] == 1
    assert {i for run in flat["ranges"] for i in range(run[0], run[1] + 1)} == {4, 5, 6}
    assert "join" in judged.out[judged.out.index("Where the error comes from") :]
    compared = call("compare", "float.onnx", *GIVEN, "--b", "low.onnx", screen=True)
    assert compared.code == 10
    assert "join" in compared.out.splitlines()[0]
    (step,) = (s for s in judged.record["next_step"] if s["kind"] == "fix-quantised")
    fixed = call(*step["command"][1:-1], "fixed", folder="fixed")
    assert fixed.code == 0, fixed.err
    assert call("verify", "float.onnx", "fixed/model.onnx", *GIVEN, "--rel-max", "0.05").code == 0


@pytest.mark.usefixtures("in_rtx")
def test_a_file_that_only_a_builder_refuses_has_no_error_to_blame(call, tmp_path):
    def refused(made):
        end = made.graph.output[0]
        for op, taken, given in (
            ("Unique", [end.name], "unique"),
            ("ReduceMax", ["unique"], "most"),
            ("Add", [end.name, "most"], "sum"),
        ):
            made.graph.node.append(onnx.helper.make_node(op, taken, [given], given))
        end.name = "sum"
        return made

    files = refused(model()), refused(model(GOOD))
    found = blamed(call, tmp_path, *files, {"x": SAMPLES}, "--rel-max", "0.3", "--target", "rtx")
    assert found is None


def blamed(call, tmp_path, original, low, inputs, *options):
    onnx.save(original, tmp_path / "float.onnx")
    onnx.save(low, tmp_path / "low.onnx")
    np.savez(tmp_path / "x.npz", **inputs)
    judged = call("verify", "float.onnx", "low.onnx", *GIVEN, "-o", "run", *options)
    assert judged.code == 10
    return judged.record["blame"]


def test_a_range_that_clips_is_blamed_on_what_gives_the_values(call, tmp_path):
    low = model(GOOD | {"second": 0.004})
    found = blamed(call, tmp_path, model(), low, {"x": SAMPLES}, "--rel-max", "0.05")
    (first, *_) = found["left_out"]
    assert first["nodes"] == ["first/relu"]
    assert first["share"] > 0.8


def test_weights_of_four_bits_are_blamed(call, tmp_path):
    coarse = chain(LAYERS[:1], dtype=ml_dtypes.int4, per="tensor")
    float_ = chain([])
    inputs = {"x": signals(2, SIZE, seed=1, peak=25)}
    found = blamed(call, tmp_path, float_.proto(last(float_)), coarse.proto(last(coarse)), inputs)
    assert found["left_out"][0]["nodes"] == ["first"]
    assert found["bare"] < 0.1 * found["error"]


def test_what_is_wrong_without_quantisation_is_told(call, tmp_path):
    low = model(GOOD)
    wrong = next(node for node in low.graph.node if node.name == "third/relu")
    wrong.op_type = "Abs"
    found = blamed(call, tmp_path, model(), low, {"x": SAMPLES}, "--rel-max", "0.05")
    assert found["left_out"] == []
    assert found["bare"] > 0.5 * found["error"]


def test_a_part_that_joins_stored_integers_is_blamed(call, tmp_path):
    """Its pair has stored integers alone, and no scale of what is joined."""
    stored, turn = f32(RNG.normal(size=(1, SIZE))), f32(RNG.normal(size=(2 * SIZE, 4)))

    def made(low):
        s = Sketch(17)
        codes = np.rint(stored / 0.5).astype(np.int8)
        given = (
            s.op("DequantizeLinear", codes, 0.5, np.zeros((), np.int8))
            if low
            else s.constant(stored)
        )
        joined = s.op("Concat", s.input("x", [1, SIZE]), given, axis=1, name="join")
        return s.proto(s.op("MatMul", joined, turn, name="end"))

    found = blamed(call, tmp_path, made(False), made(True), {"x": signals(1, SIZE, seed=1)})
    (first,) = found["left_out"]
    assert (first["nodes"], first["joined"]) == (["join"], None)
