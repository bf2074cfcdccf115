"""What a plan is: hashable, complete, and written as it was tried."""

import pytest

from halfwise.emulation.runner import seen_shapes
from halfwise.emulation.typed import TF32_MARK
from halfwise.errors import CaseError, UsageError
from halfwise.fixing.plan.plan import Plan, Variant
from halfwise.fixing.repair import making
from halfwise.graph.quantised import quantised_nodes
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.records import replace
from tests import models
from tests.unit.casing import names
from tests.unit.fixing.repair.sluices import WIDE, Sluice, renamed, sluiced
from tests.unit.fixing.repair.test_making import repair

NONE = names()


def variant_of(ill: models.Ill, **options: object) -> Variant:
    request = understand(dict(ill.inputs), options)
    case = load_case(ill.proto, request.data, request.criterion)
    return Variant(case, request.settings)


def dtypes(variant: Variant, plan: Plan) -> dict[str, str]:
    own = set(variant.roles)
    graph = variant.write(plan)[0].model.graph
    return {str(n.name): str(n.outputs[0].dtype) for n in graph if n.name in own}


def test_plans_are_equal_where_all_their_types_are():
    variant, other = (variant_of(models.layer_norm()) for _ in range(2))
    some = names("square")
    plan = Plan(variant, some)
    same = [Plan(variant, frozenset(some)), variant.plan(some)]
    others = [
        *(Plan(other, some), Plan(variant), Plan(variant, some, some)),
        *(Plan(variant, some, tf32=True), Plan(variant, some, int8=names("centre"))),
    ]
    assert {plan, *same} == {plan}
    assert len({plan, *others}) == 1 + len(others)


@pytest.mark.parametrize("kept", [NONE, names("square"), names("square", "variance", "root")])
def test_the_model_has_the_types_of_the_plan(kept):
    variant = variant_of(models.layer_norm())
    found = dtypes(variant, variant.plan(kept))
    assert {n for n, dtype in found.items() if dtype == "FLOAT"} == kept
    assert variant.write(variant.plan(kept))[1] == variant.resolve(kept) == kept


def test_kept_nodes_have_the_type_that_the_plan_gives_them():
    variant = variant_of(models.busy_product(), allow_bf16=True, allow_tf32=True)
    product = min(variant.products)
    bf16 = min(variant.may_have_bf16 - variant.products)
    kept = frozenset((product, bf16))
    plan = Plan(variant, kept, bf16=frozenset((bf16,)), tf32=True)
    assert [plan.precision(n) for n in (product, bf16)] == ["tf32", "bf16"]
    assert replace(plan, tf32=False).precision(product) == "fp32"
    found = dtypes(variant, plan)
    assert (found[bf16], found[product]) == ("BFLOAT16", "FLOAT")
    marked = {n.name for n in variant.write(plan)[0].model.graph if TF32_MARK in n.metadata_props}
    assert marked == {product}
    fp32, all_low = variant.cost(Plan(variant, kept)), variant.cost(Plan(variant))
    assert (variant.cost(plan) or 0) < (fp32 or 0)
    assert all_low == 1


def test_rules_are_part_of_every_plan():
    variant = variant_of(models.layer_norm(), keep=["divide"], lower=["gamma"])
    assert variant.ruled == names("divide")
    assert variant.lowered == names("gamma")
    assert "gamma" not in variant.resolve(names("gamma", "square"))
    assert not variant.is_free
    assert variant_of(models.layer_norm()).is_safe
    with pytest.raises(UsageError, match="matches no node"):
        _ = variant_of(models.small(), keep=("nothing",)).forced


def test_an_opset_without_bf16_is_refused():
    ill = models.conv_chain()
    ill.proto.opset_import[0].version = 12
    with pytest.raises(CaseError, match="BF16 needs opset 13"):
        _ = variant_of(ill, allow_bf16=True).may_have_bf16
    assert variant_of(ill).may_have_bf16 == NONE


def test_a_network_with_repairs_has_plans_of_its_own_and_the_costs_of_the_original(monkeypatch):
    monkeypatch.setattr(making, "RULES", (Sluice(),))
    original = variant_of(sluiced(WIDE, WIDE))
    one, both = (original.with_repairs([repair(i) for i in range(n)]) for n in (1, 2))
    again = both.with_repairs([repair(0)])
    assert (one.original, again.original) == (original, original)
    assert again.case.repairs == one.case.repairs == (repair(0),)
    assert not one.is_safe
    assert len({v.plan(NONE) for v in (original, one, both)}) == 3
    assert one.prices is not None
    assert original.prices is not None
    assert one.prices.least == original.prices.least
    assert one.prices.fp32 == original.prices.fp32
    assert one.shapes == seen_shapes(one.case.network, one.case.calibration[0])
    with pytest.raises(CaseError, match="Not the model"):
        original.with_repairs([repair(7)])


def test_a_repair_that_removes_what_a_rule_names_is_refused(monkeypatch):
    monkeypatch.setattr(making, "RULES", (Sluice(spoil=renamed),))
    with pytest.raises(UsageError, match="matches no node"):
        variant_of(sluiced(), keep=["down_0"]).with_repairs([repair()])


def test_without_int8_the_network_is_as_it_is():
    variant = variant_of(models.small())
    assert variant.network_of(variant.plan(NONE)) is variant.case.network
    assert not quantised_nodes(variant.case.network)
