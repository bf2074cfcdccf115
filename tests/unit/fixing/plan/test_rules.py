import pytest

from halfwise.case import Rules
from halfwise.errors import CaseError
from halfwise.fixing.plan.rules import ISLAND, apply_rules, named
from halfwise.graph.model import network_from_proto
from halfwise.graph.roles import bodies, roles_of
from tests import models
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch

NORM = network_from_proto(models.layer_norm().proto)


def applied(network=NORM, **rules):
    return apply_rules(network, roles_of(network), Rules(**rules))


def test_without_rules_nothing_is_decided():
    assert applied() == applied(keep=(), keep_op=(), lower=())
    assert (dict(applied().kept), dict(applied().lowered)) == ({}, {})


def test_a_name_is_taken_before_it_is_an_expression():
    """Exporters write names such as `/norm/Pow(2)`, which match themselves as no expression."""
    sketch = Sketch()
    x = sketch.input("x", [4])
    y = sketch.op("Abs", sketch.op("Exp", x, name="a.(1)"), name="ab(1)")
    network = sketch.network(y)
    assert applied(network, keep=("a.(1)",)).kept.keys() == names("a.(1)")


def test_an_expression_matches_whole_names():
    assert applied(keep=("mean",)).kept.keys() == names("mean")
    assert applied(keep=("m.*",)).kept.keys() == names("mean")
    assert applied(lower=(".*e",)).lowered.keys() == names(
        *("centre", "square", "variance", "divide")
    )
    with pytest.raises(CaseError, match="matches no node"):
        applied(keep=("squar",))


def test_names_that_a_rule_matches_are_in_graph_order():
    assert named("e.*|square", NORM) == ["square", "eps"]


def shared():
    """Two nodes called D, one called E, and two without a name."""
    sketch = Sketch()
    y = sketch.input("x", [4])
    for i, name in enumerate(("D", "", "D", "E", "")):
        y = sketch.op("Exp", y, name=f"n{i}")
        sketch.nodes[-1].name = name
    return sketch.network(y)


def test_the_users_name_stands_for_all_nodes_that_bear_it():
    assert shared().original_names == {"D_1": "D", "node": "", "node_1": ""}
    assert applied(shared(), keep=("D",)).kept.keys() == names("D", "D_1")
    assert applied(shared(), keep=("D_1",)).kept.keys() == names("D_1")
    assert applied(shared(), lower=("[DE]",)).lowered.keys() == names("D", "D_1", "E")


@pytest.mark.parametrize("rule", ["", "x*", "()"])
def test_no_rule_matches_nodes_without_a_name(rule):
    with pytest.raises(CaseError, match="matches no node"):
        applied(shared(), keep=(rule,))


def test_a_rule_that_matches_nothing_is_told_with_names_like_it():
    with pytest.raises(CaseError) as error:
        applied(keep=("squares",))
    assert error.value.hint.endswith("Did you mean square?")
    with pytest.raises(CaseError) as error:
        applied(lower=("/other/Conv",))
    assert "mean" not in error.value.hint


def test_each_node_knows_its_rule():
    forced = applied(keep=("square",), keep_op=("Sqrt",), lower=("gam.*",))
    assert forced.kept == {"square": "--keep square", "root": "--keep-op Sqrt"}
    assert forced.lowered == {"gamma": "--lower gam.*"}


def test_an_operator_stands_for_its_written_out_form_too():
    kept = applied(keep_op=("LayerNormalization",)).kept
    assert kept.keys() >= names("mean", "centre", "square", "variance", "eps", "root", "divide")
    assert set(kept.values()) == {"--keep-op LayerNormalization"}
    assert applied(keep_op=("ReduceMean",)).kept.keys() == names("mean", "variance")


def test_an_operator_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(CaseError, match="--keep-op Softmax") as error:
        applied(keep_op=("Softmax",))
    assert "ReduceMean" in error.value.hint


def test_outputs_are_what_computes_them():
    assert applied(keep=("outputs",)).kept.keys() == names("gamma")


def test_outputs_behind_data_movement():
    sketch = Sketch()
    x = sketch.input("x", [4])
    computed = sketch.op("Exp", x, name="compute")
    moved = sketch.op("Reshape", computed, [2, 2], name="move")
    other = sketch.op("Neg", computed, name="other")
    network = sketch.network(moved, other)
    assert applied(network, keep=("outputs",)).kept.keys() == names("compute", "move", "other")


def test_a_node_called_outputs_is_no_exception():
    assert applied(keep=("outputs",)).kept.values() != {}


def test_both_kept_and_lowered_is_a_contradiction():
    with pytest.raises(CaseError, match="square") as error:
        applied(keep=("square",), lower=("squ.*",))
    assert "--keep square" in str(error.value)
    assert "--lower squ.*" in str(error.value)


def test_contradictions_of_other_rules():
    with pytest.raises(CaseError, match=r"--keep-op Sqrt and --lower root both match node root\."):
        applied(keep_op=("Sqrt",), lower=("root",))
    with pytest.raises(CaseError, match="--keep outputs and --lower gamma both match node gamma"):
        applied(keep=("outputs",), lower=("gamma",))
    for rules in ({"keep": ("eye",)}, {"keep_op": ("EyeLike",)}):
        with pytest.raises(CaseError, match="--lower eye matches eye, which must be FP32"):
            applied(pinned(), lower=("eye",), **rules)


def test_an_expression_that_is_none_is_refused():
    with pytest.raises(CaseError, match="regular expression"):
        applied(lower=("square(",))


def pinned():
    sketch = Sketch()
    x = sketch.input("x", [2, 2])
    eye = sketch.op("EyeLike", x, name="eye")
    return sketch.network(sketch.op("Abs", eye, name="abs"))


def test_what_must_be_fp32_satisfies_a_rule_to_keep_it():
    assert applied(pinned(), keep=("eye", "abs")).kept.keys() == names("abs")
    assert dict(applied(pinned(), keep_op=("EyeLike",)).kept) == {}


def test_what_must_be_fp32_cannot_be_lowered():
    with pytest.raises(CaseError, match="makes its own values"):
        applied(pinned(), lower=("eye",))


def test_a_node_in_a_body_is_decided_by_the_node_around_it():
    network = network_from_proto(models.two_bodies().proto)
    choose = next(n for n in network.nodes() if n.op_type == "If")
    inner = next(n for body in bodies(choose) for n in body if n.name)
    with pytest.raises(CaseError, match=f"in a body of {choose.name}") as error:
        applied(network, lower=(inner.name,))
    assert f"Name {choose.name}:" in error.value.hint


def test_islands_are_kept_unless_a_rule_lowers_them():
    islands = names("square", "root", "gamma")
    rules = Rules(keep=("root",), lower=("gamma",))
    forced = apply_rules(NORM, roles_of(NORM), rules, islands)
    assert forced.kept == {"square": ISLAND, "root": "--keep root"}
    assert forced.lowered.keys() == names("gamma")
