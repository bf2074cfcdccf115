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


def walk_of(maker, kind="fp32", rounds=5):
    whole = network()
    walk = Walk(whole, SAMPLES, reference(whole, SAMPLES, Settings()), maker.side(kind))
    find_divergence(walk, rounds)
    return walk


def test_an_engine_that_is_right(engines):
    found = compared(walk_of(engines()))
    assert found.first == ()
    assert not found.differs
    assert found.builds == 3
    assert found.notes == (
        "Marking tensors did not change the final outputs of engine (FP32, TF32 off).",
    )


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1", "11.4.0"])
def test_a_faulty_kernel_is_found(engines, version):
    found = compared(walk_of(engines(version, broken={"b": 1.1})))
    assert found.first == ("b",)
    assert found.b == "engine (FP32, TF32 off)"


def test_few_builds_narrow_it_down(engines):
    walk = walk_of(engines(broken={"centre": 1.1}, builds=9), rounds=1)
    assert "centre" in compared(walk).first


def test_tf32_has_its_own_tolerance(engines):
    found = compared(walk_of(engines(), "tf32"))
    assert found.first == ()
    assert max(node.error or 0 for node in found.nodes) > 1e-5


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_everything_low_in_both_typings(engines, version):
    found = compared(walk_of(engines(version, lossy={"b": 1.5}), "fp16"))
    assert found.first == ("b",)


def test_what_an_engine_refuses_to_give_out(engines):
    maker = engines(faults=[Fault("build", "memory", (2, 3))], builds=20)
    side = maker.side("fp32")
    names = [TensorName("a_out"), TensorName("b_out")]
    given = list(side.get(names))
    assert given[0].keys() == {"b_out"}
    assert side.lack(names[0]) == "refused"
    assert side.lack(names[1]) is None
    assert "such as a_out" in side.notes()[-1]


def test_what_an_engine_does_not_give_is_fused(engines):
    side = engines().side("fp32")
    absent = TensorName("nowhere")
    list(side.get([absent]))
    assert side.lack(absent) == "fused"


def test_a_marked_engine_that_cannot_be_run_is_refused(engines):
    side = engines(faults=[Fault("run", "memory", (4,))]).side("fp32")
    names = [TensorName("a_out"), TensorName("y_out")]
    given = list(side.get(names))
    assert [g.keys() for g in given] == [{"y_out"}] * 3
    assert side.lack(names[0]) == "refused"


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


def test_a_fault_that_marks_cure(engines):
    whole, wrong = network(), network(b=1.3)
    side = engines().side("fp32")
    cured, build = side.run, side.build
    ill, marked = Session(wrong.model), {}

    def remembered(names):
        outcome = build(names)
        marked[outcome.number] = bool(names)
        return outcome

    def run(outcome, sample):
        return cured(outcome, sample) if marked[outcome.number] else ill.run(sample)

    side.build, side.run = remembered, run
    walk = Walk(whole, SAMPLES, reference(whole, SAMPLES, Settings()), side)
    find_divergence(walk, 5)
    found = compared(walk)
    assert side.vanished
    assert found.differs
    assert found.outputs[TensorName("y_out")] > side.tolerance
    assert set(found.first) == {node.node for node in found.nodes}
    # `still_out` is rounding errors alone: another order of sums gives others, which nobody reads.
    inner = [n for n in found.nodes if n.tensor not in ("still_out", "y_out")]
    assert all(n.status == "good" for n in inner)
    assert any("made wrong outputs" in note for note in found.notes)


def test_no_more_builds_than_allowed(engines):
    side = engines(builds=1).side("fp32")
    given = list(side.get([TensorName("a_out"), TensorName("y_out")]))
    assert given[0].keys() == {"y_out"}
    assert side.builds == 1
    assert side.lack(TensorName("a_out")) is None
