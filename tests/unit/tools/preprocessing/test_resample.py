import numpy as np
import pytest

from halfwise.tools.preprocessing.alignment import align, pairs
from halfwise.tools.preprocessing.resample import method_kinds, resampling_differences
from halfwise.tools.preprocessing.resampling import METHODS, resize
from halfwise.tools.preprocessing.tone import tone_of
from tests.unit.tools.preprocessing.conftest import planar, resized


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
