import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.inputs.samples import SEARCHED, split_heldout, unseen


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


def test_most_samples_may_be_held_out():
    calibration, rest = split_heldout(numbered(8), most=True)
    assert (calibration.ids, rest.ids) == (("s3", "s7"), ("s0", "s1", "s2", "s4", "s5", "s6"))


@pytest.mark.parametrize("count", [SEARCHED, 40, 1000])
def test_few_of_many_samples_are_searched_on(count):
    calibration, rest = split_heldout(numbered(count), few=True)
    assert len(calibration) == min(SEARCHED, count - count // 4)
    assert sorted(calibration.ids + rest.ids) == sorted(numbered(count).ids)
    places = [int(s["x"][0]) for s in calibration]
    assert max(np.diff(places)) - min(np.diff(places)) <= 1


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


@pytest.mark.parametrize(
    ("heldout", "chosen"),
    [("", []), ("xyz", [0, 1, 2]), ("axb", [1]), ("ab", []), ("xxyx", [0, 2])],
)
def test_copies_are_no_held_out_samples(heldout, chosen):
    assert unseen(list("abc"), list(heldout)) == chosen
