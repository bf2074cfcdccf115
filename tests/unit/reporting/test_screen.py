"""The first screen: what it says, in which order, and that it is one."""

import pytest

from halfwise.records import Failure, LadderRung, NodeName, Step, said
from halfwise.reporting.parts import NARROW, SCREEN, Column, Lines, Report, Table, _cut, commands
from halfwise.reporting.plan import nothing_in_int8
from halfwise.reporting.remarks import steps_told
from halfwise.reporting.terminal import fitted, print_report
from halfwise.reporting.view import report, screen
from tests.unit.reporting.diagnoses import diagnosis
from tests.unit.reporting.runs import (
    BROKEN,
    baseline,
    guard,
    kept,
    output_error,
    plan,
    run,
    verdict,
)

HOSTILE = ("\x1b[2J" + "x" * 9000, "\u202e" + "ab " * 3000, "字" * 500, "a\nPASSED", "{{7*7}}")
LONG = "trtexec " + "--minShapes=a:1x3x224x224 " * 40


def parts(shown):
    return {part.title: part for part in shown.parts}


def lines(capsys, run, more="Whole report: halfwise report r --full"):
    print_report(fitted(screen(run), more), more)
    return capsys.readouterr().out.splitlines()


def test_verdict_worth_causes_and_the_next_command_in_this_order(capsys):
    told = lines(capsys, run())
    assert told[0].startswith("PASSED")
    assert [line.split()[0] for line in told if line[:1].strip()][3:] == [
        *("Result", "With", "Next", "Whole"),
    ]
    assert any("0.0015 of 0.01" in line for line in told)
    assert "trtexec" in told[-2]


def test_what_failed_says_why_and_not_what_the_low_format_does():
    reasons = tuple("abcde")
    for judged, title in ((True, "Why it failed"), (False, "Why it is not judged")):
        failed = verdict(passed=False, judged=judged, reasons=reasons)
        assert screen(run(verdict=failed)).reason == "A."
        shown = parts(screen(run(verdict=failed)))
        assert list(shown) == ["Result", title, "Next"]
        assert shown[title].lines == ("B.", "C.", "D.")


def test_only_a_run_that_fails_tells_what_rules_harm():
    made = plan((), candidates=1, lowered={NodeName("/a"): "--only fp16"})
    for passed in (True, False):
        judged = run(plan=made, guards=(guard("/a"),), verdict=verdict(passed=passed))
        assert ("Why it failed" in parts(report(judged))) is not passed


def test_a_ladder_has_a_row_for_each_rung_however_much_else_there_is(capsys):
    rungs = [
        LadderRung(rung=name, passed=True, cost=1.0, error=0.1)
        for name in ("fp32", "tf32", "fp16", "int8")
    ]
    told = lines(capsys, run(rungs=tuple(rungs), verdict=verdict(reasons=("why " * 200,) * 9)))
    assert all(any(name in line for line in told) for name in ("FP32", "TF32", "FP16", "INT8"))


def test_a_small_table_outlasts_the_result_and_a_long_one_counts_the_rows_it_leaves_out():
    result = Lines("Result", tuple("abcdefghijklmnop"), first=True)
    for rows, whole in (("1234", True), ("123456789", False)):
        ladder = Table("The ladder", (Column("rung"),), tuple((row,) for row in rows))
        shown, cut = fitted(Report("title", True, "about", (ladder, result)), "more").parts
        assert isinstance(shown, Table)
        assert isinstance(cut, Lines)
        assert (shown.rows, shown.shown == shown.rows) == (ladder.rows, whole)
        assert whole or shown.shown[-1][0].startswith("and ")
        assert cut.hidden > 0 or not whole


def test_why_a_type_fails_is_told_beside_its_error_below_one(capsys):
    why = Failure(kind="rung", text="y is off in ONNX Runtime, far from what is allowed")
    low = LadderRung(rung="fp16", passed=True, error=0.1, cost=1.0, chosen=True)
    int8 = LadderRung(rung="int8", passed=False, error=0.6, cost=0.9, failures=(why,))
    fp32, tf32 = (LadderRung(rung=name, passed=True, cost=2.0) for name in ("fp32", "tf32"))
    long = said("trtexec")
    made = run(rungs=(fp32, tf32, low, int8), next_step=long)
    shown = parts(screen(made))
    assert [row[-1] for row in shown["The ladder"].rows] == [
        *("passed", "passed", "passed, chosen", "failed"),
    ]
    assert screen(made).caution.startswith(nothing_in_int8(made))
    assert "Why types fail" not in shown
    told = " ".join(lines(capsys, made, "Whole report: " + 100 * "x"))
    assert "0.9 ×" in told
    assert why.text in " ".join(told.split())


