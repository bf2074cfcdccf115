"""A sample of the backend tests, and what becomes of a worker that dies."""

from __future__ import annotations

import os

import numpy as np
import pytest
from onnx.backend.test.case.test_case import TestCase

from bench import onnx_backend, onnx_cases
from bench.onnx_cases import Outcome
from halfwise.formats import BF16, Format

STRIDE = 80
# ONNX's own code makes its tests in a way that NumPy 2.5 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")


@pytest.fixture(scope="module")
def cases() -> list[TestCase]:
    return onnx_cases.cases()


def test_a_sample_of_the_backend_tests_is_sound(cases: list[TestCase]) -> None:
    outcomes = [onnx_cases.examine(case) for case in cases[::STRIDE]]
    assert [o for o in outcomes if not o.sound] == []
    assert sum(o.code == 0 for o in outcomes) >= 10


@pytest.mark.parametrize(
    ("name", "code"),
    [
        # Its kernel does not run without the optional outputs that the model asks for.
        ("test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal", 0),
        # ONNX cannot infer through what it makes of this operator itself.
        ("test_mvn", 0),
        # Random while training, so that no trial says anything and the search did not end.
        ("test_training_dropout", 3),
    ],
)
def test_what_went_wrong_before(cases: list[TestCase], name: str, code: int) -> None:
    outcome = onnx_cases.examine(next(c for c in cases if c.name == name))
    assert outcome.code in (None, code)
    assert outcome.sound


@pytest.mark.parametrize(
    "name",
    [
        # Its mean and deviation are FP32 whatever the input is.
        "test_layer_normalization_2d_axis0",
        # ONNX Runtime expands them to operators that take no BF16.
        "test_clip",
        "test_sce_none_log_prob",
        "test_attention_4d_attn_mask_3d_causal",
    ],
)
def test_what_went_wrong_in_bf16(cases: list[TestCase], name: str) -> None:
    outcome = onnx_cases.examine(next(c for c in cases if c.name == name), BF16)
    assert outcome.code in (0, 10)


def test_only_the_largest_float_input_is_scaled() -> None:
    sample = {"x": np.ones(4, np.float32), "s": np.ones(2, np.float32), "n": np.array([3])}
    scaled = onnx_cases.samples(sample)
    assert [s["x"][0] for s in scaled] == list(onnx_cases.SCALES)
    assert all((s["s"] == 1).all() and s["n"] == 3 for s in scaled)
    assert len(onnx_cases.samples({"n": np.array([3])})) == 1


def test_a_worker_that_dies_is_told_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_backend, "_names", lambda: ["first", "second"])
    monkeypatch.setattr(onnx_backend, "_examine", die_at_first)
    monkeypatch.setattr(onnx_backend, "WORKERS", 1)
    outcomes = onnx_backend.examined([0, 1])
    assert [(o.name, o.code) for o in outcomes] == [("first", "crash"), ("second", 0)]
    assert not outcomes[0].sound


def die_at_first(index: int, _: Format) -> Outcome:
    if index == 0:
        os.abort()
    return Outcome("second", 0)
