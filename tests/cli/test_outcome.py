import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios

import onnx
import pytest
import typer

from halfwise.cli.options import Display, conclude
from halfwise.store import run_json
from tests import models
from tests.unit.reporting.runs import run, verdict


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 10)])
@pytest.mark.parametrize("as_json", [True, False])
def test_the_exit_code_is_the_verdict(capsys, passed, code, as_json):
    made = run(verdict=verdict(passed=passed))
    with pytest.raises(typer.Exit) as end:
        conclude(made, Display(as_json=as_json), None)
    assert end.value.exit_code == code
    out = capsys.readouterr().out
    assert (out == run_json(made)) is as_json


def started(screen, *arguments):
    """Start the command line with all its output on `screen`, a terminal or a pipe."""
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "halfwise", *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=screen, stderr=screen, env=environment
    )


def shown(*arguments):
    """Return all that the command line writes to a real terminal of 100 columns."""
    reader, screen = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    drawn = bytearray()
    with started(screen, *arguments):
        os.close(screen)
        # Linux reports an error, not an end, once no process has the terminal open.
        while some := read(reader):
            drawn += some
    os.close(reader)
    return drawn.decode().replace("\r\n", "\n")


def read(file):
    try:
        return os.read(file, 1 << 16)
    except OSError:
        return b""


def plain(text):
    """Return text without colours; the sequences that move the cursor stay."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_terminal_shows_a_bar_and_then_the_result_alone():
    slow = shlex.join([sys.executable, "-c", "import time; time.sleep(4)"])
    command = ("doctor", "--trt-command", slow)
    with started(subprocess.PIPE, *command) as piped:
        told = plain(shown(*command))
        bare, beside = (text.decode() for text in piped.communicate())
    bar, _, rest = told.rpartition("\x1b[2K")
    assert re.search(r"doctor: workers .* 0/1 0:00:\d\d", bar)
    assert "\x1b[?25h" in bar[bar.rindex("\x1b[?25l") :]
    assert rest == bare
    assert beside == ""


def test_quiet_draws_no_bar(tmp_path):
    onnx.save(models.tiny_weights().proto, tmp_path / "model.onnx")
    lint = ("lint", str(tmp_path / "model.onnx"))
    title = plain(shown(*lint)).rpartition("\x1b[2K")[2].splitlines()[0]
    assert plain(shown(*lint, "--quiet")).splitlines() == [title]
