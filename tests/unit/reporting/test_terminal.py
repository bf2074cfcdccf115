import io
import re

import pytest
from rich.console import Console

from halfwise.records import said
from halfwise.reporting import terminal as drawing
from halfwise.reporting.engines import observed
from halfwise.reporting.parts import Column, Report, Table
from halfwise.reporting.terminal import WIDTH, print_facts, print_report, terminal
from halfwise.reporting.view import report
from tests.unit.reporting.runs import (
    BROKEN,
    baseline,
    guard,
    kept,
    observation,
    observations,
    output_error,
    plan,
    run,
    verdict,
    verification,
)

EVIL = "[red]\x1b[2Jwiped[/red][/nonsense]\n:smile:\x07"


def printed(capsys):
    out = capsys.readouterr().out
    # Commands in the next steps are not wrapped, so that they can be copied.
    lines = out.split("\nNext\n")[0].splitlines()
    assert all(len(line) <= WIDTH for line in lines), max(lines, key=len)
    return out


def evil_run():
    return run(
        plan=plan((kept(EVIL, op=EVIL, reason=EVIL), kept("x" * 9000))),
        guards=(guard(EVIL, message=EVIL, fix=EVIL),),
        verdict=verdict(passed=False, outputs={EVIL: output_error()}, reasons=(EVIL,)),
        baseline=baseline(outputs={EVIL: BROKEN}),
        warnings=(EVIL,),
        next_step=said(EVIL),
    )


def test_a_passed_run(capsys):
    print_report(report(run()))
    out = printed(capsys)
    assert out.startswith("PASSED")
    assert "13 × Pow: /blocks.{0–5}/norm1/Pow," in out
    assert out.rstrip().endswith(" --stronglyTyped")


def test_a_reason_and_a_caution_come_right_under_the_result(capsys):
    print_report(report(run(plan=plan((kept("/a"),), candidates=1))))
    _, why, caution, *_ = printed(capsys).splitlines()
    assert (why.split()[1:3], caution.split()[0]) == (["node", "kept:"], "Every")


def test_a_failed_run(capsys):
    print_report(report(run(verdict=verdict(passed=False, reasons=("a is off",)))))
    out = printed(capsys)
    assert out.startswith("FAILED")
    assert "\n  A is off." in out


def test_a_verification(capsys):
    print_report(report(verification()))
    out = printed(capsys)
    assert "candidate" in out
    assert "Kept in FP32" not in out


def test_nothing_kept_and_numbers_that_are_not_finite(capsys):
    nothing = output_error(max_abs=float("inf"), rel_max=float("nan"), snr_db=float("-inf"))
    print_report(report(run(plan=plan(()), verdict=verdict(outputs={"logits": nothing}))))
    out = printed(capsys)
    assert re.search(r"all FP16 +inf +NaN +−inf", out)


def test_hostile_names_are_shown_literally(capsys):
    print_report(report(evil_run()))
    out = printed(capsys)
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "[red]�[2Jwiped[/red][/nonsense]�:smile:�" in out


def test_a_terminal_gets_colours_but_no_escape_of_a_name(monkeypatch):
    screen = io.StringIO()
    console = Console(
        file=screen, force_terminal=True, color_system="standard", markup=False, width=80
    )
    monkeypatch.setattr(drawing, "terminal", lambda _: console)
    print_report(report(evil_run()))
    shown = screen.getvalue()
    assert "\x1b[1;31mFAILED" in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize("width", [80, 100])
def test_no_word_beside_wide_figures_is_broken(width, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(drawing, "terminal", lambda _: Console(file=screen, width=width))
    scores = {"token-agreement on 9 tokens": "0.9983 ✗", "rel-max on 1536 values": "0.001912"}
    figures = {"kept": "20", "Casts": "3", "cost": "1.59 ×", "error / allowed": "0.092", **scores}
    columns = [Column(figure, "right") for figure in figures]
    row = (*figures.values(), "tried without repairs")
    print_report(Report("t", None, "", (Table("a", (*columns, Column("")), (row,)),)))
    words = screen.getvalue().split()
    assert set(" ".join((*figures, *row)).split()) <= set(words)
    assert max(map(len, screen.getvalue().splitlines())) <= width


def test_commands_are_not_wrapped(capsys):
    command = "trtexec " + " ".join(f"--option{i}=value" for i in range(20))
    print_report(report(run(next_step=said(command))))
    assert f"\n  {command}\n" in capsys.readouterr().out


def test_wrapped_sentences_are_indented_and_end_without_spaces(capsys):
    print_report(report(verification(warnings=("word " * 60,))))
    lines = printed(capsys).split("Remarks\n")[1].splitlines()
    assert lines[0].startswith("  Warning: word")
    assert lines[1].startswith("    word")
    assert not any(line.endswith(" ") for line in lines)


def test_observations(capsys):
    tensors = (*observations().tensors, observation(EVIL, EVIL, 1e9))
    print_report(observed(observations(tensors=tensors), 10_000))
    out = printed(capsys)
    assert out.startswith("4 of 6 ")
    assert "inside: sum" in out
    assert "\x1b" not in out


def test_facts(capsys):
    print_facts({"python": "3.12.0", EVIL: EVIL})
    out = printed(capsys)
    assert "python" in out
    assert "\x1b" not in out


def test_a_pipe_is_as_wide_as_the_report():
    assert terminal(io.StringIO()).width == WIDTH
