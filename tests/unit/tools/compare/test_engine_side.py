"""Engines as sides; the worker is real, TensorRT behind it the stand-in."""

import pytest

from halfwise.case import Settings
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.walk import Walk, reference
from tests.fake_tensorrt.faults import Fault
from tests.unit.tools.compare.copies import SAMPLES, network


def compared(maker, kind="fp32"):
    whole = network()
    right, engine = reference(whole, SAMPLES, Settings()), maker.side(kind)
    return find_divergence(Walk(whole, SAMPLES, right, engine))


def test_an_engine_that_is_right(engines):
    found = compared(engines("11.4.0"))
    assert found.first == ()
    assert not found.differs


@pytest.mark.parametrize("version", ["8.6.1", "11.4.0"])
def test_an_engine_is_compared_by_its_outputs(engines, version):
    found = compared(engines(version, broken={"b": 1.1}))
    assert found.differs
    assert {node.status for node in found.nodes} == {"fused", "born"}
    assert set(found.first) == {node.node for node in found.nodes}
    assert found.b == "engine (FP32, TF32 off)"


def test_tf32_has_its_own_tolerance(engines):
    found = compared(engines("11.4.0"), "tf32")
    assert found.first == ()
    assert max(node.error or 0 for node in found.nodes) > 1e-5


def test_everything_low(engines):
    assert compared(engines("11.4.0", lossy={"b": 1.5}), "fp16").differs


def test_an_engine_that_cannot_be_run_at_all(engines):
    maker = engines(faults=[Fault("run", "segv")])
    with pytest.raises(EngineFailed) as caught:
        maker.side("fp32")
    assert caught.value.status == "crashed"


def test_a_lost_connection_is_no_fault_of_the_engine(engines):
    maker = engines(faults=[Fault("build", "disconnect")])
    with pytest.raises(EngineFailed) as caught:
        maker.build("fp32")
    assert caught.value.status == "lost"
