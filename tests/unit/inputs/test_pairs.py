from pathlib import Path

import pytest

from halfwise.errors import CaseError
from halfwise.inputs.fitting import pair_files, split_sources


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


def test_one_file_each_is_a_pair():
    (pair,) = pair_files({"left": files("l", "dusk.png"), "right": files("r", "after.png")})
    assert pair == ("dusk.png", {"left": Path("l/dusk.png"), "right": Path("r/after.png")})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("1.png", "2.png", "3.png"), ("1.png", "3.png")),
        (("a.png", "b.png"), ("a.png", "c.png")),
        (("a.png", "b.png"), ("c.png",)),
        (("dusk.png", "noon.png"), ("after.png", "before.png")),
        (("left_1.png", "left_2.png"), ("right_1.png", "right_2.png")),
    ],
)
def test_other_names_do_not_pair(left, right):
    with pytest.raises(CaseError, match=r"do not pair up .'l' .*'r'.*differ in") as caught:
        pair_files({"l": files("l", *left), "r": files("r", *right)})
    assert "the same name" in caught.value.hint


def test_a_name_that_occurs_twice_is_an_error():
    twice = ("a.png", "a.jpg")
    with pytest.raises(CaseError, match="one name occurs twice"):
        pair_files({"l": files("l", *twice), "r": files("r", *twice)})


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("a=b", {"a": Path("b")}),
        ("a=b,c=d", {"a": Path("b"), "c": Path("d")}),
        ("s/a:0=b,c,d=e=f", {"s/a:0": Path("b,c"), "d": Path("e=f")}),
        ("data.npz", {}),
        ("prep.py:load", {}),
        ("=b", {}),
    ],
)
def test_what_names_sources(text, sources):
    assert split_sources(text) == sources


def test_files_whose_names_have_equals_signs_are_files(tmp_path):
    (tmp_path / "lr=1.py").touch()
    assert split_sources(f"{tmp_path}/lr=1.py") == {}
    assert split_sources(f"{tmp_path}/lr=1.py:load") == {}
