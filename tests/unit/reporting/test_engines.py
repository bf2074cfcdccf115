from io import StringIO

import pytest

from halfwise.records import (
    BuildConfig,
    EngineFile,
    MetricResult,
    Refusal,
    ShapeVerdict,
    TimeRatio,
)
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
    assert [p.title.split(" (")[0] for p in parts] == [
        "Engines",
        "Rounds",
        "Failed builds",
        "Shapes of the profiles",
        "About the engines",
        "Precision of the engines, by their inspector",
        "Errors and speed of the engines",
    ]


def test_errors_speed_and_size():
    found = rows(part(engines(), "Errors and speed"))
    assert [row["engine"] for row in found] == ["FP32, TF32 off", "FP32, TF32 on", "FP16", "mixed"]
    assert found[3] == {
        "engine": "mixed",
        "passed": "yes",
        "max error": "0.00722",
        "mean": "0.0008",
        "median": "0.0005",
        "ms": "1.05",
        "p99 ms": "1.16",
        "ms ÷ FP16": "1.05",
        "MiB": "10",
    }
    assert (found[2]["passed"], found[2]["max error"], found[0]["ms ÷ FP16"]) == (
        "no",
        "4.81",
        "4.00",
    )


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
    assert table.title.endswith("(errors: the largest of 2 outputs)")
    (row,) = rows(table)
    assert (row["max error"], row["mean"]) == ("inf", "7")


def test_an_engine_without_a_result_says_why():
    broken = result(
        "FP16", 4, 1.0, verdict=None, latency=None, proof=None, failure="it does not run."
    )
    found = engines(results=(broken,))
    (row,) = rows(part(found, "Errors and speed"))
    assert row == {"engine": "FP16", "passed": "no result", "MiB": "10"}
    assert lines(found, "About")[0] == "FP16 has no result: it does not run."


def test_rounds_with_what_was_predicted_and_measured():
    several = (
        engine_round(2, predicted_fused=0.9),
        engine_round(3, measured=None, median_ms=None, keep=()),
        *(engine_round(i) for i in range(4, 20)),
    )
    found = rows(part(engines(rounds=several), "Rounds"))
    assert found[0] == {
        "build": "2",
        "what was tried": "the plan of the emulation",
        "kept": "13",
        "emulated": "0.8 to 0.9",
        "engine": "1.6",
        "ms": "1.1",
        "passed": "no",
    }
    assert (found[1]["engine"], found[1]["ms"], found[1]["kept"]) == ("no result", "", "0")
    assert found[-1]["what was tried"] == "and 6 more"


@pytest.mark.parametrize(("width", "most"), [(80, 2), (100, 1)])
def test_rounds_are_readable(width, most):
    several = tuple(
        engine_round(
            number,
            step="build 2 of 3 of the same plan, once more",
            predicted=0.0767,
            predicted_fused=0.077,
            measured=0.0768,
        )
        for number in (3, 14)
    )
    console = terminal(drawn := StringIO())
    console.width = width
    parts = (part(engines(rounds=several), "Rounds"),)
    _draw(Report(title="", passed=None, about="", parts=parts), console)
    text = drawn.getvalue()
    assert "0.0767 to 0.077 " in text
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


def test_failed_builds_with_signal_and_last_line():
    several = engines(
        builds=(
            failed(2),
            failed(3, status="timeout", signal=None, message="", log=()),
            failed(4, status="skipped", message=""),
            *(failed(i) for i in range(5, 17)),
        )
    )
    found = lines(several, "Failed builds")
    assert found[0] == (
        "Build 2 (whether 3 kept nodes are needed) crashed by SIGSEGV after 12.3 s: The builder "
        "crashed. Last line of the log: [V] Tactic: 0x3e8"
    )
    assert found[1].endswith("took too long and was stopped after 12.3 s.")
    assert "was skipped by SIGSEGV" in found[2]
    assert found[-1] == "And 3 more."


