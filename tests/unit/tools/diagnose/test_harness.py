from dataclasses import replace

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.errors import RunFailed
from halfwise.records import MadeUp, Note
from halfwise.reporting.steps import steps_told
from halfwise.tools.diagnose.harness import (
    PIPELINES_CODE,
    harness,
    pipelines,
)
from halfwise.tools.preprocessing.changes import transformation
from tests import frozen, pictures
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
    assert texts[1].startswith("Input 'x': float32, 4×16, from −")


@pytest.mark.parametrize("allowed", [False, True])
def test_made_up_inputs(subject, allowed):
    found = MadeUp(input="x", kind="normal", mean=0, deviation=1)
    for made_up in ((found,), ()):
        given = subject(allow_random=allowed, real=False)
        given.case = replace(given.case, made_up=made_up)
        rung = harness(given)
        assert rung.passed is allowed
        assert rung.evidence[0].severity == ("warning" if allowed else "error")
        assert ("'x'" in rung.evidence[0].text) is bool(made_up)


@pytest.mark.parametrize(("real", "signs"), [(False, 1), (True, 1)])
def test_made_up_inputs_are_told_once(subject, real, signs):
    found = MadeUp(input="x", kind="normal", mean=0, deviation=1)
    note = Note(kind="made-up", severity="warning", made_up=found)
    given = subject(allow_random=True, real=real, notes=(note,))
    given.case = replace(given.case, made_up=(found,))
    assert sum("normal noise" in sign.text for sign in harness(given).evidence) == signs


@pytest.mark.parametrize("kind", ["single", "dynamic"])
def test_other_warnings_are_no_failure(subject, kind):
    rung = harness(subject(notes=(Note(kind=kind, severity="warning"),)))
    assert rung.passed
    assert rung.evidence[0].severity == "warning"


def test_inputs_that_are_not_finite(subject):
    rung = harness(subject(samples=samples(lambda x: np.where(x > 1, np.inf, x))))
    assert rung.passed is False
    assert "NaN or infinite" in rung.cause


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
    rung = harness(subject(frozen.network(frozen.frozen_batch(2)), ones))
    assert rung.passed is False
    assert rung.nodes == ("split", "join")
    assert "runs on batches of 2" in rung.cause
    assert rung.frozen is not None


def test_another_failure_ends_it(subject):
    empty = Samples(("s0",), lambda _: {"x": np.ones((3, 7), np.float32)})
    with pytest.raises(RunFailed):
        harness(subject(samples=empty))


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
    assert "B = 2 · A + 1" in signs[1].text
    assert [sign.text.partition(":")[0] for sign in signs[1:]] == ["'x', scale", "'x', mean"]
    text = (tmp_path / "run" / PIPELINES_CODE).read_text()
    assert transformation(text)(DATA[0]) == pytest.approx(2 * DATA[0] + 1, abs=1e-5)
    assert PIPELINES_CODE in steps_told(advice)[1]


def test_a_difference_that_nothing_explains(subject):
    signs, _ = pipelines(subject(), others(np.sin))
    assert "differs by" in signs[0].text
    assert any(sign.text.startswith("'x', values:") for sign in signs)


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
    assert left.endswith("of 255 levels.")


def test_images_that_nothing_makes_alike_are_not_taken_apart(subject, tmp_path):
    def patched(x):
        return np.where(np.indices(x.shape)[1] < 6, 0.5, x)

    made = subject(pictures.sketch().network(pictures.OUTPUT), pictures.samples(PIXELS))
    signs, _ = pipelines(made, pictures.samples(np.stack([patched(x) for x in PIXELS])))
    assert [sign.text.partition(":")[0] for sign in signs[1:]] == ["'images', fit"]
    assert not (tmp_path / "run" / PIPELINES_CODE).exists()
