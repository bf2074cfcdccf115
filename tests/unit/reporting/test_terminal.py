import io
import re
import sys

import pytest
from rich.console import Console

from halfwise.progress import Watcher
from halfwise.reporting import terminal as drawing
from halfwise.reporting.parts import Column, Report, Table
from halfwise.reporting.tensors import observed
from halfwise.reporting.terminal import WIDTH, TerminalWatcher, print_facts, print_report, terminal
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
        plan=plan((kept(EVIL, op=EVIL, reason=EVIL), kept("x" * 9000)), notes=(EVIL,)),
        guards=(guard(EVIL, message=EVIL, fix=EVIL),),
        verdict=verdict(passed=False, outputs={EVIL: output_error()}, reasons=(EVIL,)),
        baseline=baseline(outputs={EVIL: BROKEN}),
        warnings=(EVIL,),
        next_step=(EVIL,),
    )


def test_a_passed_run(capsys):
    print_report(report(run()))
    out = printed(capsys)
    assert out.startswith("PASSED (emulated) on 64 held-out samples\n")
    assert "13 × Pow: /blocks.{0–5}/norm1/Pow," in out
    assert out.rstrip().endswith("trtexec --onnx=runs/demo/model.onnx --stronglyTyped")


def test_a_caution_comes_right_under_the_result(capsys):
    print_report(report(run(plan=plan((kept("/a"),), candidates=1))))
    assert "no faster" in printed(capsys).splitlines()[1]


def test_a_failed_run(capsys):
    print_report(
        report(run(verdict=verdict(passed=False, reasons=("output logits is out of tolerance",))))
    )
    out = printed(capsys)
    assert out.startswith("FAILED (emulated)")
    assert "Why it failed\n  Output logits is out of tolerance." in out


def test_a_verification(capsys):
    print_report(report(verification()))
    out = printed(capsys)
    assert "candidate" in out
    assert "Kept in FP32" not in out


def test_nothing_kept_and_numbers_that_are_not_finite(capsys):
    nothing = output_error(max_abs=float("inf"), rel_max=float("nan"), snr_db=float("-inf"))
    print_report(report(run(plan=plan(()), verdict=verdict(outputs={"logits": nothing}))))
    out = printed(capsys)
    assert re.search(r"mixed +inf +NaN +−inf", out)


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
    row = (*figures.values(), "tried without repairs, recommended")
    print_report(Report("t", None, "", (Table("a", (*columns, Column("")), (row,)),)))
    words = screen.getvalue().split()
    assert set(" ".join((*figures, *row)).split()) <= set(words)
    assert max(map(len, screen.getvalue().splitlines())) <= width


def test_commands_are_not_wrapped(capsys):
    command = "trtexec " + " ".join(f"--option{i}=value" for i in range(20))
    print_report(report(run(next_step=(command,))))
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
    assert "4 of 6 tensors reach 10000" in out
    assert "inside: square" in out
    assert "\x1b" not in out


def test_facts(capsys):
    print_facts({"python": "3.12.0", EVIL: EVIL})
    out = printed(capsys)
    assert "python" in out
    assert "\x1b" not in out


def test_a_pipe_is_as_wide_as_the_report():
    assert terminal(io.StringIO()).width == WIDTH


def watch():
    with TerminalWatcher() as watcher:
        told: Watcher = watcher
        told.stage("load")
        told.note(EVIL)
        told.stage("observe", 3)
        told.step(1, 3)
        told.step(2)
        told.stage("search")


def test_a_pipe_gets_a_line_for_each_stage(capsys):
    watch()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "load",
        "  [red]�[2Jwiped[/red][/nonsense]�:smile:�",
        "observe",
        "search",
    ]


def test_a_pipe_gets_long_names_of_stages_whole(capsys):
    with TerminalWatcher() as watcher:
        watcher.stage("judge all engines\x1b")
    assert capsys.readouterr().err == "judge all engines�\n"


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def attach(monkeypatch):
    """Put a terminal in place of standard error; pytest undoes it before a test begins."""

    def attach():
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", Screen())
        return sys.stderr

    return attach


def last_drawn(screen):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).split("\r")[-1]


def fail_within(watcher):
    with watcher:
        watcher.stage("load")
        watcher.stage("observe", 3)
        raise KeyboardInterrupt


def test_a_terminal_gets_one_bar_that_vanishes(attach):
    screen = attach()
    watch()
    shown = screen.getvalue()
    assert "[red]�[2Jwiped[/red][/nonsense]�:smile:�" in shown
    assert "\x1b[2J" not in shown
    assert last_drawn(screen).strip() == ""
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1