def test_shapes_that_were_not_judged_come_first():
    assert lines(engines(), "Shapes") == (
        "mixed, max (image 32×1×28×28): not judged, 64 samples are too few.",
        "mixed, opt (image 32×1×28×28): passed on 64 samples, largest error 0.00722.",
    )
    bare = ShapeVerdict(shapes={}, at="min", verdict=None)
    found = engines(results=(result("mixed", 1, 1.0, shapes=(bare,)),))
    assert lines(found, "Shapes") == ("mixed, min (): not judged, no data have these shapes.",)


def test_where_it_was_built_what_is_delivered_and_how_sure_it_is():
    assert lines(engines(), "Engines") == (
        "Built on local: TensorRT 8.6.0, NVIDIA H200, compute capability 9.0, driver 580.95, weak "
        "typing.",
        "Delivered: model.engine, 10 MiB, SHA-256 abababababab…; 13 nodes in FP32.",
        "Confirmed: 3 of 3 builds of this plan passed on the calibration samples; their errors are "
        "0.41 to 0.52 times what is allowed.",
    )
    gone = engines(delivered=None, rung="fp16")
    assert lines(gone, "Engines")[1] == "No engine is delivered: the verdict says why."
    wrong = result("mixed", 1, 1.0, verdict=verdict(passed=False))
    nothing = engines(delivered=None, spread=(), emulated=verdict(), results=(wrong,))
    assert lines(nothing, "Engines")[1:] == (
        "No engine is delivered: none passed.",
        "In the emulation the first plan passed; largest error 0.00722.",
    )


def test_a_single_build():
    assert (
        "1 of 1 build of this plan passed"
        in lines(engines(spread=(0.4,), confirmed=1), "Engines")[2]
    )


def test_what_is_not_as_asked():
    found = proof(findings=("/a/Pow is FP16, and was to be FP32.",), remarks=("One block.",))
    shown = engines(results=(result("mixed", 1, 1.0, proof=found),))
    assert lines(shown, "Not as requested") == ("mixed: /a/Pow is FP16, and was to be FP32.",)
    assert lines(shown, "About")[-1] == "One block."


def test_what_the_environment_does_to_tf32():
    worker = engines().worker.model_copy(update={"tf32_override": "0"})
    told = lines(engines(worker=worker), "About")
    assert sum("NVIDIA_TF32_OVERRIDE=0" in line for line in told) == 1


def test_shares_by_precision():
    assert rows(part(engines(), "Precision of"))[3] == {
        "engine": "mixed",
        "FP32 requested": "13",
        "of compute nodes": "FP16 90 %, FP32 10 %",
        "of layer time": "FP16 80 %, FP32 15 %, other 5 %",
    }


def test_how_sure_it_is_that_what_is_delivered_is_as_fast():
    ratio = TimeRatio(low=0.912, high=1.02, rounds=28)
    found = engines()
    first = found.results[0].model_copy(update={"ratio": ratio})
    told = found.model_copy(update={"results": (first, *found.results[1:])})
    assert lines(told, "Time of the delivered engine over") == (
        "FP32, TF32 off: 0.912 to 1.02, over 28 alternating rounds",
    )


def test_nothing_but_the_fp32_engine():
    alone = engines(results=(), rounds=(), builds=(), delivered=None, spread=(), notes=())
    assert [p.title for p in engine_parts(alone)] == ["Engines"]


@pytest.mark.parametrize("shapes", [SHAPES, {f"i{k}": () for k in range(6)}])
def test_a_run_with_engines_fits_the_terminal(shapes):
    found = engines(results=(result("FP16", 1, 1.0, shapes=()), *engines().results))
    drawn = StringIO()
    _draw(report(run(engines=found)), terminal(drawn))
    text = drawn.getvalue()
    assert text.index("Errors and speed of the engines") > text.index("Rounds")
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


def test_a_build_that_was_refused_is_told_once():
    refusal = Refusal(kind="crash", build=2, said="Tactic: 0x3e8")
    found = engines(refusals=(refusal,))
    assert "Failed builds" not in [part.title for part in engine_parts(found)]
    assert tuple(lines(found, "What the builder refused")) == (
        "Build 2: the builder crashed in the model, by SIGSEGV. It said: Tactic: 0x3e8",
    )
