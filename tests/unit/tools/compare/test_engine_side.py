"""Engines as sides; the worker is real, TensorRT behind it the stand-in."""

import pytest

from halfwise.case import Settings
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tools.compare.divergence import compared, find_divergence
from halfwise.tools.compare.walk import Walk, reference
from tests.fake_tensorrt.faults import Fault
from tests.unit.tools.compare.copies import SAMPLES, network


def walk_of(maker, kind="fp32"):
    whole = network()
    walk = Walk(whole, SAMPLES, reference(whole, SAMPLES, Settings()), maker.side(kind))
    find_divergence(walk)
    return walk


def test_an_engine_that_is_right(engines):
    found = compared(walk_of(engines("11.4.0")))
    assert found.first == ()
    assert not found.differs
    assert found.builds == 1


@pytest.mark.parametrize("version", ["8.6.1", "11.4.0"])
def test_an_engine_is_compared_by_its_outputs(engines, version):
    found = compared(walk_of(engines(version, broken={"b": 1.1})))
    assert found.differs
    assert set(found.first) == {node.node for node in found.nodes}
    assert found.b == "engine (FP32, TF32 off)"
    assert "halfwise diagnose" in found.notes[0]


def test_tf32_has_its_own_tolerance(engines):
    found = compared(walk_of(engines("11.4.0"), "tf32"))
    assert found.first == ()
    assert max(node.error or 0 for node in found.nodes) > 1e-5


def test_everything_low(engines):
    assert compared(walk_of(engines("11.4.0", lossy={"b": 1.5}), "fp16")).differs


def test_an_engine_that_cannot_be_run_at_all(engines):
    side = engines(faults=[Fault("run", "segv")]).side("fp32")
    with pytest.raises(EngineFailed) as caught:
        side.plain()
    assert caught.value.status == "crashed"


def test_a_lost_connection_is_no_fault_of_the_engine(engines):
    side = engines(faults=[Fault("build", "disconnect")]).side("fp32")
    with pytest.raises(EngineFailed) as caught:
        side.plain()
    assert caught.value.status == "lost"
