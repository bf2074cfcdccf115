from typing import get_args

import pytest

from halfwise.records import CutStage
from halfwise.reporting.cut import cut_lines
from tests.unit.reporting.runs import run, search


def lines(*cut, **changed):
    return cut_lines(run(search=search(cut=cut, **changed)))


def test_nothing_is_told_where_nothing_was_cut():
    assert cut_lines(run()) == lines() == ()
    assert cut_lines(run(search=None)) == ()


def test_one_sentence_tells_all_that_was_cut():
    (line,) = lines("observe", "search", "growth", seconds_budget=5.0)
    assert line.startswith("The time budget of 5 s was spent: what is inside operators")
    assert line.endswith("that no guard explains was not followed.")


@pytest.mark.parametrize("stage", get_args(CutStage))
def test_every_stage_is_told_here_or_where_plans_and_origins_are(stage):
    assert bool(lines(stage)) != (stage in {"search", "certify", "origin"})
