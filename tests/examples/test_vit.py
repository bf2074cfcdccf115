"""The bundled digits example: its builder, its planted overflows and its bundled files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from bench import vit as bench
from examples.digits import vit

DIGITS = Path(vit.__file__).parent
FP16_MAX = float(np.finfo(np.float16).max)


def small_weights() -> dict[str, np.ndarray]:
    return vit.random_weights(7, dim=16, depth=2, heads=2, patch=2, image=8, classes=5, channels=3)


def build(
    weights: dict[str, np.ndarray], *, opset: int = 16, dynamic_batch: bool = True
) -> onnx.ModelProto:
    return vit.build_vit(
        weights, heads=2, patch=2, image=8, opset=opset, dynamic_batch=dynamic_batch
    )


def run(model: onnx.ModelProto, images: np.ndarray, fetch: Sequence[str] = ()) -> list[np.ndarray]:
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in fetch
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(probe.SerializeToString(), options, ["CPUExecutionProvider"])
    values: list[np.ndarray] = session.run(None, {"images": images})
    return values


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((4, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def bundled() -> onnx.ModelProto:
    return onnx.load(DIGITS / "model.onnx")


@pytest.mark.parametrize("opset", [13, 16, 18])
def test_checks_with_every_tensor_typed_and_runs(opset: int, images: np.ndarray) -> None:
    model = build(small_weights(), opset=opset)
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    typed = {value.name for value in (*inferred.graph.value_info, *inferred.graph.output)}
    assert typed >= {name for node in model.graph.node for name in node.output}
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)
    for batch in (1, 4):
        assert run(model, images[:batch])[0].shape == (batch, 5)


def test_static_batch_is_the_same_function(images: np.ndarray) -> None:
    static = build(small_weights(), dynamic_batch=False)
    onnx.checker.check_model(static, full_check=True)
    assert not {node.op_type for node in static.graph.node} & {"Shape", "Expand"}
    expected = run(build(small_weights()), images[:1])[0]
    np.testing.assert_allclose(run(static, images[:1])[0], expected, rtol=1e-5, atol=1e-6)


def test_rescale_residual_keeps_the_function(images: np.ndarray) -> None:
    weights = small_weights()
    # A large epsilon, so that forgetting to scale it would show.
    weights.update({k: np.float32(0.1) * np.ones_like(v) for k, v in weights.items() if "eps" in k})
    plain, scaled = (build(w) for w in (weights, vit.rescale_residual(weights, 600.0)))
    stream = "/blocks.1/Add_1_output_0"
    logits, before = run(plain, images, [stream])
    logits_scaled, after = run(scaled, images, [stream])
    np.testing.assert_allclose(after, 600.0 * before, rtol=1e-4, atol=1e-1)
    np.testing.assert_allclose(logits_scaled, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "patch", "image"), [(3, 2, 8), (2, 4, 8), (2, 2, 10)])
def test_refuses_sizes_that_contradict_the_weights(heads: int, patch: int, image: int) -> None:
    with pytest.raises(ValueError, match=f"image {image} "):
        vit.build_vit(small_weights(), heads=heads, patch=patch, image=image)


def test_refuses_an_old_opset_and_an_impossible_factor() -> None:
    with pytest.raises(ValueError, match="at least 13"):
        build(small_weights(), opset=12)
    with pytest.raises(ValueError, match="positive and finite"):
        vit.rescale_residual(small_weights(), 0.0)


def test_bench_plant_overflows_only_where_asked(images: np.ndarray) -> None:
    model = build(small_weights())
    norms = ["/blocks.0/norm1", "/blocks.0/norm2", "/blocks.1/norm1", "/blocks.1/norm2", "/norm"]
    squares = [f"{norm}/Pow_output_0" for norm in norms]
    (expected,) = run(model, images)
    bench.plant(model, ["blocks.0.norm2", "norm"])
    onnx.checker.check_model(model, full_check=True)
    logits, *found = run(model, images, squares)
    np.testing.assert_array_equal(logits, expected)
    overflows = [bool(square.max() > FP16_MAX) for square in found]
    assert overflows == [False, True, False, False, True]


def test_bundled_model_is_accurate_on_heldout(bundled: onnx.ModelProto) -> None:
    onnx.checker.check_model(bundled, full_check=True)
    samples = np.load(DIGITS / "heldout.npz")["images"]
    labels = json.loads((DIGITS / "heldout_labels.json").read_text())
    assert samples.shape == (64, 1, 1, 8, 8)
    assert samples.dtype == np.float32
    predicted = run(bundled, samples[:, 0])[0].argmax(-1)
    assert np.mean(predicted == labels) >= 0.97


def test_bundled_samples_do_not_repeat() -> None:
    samples = [np.load(DIGITS / f"{stem}.npz")["images"] for stem in ("inputs", "heldout")]
    assert samples[0].shape == (48, 1, 1, 8, 8)
    assert len(json.loads((DIGITS / "labels.json").read_text())) == 48
    rows = np.concatenate(samples).reshape(48 + 64, -1)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_bundled_layer_norms_overflow_and_nothing_else(bundled: onnx.ModelProto) -> None:
    samples = np.load(DIGITS / "inputs.npz")["images"]
    inferred = onnx.shape_inference.infer_shapes(bundled, strict_mode=True)
    floats = [
        value.name
        for value in inferred.graph.value_info
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    ]
    values = dict(zip(floats, run(bundled, samples[:, 0], floats)[1:], strict=True))
    squares = {name: value for name, value in values.items() if "/Pow" in name}
    assert len(squares) == 13
    for name, value in squares.items():
        per_sample = value.reshape(len(samples), -1).max(axis=1)
        assert (per_sample > FP16_MAX).all(), name
    outside = {name: np.abs(value).max() for name, value in values.items() if "norm" not in name}
    assert max(outside.values()) < FP16_MAX / 2
