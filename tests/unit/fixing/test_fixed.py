"""What a run found, and what keeps its nodes."""

import math

import pytest
from onnx import TensorProto, helper

from halfwise.fixing.fixed import (
    kept_nodes,
    plan_of,
    plan_record,
)
from halfwise.fixing.plan.rules import ISLAND
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName, Remark, replace
from halfwise.reporting.remarks import explained, reason_of
from tests import control, models
from tests.unit.casing import names
from tests.unit.fixing.running import found, kept
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.runs import guard

pytestmark = pytest.mark.usefixtures("unrepaired")

NONE = names()


def test_all_that_a_run_found_is_of_one_plan():
    fixed = found(models.root_mean_square())
    nodes = [
        node for node in fixed.space.variant.case.network.nodes() if node.name in fixed.result.kept
    ]
    assert kept(fixed) == fixed.result.kept == {node.name for node in nodes}
    assert fixed.curve.plan is not None
    assert fixed.curve.named(fixed.curve.points[fixed.curve.plan].kept) == fixed.result.kept
    assert fixed.verdict.samples == fixed.heldout.samples.ids
    assert fixed.space.evidence.observations is fixed.space.evidence.observations
    assert fixed.evaluations == fixed.space.bench.evaluations
    assert fixed.original is fixed.space
    assert fixed.assigned == fixed.space.plan(fixed.result.kept)
    assert fixed.seen == fixed.space.evidence.observations


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
    name = min(fixed.result.kept)
    cheaper = replace(fixed.result, spare=frozenset((name,)))
    keep = {k.node: k for k in plan_of(fixed.space, fixed.assigned, cheaper, NONE, 0, ()).keep}
    assert keep[name].spare
    assert (keep[name].guard, keep[name].unknown) == (None, False)
    assert all(k.guard and not k.spare for k in keep.values() if k.node != name)
    assert reason_of(keep[name], None) == "spare"
    told = explained((keep[name],), fixed.guards, 2.0, None)[0].reason
    assert told.startswith("Not needed: a plan that lowers it passes too, but costs more")


def test_what_onnx_runtime_refused_is_on_record():
    search = found(models.detector()).search
    assert "square" not in search.refused
    assert search.refused
    assert found(models.layer_norm()).search.refused == ""


# --- kept nodes and the record of a plan ---------------------------------------------------------

NORM = network_from_proto(models.layer_norm().proto)
NORM_ROLES = roles_of(NORM)
FIX = "Export as one node."


def recorded(*nodes, guards=(), forced=None, without=None, headroom=1.0, **more):
    found = kept_nodes(NORM, names(*nodes), guards, forced or {}, without or {}, **more)
    return {k.node: k for k in explained(found, guards, headroom)}


def test_nodes_are_in_graph_order_with_their_operators():
    found = recorded("root", "square", "mean")
    assert [(k.node, k.op) for k in found.values()] == [
        *(("mean", "ReduceMean"), ("square", "Pow"), ("root", "Sqrt")),
    ]
    assert {k.precision for k in found.values()} == {"fp32"}


def test_a_node_is_explained_by_the_guard_it_raised():
    guards = (
        guard("variance", "overflow", nodes=names("variance", "eps"), message="v is too large"),
        guard("square", "square", nodes=names("square", "variance"), message="s is too large"),
    )
    found = recorded("square", "variance", "eps", guards=guards)
    causes = {"square": "square", "variance": "overflow", "eps": "overflow"}
    assert {n: k.guard for n, k in found.items()} == causes
    assert "s is too large" in found["square"].reason.lower()
    assert "needed by variance" in found["eps"].reason.lower()


def test_of_several_guards_the_gravest_explains():
    guards = (
        guard("a", "overflow", nodes=names("eps"), message="grave"),
        guard("b", "eps", nodes=names("eps"), message="mild"),
    )
    assert "grave" in recorded("eps", guards=guards)["eps"].reason


def test_what_is_certain_explains_before_what_is_only_possible():
    guards = (
        guard("variance", "cancellation", nodes=names("root", "variance"), severity=1.2),
        guard("root", "eps", severity=0.6),
    )
    assert recorded("root", guards=guards)["root"].guard == "cancellation"


