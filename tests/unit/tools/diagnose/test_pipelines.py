import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.tools.diagnose.pipelines import CODE_FILE, pipelines
from halfwise.tools.preprocessing import transformation
from tests.unit.tools.compare.copies import DATA, SAMPLES


def others(change):
    return Samples(SAMPLES.ids, lambda i: {"x": change(DATA[i]).astype(np.float32)})


def test_pipelines_that_agree(subject, tmp_path):
    signs, _ = pipelines(subject(), others(lambda x: x))
    assert [(s.severity, s.text) for s in signs] == [("info", "The two pipelines agree on 'x'.")]
    assert not (tmp_path / "run" / CODE_FILE).exists()


def test_a_difference_is_measured_named_and_undone(subject, tmp_path):
    signs, advice = pipelines(subject(), others(lambda x: 2 * x + 1))
    assert signs[0].severity == "error"
    assert "changes the FP32 outputs: y_out by" in signs[0].text
    assert "B's values are 2 times A's." in signs[0].text
    assert [sign.text.partition(":")[0] for sign in signs[1:]] == ["'x', scale", "'x', mean"]
    text = (tmp_path / "run" / CODE_FILE).read_text()
    assert transformation(text)(DATA[0]) == pytest.approx(2 * DATA[0] + 1, abs=1e-5)
    assert CODE_FILE in advice[1]


def test_a_difference_that_nothing_explains(subject):
    signs, _ = pipelines(subject(), others(np.sin))
    assert "differs by" in signs[0].text
    assert any(sign.text.startswith("'x', values:") for sign in signs)
