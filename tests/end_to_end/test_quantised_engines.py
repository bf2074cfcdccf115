"""Quantised models in engines: the flags, the inspector's proof, verdicts, and what is refused."""

import json

import numpy as np
import onnx
import pytest

from halfwise.store import read_run
from tests.engines import worker
from tests.fake_tensorrt.faults import Fault

ZERO, STEPS = "int8 z = {0}", "int8[1] zs = {0}"
QUANTISED = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 2] x) => (float[n, 2] y)
    <float s = {0.02}, float[1] t = {0.01}, int8 z = {0}, int8[1] zs = {0}, int32[2] bi = {150, 0},
     float bs = {0.0002}, int32 bz = {0}, int8[2, 2] w = {100, -50, 25, 100}, float[2] b = {0.5, 0}>
    { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
      v = DequantizeLinear(w, s, z) c = DequantizeLinear(bi, bs, bz)
      [first] p = Gemm(d, v, c) [relu] r = Relu(p)
      i = QuantizeLinear(r, s, z) e = DequantizeLinear(i, s, z)
      u = DequantizeLinear(w, s, z) [second] f = MatMul(e, u) [add] y = Add(f, b) }"""
PLAIN = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 2] x) => (float[n, 2] y)
    <float[2, 2] v = {2, -1, 0.5, 2}, float[2] c = {0.03, 0}, float[2] b = {0.5, 0}>
    { [first] p = Gemm(x, v, c) [relu] r = Relu(p) [second] f = MatMul(r, v)
      [add] y = Add(f, b) }"""


@pytest.fixture(autouse=True)
def models(tmp_path):
    onnx.save(onnx.parser.parse_model(QUANTISED), tmp_path / "q.onnx")
    onnx.save(onnx.parser.parse_model(PLAIN), tmp_path / "m.onnx")
    x = np.random.default_rng(0).uniform(-1, 1, (12, 2)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_a_quantised_model_is_built_in_both_regimes(call, fake_worker, version):
    low = ("--to", "fp16") if version == "8.6.1" else ()
    options = ("--inputs", "x.npz", *low, *worker(fake_worker(version)))
    ended = call("build", "q.onnx", "-o", "e.engine", "--json", *options)
    assert ended.code == 0, ended.err
    proof = json.loads(ended.out)["inspection"]["proof"]
    types = {node["node"]: (node["asked"], node["precision"]) for node in proof["nodes"]}
    assert types["first"] == types["second"] == ("int8", "int8")
    assert types["relu"][1] == ("fp16" if low else "fp32")
    assert proof["findings"] == []
    shown = call("inspect", "e.engine", "--model", "q.onnx", "--json", *options[-2:])
    seen = {node["node"]: node for node in json.loads(shown.out)["proof"]["nodes"]}
    assert seen["first"]["asked"] == seen["first"]["precision"] == "int8"
    judged = call("verify", "q.onnx", "e.engine", "--inputs", "x.npz", *options[-2:])
    assert judged.code == 0, judged.out


def test_what_is_refused_is_told_before_the_build(call, tmp_path, fake_worker):
    text = QUANTISED.replace("int8 z = {0}", "int8 z = {3}")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "odd.onnx")
    options = worker(fake_worker("8.6.1"))
    ended = call("build", "odd.onnx", "--inputs", "x.npz", "-o", "e.engine", *options)
    assert ended.code == 3
    assert "rejects this quantised model: the zero point is not 0 in 6 nodes" in ended.err
    where = ("-o", "run", "--target", "tensorrt", *options)
    assert call("fix", "odd.onnx", "--inputs", "x.npz", *where).code == 3


def test_fp16_around_integers_is_proven_and_exported(call, fake_worker):
    options = ("--target", "tensorrt", "--engine", "repeat=1", *worker(fake_worker("8.6.1")))
    fixed = call("fix", "q.onnx", "--inputs", "x.npz", "-o", "run", *options)
    assert fixed.code == 0, fixed.err + fixed.out
    told = call("export", "run", "--as", "trtexec")
    assert "--int8" in told.out, told.out + told.err


