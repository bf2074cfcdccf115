from io import StringIO

import pytest

from halfwise.records import BuildConfig, EngineFile, MetricResult, replace
from halfwise.reporting.engines import engine_parts
from halfwise.reporting.parts import Lines, Report, Table
from halfwise.reporting.terminal import _draw, terminal
from halfwise.reporting.view import report
from tests.unit.reporting.engine_runs import (
    SHAPES,
    build,
    engine_round,
    engines,
    failed,
    proof,
    result,
)
from tests.unit.reporting.runs import output_error, run, verdict


def part(found, title):
    (one,) = (p for p in engine_parts(found) if p.title.startswith(title))
    return one


def rows(table):
    assert isinstance(table, Table)
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in table.shown]


def lines(found, title):
    shown = part(found, title)
    assert isinstance(shown, Lines)
    return shown.lines


def test_the_final_table_comes_last():
    parts = engine_parts(engines())
    assert [p.title.split()[0] for p in parts] == [
        *("Engines", "Rounds", "Failed", "Shapes", "About", "Precision", "Errors"),
    ]


def test_the_metric_has_a_column_of_its_name():
    metric = MetricResult(
        name="top1", reference=0.95, candidate=0.94, allowed_drop=0.02, passed=True
    )
    results = (result("FP16", 1, 1.0, verdict=verdict(metric=metric)), result("mixed", 2, 1.0))
    found = rows(part(engines(results=results), "Errors and speed"))
    assert [row["top1"] for row in found] == ["0.94", ""]


def test_several_outputs_give_their_largest_errors():
    two = {"a": output_error(max_abs=2.0), "b": output_error(max_abs=float("inf"), mean_abs=7.0)}
    table = part(
        engines(results=(result("mixed", 1, 1.0, verdict=verdict(outputs=two)),)), "Errors"
    )
    assert "2 outputs" in table.title
    (row,) = rows(table)
    assert row["max error"] == "inf"


def test_an_engine_without_a_result_says_why():
    broken = result(
        "FP16", 4, 1.0, verdict=None, latency=None, proof=None, failure="it does not run."
    )
    found = engines(results=(broken,))
    (row,) = rows(part(found, "Errors and speed"))
    assert row == {"engine": "FP16", "passed": "no result", "MiB": "10"}
    assert "it does not run" in lines(found, "About")[0]


def test_rounds_with_what_was_predicted_and_measured():
    several = (
        engine_round(2, predicted=0.9),
        engine_round(3, measured=None, median_ms=None, keep=()),
        *(engine_round(i) for i in range(4, 20)),
    )
    found = rows(part(engines(rounds=several), "Rounds"))
    assert found[0]["emulated"] == "0.9"
    assert (found[1]["engine"], found[1]["ms"], found[1]["kept"]) == ("no result", "", "0")
    assert "and 6 more" in found[-1].values()


@pytest.mark.parametrize(("width", "most"), [(80, 2), (100, 1)])
def test_rounds_are_readable(width, most):
    several = tuple(
        engine_round(
            number,
            step="build 2 of 3 of the same plan, once more",
            predicted=0.0767,
            measured=0.0768,
        )
        for number in (3, 14)
    )
    console = terminal(drawn := StringIO())
    console.width = width
    parts = (part(engines(rounds=several), "Rounds"),)
    _draw(Report(title="", passed=None, about="", parts=parts), console)
    text = drawn.getvalue()
    assert "0.0767 " in text
    body = text.partition("─\n")[2].rstrip().splitlines()
    assert len(body) <= 2 * most
    words = {w for line in body for w in line.split()}
    assert {"build", "same", "plan,", "once", "more"} <= words


@pytest.mark.parametrize(("low", "rung", "told"), [(None, "fp16", True), (None, "tf32", False)])
def test_tf32_in_a_low_engine_is_told_in_either_typing(low, rung, told):
    config = BuildConfig(model_sha256="", typing="strong", low=low, tf32=True)
    file = EngineFile(sha256="cd" * 32, bytes=1, side="here", path="model.engine")
    row = result("mixed", 3, 1.0, build=build(3, "mixed", config=config, engine=file))
    found = engines(results=(row,), delivered=file, rung=rung)
    (line,) = (line for line in lines(found, "Engines") if line.startswith("Delivered"))
    assert ("TF32 allowed" in line) == told


def test_shapes_that_were_not_judged_come_first():
    assert [line.split()[1] for line in lines(engines(), "Shapes")] == ["max", "opt"]


def test_what_is_not_as_asked():
    found = proof(findings=("/a/Pow is FP16, and was to be FP32.",), remarks=("One block.",))
    shown = engines(results=(result("mixed", 1, 1.0, proof=found),))
    assert lines(shown, "Not as requested") == (f"mixed: {found.findings[0]}",)
    assert lines(shown, "About")[-1] == "One block."


def test_what_the_environment_does_to_tf32():
    worker = replace(engines().worker, tf32_override="0")
    told = lines(engines(worker=worker), "About")
    assert sum("NVIDIA_TF32_OVERRIDE=0" in line for line in told) == 1


def test_nothing_but_the_fp32_engine():
    alone = engines(results=(), rounds=(), builds=(), delivered=None, spread=(), notes=())
    assert [p.title for p in engine_parts(alone)] == ["Engines"]


@pytest.mark.parametrize("shapes", [SHAPES, {f"i{k}": () for k in range(6)}])
def test_a_run_with_engines_fits_the_terminal(shapes):
    found = engines(results=(result("FP16", 1, 1.0, shapes=()), *engines().results))
    drawn = StringIO()
    _draw(report(run(engines=found)), terminal(drawn))
    text = drawn.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert shapes


def test_the_errors_say_whose_they_are():
    proven = run(engines=engines(), verdict=verdict(level="engine"))
    refused = run(engines=engines(), verdict=verdict(level="engine"), plan=None, baseline=None)
    for shown, models in (
        (proven, ["all FP16, emulated", "mixed engine"]),
        (refused, ["FP32 engine"]),
    ):
        (table,) = (p for p in report(shown).parts if p.title == "Error against FP32")
        assert [row["model"] for row in rows(table)] == models


def test_hostile_names_stay_on_one_line():
    hostile = engines(
        rounds=(engine_round(1, step="a\n\x1b[2J"),),
        builds=(failed(2, message="x\ny", log=("\x1b[31mred\n",)),),
        notes=("n\no",),
    )
    assert "\\x1b" not in repr(engine_parts(hostile))
    assert "\\n" not in repr(engine_parts(hostile))


def test_builds_that_failed_alike_are_told_once():
    crash, why = "The build ended with SIGSEGV.", "whether 3 kept nodes are needed"
    alike = [failed(n, message=crash, said="Tactic: 0x3e8") for n in (3, 5, 6)]
    found = engines(builds=(*alike, failed(7, message=crash), failed(8, message=crash)))
    told = lines(found, "Failed builds")
    assert told == (
        f"Builds 3, 5, 6 ({why}): The build ended with SIGSEGV. It said: Tactic: 0x3e8",
        f"Builds 7, 8 ({why}): The build ended with SIGSEGV.",
    )
