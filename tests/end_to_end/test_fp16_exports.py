"""Models that store FP16 or BF16 already: exports, islands in them, their inputs and outputs."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from halfwise.formats import BF16, FP16, Format
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import float_io, roles_of
from halfwise.records import replace
from tests import models
from tests.models import Ill
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch

HALF, SINGLE, BRAIN = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16


def exported(ill: Ill, *islands: str, low_io: bool = True, fmt: Format = FP16) -> Ill:
    """Return `ill` as an export in a low format, with some nodes left in FP32."""
    network = network_from_proto(ill.proto)
    low = ir.DataType.from_numpy(fmt.dtype)
    io = float_io(network) if low_io else frozenset()
    rewritten = rewrite(network, roles_of(network, low), names(*islands), fmt, low_io=io)
    return replace(ill, proto=ir.serde.serialize_model(rewritten.model))


def end_types(path) -> set[int]:
    graph = onnx.load(path).graph
    return {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}


@pytest.mark.parametrize("low_io", [False, True])
def test_an_export_that_is_fine_needs_nothing(fix, low_io):
    ended = fix(exported(models.small(), low_io=low_io))
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert ended.record["baseline"]["passed"]
    assert ended.record["plan"]["casts"] == (0 if low_io else 2)
    assert end_types(ended.model) == {HALF if low_io else SINGLE}
    assert "stored" in {note["kind"] for note in ended.record["provenance"]["notes"]}


@pytest.mark.parametrize("make", [models.layer_norm, models.cancellation])
def test_an_export_that_fp16_breaks_gets_its_nodes_back(fix, make):
    """The reference is the export without its roundings, so the same nodes are found."""
    ill = make()
    ended = fix(exported(ill, low_io=False), "--no-repair")
    assert ended.code == 0, ended.out
    assert ended.kept == ill.kept
    assert not ended.record["baseline"]["passed"]
    assert end_types(ended.model) == {SINGLE}


def test_an_island_is_a_start(fix):
    assert fix(exported(models.small(), "bias")).kept == set()


def test_an_island_is_respected_on_request_even_where_fp16_would_do(fix):
    ended = fix(exported(models.small(), "bias"), "--keep-islands")
    assert ended.code == 0, ended.err
    (kept,) = ended.record["plan"]["keep"]
    assert (kept["node"], kept["guard"]) == ("bias", None)
    assert kept["reason"].startswith("Kept by the model itself")
    assert ended.record["baseline"]["passed"]
    assert ended.record["plan"]["minimal"]
    nodes = {n.name: n for n in onnx.load(ended.model).graph.node}
    assert nodes.keys() - {"matmul", "bias", "relu"} == {"matmul_out_to_fp32", "bias_out_to_fp16"}


def test_an_island_that_a_rule_lowers(fix):
    ended = fix(exported(models.small(), "bias"), "--lower", "bias")
    assert ended.code == 0, ended.err
    assert ended.kept == set()


def test_the_baseline_is_the_model_as_it_was_given(fix):
    """With its islands FP32 the LayerNorm is fine; without them it is infinite."""
    ill = models.layer_norm()
    ended = fix(exported(ill, *ill.kept, low_io=False), "--keep-islands")
    assert ended.code == 0, ended.err
    assert ended.record["baseline"]["passed"]
    assert ended.kept == ill.kept
    assert ended.record["search"]["remarks"][0]["kind"] == "passes"


def test_an_island_and_a_node_that_fp16_breaks(fix):
    ill = models.layer_norm()
    ended = fix(exported(ill, "gamma", low_io=False), "--no-repair", "--keep-islands")
    assert ended.code == 0, ended.err
    reasons = {entry["node"]: entry["reason"] for entry in ended.record["plan"]["keep"]}
    assert reasons.keys() == ill.kept | {"gamma"}
    assert {n for n, r in reasons.items() if "model itself" in r} == {"gamma"}
    wrong = "everything in FP16 except 1 node that the file has in FP32"
    assert f"With {wrong}" in " ".join(ended.out.split())


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_an_fp16_input_takes_fp16_and_fp32_data(call, tmp_path, dtype):
    ill = exported(models.small())
    onnx.save(ill.proto, tmp_path / "model.onnx")
    np.savez(tmp_path / "model.npz", x=ill.inputs["x"].astype(dtype))
    ended = call("fix", "model.onnx", "--inputs", "model.npz", "-o", "run")
    assert ended.code == 0, ended.err
    assert end_types(ended.model) == {HALF}
    again = call("verify", "model.onnx", ended.model, "--inputs", "model.npz", "--json")
    assert again.code == 0, again.err
    (error,) = json.loads(again.out)["verdict"]["outputs"].values()
    # Low data is rounded already: of the input no error is left.
    assert 0 < error["rel_max"] < 2e-3


def test_an_input_that_fp16_cannot_hold(fix):
    sketch = Sketch()
    x = sketch.input("x", [1, 16], HALF)
    scale = sketch.constant(np.array(1e-4, np.float16))
    y = sketch.op("Mul", x, scale, name="scale")
    ended = fix(Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=1, peak=1e5)}))
    assert ended.code == 10
    assert "Input x reaches 100000 and is FP16" in " ".join(ended.out.split())


def test_io_makes_all_of_it_fp16(fix):
    ended = fix(exported(models.small(), low_io=False), "--io", "fp16")
    assert ended.code == 0, ended.err
    assert end_types(ended.model) == {HALF}


def test_one_low_input_among_others(fix):
    """Every input and output has the type that it has in the file."""
    sketch = Sketch()
    a, b = sketch.input("a", [1, 8], HALF), sketch.input("b", [1, 8])
    added = sketch.op("Add", a, sketch.op("Cast", b, name="down", to=HALF), name="add")
    wide = sketch.op("Cast", added, name="up", to=SINGLE)
    inputs = {name: models.signals(1, 8, seed=i) for i, name in enumerate("ab")}
    ended = fix(Ill(sketch.proto(wide, added), inputs))
    assert ended.code == 0, ended.err
    graph = onnx.load(ended.model).graph
    found = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    assert found == {"a": HALF, "b": SINGLE, "up_out": SINGLE, "add_out": HALF}


def test_a_bf16_export_goes_to_fp16(fix):
    """BF16 inputs and outputs cannot be FP16 without a word: they become FP32."""
    ended = fix(exported(models.small(), fmt=BF16))
    assert ended.code == 0, ended.err
    assert end_types(ended.model) == {SINGLE}
    types = {t.data_type for t in onnx.load(ended.model).graph.initializer}
    assert types == {HALF}
    (found,) = [r for r in ended.record["plan"]["remarks"] if r["kind"] == "low-io"]
    assert found["names"]["tensors"] == "relu_out, x"


def test_a_bf16_export_that_fp16_breaks(fix):
    ill = models.layer_norm()
    ended = fix(exported(ill, fmt=BF16), "--no-repair")
    assert ended.code == 0, ended.err
    assert ended.kept == ill.kept


def test_verify_of_an_export_against_itself(saved, call):
    """The reference is the export in FP32, so the export itself is off by its roundings."""
    model, inputs = saved(exported(models.layer_norm(), low_io=False))
    ended = call("verify", model, model, "--inputs", inputs, "-o", "run")
    assert ended.code == 10
    assert {t["tensor"] for t in ended.record["verdict"]["intermediate_nonfinite"]} >= {
        "square_out"
    }


def test_observe_sees_the_export_in_fp32(saved, call):
    model, inputs = saved(exported(models.layer_norm()))
    ended = call("observe", model, "--inputs", inputs, "--json")
    assert ended.code == 0, ended.err
    found = {t["tensor"]: t for t in json.loads(ended.out)["tensors"]}
    assert found["square_out"]["absmax"] > FP16.max
    assert found["square_out"]["nonfinite"] == 0


def test_what_fix_wrote_can_be_fixed_again(fix, call):
    """A mixed model is a model with islands: nothing more is needed, and nothing is lost."""
    ill = models.layer_norm()
    first = fix(ill, "--no-repair")
    again = ("fix", first.model, "--inputs", "model.npz", "-o", "again", "--no-repair")
    second = call(*again, folder="again")
    assert second.code == 0, second.err
    assert second.kept == first.kept == ill.kept
    assert second.record["plan"]["casts"] == first.record["plan"]["casts"]
