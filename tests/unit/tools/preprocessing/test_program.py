import ast
from typing import Any

import numpy as np
import pytest

from halfwise.tools.preprocessing.images import TURNS, Layout
from halfwise.tools.preprocessing.plain import compare_plain
from halfwise.tools.preprocessing.program import Program, Residual, code_of, measure, transformation
from halfwise.tools.preprocessing.registration import Placement, sampled

LAYOUTS = [
    Layout("CHW", 1),
    Layout("HWC", 1),
    Layout("CHW", 0),
    Layout("HW", 0),
    Layout("CHW", 1, reshaped=True),
    Layout("HWC", 0, reshaped=True),
]


def run(program, sample, layout=LAYOUTS[2]):
    program.write(layout, sample)
    return transformation(program.text)(sample)


@pytest.fixture
def image(planes):
    return np.round(planes[0][:, :40, :50])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_reading_and_writing_a_layout_are_inverse(image, layout):
    planar = image[:1] if layout.order == "HW" else image
    writer = Program()
    writer.write(layout, np.zeros(1, np.float32))
    sample = transformation(writer.text)(planar)
    assert np.array_equal(layout.image(sample), planar)
    program = Program()
    program.read(layout)
    assert np.array_equal(run(program, sample.astype(np.float64)), planar)


@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_turns(image, turn):
    program = Program()
    program.turn(turn)
    assert np.array_equal(run(program, image), turn(image))


def test_a_frame_is_taken_off_and_put_on(image):
    framed = np.full((3, 60, 60), 7.0)
    framed[:, 10:50, :50] = image
    program = Program()
    program.unframe([7, 7, 7], 1e-3)
    program.affine([2, 2, 2], [1, 1, 1])
    program.frame((60, 60), [0, 0, 0], ("start", "end"))
    made = run(program, framed)
    assert np.array_equal(made[:, :40, 10:], image * 2 + 1)
    assert not made[:, 40:].any()


def test_geometry(image):
    program = Program()
    program.shift(3, -2, (20, 20))
    assert np.array_equal(run(program, image)[:, :, 2:], image[:, 3:23, :18])
    program, place = Program(), Placement((1.1, 0.9), (2.3, 1.7), 1.0)
    program.place(place, (20, 20))
    assert np.allclose(run(program, image)[0], sampled(image[0], (20, 20), place)[0], atol=1e-3)
    program = Program()
    program.stretch((80, 100))
    assert run(program, image).shape == (3, 80, 100)


def test_values(image):
    program = Program()
    program.channels((2, 0, 1))
    program.quantise([10, 10, 10], [0, 0, 0], "floor")
    program.clip([20, 20, 20], [90, 90, 90])
    expected = np.clip(np.floor(image[[2, 0, 1]] / 10 + 1e-4) * 10, 20, 90)
    assert np.array_equal(run(program, image), expected)


def test_bytes_are_rounded_and_kept_in_range(image):
    program = Program()
    program.affine([2.3] * 3, [-20] * 3)
    program.write(LAYOUTS[2], image.astype(np.uint8))
    made = transformation(program.text)(image)
    assert made.dtype == np.uint8
    assert np.array_equal(made, np.clip(np.round(image * 2.3 - 20), 0, 255))


def test_the_text_is_python_with_the_order_and_the_comments():
    program = Program()
    program.order((1, 0))
    program.add("a word")
    program.write(LAYOUTS[2], np.zeros(1, np.float32))
    ast.parse(program.text)
    assert "ORDER = [1, 0]" in program.text
    assert "# a word" in program.text
    assert transformation(program.text)(np.ones((3, 9, 9))).dtype == np.float32


def test_the_code_of_several_inputs_has_a_function_for_each():
    ramp = [np.arange(12.0).reshape(3, 4) + i for i in range(3)]
    doubled = [2 * array for array in ramp]
    same, one = compare_plain(ramp, ramp, ("x", "x")), compare_plain(ramp, doubled, ("y", "y"))
    assert code_of({"x": same.code}).startswith("#")
    assert code_of({"x": same.code, "y": one.code}) == one.code
    names: dict[str, Any] = {}
    exec(code_of({"x": one.code, "y": one.code}), names)  # noqa: S102 - made of numbers alone
    assert np.allclose(names["a_to_b_1"](ramp[0]), doubled[0])


def test_what_is_left():
    a, b = [np.zeros((2, 2))] * 2, [np.ones((2, 2)), np.full((2, 2), 3.0)]
    assert measure(a, b, lambda x: x + 1) == Residual(3.0, 2.0, np.sqrt(2.0))


def test_other_shapes():
    found = measure([np.zeros((2, 3))], [np.zeros((3, 2))], lambda x: x.T)
    assert found == Residual(None, 0.0, 0.0)
    found = measure([np.zeros((2, 3))], [np.zeros((3, 2))], lambda x: x)
    assert found.largest == np.inf


def test_only_what_both_show_counts():
    found = measure([np.zeros(3)], [np.array([9.0, 0, 0])], lambda x: x, lambda x: x[1:])
    assert (found.before, found.largest) == (9.0, 0.0)
