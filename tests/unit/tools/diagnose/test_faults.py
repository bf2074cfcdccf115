from math import inf

import numpy as np
import pytest

from halfwise.tools.diagnose.faults import decibels
from halfwise.tools.diagnose.kernels import fp32_engine
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region, Wrong
from tests.unit.graph.sketch import Sketch, f32


def told(rung):
    """What a rung tells of engines."""
    assert rung.engine is not None
    return rung.engine


def test_decibels():
    assert (decibels(0.0), decibels(inf)) == (inf, -inf)
    assert decibels(0.1) == pytest.approx(20)


def test_a_fault_that_only_shows_where_nothing_is_marked(subject):
    made = subject(fake={"wrong": [Wrong(nodes=("join",), unless="touched", do="nan")]})
    rung = fp32_engine(made)
    assert "join" in rung.nodes
    assert len(rung.nodes) <= 4
    assert told(rung).verdict == "kernel"
    assert told(rung).faults[0].snr_db == -inf


def test_builds_are_limited_and_what_is_known_by_then_is_told(subject):
    """The fault needs nearly the whole model."""
    fault = Wrong(nodes=("a", "b", "c", "centre", "join", "d", "e", "y"))
    found = told(fp32_engine(subject(fake={"wrong": [fault]})))
    assert found.builds <= found.most_builds == 10
    assert found.verdict in ("kernel", "unknown")
    assert not found.faults or set(fault.nodes) <= set(found.faults[0].places[0])


def test_a_builder_that_dies_at_a_pattern(subject):
    fault = Fault("build", "segv", region=Region(nodes=("join", "d")))
    made = subject(fake={"faults": [fault]})
    rung = fp32_engine(made)
    assert set(rung.nodes) == {"join", "d"}
    assert told(rung).symptom == "build"
    assert told(rung).explained
    assert "cannot be built: The build ended with SIGSEGV." in rung.cause
    assert all(cure.right is None and cure.status == "crashed" for cure in told(rung).cures)


def repeated(blocks=6):
    """Blocks of Mul, Exp and Sigmoid; the last two are a pair that a builder may fuse."""
    s = Sketch()
    x = s.input("x", [4, 16])
    for i in range(blocks):
        x = s.op("Mul", x, f32(np.linspace(0.1, 0.5, 16) + i / 10), name=f"mul{i}")
        x = s.op("Sigmoid", s.op("Exp", x, name=f"exp{i}"), name=f"sigmoid{i}")
    return s.network(x)


EVERYWHERE = Wrong(ops=("Exp", "Sigmoid"), unless="between", size=0.5)
REFUSED = Fault("build", "foreign", region=Region(ops=("Exp", "Sigmoid")))


@pytest.mark.parametrize("fake", [{"wrong": [EVERYWHERE]}, {"faults": [REFUSED]}])
def test_a_fusion_that_is_wrong_everywhere_is_one_finding(subject, fake):
    found = told(fp32_engine(subject(model=repeated(), fake=fake)))
    assert len(found.faults) == 1, found
    (one,) = found.faults
    assert {"Exp", "Sigmoid"} <= set(one.operators)
    # Of a build no engine of all of them tells more.
    shown = 1 if "faults" in fake else 6
    assert (len(one.places), len(found.alike)) == (shown, 6 - shown)
    assert found.explained
    assert found.symptom == ("build" if "faults" in fake else "outputs")


def test_only_what_was_asked_is_blamed_where_a_builder_dies_at_some_of_many(subject):
    regions = [Region(nodes=(f"exp{i}", f"sigmoid{i}")) for i in (1, 4)]
    faults = [Fault("build", "segv", region=region) for region in regions]
    rung = fp32_engine(subject(model=repeated(), fake={"faults": faults}))
    found = told(rung)
    assert found.explained
    assert set(rung.nodes) <= {"exp1", "sigmoid1", "exp4", "sigmoid4"}
    assert found.alike
    assert "which may be right, fed in" in " ".join(sign.text for sign in rung.evidence)


def test_a_node_that_only_reads_what_is_wrong_is_not_blamed(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    for i in range(60):
        x = sketch.op("Mul", x, f32(1.0 + i / 99), name=f"m{i}")
    fault = Wrong(nodes=("m9", "m10", "m11"), unless="touched", do="roll")
    rung = fp32_engine(subject(model=sketch.network(x), fake={"wrong": [fault]}))
    assert rung.nodes == fault.nodes
    (found,) = told(rung).faults
    assert found.places == ((*fault.nodes, "m12"),)
    assert any("What m12 reads is just as wrong" in sign.text for sign in rung.evidence)


@pytest.mark.parametrize("broken", [("tail5", "tail6", "tail7"), ("head5", "head6", "head7")])
def test_what_right_outputs_need_is_asked_last(subject, broken):
    s = Sketch()
    x = s.input("x", [4, 16])
    for i in range(30):
        x = s.op("Mul", x, f32(1.0 + i / 99), name=f"head{i}")
        if i == 10:
            y = x
    state = x
    for i in range(12):
        y = s.op("Mul", y, f32(1.0 - i / 99), name=f"tail{i}")
    fault = Wrong(nodes=broken, unless="between")
    found = told(fp32_engine(subject(model=s.network(state, y), fake={"wrong": [fault]})))
    assert [place for fault in found.faults for place in fault.places] == [broken]
    # Only what leads to no right output is asked about, so no tensor need be marked.
    assert (found.marks is None) == broken[0].startswith("tail")
    assert found.explained
    assert found.builds - len(found.cures) <= 8 or found.marks is not None


@pytest.mark.parametrize("place", ["build", "run"])
def test_no_node_is_blamed_where_everything_dies(subject, place):
    rung = fp32_engine(subject(fake={"faults": [Fault(place, "segv")]}))
    found = told(rung)
    assert (found.verdict, found.everywhere, found.alike, rung.nodes) == ("unknown", True, (), ())
    assert "it may be the driver, the GPU or the installation" in rung.cause
    assert found.reproducer is None


def test_the_last_node_is_blamed_where_all_but_it_is_built(subject):
    fault = Fault("build", "segv", region=Region(nodes=("y",)))
    rung = fp32_engine(subject(fake={"faults": [fault]}))
    assert "y" in rung.nodes
    assert told(rung).explained


def test_what_was_shown_of_one_place_is_not_told_of_others(subject):
    """Two faults alike: of one the last node only reads, of the other it is a part."""
    s = Sketch()
    x, ends = s.input("x", [4, 16]), []
    for i in range(20):
        y = s.op("Mul", x, f32(np.linspace(0.1, 0.5, 16) + i / 10), name=f"mul{i}")
        for op in ("Exp", "Sigmoid", "Abs", "Tanh"):
            y = s.op(op, y, name=f"{op.lower()}{i}")
        ends.append(y)
    model = s.network(s.op("Concat", *ends, axis=1, name="concat"))
    reading = Wrong(nodes=("exp3", "sigmoid3", "abs3"), unless="touched", do="roll")
    whole = Wrong(nodes=("exp9", "sigmoid9", "abs9", "tanh9"), unless="between", do="roll")
    rung = fp32_engine(subject(model=model, fake={"wrong": [reading, whole]}))
    assert "tanh9" in rung.nodes
    (one,) = told(rung).faults
    assert (len(one.places), one.unmarked) == (2, ())
