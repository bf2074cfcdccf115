from halfwise.fixing.engines.attempts import Candidate, Terms
from halfwise.fixing.engines.search import restart
from tests.unit.casing import names
from tests.unit.reporting.engine_runs import build

ONE, TWO = names("a"), names("a", "b")


def plan(keep, *excesses, level=None):
    terms = Terms(level=level)
    return [Candidate(keep, "", build(1, ""), excess, terms=terms) for excess in excesses]


def test_the_plan_itself_where_it_passes():
    refused, other = plan(TWO, None), plan(TWO, 0.5, level=5)
    assert restart([refused, plan(ONE, 0.5), other], TWO) is other[0]


def test_else_the_smallest_that_passes():
    small = plan(ONE, 0.5, 0.4)
    assert restart([plan(TWO, 0.5, 3.0), plan(names("a", "b", "c"), 0.1), small], TWO) is small[0]


def test_without_any_the_engine_that_failed():
    failed = plan(TWO, 0.5, 3.0, level=5)
    assert restart([plan(TWO, None), plan(ONE, 9.0), failed], TWO) is failed[1]
    assert restart([plan(ONE, 9.0), plan(TWO, 8.0)], names("c")).keep == TWO