def test_a_quantised_model_is_judged_by_an_engine_of_it(call, tmp_path, fake_worker):
    options = ("--target", "tensorrt", *worker(fake_worker("8.6.1")))
    asked = ("verify", "m.onnx", "q.onnx", "--inputs", "x.npz", "-o", "run", *options)
    ended = call(*asked, "--rel-max", "0.05")
    assert ended.code == 0, ended.err + ended.out
    given = read_run(tmp_path / "run").given_engine
    assert given is not None
    assert given.build is not None
    assert given.build.config.low == "fp16"
    assert given.proof is not None
    assert {n.precision for n in given.proof.nodes if n.asked == "int8"} == {"int8"}
    shown = call("report", "run")
    assert shown.out.startswith("PASSED in the engine: 12 of 12 samples")
    assert "INT8" in shown.out


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_fix_delivers_an_engine_with_int8(call, tmp_path, fake_worker, version):
    options = ("--target", "tensorrt", "--engine", "repeat=1", *worker(fake_worker(version)))
    asked = ("--to", "int8", "--rel-max", "0.05", "-o", "run", *options)
    fixed = call("fix", "m.onnx", "--inputs", "x.npz", *asked)
    assert fixed.code == 0, fixed.err + fixed.out
    run = read_run(tmp_path / "run")
    assert run.plan is not None
    assert run.plan.int8 == ("first", "second")
    assert run.engines is not None
    assert run.engines.rung == "int8"
    assert [r.rung for r in run.engines.rungs] == ["fp32", "tf32", "fp16", "int8"]
    assert run.engines.row is not None
    assert run.engines.row.proof is not None
    assert run.engines.row.proof.node_share["int8"] > 0
    told = call("export", "run", "--as", "trtexec").out
    assert ("--int8" in told) is (version == "8.6.1")
    assert ("model.built.onnx" in told) is (version == "8.6.1")


def test_an_old_builder_gets_weights_with_a_quantize_linear(call, tmp_path):
    asked = ("--to", "int8", "--rel-max", "0.05", "-o", "run")
    assert call("fix", "m.onnx", "--inputs", "x.npz", *asked).code == 0
    for version, pairs in ("8.6", 4), ("10.3", 2):
        options = ("--trt-version", version, "--typing", "weak", "-o", f"recipe-{version}")
        assert call("export", "run", "--as", "trtexec", *options).code == 0
        graph = onnx.load(tmp_path / f"recipe-{version}" / "model.built.onnx").graph
        assert sum(node.op_type == "QuantizeLinear" for node in graph.node) == pairs


OVERFLOWS = PLAIN.replace("y = Add(f, b)", "a = Add(f, b) [up] h = Mul(a, k) [down] y = Mul(h, l)")


def test_where_int8_beside_constraints_is_refused_nothing_is_constrained(
    call, tmp_path, fake_worker
):
    text = OVERFLOWS.replace("float[2] b", "float k = {1e5}, float l = {1e-5}, float[2] b")
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    refused = Fault("build", "raise", when={"int8": True, "kept": ("up",)})
    options = ("--target", "tensorrt", "--engine", "repeat=1", "--no-repair")
    asked = ("--to", "int8", "--rel-max", "0.05", "-o", "run", *options)
    command = worker(fake_worker("8.6.1", faults=[refused]))
    ended = call("fix", "m.onnx", "--inputs", "x.npz", *asked, *command)
    assert ended.code == 0, ended.err + ended.out
    run = read_run(tmp_path / "run")
    assert run.engines is not None
    with_int8 = [b for b in run.engines.builds if "INT8" in b.purpose]
    tried = [(b.status, bool(b.config.keep)) for b in with_int8]
    assert tried[:2] == [("failed", True), ("built", False)]
