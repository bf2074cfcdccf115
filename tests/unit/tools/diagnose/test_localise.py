from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.tools.diagnose.localise import Spent, in_order, localise, twins


def drawn(size, random):
    """A graph as networks are: long chains, skips, branches that meet."""
    reads: dict[str, list[str]] = {"n0": []}
    for i in range(1, size):
        before = [f"n{i - 1}" if random.random() < 0.9 else f"n{random.integers(i)}"]
        if random.random() < 0.25:
            before.append(f"n{random.integers(max(0, i - 12), i)}")
        reads[f"n{i}"] = list(dict.fromkeys(before))
    return reads


class Oracle:
    """Nodes that are wrong where a part holds all of them; counts what it is asked."""

    def __init__(self, faults, most=None):
        self.faults, self.most, self.known, self.builds = faults, most, {}, 0

    def __call__(self, parts):
        parts = [frozenset(part) for part in parts]
        assert sum(map(len, parts)) == len(frozenset().union(*parts)), "parts share nodes"
        if not self.known.keys() >= set(parts):
            if self.builds == self.most:
                raise Spent
            self.builds += 1
        for part in parts:
            self.known[part] = any(fault <= part for fault in self.faults)
        return [self.known[part] for part in parts]


def chain(reads, start, size):
    """Nodes that read each other, from one on, upward."""
    nodes = [start]
    while len(nodes) < size and reads[nodes[-1]]:
        nodes.append(reads[nodes[-1]][0])
    return frozenset(nodes)


def searched(size, nodes, seed, *, together=True):
    """Look for a fusion; the engine that is known to be wrong and the proof are two more builds."""
    random = np.random.default_rng(seed)
    reads = drawn(size, random)
    fault = chain(reads, str(random.choice(list(reads))), nodes)
    oracle = Oracle([fault], int(4 + 2 * log2(size)) - 2)
    return fault, localise(reads, oracle, together=together), oracle


@given(st.integers(9, 500), st.integers(1, 4), st.integers(0, 2**16), st.booleans())
def test_what_is_found_is_wrong_and_holds_the_fault(size, nodes, seed, together):
    fault, found, oracle = searched(size, nodes, seed, together=together)
    # Of a small graph, the builds may be spent before any part is known to be wrong.
    for part in found:
        assert oracle.known[part]
        assert part >= fault
    assert found or oracle.builds == oracle.most


@pytest.mark.parametrize("together", [True, False])
def test_nearly_all_come_down_to_four_nodes_within_the_builds(together):
    fews = [
        [len(part) <= 4 for part in searched(size, nodes, seed, together=together)[1]]
        for size in (50, 200, 500)
        for nodes in (1, 2, 3, 4)
        for seed in range(5)
    ]
    assert sum(few == [True] for few in fews) >= 0.9 * len(fews)


def test_several_faults_are_narrowed_down_together():
    reads = {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(64)}
    faults = [frozenset((f"n{i}", f"n{i + 1}")) for i in (9, 25, 41)]
    oracle = Oracle(faults)
    found = localise(reads, oracle)
    assert all(any(fault <= part and len(part) <= 3 for part in found) for fault in faults)
    assert oracle.builds <= 12


def test_nodes_that_are_not_asked_for_alone_are_found_in_stretches():
    reads = {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(64)}
    oracle = Oracle([frozenset(["n21"])])
    (found,) = localise(reads, oracle, alone=False)
    assert "n21" in found
    assert len(found) <= 3
    assert not any(frozenset([node]) in oracle.known for node in reads.keys() - {"n21"})


def test_no_questions_are_asked_of_nothing():
    assert localise({}, Oracle([])) == []


def test_an_order_puts_each_node_after_what_it_reads():
    reads = drawn(300, np.random.default_rng(1))
    order = in_order(reads)
    assert sorted(order) == sorted(reads)
    places = {node: i for i, node in enumerate(order)}
    assert all(places[one] < places[node] for node, those in reads.items() for one in those)


def test_a_graph_that_may_be_right_is_asked_about_in_stretches_only():
    reads = {f"n{i}": [f"n{i - 1}"] if i else [] for i in range(24)}
    oracle = Oracle([])
    assert localise(reads, oracle, whole=False) == []
    assert oracle.builds == 3


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