def test_what_becomes_infinite_is_explained_by_what_leads_there():
    """Subnormal weights are a guard of the node's own, and gave nobody an infinity."""
    guards = (
        guard("square", "overflow", nodes=names("square", "variance"), message="s is too large"),
        guard("variance", "constant-subnormal", message="weights are small"),
    )
    without = {NodeName("variance"): math.inf}
    found = recorded("variance", guards=guards, without=without, nonfinite_without=set(without))
    assert found["variance"].guard == "overflow"
    found = recorded("variance", guards=guards, without={NodeName("variance"): 2.0})
    assert found["variance"].guard == "constant-subnormal"


def test_lost_digits_explain_more_than_an_overflow_beyond_the_data():
    guards = (
        guard("square", "cancellation", message="operands cancel"),
        guard("square", "headroom", severity=0.4, message="s is near the end of the range"),
    )
    without = {NodeName("square"): math.inf}
    found = recorded("square", guards=guards, without=without, nonfinite_without=set(without))
    assert found["square"].guard == "cancellation"


def test_names_in_a_sentence_stay_as_they_are():
    """A reason begins with a tensor's name, which is no word to be put in capitals."""
    message = "square_out reaches 2e7, beyond FP16's 65504"
    guards = (guard("square", "square", message=message),)
    assert message in recorded("square", guards=guards)["square"].reason


def test_a_reason_tells_what_lowering_does():
    guards = (guard("square", "square", message="it overflows", fix=FIX),)
    found = recorded("square", guards=guards, without={NodeName("square"): 3.271})
    assert found["square"].error_without == 3.271
    assert "3.27 ×" in found["square"].reason
    without = {NodeName("square"): math.inf}
    shape = recorded("square", guards=guards, without=without)["square"].reason
    assert "NaN" not in shape
    assert "×" not in shape
    nonfinite = recorded("square", guards=guards, without=without, nonfinite_without=set(without))
    assert "NaN or infinite outputs" in nonfinite["square"].reason


def test_without_a_certificate_the_contribution_is_told():
    found = recorded("gamma", contributions={NodeName("gamma"): 2.5})
    assert "uses 250 % of what the search allows" in found["gamma"].reason


def test_rules_that_are_in_the_way_are_named():
    found = recorded("gamma", hopeless=["--lower /c"])
    assert found["gamma"].reason.endswith("all free nodes in FP32, because of --lower /c.")
    assert "low inputs and outputs" in recorded("gamma", hopeless=[])["gamma"].reason


def test_a_node_without_a_cause_says_so():
    found = recorded("gamma", without={NodeName("gamma"): 1.5})
    assert found["gamma"].reason == (
        "No known cause; lowered, it brings the error to at least 1.5 × what the search allows."
    )
    assert (found["gamma"].guard, found["gamma"].kept_by) == (None, "search")


def test_a_cause_that_is_only_possible_or_was_not_tried_is_a_suspicion():
    sure, mild = guard("square", message="s is large"), guard("eps", message="e", severity=0.6)
    without = {NodeName("square"): 2.0, NodeName("eps"): 2.0}
    tried = recorded("square", "eps", guards=(sure, mild), without=without)
    assert tried["square"].reason.startswith("S is large; lowered, it brings")
    assert tried["eps"].reason.startswith("Suspected: e; lowered, it brings")
    untried = recorded("square", guards=(sure,))["square"].reason
    assert untried.startswith("Suspected, not tried alone: s is large.")


def test_what_happens_only_at_the_headroom_is_said_to():
    effect = {"without": {NodeName("eps"): math.inf}, "nonfinite_without": names("eps")}
    near = recorded("eps", near={"variance_out": 32760.0}, headroom=2.0, **effect)
    assert "lowered, with values 2 × those seen, it gives NaN or infinite" in near["eps"].reason
    apart = recorded("eps", near={"gamma_out": 32760.0}, headroom=2.0, **effect)
    assert "lowered, it gives NaN or infinite" in apart["eps"].reason


def test_an_island_is_kept_by_the_model_itself():
    found = recorded("square", guards=(guard("square"),), forced={"square": ISLAND})["square"]
    assert (found.guard, found.error_without) == (None, None)
    assert found.reason.startswith("Kept by the model itself: ")
    assert found.kept_by == "model"


def test_a_rule_is_the_reason_where_there_is_one():
    guards = (guard("square", "square", message="it overflows"),)
    found = recorded("square", guards=guards, forced={NodeName("square"): "--keep squ.*"})
    assert "--keep squ.*" in found["square"].reason
    assert (found["square"].guard, found["square"].kept_by) == (None, "rule")


def record(network, placed, keep=(), **more):
    options = {"minimal": True, **more}
    return plan_record(network, roles_of(network), FP16, placed, 7, keep=keep, **options)


