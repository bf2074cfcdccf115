import pytest

from halfwise.case import Settings
from halfwise.emulation.ort import Session
from halfwise.records import TensorName
from halfwise.tensorrt.worker.failures import EngineFailed
from halfwise.tools.compare import Walk, compared
from halfwise.tools.compare.search import look
from halfwise.tools.compare.sources import reference
from tests.fake_tensorrt.faults import Fault
from tests.unit.tools.compare.copies import SAMPLES, network


def found_by(maker, kind="fp32"):
    whole = network()
    side = maker.shown(maker.side(kind))
    walk = Walk(whole, SAMPLES, reference(whole, SAMPLES, Settings()), side)
    walk.all()
    return side, compared(walk)


def test_one_build_shows_all(engines):
    side, found = found_by(engines("11.4.0", broken={"b": 1.3}))
    assert not side.few
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
    look(walk, 5)
    found = compared(walk)
    assert side.vanished
    assert found.differs
    assert set(found.first) == {node.node for node in found.nodes}
    assert any("Showing tensors made wrong outputs" in note for note in found.notes)


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_earlier_versions_mark(engines, version):
    maker = engines(version)
    side = maker.side("fp32")
    assert maker.shown(side) is side
    assert side.builds == 0


@pytest.mark.parametrize("fault", [Fault("build", "memory", (1,)), Fault("run", "memory", (1,))])
def test_where_that_cannot_be_had_tensors_are_marked(engines, fault):
    maker = engines("11.4.0", faults=[fault])
    side = maker.side("fp32")
    assert maker.shown(side) is side
    assert side.builds == 1


@pytest.mark.parametrize("status", ["crashed", "lost"])
def test_a_run_that_fails_while_it_shows(engines, status):
    maker = engines("11.4.0")
    side, names = maker.shown(maker.side("fp32")), [TensorName("a_out"), TensorName("y_out")]

    def failing(_sample, _names):
        raise EngineFailed("It fell over.", status=status)

    side.watch = failing
    if status == "lost":
        with pytest.raises(EngineFailed):
            list(side.get(names))
    else:
        assert [given.keys() for given in side.get(names)] == [{"y_out"}] * 3
        assert side.lack(names[0]) == "refused"
