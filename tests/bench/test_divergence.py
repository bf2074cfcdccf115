"""The divergence bench, with a few faults in the bundled model."""

import random

import pytest

from bench.divergence import Divergence, Saboteur, compare_copy
from bench.runs import ROOT, digits
from halfwise.graph.loading import load_network
from halfwise.options.loading import load_model


@pytest.fixture(scope="module")
def bench():
    return Divergence([digits()])


def faulty(network, kind, seed):
    made = Saboteur(network, "digits", random.Random(seed)).fault(kind)  # noqa: S311 - a draw
    assert made is not None
    return made


@pytest.mark.parametrize("kind", ["weights", "axis"])
@pytest.mark.parametrize("seed", range(5))
def test_a_fault_is_in_one_node_alone(kind, seed):
    network = load_network(ROOT / digits().model)
    model, fault = faulty(network, kind, seed)
    whole = Saboteur(network, "digits", random.Random(0))  # noqa: S311 - nothing is drawn
    before = {n.name: n.SerializeToString() for n in whole.model().graph.node}
    after = {n.name: n.SerializeToString() for n in model.graph.node}
    assert [name for name in after if after[name] != before[name]] == [fault.node]


def test_the_model_as_it_is_shows_nothing(bench):
    assert bench.controls("optimised") == 0


def test_the_node_is_named(bench):
    network, samples = bench.cases["digits"]
    model, fault = faulty(network, "weights", 4)
    assert compare_copy(network, samples, load_model(model), "optimised").first == (fault.node,)
