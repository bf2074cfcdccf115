from pathlib import Path

import pytest

from halfwise.errors import CaseError
from halfwise.inputs.pairs import pair_files


def files(folder, *names):
    return [Path(folder) / name for name in names]


def test_equal_names_pair_whatever_the_suffix():
    pairs = pair_files(
        {"left": files("l", "a.png", "b.png"), "right": files("r", "b.jpg", "a.jpg")}
    )
    assert pairs == [
        ("a.png", {"left": Path("l/a.png"), "right": Path("r/a.jpg")}),
        ("b.png", {"left": Path("l/b.png"), "right": Path("r/b.jpg")}),
    ]


def test_equal_last_numbers_pair_whatever_the_padding():
    left = files("l", "cam0_1.png", "cam0_10.png", "cam0_2.png")
    right = files("r", "cam1_001.png", "cam1_002.png", "cam1_010.png")
    pairs = pair_files({"left": left, "right": right})
    assert [(p["left"].name, p["right"].name) for _, p in pairs] == [
        ("cam0_1.png", "cam1_001.png"),
        ("cam0_10.png", "cam1_010.png"),
        ("cam0_2.png", "cam1_002.png"),
    ]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("1.png", "2.png", "3.png"), ("1.png", "3.png")),
        (("a.png",), ("b.png",)),
        (("a1.png", "b1.png"), ("c1.png", "d1.png")),
        (("a.png", "b.png"), ("a.png", "c.png")),
    ],
)
def test_position_alone_pairs_nothing(left, right):
    with pytest.raises(CaseError, match=r"do not pair up .'l' .*'r'.*differ in") as caught:
        pair_files({"l": files("l", *left), "r": files("r", *right)})
    assert "alike" in caught.value.hint


def test_a_name_that_occurs_twice_is_an_error():
    twice = ("a.png", "a.jpg")
    with pytest.raises(CaseError, match="a name occurs twice"):
        pair_files({"l": files("l", *twice), "r": files("r", *twice)})
