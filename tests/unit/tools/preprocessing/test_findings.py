import pytest

from halfwise.tools.preprocessing.findings import (
    channel_difference,
    difference,
    normalisation_differences,
)
from halfwise.tools.preprocessing.normalisation import KNOWN, Recognised


def test_the_severity_is_that_of_the_kind():
    assert difference("batch-axis", "", "", "").severity == "info"
    assert difference("rounding", "", "", "").severity == "warning"
    assert difference("channels", "", "", "").severity == "error"


def test_channels():
    assert "one is RGB, the other BGR" in channel_difference((2, 1, 0), 3).sentence
    assert "another order" in channel_difference((1, 2, 0), 3).sentence
    assert "1 channels where A has 3" in channel_difference((0,), 3).sentence


def test_known_normalisations_are_named():
    found = normalisation_differences((1 / 255,), (0,), Recognised(KNOWN[0], KNOWN[1], (), (), ()))
    assert [d.kind for d in found] == ["scale"]
    assert "scaled by 1/255" in found[0].sentence


def test_a_normalisation_of_several_parts_is_named_once():
    whole = next(n for n in KNOWN if n.name.endswith("ImageNet's mean, ImageNet's deviation"))
    found = normalisation_differences((1.0,), (0.0,), Recognised(KNOWN[0], whole, (), (), ()))
    assert [d.kind for d in found] == ["scale", "mean", "deviation"]
    assert [whole.name in d.sentence for d in found] == [True, False, False]
    assert [bool(d.evidence) for d in found] == [True, False, False]


@pytest.mark.parametrize(
    ("gain", "offset", "kinds"),
    [
        ((1.0, 1.0), (0.0, 0.0), []),
        ((2.0, 2.0), (0.0, 0.0), ["scale"]),
        ((2.0, 3.0), (0.0, 0.0), ["deviation"]),
        ((1.0, 1.0), (0.4, 0.5), ["mean"]),
        ((2.0, 2.0), (0.4, 0.4), ["scale", "mean"]),
    ],
)
def test_unknown_numbers(gain, offset, kinds):
    assert [d.kind for d in normalisation_differences(gain, offset, None)] == kinds
