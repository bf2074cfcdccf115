import threading
import time

import numpy as np
import onnx
import pytest

from halfwise.case import Samples
from halfwise.graph.model import load_network
from halfwise.interruption import offered
from halfwise.progress import Silent
from halfwise.tools.diagnose import faults, transplant
from halfwise.tools.diagnose.kernels import fp32_engine
from halfwise.tools.diagnose.transplant import seconds_for
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region, Wrong
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.diagnose.test_faults import EVERYWHERE, repeated

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


def told(rung):
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
    found = told(rung)
    assert rung.nodes == found.suspects == GRUS
    assert found.marks == "shown"
    assert [fault.operators for fault in found.faults] == [("GRU",)]
    assert found.explained
    assert found.builds <= 5
    assert len(load_network(made.folder / "reproducer" / "model.onnx").graph) <= 3
    assert found.best.kind == "written-out"
    assert found.best.nodes == GRUS
    builds = [note for note in watcher.notes if note.startswith("build ")]
    assert builds[:5] == [
        "build 1: FP32, TF32 off",
        "build 2: 17 tensors marked (FP32, TF32 off)",
        "build 3: 6 nodes on true inputs (FP32, TF32 off)",
        "build 4: the model with true values fed in (FP32, TF32 off)",
        "build 5: GRU alone (FP32, TF32 off)",
    ]
    assert "written out as steps" in builds[5]


def test_marks_that_end_a_fault_are_told_and_no_node_is_asked_for_alone(subject):
    found = told(fp32_engine(subject(model=repeated(), fake={"wrong": [EVERYWHERE]})))
    assert (found.marks, found.suspects) == ("cured", ())
    assert found.explained


def test_marks_that_a_builder_refuses_are_asked_for_by_halves(heard):
    refused = Fault("build", "foreign", region=Region(ops=("GRU",)), on=(2,))
    made, watcher = heard(faults=[refused])
    found = told(fp32_engine(made))
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
    found = told(rung)
    assert (found.marks, found.late, found.build_seconds) == ("late", 2, 2.0)
    assert found.faults
    assert all(set(place) & set(GRUS) for fault in found.faults for place in fault.places)
    assert "2 builds took longer than 2 s and showed nothing." in {s.text for s in rung.evidence}


def test_of_many_suspects_one_of_each_shape_is_asked_about(heard, monkeypatch):
    monkeypatch.setattr(faults, "MANY", 5)
    made, watcher = heard()
    rung = fp32_engine(made)
    found = told(rung)
    assert rung.nodes == ("gru0", "gru1")
    assert sorted(found.alike) == [(name,) for name in GRUS[2:]]
    assert found.explained
    assert "build 3: 2 nodes on true inputs (FP32, TF32 off)" in watcher.notes
    assert found.best.nodes == GRUS


def test_how_long_a_build_may_take():
    assert [seconds_for(plain, 1800.0) for plain in (1.0, 36.0, 900.0)] == [60.0, 180.0, 1800.0]


@pytest.mark.parametrize(("at", "named"), [(3, ()), (5, GRUS), (6, GRUS)])
def test_ctrl_c_leaves_what_was_found_by_then(heard, at, named):
    with offered() as interruption:

        def press():
            while not interruption.then:
                time.sleep(0.01)
            assert interruption.take()

        made, watcher = heard(faults=[Fault("build", "hang", on=(at,))])
        watcher.at, watcher.then = f"build {at}:", threading.Thread(target=press).start
        rung = fp32_engine(made)
    found = told(rung)
    assert found.interrupted
    assert found.suspects == GRUS
    assert rung.nodes == named
    assert found.cures == ()
    assert not any(note.startswith(f"build {at + 1}") for note in watcher.notes)
    assert any("Ctrl-C ended the search" in sign.text for sign in rung.evidence)
