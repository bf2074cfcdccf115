import numpy as np
import pytest

from halfwise.tools.preprocessing.program import Program
from halfwise.tools.preprocessing.tone import tone_of, traces

MEAN, DEVIATION = (
    np.array(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
)


def kinds(a, b, *, exact=True):
    return [d.kind for d in tone_of(a, b, exact=exact).differences]


@pytest.fixture
def floats(planes):
    """Scaled photos that are not rounded to 8 bits."""
    wobble = np.sin(np.arange(96))[:, None] * 0.4
    return [np.clip(image + wobble, 0, 255) / 255 for image in planes]


def test_nothing(planes, floats):
    assert kinds(planes, planes) == []
    assert kinds(floats, [f + 1e-7 for f in floats]) == []


def test_exact_numbers_take_the_place_of_measured_ones(planes):
    tone = tone_of(planes, [(i / 255 - MEAN) / DEVIATION for i in planes], exact=True)
    assert [d.kind for d in tone.differences] == ["scale", "mean", "deviation"]
    assert tone.fit.gain == pytest.approx(tuple(1 / 255 / DEVIATION.ravel()), rel=1e-12)
    assert tone.level == pytest.approx(tone.fit.gain)
    assert tone.explained


def test_channels(planes):
    assert kinds(planes, [image[::-1] for image in planes]) == ["channels"]


def test_rounding(floats):
    rounded = [np.round(f * 255) / 255 for f in floats]
    floored = [np.floor(f * 255) / 255 for f in floats]
    half = [f.astype(np.float16).astype(np.float64) for f in floats]
    assert kinds(floats, rounded) == kinds(rounded, floats) == ["rounding"]
    assert kinds(floats, half) == kinds(half, floats) == ["rounding"]
    tone = tone_of(floats, floored, exact=True)
    assert [d.kind for d in tone.differences] == ["rounding"]
    assert tone.floored
    assert kinds(rounded, floored) == ["rounding"]


def test_clipping(floats):
    wide = [f * 1.1 - 0.05 for f in floats]
    cut = [np.clip(w, 0, 1) for w in wide]
    assert kinds(wide, cut) == kinds(cut, wide) == ["clipping"]
    assert tone_of(wide, cut, exact=True).clipped is not None


def test_numbers_of_each_images_own(planes):
    own = [(image - image.mean()) / image.std() for image in planes]
    assert kinds(planes, own) == ["normalisation"]
    assert kinds(own, planes) == ["normalisation"]
    tone = tone_of(planes, own, exact=True)
    assert tone.own == "moments"


def test_what_is_normalised_by_its_own_range(planes):
    own = [(image - image.min()) / np.ptp(image) for image in planes]
    tone = tone_of(planes, own, exact=True)
    assert [d.kind for d in tone.differences] == ["normalisation"]
    assert "smallest and largest value" in tone.differences[0].sentence
    program = Program()
    tone.write(program)
    assert "x = x - x.min()" in program.text


def test_images_that_were_resampled_are_compared_blurred(planes):
    sharper = [image + 0.5 * (image - np.roll(image, 1, 2)) for image in planes]
    found = tone_of(planes, [s / 255 for s in sharper], exact=False)
    assert [d.kind for d in found.differences] == ["scale"]


def test_the_steps_of_the_program(planes):
    tone = tone_of(planes, [np.clip(i[::-1] / 255, 0.2, 0.7) for i in planes], exact=True)
    program = Program()
    tone.write(program)
    text = program.text
    assert text.index("[2, 1, 0]") < text.index("normalisation") < text.index("clip as in B")


def traced(a, b, overshoots=None):
    tone = tone_of(a, b, exact=False)
    return [d.kind for d in traces(tone, a, b, overshoots)]


def sharpened(planes):
    """What another kernel could have made: not on levels, beyond 0 to 255."""
    return [image + 0.37 * (image - np.roll(image, 1, 2)) for image in planes]


def test_no_traces(planes):
    assert traced(planes, planes) == []
    assert traced(sharpened(planes), sharpened(planes)) == []


def test_bytes_against_floats(planes):
    assert traced(planes, sharpened(planes)) == ["rounding"]
    assert traced(sharpened(planes), planes) == ["rounding"]


def test_fp16(planes):
    scaled = [image / 255 for image in sharpened(planes)]
    half = [image.astype(np.float16).astype(np.float64) for image in scaled]
    assert traced(scaled, half) == ["rounding"]


def test_clipping_is_looked_for_where_kernels_overshoot(planes):
    wide = sharpened(planes)
    cut = [np.clip(image, 0, 255) for image in wide]
    assert traced(wide, cut, (True, True)) == ["clipping"]
    assert traced(cut, wide, (True, True)) == ["clipping"]
    assert traced(wide, cut, (True, False)) == []
    assert traced(wide, cut) == []
