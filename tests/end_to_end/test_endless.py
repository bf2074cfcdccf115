"""Models that never end, with a limit that nobody gave."""

import numpy as np
import pytest

from bench.attacks.models import drawn, save
from halfwise import api
from halfwise.emulation import budget as bounded
from halfwise.errors import HalfwiseError

_NEVER = """g (float[1, 8] x) => (float[1, 8] y)
{ y = Loop(most, go, x) <body = b (int64 i, bool c, float[1, 8] s) => (bool on, float[1, 8] t)
    { t = Tanh(s)  on = Identity(c) }> }"""
_NEVER_IN_FP16 = """g (float[1, 8] x) => (float[1, 8] y)
{ h = MatMul(x, w)  m = ReduceMax<keepdims = 0>(h)  z = Mul(m, none)  start = Add(big, z)
  e = Loop(most, go, start) <body = b (int64 i, bool c, float s) => (bool on, float t)
    { t = Add(s, one)  end = Constant<value_float = 2060.0>()  on = Less(t, end) }>
  r = Div(e, big)  y = Mul(h, r) }"""
"""Counts from 2048 on, where the next FP16 number is 2050."""


@pytest.fixture
def quick(monkeypatch):
    """Make the limits that nobody gave fractions of a second."""
    monkeypatch.setattr(bounded, "REPEATING_SECONDS", 0.5)
    monkeypatch.setattr(bounded, "_AGAIN", 0.1)


X = np.random.default_rng(0).standard_normal((6, 1, 8)).astype(np.float32)
WHOLE = "g (float[1, 8] x) => (float[1, 8] y) { y = MatMul(x, w) }"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "command",
    [
        lambda endless, _: api.observe(endless, {"x": X}),
        lambda endless, _: api.verify(endless, endless, {"x": X}),
        lambda endless, whole: api.verify(whole, endless, {"x": X}),
        lambda endless, whole: api.compare(whole, {"x": X}, b=str(endless)),
        lambda endless, _: api.diagnose(endless, {"x": X}),
        lambda endless, _: api.fix(endless, {"x": X}),
    ],
    ids=["observe", "verify", "candidate", "compare", "diagnose", "fix"],
)
def test_a_loop_that_never_ends_ends_the_command_by_its_first_limit(command, tmp_path):
    model = save(
        tmp_path / "model.onnx", _NEVER, {"most": np.asarray(1 << 62), "go": np.asarray(True)}
    )
    whole = save(tmp_path / "whole.onnx", WHOLE, {"w": drawn(8, 8)})
    with pytest.raises(HalfwiseError, match=r"took longer than 0\.5 s") as caught:
        command(model, whole)
    assert caught.value.exit_code == 6
    assert "--budget run-timeout" in caught.value.hint


@pytest.mark.usefixtures("quick")
def test_a_loop_that_never_ends_in_fp16_alone_is_kept(tmp_path):
    weights = {"w": drawn(8, 8), "none": np.zeros((), np.float32), "big": np.float32(2048)}
    weights |= {"one": np.float32(1), "go": np.bool_(True), "most": np.int64(1 << 62)}
    model = save(
        tmp_path / "m.onnx", _NEVER_IN_FP16, {n: np.asarray(w) for n, w in weights.items()}
    )
    run = api.fix(model, {"x": X}).run
    assert run.verdict is not None
    assert run.verdict.passed
    assert run.baseline is not None
    assert run.plan is not None
    assert run.baseline.failed_runs
    assert len(run.plan.keep) == 1
    assert run.search is not None
    assert run.search.late > 0
