import pytest

from halfwise.records import (
    IntermediateNonfinite,
    MetricResult,
    NodeName,
    Note,
    Remark,
    TensorName,
    Unjudged,
    Worth,
    said,
)
from halfwise.reporting.engines import engine_parts
from halfwise.reporting.parts import Lines, Table
from halfwise.reporting.view import device_parts, report, screen
from tests.unit.reporting.engine_runs import engines, result
from tests.unit.reporting.runs import (
    BROKEN,
    HELDOUT,
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


EMPTY, FLAT = Unjudged(kind="empty", name="det"), Unjudged(kind="flat", name="ix")
METRIC = Unjudged(kind="metric", name="top1")
DRAWN = provenance(notes=(Note(kind="random", severity="warning", facts={}),))
DRAWN_BESIDE = DRAWN.model_copy(update={"options": {"heldout": "real.npz"}})
IDLE = Unjudged(kind="never-ran", name="choose", body="else_branch", op="If")


def untested(**changed):
    return verdict(**{"passed": False, "judged": False, **changed})


@pytest.mark.parametrize(
    ("made", "title"),
    [
        (run(), "PASSED (emulated) on 64 held-out samples"),
        (run(provenance=DRAWN), "PASSED (emulated) on 64 random held-out samples"),
        (run(provenance=DRAWN_BESIDE), "PASSED (emulated) on 64 held-out samples"),
        (run(verdict=verdict(passed=False)), "FAILED (emulated) on 64 held-out samples"),
        (
            run(verdict=verdict(passed=False, on_real_data=False)),
            "FAILED (emulated) on 64 held-out samples: the inputs are random or made up",
        ),
        (
            run(verdict=untested(on_real_data=False, unjudged=(EMPTY, FLAT))),
            "NOT JUDGED (emulated) on 64 held-out samples: no sample tests outputs det, ix, and "
            "the inputs are random or made up",
        ),
        (
            run(verdict=untested(unjudged=(EMPTY, METRIC, IDLE))),
            "NOT JUDGED (emulated) on 64 held-out samples: no sample tests output det, "
            "else_branch of node choose, top1",
        ),
        (
            run(verdict=untested(judged=True, unjudged=(EMPTY,))),
            "FAILED (emulated) on 64 held-out samples",
        ),
        (
            run(verdict=untested(unseen=False, samples=HELDOUT[:1])),
            "NOT JUDGED (emulated) on 1 sample that the search used",
        ),
        (
            run(verdict=verdict(passed=False, unseen=False, samples=HELDOUT[:1])),
            "FAILED (emulated) on 1 sample that the search used",
        ),
        (
            run(verdict=verdict(passed=False, unseen=False, samples=(), outputs={})),
            "FAILED (emulated) with no sample to judge on",
        ),
        (verification(), "PASSED (emulated) on 64 samples"),
        (
            verification(verdict=verdict(level="recorded", runner="trt-runner-N0")),
            "PASSED (recorded outputs of trt-runner-N0) on 64 samples",
        ),
    ],
)
def test_titles(made, title):
    assert report(made).title == title


def test_the_word_proven_is_never_used():
    assert "proven" not in text(report(run())).lower()


def test_sums_in_fp32_are_explained():
    passed = verdict(sums="fp32")
    made = run(plan=plan((), casts=0), baseline=verdict(), verdict=passed)
    for shown in (report(made), screen(made)):
        assert "sums in FP32" in shown.title
        assert "--accumulate fp16" in shown.caution
        (told,) = part(shown, "With ").lines
        assert told.startswith("Nothing is wrong with sums in FP32")
    for other in (verdict(sums="fp16"), verdict(passed=False, sums="fp32")):
        assert "--accumulate" not in report(run(verdict=other)).caution


def test_nothing_kept():
    made = run(plan=plan((), casts=0), baseline=verdict())
    shown = report(made)
    assert part(shown, "With ").lines == ("Nothing is wrong: the outputs are within tolerance.",)
    assert not any(p.title.startswith("Kept") for p in shown.parts)
    assert "No node needs FP32." in part(shown, "In figures").lines


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
        ("", "mixed", "0.00722", "0.0015", "61.3", "1.000000", "0"),
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


def test_a_minimal_plan_tells_what_is_predicted_only():
    of_engines = engines(needed_as_predicted=(NodeName("/a"),))
    lines = part(report(run(plan=plan((kept("/a"),)), engines=of_engines)), "In figures").lines
    assert lines[1].endswith("be lowered alone; for 1 node this is predicted, not built.")


def test_a_plan_that_engines_did_not_shrink_says_what_ran_out():
    made = run(plan=plan((kept("/a"),), minimal=False), engines=engines())
    line = part(report(made), "In figures").lines[1]
    assert line == (
        "Not shown to be minimal in the engine: all builds (--budget builds) were used."
    )


def test_a_plan_that_keeps_everything_is_told_first():
    everything = run(plan=plan((kept("/a"), kept("/b")), candidates=2))
    assert "this is the FP32 model, and no faster" in report(everything).caution
    assert report(everything).passed is None
    for made in (run(), run(plan=plan((), candidates=0), io="fp16"), verification()):
        assert report(made).caution == ""


def test_a_quantised_model_is_not_called_the_fp32_model():
    note = Note(kind="quantised", facts={"whose": "model", "products": 1, "whole": 1, "half": 0})
    everything = run(plan=plan((kept("/a"),), candidates=1), provenance=provenance(notes=(note,)))
    told = report(everything).caution
    assert told == "Every compute node stays in FP32: this is the model as given, and no faster."


def test_a_model_of_which_nothing_may_be_low_is_told_first_and_counts_no_nodes():
    nothing = report(run(plan=plan((), candidates=0, casts=0, data_movement=(NodeName("/t"),))))
    assert nothing.caution == "No compute node may be FP16: this is the FP32 model, and no faster."
    assert part(nothing, "In figures").lines[0] == (
        "No compute node may be FP16; 0 Casts; 1 node that only moves data is in FP32."
    )


def test_a_command_is_told_whole():
    command = f"trtexec --onnx={'/folder' * 30}/model.onnx"
    shown = report(run(next_step=said(f"{command}\x1b")))
    assert part(shown, "Next").lines == (f"{command}�",)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (search(exhausted=True), "the time budget of 300 s was spent."),
        (
            search(exhausted=True, budget=1500.0, ended_by=("work",)),
            "the budget of 1500 inferences over the data was spent.",
        ),
        (
            search(exhausted=True, budget=1500.0, ended_by=("seconds", "interrupt")),
            "the run was interrupted.",
        ),
        (
            search(exhausted=True, budget=1500.0, ended_by=("seconds",)),
            "the time budget of 300 s was spent, so another run may give another plan.",
        ),
    ],
)
def test_why_a_plan_is_not_minimal(found, why):
    made = run(plan=plan((kept("/a"),), minimal=False), search=found)
    line = part(report(made), "In figures").lines[1]
    assert line.startswith(f"Not shown to be minimal: {why}")


