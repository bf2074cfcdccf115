"""With which sums a candidate that passes is known to pass."""

from dataclasses import replace
from typing import Any

import pytest

from halfwise.case import Samples
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.roles import roles_of
from halfwise.judging.judge import judge
from halfwise.judging.low_sums import LowSums, lowest_sums
from halfwise.judging.reference import inspected_reference
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from tests import models

NONE: frozenset[Any] = frozenset()


def lowest(ill, kept=NONE, **settings):
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
    return lowest_sums(made.model, passes, case, replace(request.settings, **settings))


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
