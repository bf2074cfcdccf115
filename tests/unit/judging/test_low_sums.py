"""With which sums a candidate that passes is known to pass."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.budget import WEIGHTS, Budget
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.roles import roles_of
from halfwise.judging.judge import judge
from halfwise.judging.low_sums import FEW, LowSums, lowest_sums
from halfwise.judging.reference import inspected_reference
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from tests import models
from tests.models import Ill
from tests.unit.graph.sketch import Sketch, f32

NONE: frozenset[Any] = frozenset()


def lowest(ill, kept=NONE, budget=None, **settings):
    samples = Samples(("0", "1", "2"), ill.sample)
    request = understand(dict(ill.inputs), {})
    case = load_case(ill.proto, request.data, request.criterion)
    network = case.network
    roles = roles_of(network, low_type(FP16))
    made, _ = rewrite(network, roles, kept, FP16, fixed=NONE, low_io=NONE)
    references = inspected_reference(network, samples)[0]
    verdict = judge(made.model, samples, references, case.criterion, None).verdict
    assert verdict.passed
    passes = [LowSums(samples, references)]
    chosen = replace(request.settings, **settings)
    return lowest_sums(made.model, passes, case, chosen, budget or Budget())


@pytest.mark.parametrize(
    ("make", "sums"),
    [
        (models.small, "fp16"),
        (models.accumulation.long_product, "fp32"),
        (models.accumulation.global_mean, "fp32"),
        (models.accumulation.inner_squares, "fp32"),
    ],
)
def test_the_lowest_format_with_which_it_passes(make, sums) -> None:
    assert lowest(make()) == sums


def test_a_sum_kept_in_fp32_is_no_low_sum() -> None:
    ill = models.accumulation.inner_squares()
    assert lowest(ill, frozenset(ill.kept)) == "fp16"
    every = frozenset(n.name for n in ill.proto.graph.node)
    assert lowest(ill, every) is None


def test_what_was_judged_with_low_sums_is_not_run_again() -> None:
    assert lowest(models.small(), accumulate="fp16") == "fp16"


def test_without_a_sum_its_format_does_not_matter() -> None:
    s = Sketch()
    y = s.op("Exp", s.input("x", [1, 64]))
    inputs = {"x": f32(np.random.default_rng(1).uniform(8, 11, (8, 1, 64)))}  # off by 0.7 %
    assert lowest(Ill(s.proto(y), inputs)) == "fp16"


def test_low_sums_are_paid_from_the_budget() -> None:
    budget = Budget()
    assert lowest(models.small(), budget=budget) == "fp16"
    assert budget.spent == 3 * WEIGHTS["trial"] + FEW * WEIGHTS["sums"]
    assert not budget.cut


def test_a_budget_that_is_spent_shows_nothing() -> None:
    budget = Budget(work=3 * WEIGHTS["trial"])
    assert lowest(models.small(), budget=budget) == "fp32"
    assert budget.cut == ["sums"]
    assert budget.ended_by == ["work"]


@pytest.mark.parametrize(("value", "sums"), [(1.0, "fp16"), (30.0, "fp32")])
def test_below_the_opset_of_low_sums_a_model_is_raised_to_it(value, sums) -> None:
    s = Sketch(11)
    y = s.op("Div", s.op("ReduceMean", s.input("x", [1, 4096]), axes=[1]), f32(value))
    inputs = {"x": f32(np.full((8, 1, 4096), value))}
    assert lowest(Ill(s.proto(y), inputs)) == sums
