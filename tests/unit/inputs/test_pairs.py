from pathlib import Path

import pytest

from halfwise.errors import CaseError
from halfwise.inputs.fitting import by_input, pair_files, split_sources


def files(folder, *names):
    return [Path(folder) / name for name in names]


def test_equal_names_pair_whatever_the_suffix():
    pairs, notes = pair_files(
        {"left": files("l", "a.png", "b.png"), "right": files("r", "b.jpg", "a.jpg")}
    )
    assert pairs == [
        ("a.png", {"left": Path("l/a.png"), "right": Path("r/a.jpg")}),
        ("b.png", {"left": Path("l/b.png"), "right": Path("r/b.jpg")}),
    ]
    assert notes == ()


def test_equal_last_numbers_pair_whatever_the_padding():
    left = files("l", "cam0_1.png", "cam0_10.png", "cam0_2.png")
    right = files("r", "cam1_001.png", "cam1_002.png", "cam1_010.png")
    pairs, (note,) = pair_files({"left": left, "right": right})
    assert [(p["left"].name, p["right"].name) for _, p in pairs] == [
        ("cam0_1.png", "cam1_001.png"),
        ("cam0_10.png", "cam1_010.png"),
        ("cam0_2.png", "cam1_002.png"),
    ]
    assert (note.severity, note.facts["by"]) == ("info", "number")


def test_order_pairs_what_has_nothing_in_common_and_warns():
    left, right = files("l", "dusk.png", "noon.png"), files("r", "after.png", "before.png")
    pairs, (note,) = pair_files({"left": left, "right": right})
    assert [(p["left"].name, p["right"].name) for _, p in pairs] == [
        ("dusk.png", "after.png"),
        ("noon.png", "before.png"),
    ]
    assert (note.severity, note.facts["names"]) == ("warning", ("dusk.png", "after.png"))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("1.png", "2.png", "3.png"), ("1.png", "3.png")),
        (("a.png", "b.png"), ("a.png", "c.png")),
        (("a.png", "b.png"), ("c.png",)),
        (("left_1.png", "left_2.png"), ("right_2.png", "right_3.png")),
        (("a1.png", "b1.png"), ("c1.png", "d1.png")),
    ],
)
def test_order_pairs_nothing_where_a_file_may_be_missing(left, right):
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


def test_a_function_gets_all_inputs_or_each():
    assert by_input(lambda given: given["a"] + given["b"], {"a": 1, "b": 2})({"a": 3, "b": 4}) == 7
    assert by_input(lambda one: one + 1, {"a": 1, "b": 2})({"a": 3, "b": 4}) == {"a": 4, "b": 5}
    with pytest.raises(KeyError, match="c"):
        by_input(lambda given: given["c"], {"a": 1, "b": 2})({"a": 1, "b": 2})
