from typing import get_args

import pytest

from halfwise.records import CutStage, Note, replace
from halfwise.reporting.remarks import cut_lines, note_text
from tests.unit.reporting.runs import run, search


def test_notes_say_whose_samples_they_are_about_and_are_read_back():
    note = Note(kind="single", severity="warning", of="held out", facts={"samples": (1, 2)})
    assert note_text(note).startswith("warning: held out: ")
    assert note_text(replace(note, severity="info")).startswith("held out: ")
    assert Note.from_json(note.to_json()) == note


def lines(*cut, **changed):
    return cut_lines(run(search=search(cut=cut, **changed)))


def test_nothing_is_told_where_nothing_was_cut():
    assert cut_lines(run()) == lines() == ()
    assert cut_lines(run(search=None)) == ()


@pytest.mark.parametrize("stage", get_args(CutStage))
def test_every_stage_is_told_here_or_where_plans_are(stage):
    assert bool(lines(stage)) != (stage == "search")


def test_a_line_for_what_was_cut_one_for_late_runs_and_one_for_refused_ones():
    assert len(lines("observe", "growth", late=2, refused="no\x1b kernel")) == 3
    assert "\x1b" not in "".join(lines(refused="no\x1b kernel"))
    assert len(lines("search", ended_by=("interrupt",))) == 1
