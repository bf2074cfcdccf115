import pytest

from halfwise.records import (
    FileRun,
    IntermediateNonfinite,
    MetricResult,
    Note,
    Remark,
    TensorName,
    Unjudged,
    replace,
    said,
)
from halfwise.reporting.engines import engine_parts
from halfwise.reporting.parts import Lines, Table
from halfwise.reporting.view import device_parts, report, screen
from tests.unit.reporting.engine_runs import engines, result
from tests.unit.reporting.runs import (
    BROKEN,
    baseline,
    guard,
    kept,
    output_error,
    plan,
    provenance,
    run,
    search,
    verdict,
    verification,
)

INF, NAN = float("inf"), float("nan")


def part(shown, title):
    found = [p for p in shown.parts if p.title.startswith(title)]
    assert found, [p.title for p in shown.parts]
    return found[0]


def text(shown):
    lines = [shown.title, shown.about]
    for p in shown.parts:
        lines.append(p.title)
        lines += p.lines if isinstance(p, Lines) else [" | ".join(row) for row in p.shown]
    return "\n".join(lines)


def metric(candidate, *, passed):
    return MetricResult(
        name="top1", reference=0.984, candidate=candidate, allowed_drop=0.01, passed=passed
    )


EMPTY = Unjudged(kind="empty", name="det")
DRAWN = provenance(notes=(Note(kind="random", severity="warning", facts={}),))
ON_WEBGPU = tuple(FileRun(runner=r, passed=True, outputs={}) for r in ("CPU", "WebGPU"))
DRAWN_BESIDE = replace(DRAWN, options={"heldout": "real.npz"})


@pytest.mark.parametrize(
    ("made", "result", "words"),
    [
        (run(provenance=DRAWN), "PASSED", {"random"}),
        (run(provenance=DRAWN_BESIDE), "PASSED", set()),
        (run(verdict=verdict(passed=False, unjudged=(EMPTY,))), "FAILED", set()),
        (run(verdict=verdict(passed=False, judged=False, unjudged=(EMPTY,))), "NOT", {"det"}),
        (run(verdict=verdict(sums="fp32")), "PASSED", {"sums"}),
        (run(verdict=verdict(sums="fp16")), "PASSED", set()),
        (run(verdict=verdict(passed=False, sums="fp32")), "FAILED", set()),
    ],
)
def test_titles(made, result, words):
    for title in (report(made).title, screen(made).title):
        assert title.split()[0] == result
        assert {*title.replace(",", " ").split()} & {"random", "det", "sums", "proven"} == words
    assert ("--accumulate" in report(made).caution) == ("sums" in words)


def test_errors_before_and_after():
    table = part(report(run()), "Error against FP32")
    assert [c.title for c in table.columns] == [
        "output",
        "model",
        "max abs",
        "rel max",
        "SNR dB",
        "cosine",
        "non-finite",
    ]
    assert table.shown == (
        ("logits", "all FP16", "4.81", "1", "0.0", "0.049954", "0"),
        ("logits", "mixed", "0.00722", "0.0015", "61.3", "1.000000", "0"),
    )


def test_errors_that_are_not_finite_and_outputs_that_are_not_floats():
    broken = output_error(
        max_abs=INF, rel_max=NAN, snr_db=-INF, cosine=NAN, nonfinite=640, passed=False
    )
    outputs = {"good": output_error(agreement=0.995), "bad": broken}
    made = verification(verdict=verdict(passed=False, outputs=outputs))
    assert part(report(made), "Error").rows == (
        ("bad", "candidate", "inf", "NaN", "−inf", "NaN", "640", ""),
        ("good", "candidate", "0.00722", "0.0015", "61.3", "1.000000", "0", "99.50 %"),
    )


def test_many_outputs_are_counted_failing_ones_first():
    outputs = {f"o{i}": output_error(passed=i != 29) for i in range(30)}
    table = part(report(verification(verdict=verdict(outputs=outputs))), "Error")
    assert table.shown[0][0] == "o29"
    assert table.shown[-1][0] == "and 18 more"


