from halfwise.records import Criterion, Decided, Rung, Sign, said
from halfwise.reporting.diagnosis import (
    decided_advice,
    decided_cause,
    decided_part,
    decided_signs,
    diagnosed,
)
from halfwise.reporting.parts import Lines
from halfwise.wording import MOST_ROWS
from tests.unit.reporting.diagnoses import diagnosis, rungs


def parts(run):
    return {part.title: part for part in diagnosed(run).parts}


def test_the_rung_that_fails_is_the_title():
    report = diagnosed(diagnosis())
    assert report.title == "Rung 4 (fp32) fails: A kernel is wrong, at b."
    assert report.passed is False
    assert "A kernel is wrong" not in str(report.parts)


def test_every_rung_has_a_line():
    rows = parts(diagnosis())["The ladder"].rows
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert [row[2] for row in rows] == ["passes", "skipped", "FAILS"]


def test_evidence_and_advice():
    found = parts(diagnosis())
    assert found["Where"].lines == ("b",)
    assert found["Evidence"].lines[0] == "✗ Off by 0.3. (b)"
    assert found["What to do"].lines == ("Report it.",)
    assert found["Also seen on rung 1 (harness)"].lines == ("There is a single sample.",)
    assert found["Also seen on rung 2 (export)"].lines == ("Give --expected.",)


def test_what_is_only_suspected_is_said_to():
    tf32 = Rung(
        rung=5,
        name="tf32",
        passed=None,
        how="emulated",
        cause="Suspected, in emulation: off by 0.3.",
        evidence=(Sign(severity="warning", text="Off by 0.3."),),
    )
    looked = (*rungs()[:2], tf32, rungs()[2].model_copy(update={"rung": 6, "name": "precision"}))
    found = diagnosed(diagnosis(diagnosis=looked))
    assert found.title == "Rung 6 (precision) fails: A kernel is wrong, at b."
    assert parts(diagnosis(diagnosis=looked))["The ladder"].rows[2][2] == "suspected (emulated)"
    assert parts(diagnosis(diagnosis=looked))["Also seen on rung 5 (tf32)"].lines == (
        "Off by 0.3.",
    )


def test_nothing_wrong():
    report = diagnosed(diagnosis(passed=True))
    assert report.title == "Nothing wrong on 1 rung of 2"
    assert report.passed is True


def test_emulated_rungs_say_so():
    emulated = rungs()[0].model_copy(update={"how": "emulated"})
    found = parts(diagnosis(passed=True, diagnosis=(emulated,)))
    assert found["The ladder"].rows[0][2] == "passes (emulated)"


def test_long_evidence_is_cut():
    signs = tuple(Sign(severity="info", text=f"sign {i}") for i in range(40))
    failed = rungs()[-1].model_copy(update={"evidence": signs})
    lines = parts(diagnosis(diagnosis=(failed,)))["Evidence"].lines
    assert len(lines) == MOST_ROWS + 1
    assert lines[-1] == f"and {40 - MOST_ROWS} more in run.json"


def test_what_a_model_says_cannot_repaint_the_terminal():
    failed = rungs()[-1].model_copy(update={"cause": "\x1b[2J", "advice": said("\x1b")})
    report = diagnosed(diagnosis(diagnosis=(failed,)))
    assert "\x1b" not in report.title
    shown = [part.lines for part in report.parts if isinstance(part, Lines)]
    assert shown
    assert not any("\x1b" in line for lines in shown for line in lines)


FLIP = {"node": "round", "op": "Round", "elements": 3, "of": 200}
FOUND = Decided.model_validate(
    {"flips": [FLIP], "nodes": ["exp", "round"], "error": 20, "left": 0.5, "samples": 4}
)
ALONE = FOUND.model_copy(update={"nodes": ("round",)})
WHOLE = Criterion()


def advised(
    found: Decided, criterion: Criterion = WHOLE, *, low: bool = True, auto: bool = False
) -> tuple[str, ...]:
    return decided_advice(found, criterion, low=low, auto=auto)


def test_the_cause_has_what_was_measured():
    told = decided_cause(FOUND, "TF32 changes", Criterion())
    assert told == (
        "TF32 changes a decision: round decides 3 of 200 values differently on 4 samples; with the "
        "reference's decisions instead, the error falls from 20 × to 0.5 × what is allowed."
    )


def test_with_a_metric_errors_are_beside_the_default_tolerance():
    told = decided_cause(FOUND, "TF32 changes", Criterion(metric="top1"))
    assert told.endswith("0.5 × the default tolerance.")
    assert not any("metric" in s for s in advised(FOUND, Criterion(metric="top1")))


def test_each_decision_and_what_leads_to_it():
    flip, before = decided_signs(FOUND)
    assert flip.text.startswith("Round decides 3 of 200 values (1.5 %) differently")
    assert (flip.nodes, before.nodes) == (("round",), ("exp",))
    assert len(decided_signs(ALONE)) == 1


def test_fp32_is_advised_only_where_it_would_help_and_something_leads_there():
    assert any("exp" in text for text in advised(FOUND))
    assert not any("exp" in text for text in advised(FOUND, low=False))
    assert not any("FP32" in text for text in advised(ALONE))


def test_a_metric_is_advised_only_if_it_would_be_accepted():
    assert advised(ALONE)[0].endswith("--metric file.py:function.")
    assert advised(ALONE, auto=True)[0].endswith("--metric auto, or your own.")


def test_floats_that_are_exact_until_they_are_rounded_are_not_off_by_nothing():
    for read, told in ((0.0, False), (1e-9, True)):
        found = FOUND.model_copy(update={"read": read})
        cause = decided_cause(found, "TF32 changes", Criterion())
        assert ("reading floats that are off by <0.01 %" in cause) is told
        assert "off by 0 %" not in cause


def test_a_part_names_the_decisions():
    part = decided_part(FOUND, Criterion())
    assert (part.severity, part.nodes) == ("warning", ("round",))
