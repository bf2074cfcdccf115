import threading
import time
from math import inf

import numpy as np
import onnx
import pytest

from halfwise.case import Samples
from halfwise.interruption import offered
from halfwise.progress import Silent
from halfwise.tools.diagnose import faults, transplant
from halfwise.tools.diagnose.faults import decibels
from halfwise.tools.diagnose.kernels import fp32_engine
from halfwise.tools.diagnose.transplant import seconds_for
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
    assert found.builds <= 8 or found.marks is not None


@pytest.mark.parametrize("place", ["build", "run"])
def test_no_node_is_blamed_where_everything_dies(subject, place):
    rung = fp32_engine(subject(fake={"faults": [Fault(place, "segv")]}))
    found = told(rung)
    assert (found.verdict, found.everywhere, found.alike, rung.nodes) == ("unknown", True, (), ())
    assert "it may be the driver, the GPU or the installation" in rung.cause


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


BROKEN = Wrong(ops=("GRU",))
GRUS = tuple(f"gru{i}" for i in range(6))


class Heard(Silent):
    """Keeps what is noted, and does something at a note."""

    def __init__(self):
        self.notes, self.at, self.then = [], "never", list

    def note(self, text):
        self.notes.append(text)
        if text.startswith(self.at):
            self.then()


def told_by_marks(rung):
    """What a rung tells of engines."""
    assert rung.engine is not None
    return rung.engine


def grus():
    """Six GRUs of two shapes, one behind another, and what is between them."""
    sketch = Sketch()
    rng = np.random.default_rng(1)
    x = sketch.input("x", [3, 2, 4])
    for i, name in enumerate(GRUS):
        hidden = 4 if i % 2 else 5
        sizes = {"w": (1, 3 * hidden, 9 - hidden if i else 4), "r": (1, 3 * hidden, hidden)}
        w, r = (sketch.constant(f32(rng.normal(size=s)), f"{name}_{p}") for p, s in sizes.items())
        x = sketch.op("Tanh", x, name=f"{name}_in")
        node = onnx.helper.make_node("GRU", [x, w, r], [f"{name}_y"], name, hidden_size=hidden)
        sketch.nodes.append(node)
        axes = sketch.constant(np.array([1]), f"{name}_axes")
        x = sketch.op("Squeeze", f"{name}_y", axes, name=f"{name}_out")
    sample = {"x": f32(rng.normal(size=(3, 2, 4)))}
    return sketch.network(x), Samples(("s",), lambda _: sample)


@pytest.fixture
def heard(subject):
    """Make a subject of the GRUs whose engines are wrong at each, and what hears of builds."""

    def heard(**fake):
        network, samples = grus()
        made = subject(model=network, samples=samples, fake={"wrong": [BROKEN], **fake})
        watcher = made.engines.watcher = made.engines.builds.watcher = Heard()
        return made, watcher

    return heard


def test_an_operator_that_is_wrong_everywhere_is_found_in_few_builds(heard):
    made, watcher = heard()
    rung = fp32_engine(made)
    found = told_by_marks(rung)
    assert rung.nodes == found.suspects == GRUS
    assert found.marks == "shown"
    assert [fault.operators for fault in found.faults] == [("GRU",)]
    assert found.explained
    assert found.builds <= 5
    builds = [note for note in watcher.notes if note.startswith("build ")]
    assert builds == [
        "build 1: FP32, TF32 off",
        "build 2: 17 tensors marked (FP32, TF32 off)",
        "build 3: 6 nodes on true inputs (FP32, TF32 off)",
        "build 4: the model with true values fed in (FP32, TF32 off)",
        "build 5: GRU alone (FP32, TF32 off)",
    ]


def test_marks_that_end_a_fault_are_told_and_no_node_is_asked_for_alone(subject):
    found = told_by_marks(fp32_engine(subject(model=repeated(), fake={"wrong": [EVERYWHERE]})))
    assert (found.marks, found.suspects) == ("cured", ())
    assert found.explained


def test_marks_that_a_builder_refuses_are_asked_for_by_halves(heard):
    refused = Fault("build", "foreign", region=Region(ops=("GRU",)), on=(2,))
    made, watcher = heard(faults=[refused])
    found = told_by_marks(fp32_engine(made))
    assert found.marks == "shown"
    assert set(found.suspects) == set(GRUS)
    assert found.explained
    assert found.builds <= 7
    assert any("17 tensors marked, half of them" in note for note in watcher.notes)


def test_a_build_that_takes_too_long_tells_nothing_and_the_search_goes_on(heard, monkeypatch):
    monkeypatch.setattr(transplant, "LEAST_SECONDS", 2.0)
    monkeypatch.setattr(transplant, "LONGER", 0.0)
    made, _ = heard(faults=[Fault("build", "hang", on=(2, 3))])
    rung = fp32_engine(made)
    found = told_by_marks(rung)
    assert (found.marks, found.late, found.build_seconds) == ("late", 2, 2.0)
    assert found.faults
    assert all(set(place) & set(GRUS) for fault in found.faults for place in fault.places)
    assert "2 builds took longer than 2 s and showed nothing." in {s.text for s in rung.evidence}


def test_of_many_suspects_one_of_each_shape_is_asked_about(heard, monkeypatch):
    monkeypatch.setattr(faults, "MANY", 5)
    made, watcher = heard()
    rung = fp32_engine(made)
    found = told_by_marks(rung)
    assert rung.nodes == ("gru0", "gru1")
    assert sorted(found.alike) == [(name,) for name in GRUS[2:]]
    assert found.explained
    assert "build 3: 2 nodes on true inputs (FP32, TF32 off)" in watcher.notes


def test_how_long_a_build_may_take():
    assert [seconds_for(plain, 1800.0) for plain in (1.0, 36.0, 900.0)] == [60.0, 180.0, 1800.0]


@pytest.mark.parametrize(("at", "named"), [(3, ()), (5, GRUS)])
def test_ctrl_c_leaves_what_was_found_by_then(heard, at, named):
    with offered() as interruption:

        def press():
            while not interruption.then:
                time.sleep(0.01)
            assert interruption.take()

        made, watcher = heard(faults=[Fault("build", "hang", on=(at,))])
        watcher.at, watcher.then = f"build {at}:", threading.Thread(target=press).start
        rung = fp32_engine(made)
    found = told_by_marks(rung)
    assert found.interrupted
    assert found.suspects == GRUS
    assert rung.nodes == named
    assert not any(note.startswith(f"build {at + 1}") for note in watcher.notes)
    assert any("Ctrl-C ended the search" in sign.text for sign in rung.evidence)
