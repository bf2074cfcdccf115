import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.pipeline.diagnosing.harness import harness
from tests.unit.stages.compare.copies import DATA


def samples(change=lambda x: x):
    return Samples(("s0", "s1", "s2"), lambda i: {"x": change(DATA[i])})


def test_inputs_that_are_right(subject):
    rung = harness(subject(notes=("input 'x' is read",)))
    assert rung.passed
    assert rung.cause == "3 samples fit the model."
    texts = [sign.text for sign in rung.evidence]
    assert texts[0] == "Input 'x' is read."
    assert texts[1].startswith("Input 'x': float32, 4×16, from −")


@pytest.mark.parametrize("allowed", [False, True])
def test_made_up_inputs(subject, allowed):
    note = "warning: input 'x' looks like standard normal noise"
    for how in ({"notes": (note,)}, {"real": False}):
        rung = harness(subject(allow_random=allowed, **how))
        assert rung.passed is allowed
        severity = "warning" if allowed else "error"
        assert any(sign.severity == severity for sign in rung.evidence)


def test_other_warnings_are_no_failure(subject):
    rung = harness(subject(notes=("warning: there is a single sample",)))
    assert rung.passed
    assert rung.evidence[0].severity == "warning"


def test_inputs_that_are_not_finite(subject):
    rung = harness(subject(samples=samples(lambda x: np.where(x > 1, np.inf, x))))
    assert rung.passed is False
    assert "NaN or infinite" in rung.cause


def test_two_pipelines_that_agree(subject):
    rung = harness(subject(others=samples()))
    assert rung.passed
    assert rung.evidence[-1].text == "The two pipelines agree on 'x'."


def test_two_pipelines_that_differ(subject):
    rung = harness(subject(others=samples(lambda x: (x * 1.1).astype(np.float32))))
    assert rung.passed is False
    assert "'x' differs by 10 %" in rung.cause
    assert "changes the FP32 outputs: y_out by" in rung.cause
    assert "channel order" in rung.advice[0]