def test_a_plan_that_keeps_everything_is_told_first():
    everything = run(plan=plan((kept("/a"), kept("/b")), candidates=2))
    assert report(everything).caution
    assert report(everything).passed is None
    for made in (run(), run(plan=plan((), candidates=0), io="fp16"), verification()):
        assert report(made).caution == ""


def test_a_command_is_told_whole():
    command = f"trtexec --onnx={'/folder' * 30}/model.onnx"
    shown = report(run(next_step=said(f"{command}\x1b")))
    assert part(shown, "Next").lines == (f"{command}�",)


def test_remarks_reasons_and_next_steps_come_last_in_this_order():
    inside = IntermediateNonfinite(tensor=TensorName("t"), producer=None, elements=1)
    failed = verdict(
        passed=False, intermediate_nonfinite=(inside,), reasons=("b",), hints=("Use top1.",)
    )
    made = run(
        plan=plan((kept("/a"),), remarks=(Remark(kind="emulated"),)),
        search=search(joined=("h0", "h1")),
        verdict=failed,
        warnings=("one is noise",),
        next_step=said("Give more."),
    )
    assert "Use top1." in report(made).caution
    *_, remarks, reasons, then = report(made).parts
    assert isinstance(remarks, Lines)
    assert remarks.lines[2:] == ("Warning: one is noise",)
    assert [p.lines for p in (reasons, then) if isinstance(p, Lines)] == [("B.",), ("Give more.",)]


def test_whatever_names_are_the_report_is_clean_and_short():
    evil = "[red]\x1b[2J\n" + "x" * 9000
    made = run(
        plan=plan((kept(evil, op=evil, reason=evil),)),
        guards=(guard(evil, message=evil, fix=evil),),
        verdict=verdict(passed=False, outputs={evil: output_error()}, reasons=(evil,)),
        baseline=baseline(outputs={evil: BROKEN}),
        warnings=(evil,),
    )
    shown = report(made)
    for p in shown.parts:
        strings = [*p.lines] if isinstance(p, Lines) else [cell for row in p.shown for cell in row]
        if isinstance(p, Table):
            assert all(len(row) == len(p.columns) for row in p.shown)
        assert all("\x1b" not in s and "\n" not in s and len(s) < 300 for s in strings)


def test_an_engine_with_nothing_low_is_not_called_mixed_nor_proof_that_fp16_is_enough():
    score = MetricResult(name="top1", reference=1.0, candidate=0.9, allowed_drop=0.2, passed=True)
    judged = replace(verdict(level="engine"), metric=score)
    made = run(plan=plan(()), verdict=judged, engines=engines(rung="tf32", keep=()))
    told = report(made)
    assert "TF32 0.9" in part(told, "Task metrics").lines[0]
    assert "needs" not in part(told, "In figures").lines[1]


def quantised(whose, **changed):
    kinds = {"whole": 0, "half": 0, "integers": 3, **changed}
    facts = {"whose": whose, "products": 3, "quantised": 9, **kinds}
    note = Note(kind="quantised", facts=facts)
    return replace(run().provenance, notes=(note,))


def on(name, **changed):
    found = engines(**{"verdict": verdict(), **changed})
    return replace(found, worker=replace(found.worker, name=name))


def cells(devices):
    table = device_parts(devices)[-1]
    assert isinstance(table, Table)
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def test_one_device_is_told_as_ever():
    one = engines()
    assert device_parts([one]) == engine_parts(one)
    assert device_parts([]) == ()


def test_a_row_for_each_device():
    row = result("mixed", 4, 2.5, kept=3, rung="fp16")
    assert row.build.engine is not None
    delivered = replace(row.build.engine, path="model.orin.engine")
    orin = on("orin", results=(row,), delivered=delivered)
    found = cells([orin, on("a100", verdict=None, results=())])
    assert (found[0]["device"], found[0]["passed"], found[0]["ms"]) == ("orin", "yes", "2.5")
    assert (found[1]["device"], found[1]["passed"]) == ("a100", "no result")


def test_where_a_file_was_right_it_is_not_said_to_be_perhaps_wrong():
    cautions = [
        report(run(verdict=verdict(sums="fp32", as_file=ran))).caution for ran in ((), ON_WEBGPU)
    ]
    assert ["as on WebGPU" in one for one in cautions] == [True, False]
