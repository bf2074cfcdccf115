from halfwise.records import Rung, Sign, replace, said
from halfwise.reporting.diagnosis import diagnosed
from halfwise.reporting.parts import Lines, Table
from halfwise.wording import MOST_ROWS
from tests.unit.reporting.diagnoses import diagnosis, rungs


def parts(run):
    return {part.title: part for part in diagnosed(run).parts}


def test_the_rung_that_fails_is_the_title():
    report = diagnosed(diagnosis())
    cause = rungs()[-1].cause
    assert cause in report.title
    assert report.passed is False
    assert cause not in str(report.parts)
    assert diagnosed(diagnosis(passed=True)).passed is True


def test_every_rung_has_a_line():
    rows = parts(diagnosis())["What was tested"].rows
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert [row[2] for row in rows] == ["no fault", "not tested", "FAULT"]
    emulated = replace(rungs()[0], how="emulated")
    found = parts(diagnosis(passed=True, diagnosis=(emulated,)))
    assert found["What was tested"].rows[0][2] == "no fault (emulated)"


def test_what_is_only_suspected_is_said_to():
    tf32 = Rung(
        rung=5,
        name="tf32",
        passed=None,
        how="emulated",
        cause="Suspected, in emulation: off by 0.3.",
        evidence=(Sign(severity="warning", text="Off by 0.3."),),
    )
    looked = (*rungs()[:2], tf32, replace(rungs()[2], rung=6, name="precision"))
    found = diagnosed(diagnosis(diagnosis=looked))
    assert found.title == looked[-1].cause
    *_, last, ladder = found.parts
    assert isinstance(ladder, Table)
    assert ladder.rows[2][2] == "suspected (emulated)"
    assert isinstance(last, Lines)
    assert last.lines == ("Off by 0.3.",)


def test_long_evidence_is_cut():
    signs = tuple(Sign(severity="info", text=f"sign {i}") for i in range(40))
    failed = replace(rungs()[-1], evidence=signs)
    lines = parts(diagnosis(diagnosis=(failed,)))["Evidence"].lines
    assert len(lines) == MOST_ROWS + 1
    assert f" {40 - MOST_ROWS} " in lines[-1]


def test_what_a_model_says_cannot_repaint_the_terminal():
    failed = replace(rungs()[-1], cause="\x1b[2J", advice=said("\x1b"))
    report = diagnosed(diagnosis(diagnosis=(failed,)))
    assert "\x1b" not in report.title
    shown = [part.lines for part in report.parts if isinstance(part, Lines)]
    assert shown
    assert not any("\x1b" in line for lines in shown for line in lines)