def test_an_error_takes_the_bar_away_and_leaves_the_cursor_visible(attach):
    screen = attach()
    with pytest.raises(KeyboardInterrupt):
        fail_within(TerminalWatcher())
    assert last_drawn(screen).strip() == ""
    assert "\x1b[?25h" in screen.getvalue()


def drawn(watcher):
    told = watcher._told
    return told.label.strip(), told.steps, told.left, told.share


@pytest.fixture
def after(monkeypatch):
    """Return what lets seconds pass for a watcher."""

    def after(watcher, seconds):
        now = watcher._clock() + seconds
        monkeypatch.setattr(watcher._progress, "get_time", lambda: now)

    return after


def test_steps_tell_how_long_is_left_by_how_long_they_took(attach, after):
    attach()
    with TerminalWatcher() as watcher:
        assert drawn(watcher) == ("start", "", "", None)
        watcher.stage("judge", 10)
        after(watcher, 50)  # what comes before the first step is none
        watcher.step(0)
        assert drawn(watcher) == ("judge", "0/10", "", 0)
        after(watcher, 20)
        watcher.step(4, 10)
        assert drawn(watcher) == ("judge", "4/10", "about 0:00:30 left", 0.4)
        watcher.left(5.0)
        after(watcher, 10)
        assert drawn(watcher) == ("judge", "4/10", "about 0:00:20 left", 0.4)
        after(watcher, 25)
        assert drawn(watcher) == ("judge", "4/10", "", 0.4)
        watcher.step(10)
        assert drawn(watcher) == ("judge", "", "", None)
        watcher.step(1, 10, "samples")
        assert drawn(watcher) == ("judge: samples", "1/10", "", 0.1)
        after(watcher, 3)
        watcher.step(2, 10, "samples")
        assert drawn(watcher)[2] == "about 0:00:24 left"
        watcher.stage("search")
        assert drawn(watcher) == ("search", "", "", None)


def test_a_budget_tells_how_long_is_left_at_most(attach, after):
    attach()
    with TerminalWatcher() as watcher:
        watcher.stage("search")
        watcher.left(9.0)
        assert drawn(watcher)[2] == ""
        after(watcher, 60)
        watcher.left(float("inf"))
        assert drawn(watcher)[2] == ""
        watcher.left(3780.0)
        assert drawn(watcher)[2:] == ("at most 1:03:00 left", pytest.approx(60 / 3840, rel=1e-3))


def test_what_is_expected_is_told_until_it_is_over(attach, after):
    attach()
    with TerminalWatcher() as watcher:
        watcher.stage("emulate")
        after(watcher, 8)
        watcher.expect(20.0, "loading")
        after(watcher, 5)
        assert drawn(watcher)[:3] == ("emulate: loading", "", "about 0:00:15 left")
        assert drawn(watcher)[3] == pytest.approx(0.25, rel=1e-3)
        watcher.step(1, 2)
        assert drawn(watcher)[1] == ""
        after(watcher, 30)
        assert drawn(watcher) == ("emulate: loading", "", "", None)
        watcher.expect(0.0, "loading")
        assert drawn(watcher) == ("emulate", "", "", None)


def test_a_pipe_gets_a_line_a_minute_about_a_long_stage(capsys, after):
    with TerminalWatcher() as watcher:
        watcher.stage("judge")
        watcher.step(0, 10, "samples")
        after(watcher, 30)
        watcher.step(1, 10, "samples")
        after(watcher, 30)
        watcher.step(2, 10, "samples")
        watcher.step(3, 10, "samples")
    assert capsys.readouterr().err.splitlines() == [
        "judge",
        "  judge: samples: 2/10, after 0:01:00, about 0:04:00 left",
    ]


@pytest.mark.parametrize("columns", [40, 80])
def test_the_bar_fits(attach, after, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    screen = attach()
    with TerminalWatcher() as watcher:
        watcher.stage("a stage whose name is long\u202e", 3000)
        watcher.step(1)
        after(watcher, 4000)
        watcher.step(1000)
        watcher._progress.refresh()
        watcher.left(50000)
        watcher._progress.refresh()
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()))
    assert max(map(len, lines)) <= columns
    assert "2:13:28 left" in screen.getvalue()
    assert "…left" not in screen.getvalue()
    assert "\u202e" not in screen.getvalue()


def test_a_terminal_that_cannot_draw_gets_lines(attach, monkeypatch):
    screen = attach()
    monkeypatch.setenv("TERM", "dumb")
    watch()
    assert screen.getvalue().splitlines()[0] == "load"
    assert "\x1b" not in screen.getvalue()
