from typing import get_args

import pytest

from halfwise.graph.model import Flaw
from halfwise.records import CutStage, FrozenSize, MadeUp, NodeName, Note, TensorName
from halfwise.records.record import Fact
from halfwise.reporting.steps import (
    clause,
    cut_lines,
    frozen_advice,
    frozen_cause,
    not_real,
    note_text,
)
from tests.unit.reporting.runs import run, search

NOISE = MadeUp(input="x", kind="uniform", mean=0.5, deviation=0.29)
ZEROS = MadeUp(input="h", kind="constant", mean=0, deviation=0)


def made_up(found):
    return Note(kind="made-up", severity="warning", made_up=found)


def test_what_an_input_looks_like():
    assert clause(made_up(NOISE)).startswith("input 'x' looks like uniform noise (mean 0.50, ")
    looks = "warning: input 'h' looks made up: all its elements are equal; "
    assert note_text(made_up(ZEROS)).startswith(looks)


def test_why_inputs_say_nothing_and_what_accepts_them():
    assert "the inputs are random" in not_real(())
    why = not_real((NOISE, ZEROS))
    assert "'x'" in why
    assert "'h'" in why
    assert "not real data" in why
    assert "--allow random" in why


@pytest.mark.parametrize("flaw", Flaw)
def test_every_repair_has_a_sentence_with_a_few_names(flaw):
    note = Note(kind="repaired", facts={"flaw": flaw.name, "names": tuple("abcdef")})
    assert note_text(note).startswith("repaired while reading: ")
    if flaw not in (Flaw.NAMELESS, Flaw.UNSORTED):
        assert "(a, b, c, d and 2 more)" in note_text(note)


def test_notes_say_whose_samples_they_are_about_and_are_read_back():
    note = Note(kind="single", severity="warning", of="held out", facts={"samples": (1, 2)})
    assert note_text(note).startswith("warning: held out: there is a single sample")
    assert Note.model_validate_json(note.model_dump_json()) == note


BATCH = FrozenSize(
    axes={TensorName("x"): 0},
    batch=True,
    given=1,
    runs=2,
    nodes=(NodeName("/Reshape"),),
    failure="ONNX Runtime failed.",
)


def test_a_batch():
    assert frozen_cause(BATCH) == (
        "The model declares the axis dynamic, fails on batches of 1, and runs on batches of 2: "
        "/Reshape holds the exported size in a constant, judging by the file. ONNX Runtime failed."
    )
    assert "arrays of [samples, 2, …]" in frozen_advice(BATCH)[1]
    text = frozen_cause(BATCH.model_copy(update={"nodes": ()}))
    assert text.endswith("no constant is known to hold this size. ONNX Runtime failed.")


def test_a_length():
    found = FrozenSize(
        axes={TensorName("a"): 2, TensorName("b"): 1},
        batch=False,
        given=9,
        runs=6,
        nodes=(NodeName("r"), NodeName("s")),
        failure="It failed.",
    )
    text = frozen_cause(found)
    assert "where axis 1/2 of 'a' and 'b' is 9 long, and runs where it is 6 long: r, s hold" in text
    assert frozen_advice(found)[1] == "Until then, give data whose axis is 6 long."


def lines(*cut, **changed):
    return cut_lines(run(search=search(cut=cut, **changed)))


def test_nothing_is_told_where_nothing_was_cut():
    assert cut_lines(run()) == lines() == ()
    assert cut_lines(run(search=None)) == ()


def test_one_sentence_tells_all_that_was_cut():
    (line,) = lines("observe", "search", "growth", seconds_budget=5.0)
    assert line.startswith("The time budget of 5 s was spent: operators and tensors")
    assert line.endswith("that no guard explains was not traced.")


def test_runs_that_took_too_long_are_told():
    (line,) = lines(late=1)
    assert line == (
        "1 run of a sample took longer than allowed and counts as failed, so another run may give "
        "another plan; --budget run-timeout=SECONDS allows more."
    )
    assert lines("growth", late=2)[1].startswith("2 runs of a sample took longer than allowed and ")


def test_runs_that_were_refused_are_told():
    (line,) = lines(refused="ONNX Runtime failed: no\x1b kernel.")
    assert line == (
        "ONNX Runtime refused some runs of the emulation, so plans count as failed whose error was "
        "not measured. The first time: ONNX Runtime failed: no\ufffd kernel."
    )


def test_an_interrupted_run_says_so():
    ended = {"budget": 1500.0, "ended_by": ("work", "interrupt")}
    assert lines("certify", **ended) == ("The run was interrupted.",)
    assert lines("growth", **ended)[0].startswith("The run was interrupted: the error")


@pytest.mark.parametrize("stage", get_args(CutStage))
def test_every_stage_is_told_here_or_where_plans_and_origins_are(stage):
    assert bool(lines(stage)) != (stage in {"search", "certify", "origin"})


def test_what_the_linter_finds_is_told_as_of_before_repairs():
    facts: dict[str, Fact] = {"rules": ("eps-vanishes",), "counts": (1,), "more": 0}
    note = Note(kind="linted", severity="warning", facts=facts)
    assert "in the file; `halfwise lint` says what to do" in clause(note)
    assert "in the file as given, before 7 repairs; `" in clause(note, repairs=7)
