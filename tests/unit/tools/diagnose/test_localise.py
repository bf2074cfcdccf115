from math import log2

from hypothesis import given, settings
from hypothesis import strategies as st

from halfwise.tools.diagnose.localise import Spent, localise


@st.composite
def graphs(draw, least=50, most=500):
    """A graph as networks are: long chains, skips, branches that meet."""
    size, random = draw(st.integers(least, most)), draw(st.randoms(use_true_random=False))
    reads: dict[str, list[str]] = {"n0": []}
    for i in range(1, size):
        before = [f"n{i - 1}" if random.random() < 0.9 else f"n{random.randrange(i)}"]
        if random.random() < 0.25:
            before.append(f"n{random.randrange(max(0, i - 12), i)}")
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


@given(graphs(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_fusion_that_is_wrong_is_found_with_few_builds(reads, data):
    start = data.draw(st.sampled_from(list(reads)))
    fault = chain(reads, start, data.draw(st.integers(1, 4)))
    # The engine that is known to be wrong, and the proof by transplant, are two more.
    most = int(4 + 2 * log2(len(reads))) - 2
    oracle = Oracle([fault], most)
    (found,) = localise(reads, oracle)
    assert oracle.known[found]
    assert found >= fault
    assert len(found) <= 4 or oracle.builds == most
    event = len(found) <= 4
    RIGHT.append(event)


RIGHT: list[bool] = []


def test_nearly_all_of_them_come_down_to_four_nodes():
    assert sum(RIGHT) >= 0.95 * len(RIGHT)
