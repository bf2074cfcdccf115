import io
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from halfwise.errors import CaseError, UsageError
from halfwise.user_code import described, guarded


class Untold(Exception):
    def __str__(self):
        raise SystemExit(0)


def told(error):
    with pytest.raises(CaseError) as caught, guarded("some/prep.py:load"):
        raise error
    return caught.value.message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (ValueError("a\nb\nc"), "ValueError: a"),
        (ValueError("a" * 5000), "ValueError: " + "a" * 499 + "…"),
        (SystemExit(0), "SystemExit: 0"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(3), "StopIteration: 3"),
        (BaseException("root"), "BaseException: root"),
        (Untold(), "Untold: its message cannot be read"),
    ],
)
def test_whatever_is_raised_is_the_users(error, words):
    assert told(error) == f"some/prep.py:load raised {words} (prep.py)."
    assert described(error) == words


def test_errors_of_halfwise_in_there_are_the_users_too():
    assert "raised UsageError: x" in told(UsageError("x"))


@pytest.mark.parametrize("filename", [7, None, "x.py"])
def test_syntax_errors_may_be_made_up(filename):
    assert "raised SyntaxError" in told(SyntaxError("m", (filename, 3, 1, "text")))


def test_ctrl_c_stays_one():
    with pytest.raises(KeyboardInterrupt), guarded("prep.py:f"):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_numpy_stays_as_it_was():
    with guarded("prep.py:f"):
        np.seterr(all="raise")
    assert np.geterr()["over"] == "warn"


def test_replaced_streams_come_back():
    before = sys.stdout, sys.stderr
    with guarded("prep.py:f"):
        sys.stdout = sys.stderr = io.StringIO()
    assert (sys.stdout, sys.stderr) == before


def test_prints_of_a_test_go_to_its_standard_error(capsys):
    with guarded("prep.py:f"):
        sys.stdout.write("noise\n")
    assert capsys.readouterr() == ("", "noise\n")


@pytest.mark.parametrize(
    "body",
    [
        "print('noise')",
        "os.write(1, b'noise')",
        "subprocess.run(['echo', 'noise'])",
        "logging.basicConfig(); logging.warning('noise')",
    ],
)
def test_streams_of_a_process_survive(body):
    text = f"""
        import logging, os, subprocess, sys
        from halfwise.user_code import guarded
        print("before", flush=True)
        open_before = os.listdir("/proc/self/fd")
        for _ in range(3):
            with guarded("prep.py:f"):
                {body}
        assert os.listdir("/proc/self/fd") == open_before
        print("after")
        print("after", file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "before\nafter\n"
    assert "noise" in done.stderr
    assert done.stderr.endswith("after\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_hindrance(closed):
    text = "from halfwise.user_code import guarded\nwith guarded('p.py:f'): print('noise')"
    subprocess.run(["bash", "-c", f'{sys.executable} -c "{text}" {closed}'], check=True)
