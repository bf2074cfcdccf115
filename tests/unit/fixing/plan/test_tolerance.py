"""What rounding alone amounts to, and the option that accepts it."""

import math

import pytest

from halfwise.fixing.plan.tolerance import tolerance_note
from halfwise.formats import BF16, FP16
from halfwise.records import Criterion, SliceGroup
from tests.unit.reporting.runs import output_error


def note(criterion=None, *outputs, factor=0.8, kept=0, fmt=FP16):
    errors = {f"y{i}": output for i, output in enumerate(outputs)}
    return tolerance_note(errors, criterion or Criterion(), factor, fmt, kept)


OFF = output_error(rel_max=0.025, max_abs=0.5, snr_db=41.3)


def test_the_default_tolerance_is_widened_to_what_the_search_needs():
    """0.025 / 0.8 = 0.03125, rounded up."""
    told = note(None, output_error(rel_max=1e-3, snr_db=70.0), OFF, kept=3)
    assert "--rel-max 0.032 " in told
    assert "all but 3 of the nodes low, FP16's rounding adds up to 0.025 " in told
    assert "SNR 41 dB" in told


def test_every_threshold_that_is_missed_gets_its_value():
    told = note(Criterion(rel_max=0.5, max_abs=0.1, snr_db=45), OFF, factor=1.0, fmt=BF16)
    assert "every node low, BF16's" in told
    assert "--rel-max" not in told
    assert "give --max-abs 0.5 --snr-db 41 if" in told


@pytest.mark.parametrize("value", [0.011, 0.0123, 0.0799, 0.05])
def test_the_value_accepts_the_error(value):
    told = note(None, output_error(rel_max=value, snr_db=40.0))
    given = float(told.split("--rel-max ")[1].split()[0])
    assert value / 0.8 <= given <= value / 0.8 * 1.11


def test_slices_of_another_scale_need_more_than_the_whole():
    scores = SliceGroup(
        axis=1,
        ranges=((4, 83),),
        slices=80,
        scale=1.0,
        max_abs=0.03,
        allowed=0.01,
        worst_sample="",
        passed=False,
    )
    told = note(None, output_error(rel_max=5e-5, groups=(scores,)), factor=1.0)
    assert "adds up to 0.03 of the largest reference value of some slices (SNR" in told
    assert "--rel-max 0.03 " in told


def test_what_passes_needs_nothing():
    assert note(None, output_error(rel_max=0.008)) is None
    assert note(None) is None


@pytest.mark.parametrize(
    "criterion",
    [
        Criterion(metric="top1"),
        Criterion(cosine=0.999),
        Criterion(rel_max=1e-3),
        Criterion(rel_max=0.0),
        Criterion(snr_db=90),
    ],
)
def test_no_option_accepts_what_is_far_off_or_judged_otherwise(criterion):
    assert note(criterion, OFF) is None


def test_non_finite_and_integer_outputs_are_no_rounding():
    assert note(None, OFF, output_error(rel_max=math.inf, max_abs=math.inf)) is None
    assert note(None, OFF, output_error(agreement=0.5, passed=False)) is None
    assert note(None, OFF, output_error(agreement=1.0, passed=True)) is not None
