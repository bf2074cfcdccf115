"""Programs that are asked: they end when the time is over, and Ctrl-C is not for them."""

import os
import sys
from itertools import chain, repeat

import pytest

from halfwise.emulation.budget import OutOfTime, ending
from halfwise.targets.worker import Crashed, Worker

ANSWERING = """
import os, sys, time
from halfwise.tensorrt.worker import pack, read_frame
while frame := read_frame(sys.stdin.buffer):
    time.sleep(frame[0].get("seconds", 0))
    told = {"version": "1", "session": os.getsid(0), "id": frame[0]["id"], "kind": "result"}
    os.write(1, pack(told))
"""


@pytest.fixture
def worker():
    with Worker([sys.executable, "-c", ANSWERING]) as worker:
        yield worker


def test_it_is_in_another_session_where_no_terminal_interrupts_it(worker):
    assert worker.ask({}, 60)["session"] != os.getsid(0)


def test_what_is_waited_for_ends_with_the_time(worker):
    asked = chain((False,), repeat(True))
    with ending(None, lambda: next(asked)), pytest.raises(OutOfTime):
        worker.ask({"seconds": 60}, 60)
    assert worker.version == "1"


def test_an_answer_that_comes_too_late_is_a_crash(worker):
    with pytest.raises(Crashed, match=r"did not answer within 0\.1 s"):
        worker.ask({"seconds": 60}, 0.1)
    assert worker.version == "1"


def test_a_wrapper_that_waits_for_the_program_ends_with_it():
    late = pytest.raises(Crashed, match=r"did not answer within 0\.1 s")
    with Worker(["sh", "-c", "sleep 600; exit 3", "sh"]) as worker, late:
        worker.ask({}, 0.1)


def test_a_program_that_ends_within_its_answer_crashed():
    half = "import os, sys; sys.stdin.buffer.read(30); os.write(1, b'{')"
    with Worker([sys.executable, "-c", half]) as worker, pytest.raises(Crashed, match="ended"):
        worker.ask({}, 60)
