import numpy as np
import pytest

from halfwise.case import Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.errors import CaseError, RunFailed
from halfwise.records import MadeUp, Note, replace
from halfwise.reporting.remarks import steps_told
from halfwise.tools.diagnose.harness import (
    CODE_FILE,
    PIPELINES_CODE,
    changed_inputs,
    harness,
    pipelines,
)
from halfwise.tools.preprocessing.changes import transformation
from tests import frozen, pictures
from tests.pictures import OUTPUT
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, SAMPLES


def samples(change=lambda x: x):
    return Samples(("s0", "s1", "s2"), lambda i: {"x": change(DATA[i])})


def test_inputs_that_are_right(subject):
    note = Note(kind="array", facts={"array": "x", "where": "f.npz", "input": "x"})
    rung = harness(subject(notes=(note,)))
    assert rung.passed
    assert rung.cause == "3 samples fit the model."
    texts = [sign.text for sign in rung.evidence]
    assert texts[0].startswith("F.npz has no array 'x'")


@pytest.mark.parametrize("allowed", [False, True])
def test_made_up_inputs(subject, allowed):
    found = MadeUp(input="x", kind="normal", mean=0, deviation=1)
    for made_up in ((found,), ()):
        given = subject(settings=Settings(allow_random=allowed), real=False)
        given.case = replace(given.case, made_up=made_up)
        rung = harness(given)
        assert rung.passed is allowed
        assert rung.evidence[0].severity == ("warning" if allowed else "error")
        assert ("'x'" in rung.evidence[0].text) is bool(made_up)


@pytest.mark.parametrize(("real", "signs"), [(False, 1), (True, 1)])
def test_made_up_inputs_are_told_once(subject, real, signs):
    found = MadeUp(input="x", kind="normal", mean=0, deviation=1)
    note = Note(kind="made-up", severity="warning", made_up=found)
    given = subject(settings=Settings(allow_random=True), real=real, notes=(note,))
    given.case = replace(given.case, made_up=(found,))
    assert sum("normal noise" in sign.text for sign in harness(given).evidence) == signs


@pytest.mark.parametrize("kind", ["single", "dynamic"])
def test_other_warnings_are_no_failure(subject, kind):
    rung = harness(subject(notes=(Note(kind=kind, severity="warning"),)))
    assert rung.passed
    assert rung.evidence[0].severity == "warning"


def test_two_pipelines_that_agree(subject):
    rung = harness(subject(others=samples()))
    assert rung.passed
    assert rung.evidence[-1].text == "The two pipelines agree on 'x'."


def test_two_pipelines_that_differ(subject):
    rung = harness(subject(others=samples(lambda x: (x * 1.1).astype(np.float32))))
    assert rung.passed is False
    assert "'x' differs by 10 %" in rung.cause
    assert "changes the FP32 outputs: y_out by" in rung.cause
    assert "channel order" in steps_told(rung.advice)[0]


def test_a_batch_size_of_the_export(subject):
    x = np.ones((1, frozen.LENGTH, frozen.WIDTH), np.float32)
    ones = Samples(("s0",), lambda _: {"x": x})
    with pytest.raises(CaseError, match="constants of split"):
        harness(subject(frozen.network(frozen.frozen_batch(2)), ones))


def test_another_failure_ends_it(subject):
    empty = Samples(("s0",), lambda _: {"x": np.ones((3, 7), np.float32)})
    with pytest.raises(RunFailed):
        harness(subject(samples=empty))


def test_inputs_that_are_not_the_frameworks(subject):
    pixels = pictures.pictures() / 255
    network = pictures.sketch().network(pictures.OUTPUT)
    run = Session(network.model).run
    expected = [run({"images": pictures.one(x[::-1])}) for x in pixels]
    made = subject(network, pictures.samples(pixels), expected=expected)
    rung = harness(made)
    assert rung.passed is False
    assert "the other BGR" in rung.cause
    assert made.tried == ""
    assert CODE_FILE in steps_told(rung.advice)[1]


def others(change):
    return Samples(SAMPLES.ids, lambda i: {"x": change(DATA[i]).astype(np.float32)})


def test_pipelines_that_agree(subject, tmp_path):
    signs, _ = pipelines(subject(), others(lambda x: x))
    assert [(s.severity, s.text) for s in signs] == [("info", "The two pipelines agree on 'x'.")]
    assert not (tmp_path / "run" / PIPELINES_CODE).exists()


def test_a_difference_is_measured_named_and_undone(subject, tmp_path):
    signs, advice = pipelines(subject(), others(lambda x: 2 * x + 1))
    assert signs[0].severity == "error"
    assert "changes the FP32 outputs: y_out by" in signs[0].text
    assert "the scale 2" in signs[0].text
    assert "the mean −1" in signs[0].text
    assert signs[0].text.endswith("B = 2 · A + 1.")
    assert signs[1:] == []
    text = (tmp_path / "run" / PIPELINES_CODE).read_text()
    assert transformation(text)(DATA[0]) == pytest.approx(2 * DATA[0] + 1, abs=1e-5)
    assert PIPELINES_CODE in steps_told(advice)[1]


