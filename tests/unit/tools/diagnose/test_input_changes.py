import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.tools.diagnose.harness import (
    CODE_FILE,
    changed_inputs,
)
from halfwise.tools.preprocessing.changes import transformation
from tests import pictures
from tests.pictures import OUTPUT
from tests.unit.graph.sketch import Sketch, f32

PIXELS = pictures.pictures()


@pytest.fixture
def tried(subject):
    """Say what the framework had in the place of the pictures, and what is found."""

    def tried(given, theirs, *, outputs=10, count=pictures.COUNT, alter=lambda x: x):
        network = pictures.sketch(outputs).network(OUTPUT)
        session = Session(network.model, optimise=True)
        wanted = [
            {OUTPUT: alter(session.run({"images": pictures.one(x)})[OUTPUT])}
            for x in theirs[:count]
        ]
        made = subject(network, pictures.samples(given[:count]), expected=wanted)
        return changed_inputs(made)

    return tried


def told(made):
    found = changed_inputs(made)
    assert found is not None
    return found


def kinds(found):
    return [difference.kind for difference in found.best.differences]


@pytest.mark.parametrize(
    ("given", "theirs", "expected"),
    [
        (PIXELS / 255, PIXELS[:, ::-1] / 255, ["channels"]),
        (PIXELS / 255, pictures.imagenet(PIXELS), ["mean", "deviation"]),
        (pictures.imagenet(PIXELS), PIXELS / 255, ["mean", "deviation"]),
        (PIXELS / 255, pictures.imagenet(PIXELS)[:, ::-1], ["channels", "mean", "deviation"]),
        (PIXELS / 255, PIXELS[..., ::-1] / 255, ["flip"]),
    ],
    ids=["BGR", "ImageNet", "ImageNet undone", "BGR and ImageNet", "mirrored"],
)
def test_the_change_is_named_measured_and_written(tried, tmp_path, given, theirs, expected):
    found = tried(given, theirs)
    assert found.matches
    assert kinds(found) == expected
    assert found.best.error < 1e-5 < OTHER_KERNELS < found.before
    assert found.shown_by == pictures.COUNT
    assert found.numbers >= 3
    change = transformation((tmp_path / "run" / CODE_FILE).read_text())
    assert change(pictures.one(given[0])) == pytest.approx(pictures.one(theirs[0]), abs=1e-5)


@pytest.mark.parametrize(
    "altered",
    [
        255 * (PIXELS / 255) ** 1.1,
        np.roll(PIXELS, 1, axis=2),
        PIXELS[:, [1, 2, 0]],
        PIXELS + 10,
        np.where(np.arange(3)[:, None, None] == 1, 0, PIXELS),
    ],
    ids=["gamma", "moved", "channels 1 2 0", "brighter", "one channel lost"],
)
def test_other_faults_are_none_of_these(tried, tmp_path, altered):
    found = tried(PIXELS / 255, altered / 255)
    assert not found.matches
    assert found.tried == found.planned > 50
    assert found.best.error > OTHER_KERNELS
    assert not (tmp_path / "run" / CODE_FILE).exists()


def test_faults_of_the_export_are_none_either(tried):
    found = tried(PIXELS / 255, PIXELS / 255, alter=lambda x: 1.1 * x)
    assert not found.matches


def test_outputs_that_match_are_not_looked_into(tried):
    assert tried(PIXELS, PIXELS) is None


@pytest.mark.parametrize(("count", "enough"), [(1, False), (2, False), (4, True)])
def test_one_number_of_few_samples_may_match_by_chance(tried, tmp_path, count, enough):
    found = tried(PIXELS / 255, PIXELS[:, ::-1] / 255, outputs=1, count=count)
    assert found.matches is enough
    assert (found.shown_by, found.numbers) == (count, count)
    assert found.best.error <= OTHER_KERNELS
    assert (tmp_path / "run" / CODE_FILE).exists() is enough


def test_a_map_that_follows_one_number_is_one_number(subject):
    sketch = Sketch()
    x = sketch.input("images", ["n", 3, pictures.SIDE, pictures.SIDE])
    mean = sketch.op("ReduceMean", x, axes=[1, 2, 3])
    grown = sketch.op("Mul", mean, f32(np.linspace(-1, 1, 64).reshape(1, 1, 8, 8)))
    network = sketch.network(out := sketch.op("Tanh", grown, name="map"))
    run = Session(network.model).run
    # All but one of the changes leave another mean; with one sample that says little.
    wanted = [{out: run({"images": pictures.one(PIXELS[0])})[out]}]
    found = told(subject(network, pictures.samples(PIXELS[:1] / 255), expected=wanted))
    assert not found.matches
    assert found.numbers == 1


def test_outputs_of_whole_numbers_are_no_evidence(subject):
    sketch = pictures.sketch()
    label = sketch.op("ArgMax", OUTPUT, axis=1, name="label")
    network = sketch.network(label)
    wanted = [{label: np.array([[11]])}] * pictures.COUNT
    made = subject(network, pictures.samples(PIXELS), expected=wanted)
    assert not made.against_framework.passed
    assert changed_inputs(made) is None


def test_sound_as_integers(subject):
    sketch = Sketch()
    x = sketch.input("sound", [1, 256])
    weights = f32(np.random.default_rng(0).normal(size=(256, 8)))
    out = sketch.op("Tanh", sketch.op("MatMul", x, weights), name="y")
    network = sketch.network(out)
    waves = f32(np.sin(np.linspace(0, 9, 3 * 256)).reshape(3, 1, 256)) / 50
    run = Session(network.model).run
    whole = Samples(("a", "b", "c"), lambda i: {"sound": f32(waves[i] * 32768)})
    found = told(subject(network, whole, expected=[run({"sound": wave}) for wave in waves]))
    assert found.matches
    assert found.best.differences[0].b == "3.052e−5"


def test_it_stops_when_the_time_is_up(subject):
    network = pictures.sketch().network(OUTPUT)
    made = subject(
        network, pictures.samples(PIXELS), expected=[{OUTPUT: f32(np.ones((1, 10)))}] * 5
    )
    made.settings = type(made.settings)(time_budget=-1.0)
    found = told(made)
    assert (found.tried, found.best, found.matches) == (0, None, False)
    assert found.planned > 50
