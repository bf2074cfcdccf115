"""Predicted costs against recorded times of engines."""

import pytest

from bench.runs import Workbench
from bench.worth import _kept, _pairs


def test_the_digits_and_their_plan(tmp_path):
    fp32, tf32, mixed = _pairs("digits", Workbench(tmp_path))
    assert (fp32.what, tf32.what, mixed.what) == ("FP32", "TF32", "52 kept")
    assert fp32.measured == pytest.approx(0.2387 / 0.2022, abs=1e-3)
    assert 1 < mixed.predicted < fp32.predicted


def test_a_run_is_found_by_its_rounds():
    (plan,) = _kept("ppocr_v3_det", [1, 0, 0])
    assert len(plan) == 1
    assert _kept("ppocr_v3_det", [7]) == []
