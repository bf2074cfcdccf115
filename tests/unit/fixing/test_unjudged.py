import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.fixing.unjudged import with_unjudged
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.reporting.unjudged import ANY_SAMPLE
from tests import models
from tests.unit.reporting import runs


def marked(verdict, scale=1.0, **options):
    ill = models.small()
    request = understand(dict(ill.inputs), options)
    case = load_case(ill.proto, request.data, request.criterion)
    session = Session(case.network.model)
    references = [
        {n: np.asarray(a, np.float32) * np.float32(scale) for n, a in session.run(s).items()}
        for s in case.heldout
    ]
    return with_unjudged(verdict, case, request, None, case.heldout, references)


def verdict(**update):
    return runs.verdict(**update)


@pytest.mark.parametrize(
    ("allowed", "passed", "after", "judged"),
    [
        (False, True, False, False),
        (False, False, False, True),
        (True, True, True, True),
        (True, False, False, True),
    ],
)
def test_what_nothing_tests_fails_unless_allowed(allowed, passed, after, judged):
    before = verdict(passed=passed, reasons=("wrong",))
    found = marked(before, 0.0, allow_unjudged=allowed)
    assert (found.passed, found.judged) == (after, judged)
    assert [u.kind for u in found.unjudged] == ["zeros"]
    told = [reason for reason in found.reasons if reason.startswith("not judged: ")]
    assert len(told) == (not allowed)
    assert "wrong" in found.reasons


def test_what_is_tested_stays_as_it_is():
    before = verdict(passed=True)
    assert marked(before) == before


def test_a_metric_that_takes_any_sample_is_told():
    found = marked(verdict(passed=True), metric="psnr", metric_drop=99.0)
    assert found.hints[-1] == ANY_SAMPLE
