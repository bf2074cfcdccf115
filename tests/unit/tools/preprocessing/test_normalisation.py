import numpy as np
import pytest

from halfwise.tools.preprocessing.normalisation import (
    KNOWN,
    ROUGH_SLACK,
    SLACK,
    Recognised,
    normalisation_differences,
    recognise,
    usual_pairs,
)

PIXELS, SCALED = KNOWN[0], KNOWN[1]
IMAGENET = next(n for n in KNOWN if "ImageNet's mean, ImageNet's" in n.name and n.scale < 1)


def recognised(numbers, slack=SLACK):
    channels, gain, offset, lowest, highest = numbers
    return recognise(channels, gain, offset, lowest, highest, slack)


def between(a, b, channels=(0, 1, 2)):
    """Gains and offsets from A to B, and A's range on pixels from 3 to 250."""
    (gain_a, offset_a), (gain_b, offset_b) = a.line(3), b.line(3)
    gain = gain_b / gain_a[list(channels)]
    offset = offset_b - gain * offset_a[list(channels)]
    values = np.array([3.0, 250.0])[:, None] * gain_a + offset_a
    return channels, gain, offset, values.min(), values.max()


@pytest.mark.parametrize("b", KNOWN, ids=lambda n: n.name)
def test_every_normalisation_is_recognised(b):
    found = recognised(between(IMAGENET, b), 2e-4)
    assert found is not None
    assert np.allclose(found.gain, between(IMAGENET, b)[1])
    # On pixels that are not scaled, means below 1 are nothing, and hardly told apart.
    if b.scale < 1 or max(b.mean) == 0:
        assert found.parts == IMAGENET.parts(b)


def test_parts():
    assert PIXELS.parts(SCALED) == ("scale",)
    assert SCALED.parts(IMAGENET) == ("mean", "deviation")
    assert IMAGENET.parts(IMAGENET) == ()


def test_channels_that_are_swapped_before_the_same_normalisation():
    found = recognised(between(IMAGENET, IMAGENET, (2, 1, 0)))
    assert found.a == found.b == IMAGENET


def test_measured_numbers_need_not_be_exact():
    channels, gain, offset, low, high = between(SCALED, IMAGENET)
    found = recognised((channels, gain * 1.006, offset, low, high), ROUGH_SLACK)
    assert found.b == IMAGENET
    exact = recognised((channels, gain * 1.006, offset, low, high))
    assert exact is None or (exact.a, exact.b) != (SCALED, IMAGENET)


def test_other_numbers_are_not_recognised():
    assert recognised(((0, 1, 2), (7.0, 7.1, 7.3), (1.0, 2.0, 3.0), 0.0, 255.0)) is None


def test_pairs_that_may_lead_from_a_the_likeliest_first():
    found = usual_pairs((0, 1, 2), 0.0, 255.0)
    assert (found[0].a, found[0].b) == (PIXELS, SCALED)
    assert any((pair.a, pair.b) == (PIXELS, IMAGENET) for pair in found)
    found = usual_pairs((0, 1, 2), -2.1, 2.6)
    undone = next(p for p in found if (p.a, p.b) == (IMAGENET, SCALED))
    assert undone.gain == pytest.approx(IMAGENET.deviation)
    assert undone.offset == pytest.approx(IMAGENET.mean)
    assert not any("ImageNet's mean, CLIP's" in pair.b.name for pair in found)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 255.0), (-2.1, 2.6), (0.0, 0.4)])
def test_pairs_change_something_and_each_something_else(low, high):
    for channels in ((0, 1, 2), (2, 1, 0), (0,)):
        lines = [(*pair.gain, *pair.offset) for pair in usual_pairs(channels, low, high)]
        assert lines
        assert len({tuple(f"{x:.5g}" for x in line) for line in lines}) == len(lines)
        nothing = [1] * len(channels) + [0] * len(channels)
        assert not any(np.allclose(line, nothing) for line in lines)


def test_values_of_no_image_have_no_pairs():
    assert usual_pairs((0, 1, 2), -5e3, 5e3) == []


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


def test_a_normalisation_is_named_in_words_that_fit_all():
    channels, gain, offset, low, high = between(SCALED, IMAGENET)
    found = recognised((channels, gain, offset, low, high))
    mean, deviation = normalisation_differences(gain, offset, found)
    assert mean.sentence == (
        "The subtracted mean differs; B's normalisation: scaled by 1/255, ImageNet's mean, "
        "ImageNet's deviation."
    )
    assert deviation.sentence == "The divisor differs."
