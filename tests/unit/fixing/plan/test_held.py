from dataclasses import replace

from halfwise.emulation.budget import Budget
from halfwise.fixing.plan.held import with_each_lowered
from halfwise.fixing.plan.search import Search
from tests import models
from tests.unit.fixing.test_planner import planner


def test_held_nodes_are_tried_alone_only_while_there_is_time():
    """A metric that anything meets: what is infinite inside alone is kept."""
    made = planner(models.layer_norm(), metric="snr", metric_drop=1000)
    made.hold(made.evidence.guards)
    found = made.find(frozenset())
    assert not found.exhausted
    assert found.kept
    tried, spent = made.trials.runs, Budget(0)
    made.trials._known.clear()
    assert with_each_lowered(found, made.held_nodes, made.trials.evaluate, spent) == found
    assert made.trials.runs == tried
    assert spent.cut == ["certify"]
    with_each_lowered(found, made.held_nodes, made.trials.evaluate, Budget())
    assert made.trials.runs > tried


def test_needed_nodes_of_a_plan_that_costs_less_are_lowered_alone_in_it(monkeypatch):
    """The search saw what they do in the smaller plan, which costs more."""
    made = planner(models.layer_norm())
    smaller = made.find(frozenset())
    (spare,) = sorted(made.choices - smaller.kept)[:1]
    larger = replace(smaller, kept=smaller.kept | {spare}, excess_without={}, spare={spare})
    monkeypatch.setattr(Search, "run", lambda *_, **__: larger)
    assert made.find(frozenset()).excess_without.keys() == smaller.kept