def test_remarks_hints_reasons_and_next_steps_come_last_in_this_order():
    inside = IntermediateNonfinite(tensor=TensorName("t"), producer=None, elements=1)
    made = run(
        plan=plan((kept("/a"),), remarks=(Remark(kind="emulated"),)),
        search=search(joined=("h0", "h1")),
        verdict=verdict(
            passed=False,
            intermediate_nonfinite=(inside,),
            reasons=("output logits is wrong",),
            hints=("Use top1.",),
        ),
        warnings=("one sample is noise",),
        next_step=said("Give more samples."),
    )
    assert [(p.title, p.lines) for p in report(made).parts[-4:] if isinstance(p, Lines)] == [
        (
            "Non-finite values",
            ("Inside, 1 tensor has NaN or infinite values where FP32 has none, first t.",),
        ),
        (
            "Remarks",
            (
                "In the emulation no kept node can be lowered alone.",
                "2 held-out samples failed at first and joined the search; the verdict is "
                "on the others.",
                "Warning: one sample is noise",
                "Hint: Use top1.",
            ),
        ),
        ("Why it failed", ("Output logits is wrong.",)),
        ("Next", ("Give more samples.",)),
    ]


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
    judged = verdict(level="engine").model_copy(update={"metric": score})
    made = run(plan=plan(()), verdict=judged, engines=engines(rung="tf32", keep=()))
    told = report(made)
    assert "0.9 TF32" in part(told, "Task metric").lines[0]
    assert "No node needs FP32." not in part(told, "In figures").lines


def quantised(whose, **changed):
    kinds = {"whole": 0, "half": 0, "integers": 3, **changed}
    facts = {"whose": whose, "products": 3, "quantised": 9, **kinds}
    note = Note(kind="quantised", facts=facts)
    return run().provenance.model_copy(update={"notes": (note,)})


def test_where_a_failing_candidate_has_no_pairs_causes_cannot_be_looked_for():
    failed, mine = verdict(passed=False), quantised("candidate")
    told = part(report(verification(verdict=failed, provenance=mine)), "Quantisation")
    assert "Causes cannot be found" in told.lines[0]
    paired = quantised("candidate", whole=1)
    for other in ({"provenance": mine}, {"verdict": failed, "provenance": paired}):
        assert "Quantisation" not in text(report(verification(**other)))


def test_costs_of_a_verification_name_the_low_format():
    told = text(report(verification(worth=Worth(cost=1.0, fp32=1.7, low="bf16"))))
    assert "1 × everything in BF16" in told
    assert "everything low" in text(report(verification(worth=Worth(cost=1.0, fp32=1.7))))


def test_costs_of_a_quantised_file_have_a_base_of_their_own():
    worth = Worth(cost=1.0, fp32=1.7)
    told = text(report(run(worth=worth, provenance=quantised("model"))))
    assert "Costs are relative to this quantised file" in told
    assert "quantised file's own" not in text(report(run(worth=worth)))


def on(name, **changed):
    found = engines(**{"verdict": verdict(), **changed})
    return found.model_copy(update={"worker": found.worker.model_copy(update={"name": name})})


def cells(devices):
    table = device_parts(devices)[-1]
    assert isinstance(table, Table)
    assert table.title == "One plan on each device, on held-out samples"
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def test_one_device_is_told_as_ever():
    one = engines()
    assert device_parts([one]) == engine_parts(one)
    assert device_parts([]) == ()


def test_a_row_for_each_device():
    row = result("mixed", 4, 2.5, kept=3, rung="fp16")
    assert row.build.engine is not None
    delivered = row.build.engine.model_copy(update={"path": "model.orin.engine"})
    orin = on("orin", results=(row,), delivered=delivered)
    found = cells([orin, on("a100", lost="No answer.", results=())])
    assert (found[0]["device"], found[0]["passed"], found[0]["ms"]) == ("orin", "yes", "2.5")
    assert (found[1]["device"], found[1]["passed"]) == ("a100", "lost")


def test_what_is_lost_is_told():
    parts = device_parts([on("a"), on("b"), on("c", lost="No answer.")])
    told = {part.title: " ".join(part.lines) for part in parts if isinstance(part, Lines)}
    assert "Lost before its engine was judged: No answer." in told["On c"]
