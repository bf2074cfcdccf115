from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.page.sections import MOST_INSIDE, Folding, fold
from halfwise.records import Graph
from tests.unit.page.graphs import Line, block, sketched, stacked

OPS = ("Relu", "MatMul", "Add", "Cast")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph: few operators and scopes, so that much is alike; some nodes in bodies."""
    size = draw(st.integers(1, 90))
    scopes = draw(
        st.lists(st.sampled_from(["", "a/", "a/b/", "a/b.1/", "c/", "c/d/e/"]), min_size=1)
    )
    lines: list[Line] = []
    bodies: dict[int, int] = {}
    added: list[int] = []
    for i in range(size):
        lately = draw(st.lists(st.integers(max(0, i - 5), max(0, i - 1)), max_size=2))
        reads = [lines[k][0] for k in lately] if lines else []
        op = draw(st.sampled_from(OPS))
        if op == "Cast" and reads and draw(st.booleans()):
            added.append(i)
            reads = reads[:1]
        lines.append((f"{scopes[i * len(scopes) // size]}{i}", op, reads or ["x"]))
        if i and draw(st.integers(0, 9)) == 0:
            bodies[i] = draw(st.integers(0, i - 1))
    return sketched(lines, bodies=bodies, added=added)


def inside(folding: Folding) -> Counter[int]:
    """Count what each box holds, boxes and nodes."""
    return Counter([*folding.parents, *folding.places])


@given(graphs())
def test_no_node_is_lost_and_none_is_twice(graph) -> None:
    folding = fold(graph)
    assert len(folding.places) == len(graph.nodes)
    assert all(-1 <= place < len(folding.labels) for place in folding.places)
    # Every box is within one that comes before it, so unfolding ends, and all are reached.
    assert all(-1 <= parent < i for i, parent in enumerate(folding.parents))
    counts = inside(folding)
    assert all(counts[i] > 0 for i in range(len(folding.labels)))
    assert max(counts.values()) <= MOST_INSIDE
    assert all(folding.labels)


@pytest.mark.parametrize("prefix", ["blocks.{}/", "model/layer/{}/mlp/"])
def test_scopes_are_boxes(prefix: str) -> None:
    lines, weights = stacked([prefix.format(i) for i in range(6)])
    folding = fold(sketched(lines, constants=weights))
    blocks = [i for i in range(len(folding.labels)) if folding.places.count(i) == 4]
    assert len(blocks) == 6


@pytest.mark.parametrize(("count", "boxes"), [(36, 0), (37, 2)])
def test_what_one_box_can_hold_is_not_cut(count: int, boxes: int) -> None:
    lines = [(f"n{i}", "Relu", ["x"]) for i in range(count)]
    assert len(fold(sketched(lines)).labels) == boxes


@pytest.mark.parametrize(("count", "inmost"), [(36, "35"), (37, "36"), (38, "36/37")])
def test_the_first_scopes_of_a_name_are_boxes(count: int, inmost: str) -> None:
    names = ["/".join(map(str, range(i))) for i in range(1, count + 1)]
    lines: list[Line] = [(f"{name}/{i}", "Relu", ["x"]) for name in names for i in "ab"]
    assert fold(sketched(lines)).labels[-1] == inmost


def test_what_is_flat_is_cut_into_stretches() -> None:
    folding = fold(sketched([(f"n{i}", f"Op{i}", ["x"]) for i in range(3000)]))
    counts = inside(folding)
    assert max(counts.values()) <= MOST_INSIDE
    assert min(counts.values()) >= 2
    assert list(folding.places) == sorted(folding.places)


def test_a_body_is_with_the_node_that_has_it() -> None:
    lines = [("a/loop", "Loop", ["x"]), ("b/in", "Relu", ["y"]), ("c/in", "Relu", ["b/in"])]
    folding = fold(sketched([*lines, *block("d/", "a/loop")], bodies={1: 0, 2: 0}))
    assert len(set(folding.places[:3])) == 1
    assert folding.labels[folding.places[0]] == "a/loop"


@pytest.mark.parametrize("name", ["/" * 10_000, "a/" * 5_000, "", "//a//b", "…", "\n/\u202e/x"])
def test_odd_names_make_boxes_like_others(name: str) -> None:
    folding = fold(sketched([(f"{name}{i}", "Relu", ["x"]) for i in range(3)]))
    assert len(folding.places) == 3
    assert all(len(label) <= 120 for label in folding.labels)
