from halfwise.case import Samples
from halfwise.graph.model import network_from_proto
from halfwise.pipeline.diagnosing.precision import precision
from tests import models


def test_a_low_format_that_is_enough(subject):
    rung = precision(subject())
    assert rung.passed
    assert rung.how == "emulated"


def test_what_fix_attributes(subject):
    ill = models.layer_norm()
    count = len(next(iter(ill.inputs.values())))
    samples = Samples(tuple(f"s{i}" for i in range(count)), ill.sample)
    rung = precision(subject(model=network_from_proto(ill.proto), samples=samples))
    assert rung.passed is False
    assert "square" in rung.nodes
    assert rung.cause.startswith("FP16 breaks ")
    assert any(sign.nodes and sign.severity == "warning" for sign in rung.evidence)
    assert "halfwise fix" in rung.advice[0]
