from math import inf, nan
from pathlib import Path

import pytest

from halfwise.errors import RecordMismatch, UsageError
from halfwise.records import MetricResult, Worth, replace
from halfwise.reporting.view import baseline_line
from halfwise.store import write_run
from halfwise.tools.verify.gate import Earlier, beside, earlier
from tests.unit.reporting.runs import output_error, run, verdict, verification


def held(now, before, allowed=0.05):
    """Return the changes by kind, and whether the run passes beside the other."""
    found = beside(now, Earlier(folder=Path("before"), run=before, allowed=allowed))
    assert found.compared is not None
    assert found.compared.passed == found.verdict.passed
    return {c.kind: c for c in found.compared.changes}, found.verdict.passed


def test_without_a_baseline_nothing_changes():
    one = run()
    assert beside(one, earlier(None, None)) is one
    with pytest.raises(UsageError, match="without --baseline"):
        earlier(None, "0.1")


@pytest.mark.parametrize(
    ("before", "now", "passed"),
    [
        (0.001, 0.00105, True),
        (0.001, 0.00106, False),
        (0.001, 0.0, True),
        (0.0, 0.0, True),
        (0.0, 1e-30, False),
        (inf, inf, True),
        (0.001, inf, False),
        (0.001, nan, False),
        (nan, 0.001, True),
    ],
)
def test_errors(before, now, passed):
    runs = [run(verdict=verdict(outputs={"y": output_error(rel_max=e)})) for e in (now, before)]
    changes, passes = held(*runs)
    assert changes["rel-max"].passed is passes is passed


def test_beside_a_metric_errors_do_not_count():
    """What decides is its loss; to be as good as the reference is never one."""
    one = MetricResult(name="top1", reference=0.9, candidate=0.9, allowed_drop=0.01, passed=True)
    lucky = replace(one, candidate=0.95)
    below = replace(one, candidate=0.89)
    runs = [run(verdict=verdict(metric=m)) for m in (one, lucky, below)]
    changes, passes = held(*runs[:2])
    assert (changes.keys() & {"rel-max", "mean-abs"}, passes) == (set(), True)
    assert not held(runs[2], runs[1])[1]
    gone, passes = held(run(verdict=verdict()), runs[0])
    assert (gone["metric"].now, passes) == (None, False)


def test_equal_elements_and_values_that_are_not_finite():
    integers = [output_error(agreement=a, nonfinite=n) for a, n in ((0.99, 0), (0.98, 0), (1, 1))]
    before, fewer, infinite = (run(verdict=verdict(outputs={"y": one})) for one in integers)
    assert held(before, before)[1]
    assert not held(fewer, before)[0]["unequal"].passed
    assert held(fewer, before, 1.01)[1]
    assert not held(infinite, before, 9)[0]["non-finite"].passed


def test_a_run_that_judged_nothing_is_no_baseline(tmp_path):
    """Nothing could be worse than it, so nothing would ever fail."""
    write_run(tmp_path, run(verdict=verdict(outputs={}), worth=None))
    with pytest.raises(RecordMismatch, match="no figures"):
        earlier(tmp_path, None)


def test_worth_is_compared_where_both_have_it():
    dear, cheap = (run(worth=Worth(cost=c, fp32=2.0)) for c in (1.3, 1.2))
    assert not held(dear, cheap)[0]["cost"].passed
    assert held(dear, cheap, 0.1)[1]
    changes, passes = held(verification(worth=None), cheap)
    assert (changes["cost"].now, passes) == (None, True)


def test_a_candidate_with_nothing_low_is_worse():
    cheap = verification(worth=Worth(cost=1.2, fp32=2.0))
    changes, passes = held(verification(worth=None), cheap)
    assert (changes["cost"].now, passes) == (None, False)


def test_an_output_that_is_missing_is_worse():
    before = run(verdict=verdict(outputs={"y": output_error(), "z": output_error()}))
    less = run(verdict=verdict(outputs={"y": output_error()}))
    changes, passes = held(less, before)
    assert (changes["rel-max"].now, passes) == (None, False)


def test_other_samples_of_the_same_names_are_no_baseline():
    one, other = (
        verification(provenance=replace(run().provenance, inputs_sha256=sha256))
        for sha256 in ("aa", "bb")
    )
    assert one.verdict.samples == other.verdict.samples
    with pytest.raises(RecordMismatch, match="other sample"):
        held(one, other)
    found = beside(one, _before(run(provenance=other.provenance))).compared
    assert found is not None
    assert not found.same_samples


def test_another_model_is_told():
    provenance = replace(run().provenance, model_sha256="another")
    found = beside(run(), _before(run(provenance=provenance)))
    assert found.compared is not None
    assert not found.compared.same_model
    assert "the FP32 model differs" in baseline_line(found)


def _before(found):
    return Earlier(folder=Path("before"), run=found)


@pytest.mark.parametrize(("word", "expected"), [(None, 0.05), ("2%", 0.02), ("0.1", 0.1)])
def test_what_may_get_worse(tmp_path, word, expected):
    write_run(tmp_path, run())
    found = earlier(tmp_path, word)
    assert found is not None
    assert found.allowed == pytest.approx(expected)
