"""The drawn networks of the GPU benches: what is planted in them changes no function but FP16's."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, shape_inference

from bench.gpu import autocast, data, later, sequences, vision
from bench.gpu.blocks import CALIBRATION, HELDOUT, Blocks
from bench.gpu.models import Made
from bench.gpu.networks import NETWORKS
from halfwise.graph.loading import network_from_proto

LARGEST = 65504.0
MOST = 128e6
FACTORS = (
    *((module, name) for module in (sequences, later) for name in ("WIDE", "HEAD")),
    (later, "LOUD"),
    *((vision, n) for n in ("WIDE", "MATCHED", "COSINES", "NORMED")),
)


def outputs(model: onnx.ModelProto, sample: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, sample)]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def largest_inside(made: Made, sample: dict[str, np.ndarray]) -> float:
    """Return the largest magnitude of all values, and of squares that one node takes."""
    model = shape_inference.infer_shapes(made.model)
    for node in made.model.graph.node:
        for name in node.output:
            if name not in {o.name for o in model.graph.output}:
                model.graph.output.append(helper.make_empty_tensor_value_info(name))
    return max(float(np.abs(a).max()) for a in outputs(model, sample))


def products(model: onnx.ModelProto) -> float:
    """Return the multiply-accumulates of all matrix products, convolutions and recurrent nodes."""
    graph = shape_inference.infer_shapes(model).graph
    known = [*graph.value_info, *graph.input, *graph.output]
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in known}
    shapes |= {t.name: list(t.dims) for t in graph.initializer}
    total = 0
    for node in graph.node:
        sizes = [shapes.get(n, []) for n in node.input]
        if node.op_type == "MatMul":
            total += math.prod(shapes[node.output[0]]) * sizes[0][-1]
        elif node.op_type == "Conv":
            total += math.prod(shapes[node.output[0]]) * math.prod(sizes[1][1:])
        elif node.op_type in ("GRU", "LSTM"):
            total += sizes[0][0] * (math.prod(sizes[1]) + math.prod(sizes[2]))
    return total


@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_planted_leaves_fp16s_range_and_the_function_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "photographs", lambda n, shape, **_: drawn(n, 3, *shape))
    monkeypatch.setattr(data, "spectra", drawn)
    planted = NETWORKS[name]()
    sample = {n: a[0] for n, a in planted.inputs.items()}
    assert products(planted.model) <= MOST
    assert len(next(iter(planted.inputs.values()))) == CALIBRATION
    assert len(next(iter(planted.heldout.values()))) == HELDOUT
    for first, second in zip(planted.inputs.values(), planted.heldout.values(), strict=True):
        each = np.concatenate([first, second]).reshape(CALIBRATION + HELDOUT, -1)
        assert len(np.unique(each, axis=0)) == CALIBRATION + HELDOUT
    assert largest_inside(planted, sample) > LARGEST
    for module, constant in FACTORS:
        monkeypatch.setattr(module, constant, 1.0)
    plain = NETWORKS[name]()
    assert largest_inside(plain, sample) < LARGEST
    for wanted, found in zip(
        outputs(plain.model, sample), outputs(planted.model, sample), strict=True
    ):
        np.testing.assert_allclose(found, wanted, atol=2e-4 * float(np.abs(wanted).max()))


def test_spectra_and_words_are_in_their_ranges() -> None:
    spectra = data.spectra(2, 4, 16)
    assert spectra.shape == (2, 4, 16)
    assert np.abs(spectra).max() <= 1
    assert spectra.std() > 0.1
    words = data.words(2, (3, 5), 50)
    assert words.shape == (2, 3, 5)
    assert words.dtype == np.int32
    assert (words[..., -1] == 49).all()
    assert words.max() < 50


def normed() -> onnx.ModelProto:
    b = Blocks(0)
    y = b.layer_norm("norm", b.linear("fc", "x", (4, 4)), 4)
    return b.model("m", {"x": (2, 4)}, {"y": (b.op("Abs", "abs", y), (2, 4))}, opset=17)


def test_a_norm_that_became_one_node_is_what_that_node_is() -> None:
    original = normed()
    mixed: dict[str, Any] = {}
    for kind in ("FLOAT", "FLOAT16"):
        dtype = onnx.TensorProto.DataType.Value(kind)
        nodes = [
            helper.make_node("Cast", ["fc/Add.y"], ["c"], "cast", to=dtype),
            helper.make_node("LayerNormalization", ["c", "g", "b"], ["n"], "one"),
            helper.make_node("Cast", ["n"], ["norm/Add_1.y"], "back", to=onnx.TensorProto.FLOAT),
            *(n for n in original.graph.node if not n.name.startswith("norm/")),
        ]
        order = [3, 4, 0, 1, 2, 5]
        typed = np.float16 if kind == "FLOAT16" else np.float32
        constants = [onnx.numpy_helper.from_array(np.ones(4, typed), n) for n in "gb"]
        graph = helper.make_graph(
            [nodes[i] for i in order],
            "g",
            original.graph.input,
            original.graph.output,
            [*original.graph.initializer, *constants],
        )
        opsets = [helper.make_opsetid("", 17)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        mixed[kind] = network_from_proto(shape_inference.infer_shapes(proto))
    found = autocast.kept(network_from_proto(original), mixed["FLOAT"])
    assert found["lacking"] == []
    assert len(found["nodes"]) == found["compute"] == len(original.graph.node)
    found = autocast.kept(network_from_proto(original), mixed["FLOAT16"])
    assert found["lacking"] == []
    json.dumps(found)
