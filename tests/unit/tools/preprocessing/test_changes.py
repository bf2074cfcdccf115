import numpy as np
import pytest

from halfwise.tools.preprocessing.changes import (
    KNOWN,
    TURNS,
    code_of,
    layout_of,
    reordered,
    run,
    scaled,
    transformation,
    written,
)
from tests import pictures

PIXELS = pictures.pictures()


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


def test_turns_are_the_symmetries_of_a_square():
    made = {run(turn.lines, np.arange(9).reshape(1, 3, 3)).tobytes() for turn in TURNS.values()}
    assert len(made) == 7
    turned = run(TURNS["rotated by 90° clockwise"].lines, PIXELS[0])
    assert np.array_equal(turned, np.rot90(PIXELS[0], -1, (1, 2)))


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
