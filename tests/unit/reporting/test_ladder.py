"""What is told of the rungs of a run."""

from halfwise.records import Criterion, Failure, LadderRung, Note, Remark, TaskScore, replace
from halfwise.reporting.plan import ladder_lines, ladder_table
from tests.unit.reporting.runs import run

RUN = run()


def test_a_run_without_rungs_tells_nothing():
    assert ladder_table(RUN) is None
    assert ladder_lines(RUN) is None


def climbed(*rungs, **changed):
    return replace(RUN, rungs=rungs, **changed)


def test_each_rung_has_its_figures_and_its_end():
    score = TaskScore(metric="top1", outputs=("y",), value=0.5, required=0.9, passed=False)
    found = climbed(
        LadderRung(rung="fp32", passed=True, by="labels", cost=2.0),
        LadderRung(rung="tf32", passed=False, error=3.0, scores=(score,)),
        LadderRung(rung="fp16", passed=True, kept=2, candidates=9, cost=1.5, chosen=True),
        LadderRung(rung="int8", passed=True, left_out=3, candidates=7),
    )
    table = ladder_table(found)
    assert table is not None
    titles = [column.title for column in table.columns]
    rows = {row[0]: dict(zip(titles, row, strict=True)) for row in table.rows}
    assert "labels" in rows["FP32"][""]
    assert (rows["TF32"]["top1"], rows["TF32"]["error / allowed"]) == ("0.5 ✗", "3")
    assert (rows["FP16"]["kept"], rows["FP16"][""]) == ("2/9", "passed, chosen")
    assert rows["INT8"]["not INT8"] == "3/7"
    assert "ms" not in titles


def test_with_a_metric_rungs_show_scores_and_no_ratio():
    score = TaskScore(metric="top1", outputs=("y",), value=1.0, required=0.99, passed=True)
    judged = Criterion(metric="top1", metric_drop=0.01)
    rungs = (LadderRung(rung="fp16", passed=True, error=0.99, cost=1.0, scores=(score,)),)
    for brief in (False, True):
        table = ladder_table(climbed(*rungs, criterion=judged), brief=brief)
        assert table is not None
        titles = [column.title for column in table.columns]
        assert "error / allowed" not in titles
        assert table.rows[0][titles.index("top1")] == "1"


def test_a_rung_with_nothing_in_int8_has_not_passed():
    left = LadderRung(rung="int8", passed=None, left_out=3, candidates=3)
    table = ladder_table(climbed(LadderRung(rung="fp32", passed=None), left))
    assert table is not None
    assert [row[-1].split()[0] for row in table.rows] == ["not", "nothing"]


def test_why_a_rung_fails_and_what_was_not_tried_is_told():
    why = Failure(kind="rung", text="output y is far off")
    options = replace(RUN.provenance, options={"to": "int8"})
    low = LadderRung(rung="fp16", passed=False, failures=(why,))
    told = ladder_lines(climbed(LadderRung(rung="fp32", passed=None), low, provenance=options))
    assert told is not None
    assert [line.split()[0] for line in told.lines] == ["FP16", "FP32", "INT8"]
    assert why.text in told.lines[0]
    of_choose = replace(options, command="choose")
    chosen = climbed(LadderRung(rung="fp32", passed=None), low, provenance=of_choose)
    told = ladder_lines(chosen)
    assert told is not None
    assert "INT8" not in " ".join(told.lines)


def test_why_int8_could_not_be_tried_is_told():
    options = replace(RUN.provenance, options={"to": "int8"})
    rungs = (LadderRung(rung="fp32", passed=None), LadderRung(rung="fp16", passed=True))
    assert RUN.plan is not None
    why = Remark(kind="int8-untried", names={"why": "x has one value."})
    plan = replace(RUN.plan, remarks=(why,))
    told = ladder_lines(climbed(*rungs, provenance=options, plan=plan))
    assert told is not None
    assert "x has one value." in told.lines[-1]


def quantised():
    counts = {"products": 3, "whole": 3, "half": 0, "integers": 0, "quantised": 9}
    note = Note(kind="quantised", facts={"whose": "model", **counts})
    return replace(RUN.provenance, options={"to": "int8"}, notes=(note,))


def test_a_file_that_is_quantised_already_says_so():
    rungs = (LadderRung(rung="fp32", passed=None), LadderRung(rung="fp16", passed=True))
    told = ladder_lines(climbed(*rungs, provenance=quantised()))
    assert told is not None
    assert "quantised already" in told.lines[-1]