def test_a_difference_that_nothing_explains(subject):
    signs, _ = pipelines(subject(), others(np.sin))
    assert "differs by" in signs[0].text
    assert "no known step explains how" in signs[0].text


PIXELS = pictures.pictures() / 255


def seen(subject, change):
    """What is told of pictures, the second pipeline's changed."""
    made = subject(pictures.sketch().network(pictures.OUTPUT), pictures.samples(PIXELS))
    signs, _ = pipelines(made, pictures.samples(np.stack([change(x) for x in PIXELS])))
    return signs[0].text, [s.text for s in signs if "With A changed like this" in s.text]


def test_what_a_change_explains_leaves_nothing_to_tell(subject):
    cause, left = seen(subject, lambda x: x[::-1])
    assert "RGB" in cause
    assert left == []


def test_what_it_leaves_is_told(subject):
    noise = np.random.default_rng(2).normal(size=PIXELS[0].shape) / 10
    cause, (left,) = seen(subject, lambda x: x[::-1] + noise)
    assert "RGB" in cause
    assert "'images' still differs by" in left
    assert left.endswith("before).")


def test_images_that_nothing_makes_alike_are_not_taken_apart(subject, tmp_path):
    def patched(x):
        return np.where(np.indices(x.shape)[1] < 6, 0.5, x)

    made = subject(pictures.sketch().network(pictures.OUTPUT), pictures.samples(PIXELS))
    signs, _ = pipelines(made, pictures.samples(np.stack([patched(x) for x in PIXELS])))
    assert "not taken apart further" in signs[0].text
    assert not (tmp_path / "run" / PIPELINES_CODE).exists()


BYTES = pictures.pictures()


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
    return [difference.kind for difference in found.best.hypothesis.differences]


@pytest.mark.parametrize(
    ("given", "theirs", "expected"),
    [
        (BYTES / 255, BYTES[:, ::-1] / 255, ["channels"]),
        (BYTES / 255, pictures.imagenet(BYTES), ["mean", "deviation"]),
        (pictures.imagenet(BYTES), BYTES / 255, ["mean", "deviation"]),
        (BYTES / 255, pictures.imagenet(BYTES)[:, ::-1], ["channels", "mean", "deviation"]),
    ],
    ids=["BGR", "ImageNet", "ImageNet undone", "BGR and ImageNet"],
)
def test_the_change_is_named_measured_and_written(tried, tmp_path, given, theirs, expected):
    found = tried(given, theirs)
    assert found.matches
    assert kinds(found) == expected
    assert found.best.error < 1e-5 < OTHER_KERNELS < found.before
    assert found.best.shown == pictures.COUNT
    change = transformation((tmp_path / "run" / CODE_FILE).read_text())
    assert change(pictures.one(given[0])) == pytest.approx(pictures.one(theirs[0]), abs=1e-5)


@pytest.mark.parametrize(
    "altered",
    [
        255 * (BYTES / 255) ** 1.1,
        np.roll(BYTES, 1, axis=2),
        BYTES[:, [1, 2, 0]],
        BYTES + 10,
        np.where(np.arange(3)[:, None, None] == 1, 0, BYTES),
    ],
    ids=["gamma", "moved", "channels 1 2 0", "brighter", "one channel lost"],
)
def test_other_faults_are_none_of_these(tried, tmp_path, altered):
    found = tried(BYTES / 255, altered / 255)
    assert not found.matches
    assert len(found.tried) == found.planned > 50
    assert found.best.error > OTHER_KERNELS
    assert not (tmp_path / "run" / CODE_FILE).exists()


def test_faults_of_the_export_are_none_either(tried):
    found = tried(BYTES / 255, BYTES / 255, alter=lambda x: 1.1 * x)
    assert not found.matches


def test_outputs_that_match_are_not_looked_into(tried):
    assert tried(BYTES, BYTES) is None


@pytest.mark.parametrize(("count", "enough"), [(1, False), (2, False), (4, True)])
def test_few_samples_may_match_by_chance(tried, tmp_path, count, enough):
    found = tried(BYTES / 255, BYTES[:, ::-1] / 255, count=count)
    assert found.matches is enough
    assert found.best.shown == count
    assert found.best.error <= OTHER_KERNELS
    assert (tmp_path / "run" / CODE_FILE).exists() is enough


def test_outputs_of_whole_numbers_are_no_evidence(subject):
    sketch = pictures.sketch()
    label = sketch.op("ArgMax", OUTPUT, axis=1, name="label")
    network = sketch.network(label)
    wanted = [{label: np.array([[11]])}] * pictures.COUNT
    made = subject(network, pictures.samples(BYTES), expected=wanted)
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
    assert found.best.hypothesis.differences[0].b == "3.05e−5"


def test_it_stops_when_the_time_is_up(subject):
    network = pictures.sketch().network(OUTPUT)
    made = subject(network, pictures.samples(BYTES), expected=[{OUTPUT: f32(np.ones((1, 10)))}] * 5)
    made.settings = type(made.settings)(time_budget=-1.0)
    found = told(made)
    assert (found.tried, found.best, found.matches) == ((), None, False)
    assert found.planned > 50
