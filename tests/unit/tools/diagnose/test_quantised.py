"""A diagnosis of a quantised model names the pairs that do harm, and goes on where none does."""

import numpy as np
import onnx

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.graph.model import network_from_proto
from halfwise.records import Criterion
from halfwise.reporting.steps import steps_told
from halfwise.tools.diagnose.export import exported
from halfwise.tools.diagnose.health import healthy
from halfwise.tools.diagnose.quantised import lost
from tests.unit.tools.quantised_layers import GOOD, SAMPLES, SIZE, model

INPUTS = Samples(tuple("abcdef"), lambda i: {"x": SAMPLES[i]})
ALLOWED = Criterion(rel_max=0.05)
SATURATED = GOOD | {"second": 0.004}


def diagnosed(subject, scales, criterion=ALLOWED, **how):
    return subject(network_from_proto(model(scales)), INPUTS, criterion=criterion, **how)


def framework():
    session = Session(network_from_proto(model()).model)
    return [session.run(INPUTS[i]) for i in range(len(INPUTS))]


def test_a_pair_that_saturates_is_not_healthy(subject):
    rung = healthy(diagnosed(subject, SATURATED))
    assert rung.passed is False
    assert "x, read by" not in rung.cause
    assert "read by second: saturated" in rung.cause
    assert rung.nodes == ("second/dq", "second")
    assert "--to int8 --start-from QUANTISED" in steps_told(rung.advice)[0]
    assert "The reference is what this model gives without its pairs" in rung.evidence[0].text
    assert rung.quantisation is not None
    assert [cause.fault for cause in rung.quantisation.causes] == ["saturated"]


def test_good_scales_are_healthy(subject):
    rung = healthy(diagnosed(subject, GOOD))
    assert rung.passed is not False
    assert rung.quantisation is None or rung.quantisation.needed == 0


def test_an_output_that_has_a_pair_is_right_without_it(subject):
    quantised = network_from_proto(model(GOOD, end=0.5))
    found = lost(subject(quantised, INPUTS, criterion=ALLOWED))
    assert found is not None
    assert found.error > 1
    assert (found.without_all, found.explained) == (0, True)


def test_that_eight_bits_are_few_is_a_warning(subject):
    rung = healthy(diagnosed(subject, GOOD, Criterion(rel_max=1e-4)))
    assert rung.passed
    assert {sign.severity for sign in rung.evidence} == {"warning"}


def test_weights_without_a_scale_leave_nothing_to_judge_by(subject):
    broken = model(SATURATED)
    for node in broken.graph.node:
        if node.name == "second/w":
            (scale,) = [t for t in broken.graph.initializer if t.name == node.input[1]]
            scale.CopyFrom(onnx.numpy_helper.from_array(np.zeros(SIZE, np.float32), scale.name))
    network = network_from_proto(broken)
    assert healthy(subject(network, INPUTS, criterion=ALLOWED)).quantisation is None
    rung = exported(subject(network, INPUTS, criterion=ALLOWED, expected=framework()))
    assert rung.quantisation is not None


def test_the_framework_is_right_within_what_is_allowed(subject):
    given = framework()
    assert np.isfinite(next(iter(given[0].values()))).all()
    assert exported(diagnosed(subject, GOOD, expected=given)).passed
    rung = exported(diagnosed(subject, SATURATED, expected=given))
    assert rung.passed is False
    assert "read by second: saturated" in rung.cause
    assert rung.nodes == ("second/dq", "second")
