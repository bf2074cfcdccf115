import numpy as np
import pytest

from halfwise.tools.preprocessing.geometry import (
    frame_differences,
    frames,
    method_kinds,
    resampling_differences,
    sides,
)
from halfwise.tools.preprocessing.registration import align, pairs
from halfwise.tools.preprocessing.resizing import METHODS, resize
from halfwise.tools.preprocessing.tone import tone_of
from tests.unit.tools.preprocessing.conftest import planar, resized

SHAPE = (96, 96)


def letterboxed(planes, at="centre", value=114.0, rows=60):
    framed = []
    for image in planes:
        frame = np.full((3, 96, 96), value)
        top = {"start": 0, "centre": (96 - rows) // 2, "end": 96 - rows}[at]
        frame[:, top : top + rows] = image[:, :rows]
        framed.append(frame)
    return framed


def differences(a, b):
    return frame_differences(frames(a, b), a[0].shape[1:], b[0].shape[1:])


def test_the_same_frames(planes):
    assert differences(letterboxed(planes), letterboxed(planes)) == []
    assert differences(planes, planes) == []


def test_values_of_padding(planes):
    found = frames(letterboxed(planes), letterboxed(planes, value=0.0))
    assert (found.value_a, found.value_b) == ((114,) * 3, (0,) * 3)


@pytest.mark.parametrize(("place", "words"), [("start", "at the top"), ("end", "at the bottom")])
def test_another_side(planes, place, words):
    (found,) = differences(letterboxed(planes), letterboxed(planes, place))
    assert found.kind == "padding-side"
    assert found.b.startswith(words)
    assert found.a == "centred"


def test_letterboxed_or_not(planes):
    (found,) = differences(letterboxed(planes), planes)
    assert (found.kind, found.a[:11]) == ("fit", "letterboxed")
    (found,) = differences(letterboxed(planes), letterboxed(planes, rows=80))
    assert found.kind == "fit"


def test_only_one_is_padded(planes):
    shown = [image[:, :60] for image in planes]
    (found,) = differences(letterboxed(planes), shown)
    assert (found.kind, found.b) == ("fit", "not padded: stretched or cropped")


def test_sides(planes):
    assert sides(frames(letterboxed(planes), planes).a, SHAPE) == ("centre", "centre")
    assert sides(frames(letterboxed(planes, "end"), planes).a, SHAPE) == ("end", "centre")


def by(kernel, convention="half-pixel", antialias=False):
    return next(
        m
        for m in METHODS
        if (m.kernel, m.convention, m.antialias) == (kernel, convention, antialias)
    )


def found(a, b, raws=None):
    alignment = align(a, b)
    tone = tone_of(*pairs(alignment, a, b), exact=alignment.exact)
    return resampling_differences(alignment, (a, b), tone, raws, padded=False)


@pytest.fixture
def raws(photos):
    return [planar(photo) for photo in photos]


@pytest.mark.parametrize(
    ("method", "kinds", "apart"),
    [
        (by("bicubic", antialias=True), ["kernel"], ["resampling"]),
        (by("bilinear"), ["antialias"], ["resampling"]),
        (
            by("bilinear", "align-corners"),
            ["antialias", "half-pixel"],
            ["half-pixel", "resampling"],
        ),
    ],
    ids=str,
)
def test_kernels(planes, raws, method, kinds, apart):
    other = [np.round(resize(raw, (96, 96), method)) for raw in raws]
    named, fitted = found(planes, other, raws)
    assert [d.kind for d in named] == kinds
    assert fitted[0].method == METHODS[0]
    assert fitted[1].method == method
    assert all("of 255 levels" in d.evidence for d in named)
    told, nothing = found(planes, other)
    assert [d.kind for d in told] == apart
    assert nothing == (None, None)


def test_nothing(planes, raws):
    assert found(planes, [p / 255 for p in planes], raws) == ([], (None, None))


def test_a_crop(planes, raws):
    a, b = ([p[:, 4 + d : 84 + d, 5:85] for p in planes] for d in (0, 3))
    for given in (None, raws):
        named, _ = found(a, b, given)
        assert [d.kind for d in named] == ["crop"]


def test_another_part(photos, planes, raws):
    part = [planar(resized(photo[20:-20, 20:-20], 96)) for photo in photos]
    for given in (None, raws):
        named, _ = found(planes, part, given)
        assert [d.kind for d in named] == ["fit"]


def test_other_images(planes):
    noise = list(np.random.default_rng(1).normal(size=(3, 3, 96, 96)))
    named, _ = found(planes, noise)
    assert [d.kind for d in named] == ["values"]


def test_parts_of_methods():
    lanczos = by("lanczos", antialias=True)
    assert method_kinds(by("bilinear"), lanczos, reduced=True) == ["kernel", "antialias"]
    assert method_kinds(by("bilinear"), lanczos, reduced=False) == ["kernel"]
    assert method_kinds(by("nearest", "asymmetric"), by("bilinear"), reduced=True) == ["kernel"]
    assert method_kinds(by("nearest", "asymmetric"), by("nearest"), reduced=True) == ["half-pixel"]
