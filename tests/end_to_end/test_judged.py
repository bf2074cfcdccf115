"""Files that `fix` writes, before judges that know nothing of its emulation.

TensorRT for RTX builds them and computes in FP32 what is kept; WebGPU, in real FP16, gives outputs
that `verify` finds right.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from halfwise.fixing.rewrite import save_checked
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import replace
from halfwise.tools.weights import read_safetensors
from tests import models
from tests.judges import folded
from tests.models import fused
from tests.models.accumulation import mean_beside_products
from tests.unit.fixing.int8.products import outlier, residual
from tests.unit.graph.sketch import Sketch, f32

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


def alone(ill: models.Ill) -> models.Ill:
    """Return a model whose samples are one batch each."""
    return replace(ill, inputs={name: array[:, None] for name, array in ill.inputs.items()})


def inner_weights() -> models.Ill:
    """Weights beyond and below FP16's range in one product whose neighbours FP16 holds."""
    s = Sketch()
    x = s.input("x", [64, 32])
    even = np.repeat([1e-3, 3e3], 16)
    weights = np.zeros((32, 32))
    weights[:16, :16], weights[16:, 16:] = 2e5, 3e-7
    weights *= models.weights(32, 32, seed=3, scale=1)
    before = s.op("Relu", s.op("MatMul", x, f32(np.eye(32)), name="first"), name="before")
    kept = s.op("Relu", s.op("MatMul", before, f32(weights), name="kept"), name="after")
    y = s.op("MatMul", s.op("Mul", kept, f32(even[::-1] ** -0.5)), f32(np.eye(32)), name="last")
    return models.Ill(s.proto(y), {"x": np.abs(models.signals(64, 32, seed=4)) * f32(even)})


