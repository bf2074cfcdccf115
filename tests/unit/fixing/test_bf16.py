"""BF16 for kept nodes that need range, not bits."""

import pytest

from halfwise.errors import CaseError
from tests import models
from tests.unit.fixing.test_loop import found, types_in


def test_a_node_that_needs_range_gets_bf16_and_costs_less():
    without = found(models.huge_weights(), no_repair=True)
    fixed = found(models.huge_weights(), no_repair=True, allow="bf16")
    assert [k.precision for k in without.plan.keep] == ["fp32"]
    assert [k.precision for k in fixed.plan.keep] == ["bf16"]
    assert fixed.verdict.passed
    assert "BFLOAT16" in types_in(fixed).values()
    kept, prices = fixed.found.kept, fixed.planner.prices
    assert prices is not None
    assert prices.of(kept, kept) < prices.of(kept)


def test_a_node_that_needs_bits_stays_in_fp32():
    fixed = found(models.cancellation(), no_repair=True, allow="bf16")
    assert {k.precision for k in fixed.plan.keep} == {"fp32"}
    assert fixed.planner.narrowed is None
    assert fixed.verdict.passed


def test_an_opset_without_bf16_is_told_before_the_search():
    ill = models.conv_chain()
    ill.proto.opset_import[0].version = 12
    with pytest.raises(CaseError, match="BF16 needs opset 13"):
        found(ill, allow="bf16")
