from halfwise.tools.diagnose.twins import twins

READS = {
    "a": [], "b": ["a"], "c": ["a", "b"],
    "d": ["c"], "e": ["d"], "f": ["d", "e"],
    "g": ["f"], "h": ["g"], "i": ["h"],
}  # fmt: skip
LABELS = dict(zip("abcdefghi", ["X", "Y", "Z"] * 3, strict=True))


def test_a_twin_has_the_same_operators_that_read_each_other_alike():
    assert twins(frozenset("abc"), READS, LABELS) == [frozenset("def")]
    assert twins(frozenset("ab"), READS, LABELS) == [frozenset("de"), frozenset("gh")]
    assert twins(frozenset("bc"), READS, LABELS) == [frozenset("ef"), frozenset("hi")]


def test_single_nodes_have_those_of_their_operator_and_what_is_not_connected_has_none():
    assert twins(frozenset("b"), READS, LABELS) == [frozenset("e"), frozenset("h")]
    assert twins(frozenset("ah"), READS, LABELS) == []


def test_twins_share_no_node():
    reads = {"a": [], "b": ["a"], "c": ["b"], "d": ["c"], "e": ["d"]}
    same = dict.fromkeys(reads, "X")
    assert twins(frozenset("ab"), reads, same) == [frozenset("cd")]