def test_a_plan_counts_what_could_be_low():
    plan = record(NORM, names("square"), tuple(recorded("square").values()))
    assert (plan.low, plan.candidates, plan.casts, plan.minimal) == ("fp16", 8, 7, True)
    assert plan.remarks == ()
    assert plan.data_movement == plan.constants == plan.unsupported == ()


def test_a_plan_names_what_moves_and_what_must_be_fp32():
    sketch = Sketch()
    x = sketch.input("x", [4])
    moved = sketch.op("Reshape", sketch.op("Exp", x, name="exp"), [2, 2], name="move")
    noise = sketch.op("RandomNormalLike", moved, name="noise", dtype=TensorProto.FLOAT)
    network = sketch.network(sketch.op("Add", moved, noise, name="add"))
    plan = record(network, names("exp", "move"))
    assert plan.data_movement == ("move",)
    (unsupported,) = plan.unsupported
    assert (unsupported.node, unsupported.op) == ("noise", "RandomNormalLike")
    assert "random" in unsupported.reason


def test_a_plan_lists_constants_that_saturate_where_low_nodes_read_them():
    network = network_from_proto(models.mask().proto)
    (constant,) = record(network, frozenset()).constants
    assert (constant.name, constant.consumers, constant.elements) == ("lowest", ("fill",), 1)
    assert record(network, names("fill")).constants == ()


def test_what_rules_lowered_comes_along():
    lowered = {NodeName("square"): "--lower square"}
    assert record(NORM, frozenset(), lowered=lowered).lowered == lowered
    assert record(NORM, frozenset()).lowered == {}


def test_remarks_come_along():
    remark = Remark(kind="emulated")
    assert record(NORM, frozenset(), remarks=[remark]).remarks == (remark,)


def branching():
    s = Sketch()
    x, flag = s.input("x", [2, 4]), s.input("flag", [], TensorProto.BOOL)
    s.nodes.append(
        helper.make_node("If", [flag], ["chosen"], "choose", **control.branches("b", x, x))
    )
    return s.network(s.op("Neg", "chosen", name="neg"))


def test_nodes_in_bodies_that_must_be_fp32_are_listed():
    network = branching()
    plan = plan_record(network, roles_of(network), FP16, names(), 0, keep=(), minimal=True)
    assert [u.op for u in plan.unsupported] == ["SequenceConstruct", "SequenceAt"]
    assert plan.candidates == 6


def test_small_weights_explain_nothing_beside_an_overflow_that_is_read():
    large = guard(
        "square", "overflow", tensor="t", nodes=names("square", "variance"), message="t is large"
    )
    small = guard("variance", "constant-subnormal", message="weights are small", severity=1.1)
    without = {NodeName("variance"): 2.0}
    found = recorded("square", "variance", guards=(large, small), without=without)
    assert found["variance"].guard == "overflow"
    assert found["variance"].reason.startswith("It reads what may overflow: t is large; lowered,")
    alone = recorded("variance", guards=(large, small), without=without)
    assert alone["variance"].guard == "constant-subnormal"


def test_what_is_graver_explains_an_infinity():
    large = guard("square", "overflow", tensor="t", nodes=names("square", "variance"))
    eps = guard("variance", "eps", severity=2.5)
    without = {NodeName("variance"): math.inf}
    more = {"without": without, "nonfinite_without": set(without)}
    found = recorded("square", "variance", guards=(large, eps), **more)
    assert found["variance"].guard == "overflow"
    assert recorded("variance", guards=(eps,), **more)["variance"].guard == "eps"


def test_nothing_is_known_of_what_was_not_lowered_and_no_guard_names():
    guards = (guard("square", "square", message="s is too large"),)
    found = recorded(
        *("mean", "square", "variance", "eps", "root"),
        guards=guards,
        forced={NodeName("root"): "--keep root"},
        without={NodeName("variance"): 3.0},
        contributions={NodeName("eps"): 0.5},
    )
    assert {n for n, k in found.items() if k.unknown} == {"mean"}
    assert found["mean"].reason == "Not lowered before the search ended; nothing is known of it."


def test_a_name_that_a_reason_begins_with_stays_as_it_is():
    without = {NodeName("square"): 2.0}
    named = guard("square", message="square (Pow) adds up")
    reason = recorded("square", guards=(named,), without=without)["square"].reason
    assert reason.startswith("square (Pow) adds up; low")
