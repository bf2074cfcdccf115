"""A product that a plan keeps for its weights has them in FP32 in an engine of TensorRT, too."""

import numpy as np
import onnx
import pytest

from halfwise.store import read_run
from tests.judges import folded
from tests.models import Ill
from tests.unit.graph.sketch import Sketch, f32

SIZE = 32
LARGE, SMALL = 2e5, 3e-7
"""Beyond FP16's range, and five of its smallest steps: no scale brings both into range."""


def weights(seed: int, large: float = LARGE, small: float = SMALL) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found = np.zeros((2 * SIZE, 2 * SIZE), np.float32)
    found[:SIZE, :SIZE] = np.abs(rng.normal(size=(SIZE, SIZE))) * large
    found[SIZE:, SIZE:] = np.abs(rng.normal(size=(SIZE, SIZE))) * small
    return found


def even(s: Sketch, x: str) -> str:
    """Bring both halves of columns to the same magnitude."""
    return s.op("Mul", x, np.repeat(f32([1e-3, 1.0]), SIZE), name="even")


def plain(s: Sketch, x: str, w: np.ndarray) -> str:
    return s.op("Relu", s.op("MatMul", x, w, name="kept"))


def after_relu(s: Sketch, x: str, w: np.ndarray) -> str:
    return even(s, plain(s, x, w))


def after_softmax(s: Sketch, x: str, w: np.ndarray) -> str:
    scaled = s.op("MatMul", x, w, name="kept")
    return s.op("Softmax", s.op("Mul", scaled, np.repeat(f32([1e-4, 0.5]), SIZE)))


def after_product(s: Sketch, x: str, w: np.ndarray) -> str:
    spread = np.diag(np.repeat(f32([1e-3, 1.0]), SIZE))
    return s.op("MatMul", s.op("MatMul", x, w, name="kept"), spread, name="next")


def after_convolution(s: Sketch, x: str, w: np.ndarray) -> str:
    x = s.op("Unsqueeze", s.op("Transpose", x), [0, 3])
    y = s.op("Relu", s.op("Conv", x, w.T.copy()[:, :, None, None], name="kept"))
    return even(s, s.op("Transpose", s.op("Squeeze", y, [0, 3])))


def made(put, w, sizes=(1e-3, 3e3)) -> Ill:
    s = Sketch()
    x = s.op("Relu", s.op("MatMul", s.input("x", [64, 2 * SIZE]), np.eye(2 * SIZE)))
    y = s.op("MatMul", put(s, x, w), np.eye(2 * SIZE), name="last")
    rng = np.random.default_rng(1)
    samples = np.abs(rng.normal(size=(8, 64, 2 * SIZE))).astype(np.float32)
    samples *= np.repeat(f32(sizes), SIZE)
    return Ill(s.proto(y), {"x": samples})


def held(engine: bytes, array: np.ndarray) -> float:
    """Return the share of an array's elements whose FP32 bits are in an engine."""
    aligned = np.frombuffer(engine[: len(engine) // 4 * 4], np.uint32)
    return float(np.isin(array[array != 0].view(np.uint32), aligned).mean())


PUTS = (after_relu, after_softmax, after_product, after_convolution)


@pytest.mark.parametrize("put", PUTS, ids=lambda put: put.__name__)
def test_the_engine_holds_the_fp32_weights(fix, call, rtx, put):
    w = weights(1)
    ended = fix(made(put, w), "--no-repair")
    assert ended.code == 0
    assert "kept" in ended.kept
    again = call(
        "verify", "model.onnx", ended.model, "--inputs", "model.npz", "-o", "again", folder="again"
    )
    assert again.code == 0, again.out
    assert again.record["remade"] is None
    build = rtx.build(ended.model)
    assert build.built
    assert folded(build.kernels, onnx.load(ended.model)) == ()
    assert held(build.engine, w) == 1


def test_a_mark_makes_no_anchor_of_another_node(fix, call, tmp_path):
    """A file that scales behind a product, and marks that as an anchor, is not the original."""
    ended = fix(made(after_relu, weights(1)), "--no-repair")
    model = onnx.load(ended.model)
    (anchor,) = [n for n in model.graph.node if n.op_type == "LeakyRelu"]
    anchor.attribute[0].f = 0.999
    onnx.save(model, tmp_path / "other.onnx")
    judged = call(
        "verify", "model.onnx", "other.onnx", "--inputs", "model.npz", "-o", "again", folder="again"
    )
    assert judged.record["remade"]["differs"] == anchor.name


def test_without_the_anchor_the_weights_are_rounded(fix, call, rtx, tmp_path):
    """The same file as another tool writes it fails, and the node is named."""
    w = weights(1)
    ended = fix(made(after_relu, w), "--no-repair")
    model = onnx.load(ended.model)
    anchors = [n for n in model.graph.node if n.op_type == "LeakyRelu"]
    assert [n.input[0] for n in anchors] == ["kept_out"]
    for reader in model.graph.node:
        for i, name in enumerate(reader.input):
            reader.input[i] = "kept_out" if name == anchors[0].output[0] else name
    model.graph.node.remove(anchors[0])
    other = tmp_path / "other.onnx"
    onnx.save(model, other)
    build = rtx.build(other)
    assert folded(build.kernels, model) == ("kept",)
    assert held(build.engine, w) < 0.1
    verified = call("verify", "model.onnx", other, "--inputs", "model.npz", "-o", "verified")
    assert verified.code == 10
    run = read_run(tmp_path / "verified")
    assert [n.facts["nodes"] for n in run.provenance.notes if n.kind == "folded"] == [("kept",)]
    verified = call("verify", "model.onnx", ended.model, "--inputs", "model.npz", "-o", "own")
    assert verified.code == 0
    assert not [n for n in read_run(tmp_path / "own").provenance.notes if n.kind == "folded"]


def test_bf16_too(fix, rtx):
    w = np.random.default_rng(3).normal(size=(2 * SIZE, 2 * SIZE)).astype(np.float32)
    ill = made(plain, w)
    ended = fix(ill, "--to", "bf16", "--keep", "kept", "--no-repair")
    build = rtx.build(ended.model)
    assert folded(build.kernels, onnx.load(ended.model)) == ()
    assert held(build.engine, w) == 1


@pytest.mark.parametrize("options", [(), ("--io", "fp16"), ("--keep", "kept")])
def test_where_rounding_is_harmless_the_plan_is_as_asked(fix, rtx, options):
    ill = made(plain, weights(1, large=1.0, small=1.0), sizes=(1, 1))
    ended = fix(ill, *options)
    assert ended.code == 0
    assert ended.kept == ({"kept"} if "--keep" in options else set())
    build = rtx.build(ended.model)
    assert folded(build.kernels, onnx.load(ended.model)) == ()