def pooled() -> models.Ill:
    """Averages of nine values near 14,000: their sum is beyond FP16's range."""
    s = Sketch()
    x = s.input("x", [1, 2, 8, 8])
    y = s.op("Relu", s.op("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], name="sum"))
    return models.Ill(s.proto(y), {"x": models.signals(1, 2, 8, 8, seed=1) * 300 + 14_000})


def log_sum() -> models.Ill:
    """The exponential of 12 is beyond FP16's range."""
    s = Sketch()
    x = s.op("Mul", s.input("x", [1, 32]), f32(2.0))
    y = s.op("ReduceLogSumExp", x, axes=[1], name="sum")
    return models.Ill(s.proto(y), {"x": models.signals(1, 32, seed=2) * 0.1 + 6})


def cumulative() -> models.Ill:
    """A running sum that stops growing in FP16."""
    s = Sketch()
    sums = s.op("CumSum", s.input("x", [1, 4096]), np.array(1), name="sum")
    y = s.op("Mul", sums, f32(0.01))
    return models.Ill(s.proto(y), {"x": np.abs(models.signals(1, 4096, seed=3))})


def scattered() -> models.Ill:
    """Many values added to few places."""
    s = Sketch(18)
    updates = s.op("Relu", s.input("x", [1, 4096]))
    operands = f32(np.zeros((1, 2))), np.zeros((1, 4096), np.int64), updates
    y = s.op("Relu", s.op("ScatterElements", *operands, axis=1, reduction="add", name="sum"))
    return models.Ill(s.proto(y), {"x": np.abs(models.signals(1, 4096, seed=4))})


def spread() -> models.Ill:
    """A ConvTranspose whose groups add 128 positive products for a value."""
    s = Sketch()
    x = s.input("x", [1, 256, 4, 4])
    kernel = np.abs(models.weights(256, 4 * 9, seed=5, scale=1)).reshape(256, 4, 3, 3)
    y = s.op("Relu", s.op("ConvTranspose", x, f32(kernel), group=2, name="sum"))
    return models.Ill(s.proto(y), {"x": np.abs(models.signals(1, 256, 4, 4, seed=6))})


def mish() -> models.Ill:
    """A Mish, which ONNX has in BF16 from opset 22 on."""
    s = Sketch(22)
    product = s.op("MatMul", s.input("x", [1, 32]), models.weights(32, 32, seed=1, scale=0.1))
    return models.Ill(s.proto(s.op("Mish", product)), {"x": models.signals(1, 32, seed=2)})


def gated() -> models.Ill:
    """A forward GRU among low nodes, which stays in FP32 in BF16."""
    s = Sketch(17)
    low = s.op("Relu", s.input("x", [12, 1, 8]))
    gates = [models.weights(1, 48, width, seed=i, scale=0.2) for i, width in enumerate((8, 16))]
    states = s.op("GRU", low, *gates, hidden_size=16)
    made = s.op("MatMul", states, models.weights(16, 4, seed=3, scale=0.3))
    return models.Ill(s.proto(made), {"x": models.signals(12, 1, 8, seed=4)})


@pytest.fixture
def built(rtx):
    """The builder takes a file, and computes the products that it has in FP32 so."""

    def built(file):
        build = rtx.build(file)
        assert build.built, build.errors
        assert folded(build.kernels, onnx.load(file)) == ()

    return built


@pytest.fixture
def right(webgpu, call, tmp_path):
    """WebGPU computes a file on the samples of an archive; `verify` judges what it computes."""

    def right(file, model, inputs, *tolerance, code=0):
        with np.load(inputs) as arrays:
            given = dict(arrays)
        count = len(next(iter(given.values())))
        ran = webgpu.run(file, [{n: a[i] for n, a in given.items()} for i in range(count)])
        stacked = {n: np.stack([outputs[n] for outputs in ran]) for n in ran[0]}
        np.savez(tmp_path / "webgpu.npz", **stacked)  # type: ignore[arg-type]
        ended = call("verify", model, "webgpu.npz", "--inputs", inputs, *tolerance)
        assert ended.code == code, ended.out + ended.err

    return right


@pytest.fixture
def wrong(right):
    """WebGPU computes a file; `verify` finds what it computes wrong."""
    return partial(right, code=10)


@pytest.mark.parametrize(
    "make",
    [
        *(models.conv_chain, models.root_mean_square, models.layer_norm),
        *(models.batch_norm, models.huge_weights, models.mask),
    ],
)
def test_repaired_models(fix, built, right, make):
    ended = fix(make())
    assert ended.code == 0, ended.out
    built(ended.model)
    right(ended.model, "model.onnx", "model.npz")


@pytest.mark.parametrize(
    ("make", "options"),
    [
        # Its squares are kept in either case, their sum where sums are in FP16, as on WebGPU.
        (models.layer_norm, ("--accumulate", "fp16")),
        *((make, ()) for make in (models.huge_weights, models.tiny_weights, inner_weights)),
        *((make, ()) for make in (models.rotary, models.logarithm)),
    ],
)
def test_models_with_kept_nodes(fix, built, right, make, options):
    ended = fix(make(), "--no-repair", *options)
    assert ended.code == 0, ended.out
    assert ended.kept
    built(ended.model)
    right(ended.model, "model.onnx", "model.npz")


@pytest.mark.parametrize("make", [models.conv_chain, models.batch_norm, models.huge_weights])
def test_weights_written_back(call, fix, right, wrong, tmp_path, make):
    ill = make()
    ended = fix(ill, "--only", "fp16")
    assert ended.code == 0, ended.out
    ended = call("export", "run", "--as", "weights", "-o", "new.safetensors")
    assert ended.code == 0, ended.err
    new = read_safetensors(tmp_path / "new.safetensors")
    table = json.loads((tmp_path / "new.safetensors.json").read_text())
    assert table["not_folded"] == []
    attributes = [row for row in table["changes"] if row["attribute"]]
    assert ("note:" in ended.err) == bool(attributes)
    changed = onnx.ModelProto()
    changed.CopyFrom(ill.proto)
    for tensor in changed.graph.initializer:
        if tensor.name in new:
            tensor.CopyFrom(onnx.numpy_helper.from_array(new[tensor.name], tensor.name))
    for node in changed.graph.node:
        for attribute in node.attribute:
            for row in attributes:
                if (row["nodes"], row["name"]) == ([node.name], attribute.name):
                    attribute.f = row["after"]
    onnx.save(changed, tmp_path / "new.onnx")
    exact = call(
        "verify", "model.onnx", "new.onnx", "--inputs", "model.npz", "-o", "exact", folder="exact"
    )
    (output,) = exact.record["verdict"]["outputs"].values()
    assert output["snr_db"] == "Infinity" or output["snr_db"] > 100
    for network, judge in ((changed, right), (ill.proto, wrong)):
        low = tmp_path / "low.onnx"
        read = network_from_proto(network)
        save_checked(rewrite(read, roles_of(read), frozenset(), FP16).model, low)
        judge(low, "model.onnx", "model.npz")


SUMS = [pooled, log_sum, cumulative, scattered, spread, partial(mean_beside_products, 16)]


@pytest.mark.parametrize("make", SUMS)
def test_what_webgpu_sums_in_fp16(fix, wrong, make):
    ended = fix(make(), "--no-repair")
    assert ended.code == 0, ended.out
    assert ended.record["verdict"]["sums"] == "fp32"
    wrong(ended.model, "model.onnx", "model.npz")


@pytest.mark.parametrize("make", [pooled, cumulative])
def test_what_holds_with_sums_in_fp16(fix, right, make):
    ended = fix(make(), "--no-repair", "--accumulate", "fp16")
    assert ended.code == 0, ended.out
    assert "sum" in ended.kept
    right(ended.model, "model.onnx", "model.npz")


HIDDEN = [
    partial(fused.multi_head, fused.BEYOND),
    partial(fused.packed, fused.BEYOND),
    partial(fused.skip_norm, 3000.0),
]


@pytest.mark.parametrize("make", HIDDEN)
def test_webgpu_has_in_fp32_what_fused_operators_hide(fix, right, make):
    """So the guards on it are only suspicions, and keep nothing."""
    ended = fix(make())
    assert (ended.code, ended.kept) == (0, set())
    assert any("what" in guard["names"] for guard in ended.record["guards"])
    right(ended.model, "model.onnx", "model.npz")


@pytest.mark.parametrize("make", [models.residual, models.huge_weights, mish, gated])
def test_bf16(fix, built, make):
    ended = fix(make(), "--to", "bf16")
    assert ended.code == 0, ended.out
    built(ended.model)


@pytest.mark.parametrize("ill", [residual(), outlier(factor=200)], ids=["convolutions", "products"])
def test_int8(fix, built, right, ill):
    tolerance = ("--require", "snr-db=25")
    ended = fix(alone(ill), "--to", "int8", "--allow", "random", *tolerance)
    assert ended.code == 0, ended.out
    assert ended.record["plan"]["int8"]
    built(ended.model)
    right(ended.model, "model.onnx", "model.npz", "--allow", "random", *tolerance)


@pytest.mark.slow
def test_the_bundled_example(call, built, right):
    model, heldout = DIGITS / "model.onnx", DIGITS / "heldout.npz"
    inputs = ("--inputs", DIGITS / "inputs.npz", "--heldout", heldout)
    ended = call("fix", model, *inputs, "-o", "run")
    assert ended.code == 0, ended.out
    built(ended.model)
    right(ended.model, model, heldout)
