import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.case import Samples
from halfwise.inputs.samples import (
    could_be_near,
    is_near,
    sketch,
    sketch_each,
    split_heldout,
    unseen,
)


def numbered(count, labels=None):
    ids = tuple(f"s{i}" for i in range(count))
    return Samples(ids, lambda i: {"x": np.array([i])}, labels)


@pytest.mark.parametrize(
    ("count", "heldout"),
    [(0, []), (1, []), (2, [1]), (3, [2]), (4, [3]), (7, [3]), (8, [3, 7]), (12, [3, 7, 11])],
)
def test_every_fourth_sample_is_held_out(count, heldout):
    calibration, rest = split_heldout(numbered(count))
    assert [int(s["x"][0]) for s in rest] == heldout
    assert [int(s["x"][0]) for s in calibration] == sorted(set(range(count)) - set(heldout))


def test_identifiers_and_labels_go_along():
    calibration, rest = split_heldout(numbered(4, ("a", "b", "c", "d")))
    assert calibration.ids == ("s0", "s1", "s2")
    assert calibration.labels == ("a", "b", "c")
    assert rest.labels == ("d",)


def test_nothing_is_loaded():
    def load(_):
        raise AssertionError

    calibration, rest = split_heldout(Samples(("a", "b"), load))
    assert (len(calibration), len(rest)) == (1, 1)


DRAWN = np.random.default_rng(5)
PICTURE = DRAWN.integers(0, 256, (3, 40, 50)).astype(np.float32) / 255
ROWS = {name: {"x": PICTURE + 10 * i} for i, name in enumerate("abcxyz")}


def of(items):
    return Samples(tuple(map(str, range(len(items)))), items.__getitem__)


def left(calibration, heldout):
    known, judged = of(calibration), of(heldout)
    return unseen(known, sketch_each(known), judged, sketch_each(judged))


@pytest.mark.parametrize(
    ("heldout", "chosen"),
    [("", []), ("xyz", [0, 1, 2]), ("axb", [1]), ("ab", []), ("xxyx", [0, 2])],
)
def test_copies_are_no_held_out_samples(heldout, chosen):
    assert left([ROWS[n] for n in "abc"], [ROWS[n] for n in heldout]) == chosen


def ulp(x):
    return np.nextafter(x, np.float32(np.inf))


def noise(x):
    return x + DRAWN.normal(0, 1e-6, x.shape).astype(np.float32)


def one_pixel(x):
    changed = x.copy()
    changed[1, 2, 3] += np.float32(1 / 255)
    return changed


@pytest.mark.parametrize(
    ("change", "seen"),
    [(ulp, True), (noise, True), (one_pixel, False), (np.negative, False)],
    ids=["ulp", "noise", "pixel", "negative"],
)
def test_a_copy_but_for_the_last_digits_is_one(change, seen):
    assert (left([{"x": PICTURE}], [{"x": change(PICTURE)}]) == []) == seen
    dark = np.where(DRAWN.random(PICTURE.shape) < 0.9, np.float32(0), PICTURE)
    assert (left([{"x": dark}], [{"x": change(dark)}]) == []) == seen


def test_what_is_no_float_has_to_be_equal():
    words, scale = np.array([5000, 2, 9]), np.array([1.0], np.float32)
    sample = {"words": words, "scale": scale}
    assert left([sample], [{**sample, "scale": ulp(scale)}]) == []
    assert left([sample], [{**sample, "words": words + 1}]) == [0]
    assert left([{"words": words}], [{"words": words + 1}]) == [0]


def test_columns_of_other_scales_are_looked_at_alone():
    row = np.array([1.6e9, 0.3, 0.7, 0.5], np.float32)
    other = np.array([1.6e9, 0.9, 0.1, 0.5], np.float32)
    assert left([{"x": row}], [{"x": other}]) == [0]


def test_only_near_sketches_are_loaded_again():
    items = [{"x": DRAWN.normal(size=100).astype(np.float32)} for _ in range(40)]
    loads = []

    def load(index):
        loads.append(index)
        return items[index]

    samples = Samples(tuple(map(str, range(40))), load)
    seen = sketch_each(samples)
    assert len(loads) == 40
    assert (
        len(unseen(samples.select(range(30)), seen[:30], samples.select(range(30, 40)), seen[30:]))
        == 10
    )
    assert len(loads) == 40


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=200),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-5, 9e-5, 1.1e-4, 1e-3]),
)
def test_sketches_hide_no_near_sample(values, seed, far):
    one = np.array(values, np.float32)
    moves = np.random.default_rng(seed).uniform(-far, far, one.size)
    other = (one * (1 + moves)).astype(np.float32)
    near = is_near({"x": one}, {"x": other})
    assert near or far > 5e-5
    assert not near or could_be_near(sketch({"x": one}), sketch({"x": other}))
