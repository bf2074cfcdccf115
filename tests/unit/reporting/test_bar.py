import io
import re
import sys

import pytest

from halfwise.progress import Watcher
from halfwise.reporting.terminal import TerminalWatcher

EVIL = "[red]\x1b[2Jwiped[/red][/nonsense]\n:smile:\x07"


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
    (task,) = watcher._progress.tasks
    return task.description.strip(), task.fields["steps"], task.total and task.completed


@pytest.fixture
def after(monkeypatch):
    """Return what lets seconds pass for a watcher."""

    def after(watcher, seconds):
        now = watcher._progress.get_time() + seconds
        monkeypatch.setattr(watcher._progress, "get_time", lambda: now)
        monkeypatch.setattr(watcher._progress.tasks[0], "_get_time", lambda: now)

    return after


def test_steps_are_counted_and_no_time_is_guessed(attach, after):
    attach()
    with TerminalWatcher() as watcher:
        assert drawn(watcher) == ("start", "", None)
        watcher.stage("judge", 10)
        watcher.step(0)
        after(watcher, 20)
        watcher.step(4, 10)
        assert drawn(watcher) == ("judge", "4/10", 0.4)
        watcher.step(10)
        assert drawn(watcher) == ("judge", "", 0.999)
        watcher.step(1, 10, "samples")
        assert drawn(watcher)[:2] == ("judge: samples", "1/10")
        watcher.stage("search")
        assert drawn(watcher) == ("search", "", None)


def test_a_pipe_gets_a_line_a_minute_about_a_long_stage(capsys, after):
    with TerminalWatcher() as watcher:
        watcher.stage("judge")
        watcher.step(0, 10, "samples")
        after(watcher, 59)
        watcher.step(1, 10, "samples")
        after(watcher, 1)
        watcher.step(2, 10, "samples")
        watcher.step(3, 10, "samples")
    assert capsys.readouterr().err.splitlines() == [
        "judge",
        "  judge: samples: 2/10, after 0:01:00",
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
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()))
    assert max(map(len, lines)) <= columns
    assert ("1:06:40" in screen.getvalue()) is (columns == 80)
    assert "\u202e" not in screen.getvalue()


def test_a_terminal_that_cannot_draw_gets_lines(attach, monkeypatch):
    screen = attach()
    monkeypatch.setenv("TERM", "dumb")
    watch()
    assert screen.getvalue().splitlines()[0] == "load"
    assert "\x1b" not in screen.getvalue()
