"""Records of plans."""

from dataclasses import replace

import pytest

from halfwise.fixing.recording import plan_of, search_of
from halfwise.reporting.guards import explained, reason_of
from tests import models
from tests.unit.fixing.test_loop import found

pytestmark = pytest.mark.usefixtures("unrepaired")


def test_the_record_tells_what_keeps_a_node():
    plan = found(models.layer_norm(), keep=[".*"]).plan
    why = {k.node: k.because for k in plan.keep}
    assert why
    assert all(b is not None and b.rule == "--keep .*" for b in why.values())
    assert {k.kept_by for k in plan.keep} == {"rule"}
    assert plan.repairs == ()


def test_a_node_kept_only_because_less_costs_more_has_no_cause():
    """A guard may name it, but a plan that lowers it passes."""
    fixed = found(models.layer_norm())
    name = min(fixed.found.kept)
    cheaper = replace(fixed.found, spare=frozenset((name,)))
    keep = {k.node: k for k in plan_of(fixed.planner, cheaper, frozenset(), 0, ()).keep}
    assert keep[name].spare
    assert (keep[name].guard, keep[name].unknown) == (None, False)
    assert all(k.guard and not k.spare for k in keep.values() if k.node != name)
    assert reason_of(keep[name], None) == "spare"
    told = explained((keep[name],), fixed.guards, 2.0, None)[0].why
    assert told.startswith("Not needed: a plan that lowers it passes too, but costs more")


def test_what_onnx_runtime_refused_is_on_record():
    fixed = found(models.layer_norm())
    record = lambda: search_of(fixed.planner, fixed.heldout, fixed.found).refused  # noqa: E731
    assert record() == ""
    fixed.planner.trials.refused = "No kernel."
    assert record() == "No kernel."
