"""`fix --to int8`, and what is done with what it writes."""

import pytest

from tests.unit.fixing.int8.products import outlier, residual

FIX = ("fix", "model.onnx", "--inputs", "model.npz", "--require", "snr-db=25", "--allow", "random")


@pytest.fixture
def run(call, saved):
    """A run of a model with a value beyond FP16, which INT8 has no scale for either."""
    saved(outlier(factor=200))
    ended = call(*FIX, "--to", "int8", "-o", "run")
    assert ended.code == 0, ended.err
    return ended


def test_what_a_run_with_int8_wrote_is_verified_exported_and_started_from(run, call, tmp_path):
    plan = run.record["plan"]
    assert plan["int8"] == ["product0", "product1", "product3"]
    assert [kept["node"] for kept in plan["left_out"]] == ["product2"]
    assert plan["repairs"] or plan["keep"]
    assert "3 of 4 quantisable nodes in INT8" in run.out
    assert "Left out of INT8, in FP16: 1 of 4 quantisable nodes" in run.out
    assert "all INT8" in run.out
    judged = call("verify", "model.onnx", "run/model.onnx", *FIX[2:], "-o", "v", folder="v")
    assert judged.code == 0, judged.out
    assert judged.record["worth"] is None
    exported = call("export", "run", "--as", "trtexec", "--trt-version", "8.6", "-o", "recipe")
    assert exported.code == 0, exported.err
    assert "--int8" in (tmp_path / "recipe" / "build_engine.sh").read_text()
    again = call(*FIX, "--start-from", "run/model.onnx", "-o", "again", folder="again")
    assert again.code == 0, again.err
    assert set(again.record["plan"]["int8"]) == set(plan["int8"])
    assert [rung["rung"] for rung in again.record["rungs"]] == ["fp32", "tf32", "fp16", "int8"]
    chosen = call("choose", "again", "-o", "chosen", "--worth", 1)
    assert (chosen.code, "have INT8" in chosen.err) == (7, True)


def test_a_residual_is_quantised_so_that_the_linter_finds_nothing(call, saved):
    saved(residual())
    ended = call(*FIX, "--to", "int8", "-o", "run")
    assert ended.code == 0, ended.err
    assert "5 of 5 quantisable nodes in INT8" in ended.out
    assert "sum" in ended.record["plan"]["int8"]
    judged = call("verify", "model.onnx", "run/model.onnx", *FIX[2:], "-o", "v", folder="v")
    assert judged.code == 0, judged.err
    call("export", "run", "--as", "trtexec", "--trt-version", "8.6", "-o", "recipe")
    for file in ("run/model.onnx", "recipe/model.built.onnx"):
        linted = call("lint", file)
        assert linted.code == 0, linted.err
    again = call(*FIX, "--start-from", "run/model.onnx", "-o", "again", folder="again")
    assert again.code == 0, again.err
    assert set(again.record["plan"]["int8"]) == set(ended.record["plan"]["int8"])
