import numpy as np

from halfwise.tools.preprocessing.tone import tone_of
from halfwise.tools.preprocessing.traces import traces


def kinds(a, b, overshoots=None):
    tone = tone_of(a, b, exact=False)
    return [d.kind for d in traces(tone, a, b, overshoots)]


def sharpened(planes):
    """What another kernel could have made: not on levels, beyond 0 to 255."""
    return [image + 0.37 * (image - np.roll(image, 1, 2)) for image in planes]


def test_nothing(planes):
    assert kinds(planes, planes) == []
    assert kinds(sharpened(planes), sharpened(planes)) == []


def test_bytes_against_floats(planes):
    assert kinds(planes, sharpened(planes)) == ["rounding"]
    assert kinds(sharpened(planes), planes) == ["rounding"]


def test_fp16(planes):
    scaled = [image / 255 for image in sharpened(planes)]
    half = [image.astype(np.float16).astype(np.float64) for image in scaled]
    assert kinds(scaled, half) == ["rounding"]


def test_clipping_is_looked_for_where_kernels_overshoot(planes):
    wide = sharpened(planes)
    cut = [np.clip(image, 0, 255) for image in wide]
    assert kinds(wide, cut, (True, True)) == ["clipping"]
    assert kinds(cut, wide, (True, True)) == ["clipping"]
    assert kinds(wide, cut, (True, False)) == []
    assert kinds(wide, cut) == []
