from halfwise.records import Refusal, RungTried
from halfwise.reporting.plan import refusal_lines, rung_caution
from tests.unit.reporting.engine_runs import engines, failed


def test_nothing_is_told_of_an_engine_that_is_low_and_seen_to_be():
    low = RungTried(rung="fp16", end="delivered")
    found = engines(rung="fp16", rungs=(low,))
    assert found.row is not None
    assert rung_caution(found) == rung_caution(engines()) == ""


def test_builds_that_were_refused_alike_are_told_once():
    def refused(build, kind="no-kernel"):
        return Refusal(kind=kind, build=build, ends=("a", "b"))

    alike = [refused(n) for n in (3, 5, 6)]
    lines = [*refusal_lines([*alike, refused(7, "crash"), refused(8, "crash")], [failed(7)])]
    assert [line.partition(":")[0] for line in lines] == ["Builds 3, 5, 6", "Build 7", "Build 8"]
    assert ["SIGSEGV" in line for line in lines] == [False, True, False]
