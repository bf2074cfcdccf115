import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.tools.preprocessing.changes import (
    KNOWN,
    code_of,
    hypotheses,
    layout_of,
    reordered,
    run,
    scaled,
    transformation,
    written,
)
from tests import pictures

PIXELS = pictures.pictures()
BYTES = pictures.samples(PIXELS)


def kinds(hypothesis):
    return tuple(difference.kind for difference in hypothesis.differences)


def makes(samples, wanted):
    """The first hypothesis that makes `wanted` of the first sample, None where none does."""
    for each in hypotheses(samples):
        found = each(samples[0])["images"]
        if found.shape == wanted.shape and np.abs(found - wanted).max() <= 1e-5 * np.ptp(wanted):
            assert found.dtype == samples[0]["images"].dtype
            return each
    return None


CHANGES = {
    "BGR": (PIXELS, PIXELS[:, ::-1], ("channels",)),
    "1/255": (PIXELS, PIXELS / 255, ("scale",)),
    "255": (PIXELS / 255, PIXELS, ("scale",)),
    "ImageNet": (PIXELS / 255, pictures.imagenet(PIXELS), ("mean", "deviation")),
    "ImageNet undone": (
        pictures.imagenet(PIXELS), PIXELS, ("scale", "mean", "deviation"),
    ),
    "half": (pictures.imagenet(PIXELS), PIXELS / 127.5 - 1, ("mean", "deviation")),
    "BGR and ImageNet": (
        PIXELS / 255, pictures.imagenet(PIXELS)[:, ::-1], ("channels", "mean", "deviation"),
    ),
    "ImageNet of BGR": (
        PIXELS / 255, pictures.imagenet(PIXELS[:, ::-1]), ("channels", "mean", "deviation"),
    ),
    "reshaped": (PIXELS, PIXELS.transpose(0, 2, 3, 1).reshape(PIXELS.shape), ("layout",)),
    "NHWC": (PIXELS, PIXELS.transpose(0, 2, 3, 1), ("layout",)),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_framework_may_have_had(change):
    given, theirs, named = CHANGES[change]
    found = makes(pictures.samples(given), pictures.one(theirs[0]))
    assert found is not None
    assert kinds(found) == named


def test_the_simplest_come_first_and_each_once():
    found = hypotheses(BYTES)
    assert kinds(found[0]) == ("channels",)
    assert kinds(found[1]) == ("scale",)
    made = [each(BYTES[0])["images"] for each in found]
    alike = [
        (i, j)
        for i, one in enumerate(made)
        for j, two in enumerate(made[:i])
        if one.shape == two.shape and np.array_equal(one, two)
    ]
    assert not alike
    assert not any(np.array_equal(one, BYTES[0]["images"]) for one in made)


def test_batches_are_changed_one_by_one():
    stacked = pictures.one(PIXELS[0]).repeat(2, 0)
    batch = Samples(("b",), lambda _: {"images": stacked})
    for each in hypotheses(batch):
        made = each(batch[0])["images"]
        assert np.array_equal(made[1], made[0])


def test_all_images_of_a_sample_are_changed_alike_and_nothing_else():
    sample = {"a": pictures.one(PIXELS[0]), "b": pictures.one(PIXELS[1]), "size": np.array(3)}
    found = hypotheses(Samples(("s",), lambda _: sample))[0](sample)
    assert np.array_equal(found["a"], sample["a"][:, ::-1])
    assert np.array_equal(found["b"], sample["b"][:, ::-1])
    assert found["size"] == 3


def test_bytes_keep_their_type_and_are_not_normalised():
    stored = Samples(("s",), lambda _: {"images": PIXELS[:1].astype(np.uint8)})
    found = hypotheses(stored)
    assert {kind for each in found for kind in kinds(each)} == {"channels", "layout"}
    assert all(each(stored[0])["images"].dtype == np.uint8 for each in found)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.linspace(-1, 1, 400, dtype=np.float32)[None], {"scale", "normalisation"}),
        (np.arange(12)[None], {"mean"}),
        (np.array([[1, 1, 0]]), set()),
        (np.full(1, 0.5, np.float32), set()),
        (np.array([["text"]]), set()),
    ],
)
def test_other_inputs(array, expected):
    whole = Samples(("s",), lambda _: {"x": array})
    found = hypotheses(whole)
    assert {kind for each in found for kind in kinds(each)} == expected
    assert all(each(whole[0])["x"].dtype == array.dtype for each in found)
    if expected == {"mean"}:
        assert [each(whole[0])["x"][0, 0] for each in found] == [1, -1]


def laid_out(sample):
    layout = layout_of(sample)
    assert layout is not None
    return layout


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 3, 20, 30), "CHW"),
        ((3, 20, 30), "CHW"),
        ((1, 20, 30, 3), "HWC"),
        ((20, 30, 3), "HWC"),
        ((1, 1, 8, 8), "CHW"),
        ((20, 30), "HW"),
    ],
)
def test_axes_are_told_by_their_lengths_and_lead_there_and_back(shape, name):
    sample = np.random.default_rng(0).random(shape)
    layout = laid_out(sample)
    assert str(layout) == name
    image = run(layout.read, sample)
    assert image.shape[0] == (3 if 3 in shape else 1)
    assert np.array_equal(run(layout.write, image), sample)


@pytest.mark.parametrize("shape", [(7,), (4, 5), (2, 3, 20, 30), (1, 128, 16, 16), (5, 20, 30)])
def test_what_is_no_image(shape):
    assert layout_of(np.zeros(shape, np.float32)) is None
    assert layout_of(np.full((3, 20, 30), "a")) is None


@pytest.mark.parametrize("order", ["CHW", "HWC"])
def test_a_buffer_that_was_reshaped_is_read_as_what_it_is(planes, order):
    for image in planes:
        assert not laid_out(image).reshaped
        assert not laid_out(image.transpose(1, 2, 0)).reshaped
    image = planes[0]
    wrong = np.ascontiguousarray(image.transpose(1, 2, 0)).reshape(image.shape)
    if order == "HWC":
        wrong = image.reshape(*image.shape[1:], 3)
    layout = laid_out(wrong)
    assert layout.reshaped
    assert np.array_equal(run(layout.read, wrong), image)
    assert np.array_equal(run(layout.write, image), wrong)


def test_normalisations_are_their_formulas():
    pixels = np.array([10.0, 20.0, 30.0])
    for known in KNOWN:
        gain, offset = known.line(3)
        formula = (pixels * known.scale - known.mean) / np.array(known.deviation)
        assert np.allclose(gain * pixels + offset, formula)
    assert len({tuple(np.ravel(known.line(3))) for known in KNOWN}) == len(KNOWN)


def test_the_code_is_python_of_its_own():
    change = reordered((2, 1, 0), 3) + scaled(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.0]))
    text = written(change.lines, np.dtype(np.uint8))
    made = transformation(text)(np.full((3, 2, 2), 100.4))
    assert made.dtype == np.uint8
    assert made[:, 0, 0].tolist() == [100, 202, 255]
    both = code_of({"x'": text, "y": "", "z": text})
    assert "def a_to_b_0" in both
    assert "def a_to_b_2" in both
    assert code_of({"x": ""}) == "# A and B are the same.\n"
