import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.tools.diagnose.pipelines import PIPELINES_CODE, pipelines
from halfwise.tools.preprocessing import transformation
from tests import pictures
from tests.unit.tools.compare.copies import DATA, SAMPLES


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
    assert "B's values are 2 times A's." in signs[0].text
    assert [sign.text.partition(":")[0] for sign in signs[1:]] == ["'x', scale", "'x', mean"]
    text = (tmp_path / "run" / PIPELINES_CODE).read_text()
    assert transformation(text)(DATA[0]) == pytest.approx(2 * DATA[0] + 1, abs=1e-5)
    assert PIPELINES_CODE in advice[1]
    assert "no value differs by more than" in advice[1]
    _, advice = pipelines(subject(), others(lambda x: 2 * x))
    assert advice[1].endswith("; after that both are equal.")


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
    assert "before), and the FP32 outputs: scores_out by" in left
    assert left.endswith(("as well is unknown.", "something else differs as well."))


def test_differences_that_explain_nothing_are_not_believed(subject):
    def patched(x):
        return np.where(np.indices(x.shape)[1] < 6, 0.5, x)

    cause, (left,) = seen(subject, patched)
    assert cause.endswith("the differences that seem to fit explain none of it.")
    assert "letterboxed" not in cause
    assert "before)" in left
