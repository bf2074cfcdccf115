from hypothesis import given
from hypothesis import strategies as st

from halfwise.page.data import Interned, front_coded, sparse

NAMES = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=9)


def decoded(coded: list[int | str]) -> list[str]:
    """Decode as JavaScript does, which counts UTF-16."""
    found, before = [], b""
    for shared, rest in zip(coded[::2], coded[1::2], strict=True):
        assert isinstance(shared, int)
        before = before[: 2 * shared] + str(rest).encode("utf-16-le")
        found.append(before.decode("utf-16-le"))
    return found


@given(NAMES)
def test_names_come_back(names: list[str]) -> None:
    assert decoded(front_coded(names)) == names


def test_what_names_share_is_written_once() -> None:
    assert front_coded(["/a/b", "/a/c", "/a/c", "😀a", "😀b"]) == [
        *(0, "/a/b", 3, "c", 4, "", 0, "😀a", 0, "😀b"),
    ]


def test_values_have_one_place_each() -> None:
    interned = Interned[str]()
    assert [interned.of(text) for text in ("b", "a", "b")] == [0, 1, 0]
    assert interned.all == ["b", "a"]


def test_a_column_of_nothing_is_empty() -> None:
    assert sparse([None, None]) == []
    assert sparse([None, 0]) == [None, 0]
