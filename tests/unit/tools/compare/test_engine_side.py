"""Engines as sides; the worker is real, TensorRT behind it the stand-in."""

import pytest

from halfwise.case import Settings
from halfwise.emulation.ort import Session
from halfwise.records import TensorName
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tools.compare.divergence import compared, find_divergence
from halfwise.tools.compare.walk import Walk, reference
from tests.fake_tensorrt.faults import Fault
from tests.unit.tools.compare.copies import SAMPLES, network


def walk_of(maker, kind="fp32"):
    whole = network()
    walk = Walk(
        whole, SAMPLES, reference(whole, SAMPLES, Settings()), maker.shown(maker.side(kind))
    )
    find_divergence(walk)
    return walk


def test_an_engine_that_is_right(engines):
    found = compared(walk_of(engines("11.4.0")))
    assert found.first == ()
    assert not found.differs
    assert found.builds == 2
    assert found.notes == (
        "Showing tensors did not change the final outputs of engine (FP32, TF32 off).",
    )


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_an_engine_that_shows_nothing_is_compared_by_its_outputs(engines, version):
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
    found = compared(walk_of(engines("11.4.0", lossy={"b": 1.5}), "fp16"))
    assert found.first == ("b",)


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


def found_by(maker, kind="fp32"):
    whole = network()
    side = maker.shown(maker.side(kind))
    walk = Walk(whole, SAMPLES, reference(whole, SAMPLES, Settings()), side)
    walk.all()
    return side, compared(walk)


def test_one_build_shows_all(engines):
    _, found = found_by(engines("11.4.0", broken={"b": 1.3}))
    assert found.first == ("b",)
    assert found.builds == 2
    assert all(node.error is not None for node in found.nodes)
    assert found.notes == (
        "Showing tensors did not change the final outputs of engine (FP32, TF32 off).",
    )


def test_what_fusion_takes_is_fused_and_the_region_spans_it(engines):
    fused = [["mean", "centre", "still"]]
    side, found = found_by(engines("11.4.0", broken={"centre": 1.3}, fused=fused))
    status = {node.node: node.status for node in found.nodes}
    assert status["mean"] == "fused"
    assert side.lack(TensorName("mean_out")) == "fused"
    assert status["b"] == "good"
    assert set(found.first) == {"mean", "centre"}


def test_a_fault_that_showing_cures(engines):
    maker, whole, ill = engines("11.4.0"), network(), Session(network(b=1.3).model)
    side = maker.shown(maker.side("fp32"))
    side.run = lambda _build, sample: ill.run(sample)
    walk = Walk(whole, SAMPLES, reference(whole, SAMPLES, Settings()), side)
    find_divergence(walk)
    found = compared(walk)
    assert side.vanished
    assert found.differs
    assert set(found.first) == {node.node for node in found.nodes}
    assert any("Showing tensors made wrong outputs" in note for note in found.notes)


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_earlier_versions_show_nothing(engines, version):
    maker = engines(version)
    side = maker.side("fp32")
    assert maker.shown(side) is side
    assert side.builds == 0


@pytest.mark.parametrize("fault", [Fault("build", "memory", (1,)), Fault("run", "memory", (1,))])
def test_where_that_cannot_be_had_nothing_is_shown(engines, fault):
    maker = engines("11.4.0", faults=[fault])
    side = maker.side("fp32")
    assert maker.shown(side) is side
    assert side.builds == 1
