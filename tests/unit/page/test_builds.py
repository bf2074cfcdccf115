from math import inf
from typing import Any

from halfwise.page.engines import build_rows, log_rows
from halfwise.records import NodeName
from tests.unit.reporting.engine_runs import build, engine_round, engines, failed, result

AT = tuple(map(NodeName, ("norm/Pow", "norm/Sqrt")))


def rows(**changed: Any) -> list[Any]:
    return [*build_rows(engines(**changed), 0.5)]


def test_each_build_has_what_emulation_told_and_what_its_engine_showed() -> None:
    rounds = (
        engine_round(3, predicted=0.8, measured=9.0),
        engine_round(2, keep=AT, predicted=inf, measured=None, median_ms=None),
    )
    shown = (result("FP16", 4, 1.0, excess=4.0), result("mixed", 3, 1.5, excess=0.6, kept=13))
    second, third, fourth = rows(rounds=rounds, results=shown)
    assert (second["build"], second["kept"], second["measured"], second["ms"]) == (2, 2, None, None)
    assert second["predicted"] == inf
    # What was measured last, in the final table, counts.
    assert (third["predicted"], third["measured"], third["ms"]) == (0.4, 0.3, 1.5)
    assert (fourth["what"], fourth["predicted"], fourth["measured"]) == ("FP16", None, 2.0)
    assert [row["delivered"] for row in (second, third, fourth)] == [False, True, False]


def test_a_build_that_nothing_is_known_of_has_no_row() -> None:
    assert rows(rounds=(), results=(result("FP32, TF32 off", 1, 4.0),)) == []


def test_what_a_builder_said_is_told_once_the_gravest_first() -> None:
    odd, same = "warning: Something that nobody knows.", "info: Nothing at all."
    builds = (build(1, "a", log=(odd, same)), build(2, "b", log=(odd,)))
    found = log_rows((*builds, failed(3, log=("error: 9: Skipping tactic 0x1 due to odd.",))))
    assert [row[0] for row in found] == ["error", "warning"]
    assert found[1][1:] == ["Something that nobody knows.", "", [], 2, "1, 2"]
    assert log_rows((build(1, "a"),)) == []


def test_figures_that_differ_from_build_to_build_make_no_second_finding() -> None:
    line = "warning: - {} weights are affected by this issue: Detected subnormal FP16 values."
    logs = (build(i, "a", log=(line.format(i),)) for i in (4, 5))
    (found,) = log_rows(tuple(logs))
    assert "figures of other builds differ." in str(found[1])
    assert found[-1] == "4, 5"
