"""The peers of the INT8 bench are cut where they should be; its CNN is what it is trained as."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.digits_cnn import Network, drawn, written
from bench.int8_peers import bisected, by_itself, first_passing, left_alone
from halfwise.case import Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.graph.loading import network_from_proto
from halfwise.records import Criterion, NodeName

NODES = tuple(map(NodeName, "abcdefgh"))


class Losing:
    """A judge of models in which each node that has INT8 loses so much."""

    def __init__(self, losses: dict[NodeName, float]) -> None:
        self.losses = losses

    def prepare(self, left: frozenset[NodeName], /) -> None:
        """Load nothing."""

    def run(self, _sample: Sample, left: frozenset[NodeName], /) -> dict[str, np.ndarray]:
        lost = sum(loss for node, loss in self.losses.items() if node not in left)
        return {"y": np.full(1, 1 + lost, np.float32)}

    def release(self) -> None:
        """Free nothing."""


@given(st.lists(st.floats(0.01, 1), min_size=8, max_size=8))
def test_rankings_put_what_loses_most_first_and_are_cut_where_the_rest_passes(losses):
    judge, sample = Losing(dict(zip(NODES, losses, strict=True))), {"x": np.ones(1, np.float32)}
    references = [{"y": np.ones(1, np.float32)}]
    tolerance = Tolerance(Criterion(max_abs=1.0))
    bench = Bench(judge, Samples(("x",), lambda _: sample), references, tolerance)
    for ranking in (by_itself(bench, frozenset(NODES)), left_alone(bench, frozenset(NODES))):
        ranked = [float(np.float32(1 + judge.losses[n])) for n in ranking.nodes]
        assert ranking.evaluations == 8
        assert np.all(np.diff(ranked) <= 1e-6)
        left, tried = first_passing(bench, ranking.nodes)
        assert bench.evaluate(left).passed
        fewer = frozenset(ranking.nodes[: len(left) - 1])
        assert not left or not bench.evaluate(fewer).passed
        assert tried == len(left) + 1
        halved = bisected(lambda some: bench.evaluate(some).passed, ranking.nodes)
        assert halved is not None
        assert halved[0] == left


def test_where_nothing_passes_the_defaults_have_no_plan():
    assert bisected(lambda _: False, NODES) is None
    assert bisected(lambda _: True, NODES) == (frozenset(), 1)


@pytest.fixture
def net() -> Network:
    rng = np.random.default_rng(1)
    net = drawn(rng)
    net.run(rng.normal(size=(16, 1, 8, 8)).astype(np.float32), train=True)
    return net


def test_the_file_computes_what_was_trained(net):
    images = np.random.default_rng(2).normal(size=(5, 1, 8, 8)).astype(np.float32)
    model = network_from_proto(written(net)).model
    (logits,) = Session(model).run({"images": images}).values()
    assert np.allclose(logits, net.run(images), rtol=1e-3, atol=1e-4)


def test_gradients_are_differences(net):
    rng = np.random.default_rng(3)
    images = rng.normal(size=(4, 1, 8, 8))
    net.parameters = {name: p.astype(np.float64) for name, p in net.parameters.items()}
    weights = rng.normal(size=(4, 10))
    net.run(images, train=True)
    g = weights
    for step in reversed(net.tape):
        g = step(g)
    for name in net.parameters:
        gradient, p = net.gradients[name], net.parameters[name]
        at = tuple(rng.integers(0, n) for n in p.shape)
        ends = []
        for change in (1e-6, -2e-6):
            p[at] += change
            ends.append(float((net.run(images, train=True) * weights).sum()))
        p[at] += 1e-6
        assert gradient[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-3, abs=1e-4)