def test_commands_are_whole_or_left_out():
    assert commands("Next", ("a", "b")) == Lines("Next", ("a", "b"), whole=True)
    assert commands("Next", ("a", LONG, "b")) == Lines("Next", ("a",), whole=True)
    assert commands("Next", (LONG,)) is None
    assert commands("Next", ("a" * 6 * 78,)) is not None
    assert commands("Next", ("a" * (6 * 78 + 1),)) is None


def test_a_text_has_four_lines_at_most_and_ends_with_a_sentence_or_clause():
    assert _cut("a" * 320) == "a" * 320
    assert _cut("a" * 321) == "a" * 320 + ". More: --full."
    assert _cut(f"One. Two; three {'x' * 320}") == "One. Two. More: --full."
    assert _cut(f"One, two {'x' * 320}") == "One, two. More: --full."


def test_a_command_that_is_too_long_is_left_to_the_whole_report():
    step = Step(kind="build", names={"since": "9"}, command=("trtexec", "x" * 400))
    (whole,), (brief,) = steps_told((step,)), steps_told((step,), 320)
    assert whole.endswith("x" * 400)
    assert brief == "Build it with TensorRT 9 or later: --full has the command."


@pytest.mark.parametrize(("lines", "fits"), [(19, True), (20, False)])
def test_a_screen_has_24_lines(lines, fits):
    whole = Report("title", True, "about", (Lines("", ("a" * 76,) * lines),))
    assert (fitted(whole, "more") == whole) is fits


def test_the_result_and_the_first_command_are_cut_last():
    result = Lines("Result", tuple("abcdefgh"), first=True)
    low = Lines("With everything in FP16", tuple("abcdefghij"))
    whole = Report("title", True, "about", (result, low, Lines("Next", ("x", "y"), whole=True)))
    shown = fitted(whole, "more")
    assert (shown.parts[0], shown.parts[2]) == (result, whole.parts[2])
    assert shown.parts[1].shown == (*"abcd", "… and 6 more: --full")
    longer = Report("title " * 150, True, "about " * 150, whole.parts)
    assert fitted(longer, "more").parts == (result, Lines("Next", ("x",), whole=True, hidden=1))


@pytest.mark.parametrize("words", ["a node", "a name_of_forty_characters_and_one_that_goes_on"])
def test_figures_are_never_broken_and_their_headings_make_room(capsys, words):
    figures = [f"{i}.{i}{i}e-{i}" for i in range(1, 8)]
    heads = [Column(f"heading number {i}", align="right") for i in range(7)]
    table = Table("", (Column("node"), *heads), ((words, *figures),))
    print_report(Report("t", None, "", (table,)))
    told = capsys.readouterr().out
    assert all(figure in told for figure in figures)
    assert max(map(len, told.splitlines())) <= 100


@pytest.mark.parametrize("evil", HOSTILE)
def test_it_is_one_screen_of_80_columns_whatever_names_there_are(capsys, monkeypatch, evil):
    keep = tuple(kept(f"{evil}{i}", op=evil, guard=g) for i, g in enumerate(("square", "eps")))
    made = run(
        plan=plan(keep),
        guards=(guard(evil, message=evil, fix=evil),),
        baseline=baseline(outputs={evil: BROKEN, "b": BROKEN}),
        verdict=verdict(passed=False, outputs={evil: output_error()}, reasons=(evil,) * 5),
        next_step=said(evil) * 3,
    )
    monkeypatch.setattr("halfwise.reporting.terminal.WIDTH", NARROW)
    told = lines(capsys, made)
    assert len(told) <= SCREEN
    assert not any(character in "".join(told) for character in "\x1b\u202e")
    assert [line for line in told if line.startswith(("PASSED", "FAILED"))] == told[:1]


def test_the_rung_that_fails_its_evidence_and_what_to_do():
    shown = screen(diagnosis())
    assert list(parts(shown))[:3] == ["Where", "Evidence", "What to do"]
    assert parts(shown)["Evidence"].lines[0].endswith("Off by 0.3. (b)")


def test_a_diagnosis_without_a_fault_has_the_answer_of_each_rung():
    told = parts(screen(diagnosis(passed=True)))["What was tested"]
    assert [row[0] for row in told.rows] == ["1", "2"]


def test_of_the_fp32_model_the_causes_are_told_known_ones_first(capsys):
    known, unknown = kept("/a", guard="margin"), [kept(f"/{i}", guard=None) for i in range(9)]
    everything = run(plan=plan((known, *unknown), candidates=10), baseline=baseline(), guards=())
    told = lines(capsys, everything)
    assert "Result" not in told
    (why,) = [line for line in told if line.startswith("10 nodes kept: ")]
    assert "kept: perhaps " in why
    assert told.index(why) == 1
    assert "Result" in lines(capsys, run())
