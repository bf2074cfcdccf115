import sys

from bench.waiting import Frame, dark, frames, ratios

SHOWN = """
import time
from halfwise.reporting.terminal import TerminalWatcher
with TerminalWatcher() as watcher:
    watcher.stage("observe")
    time.sleep(2.5)
"""


def test_the_longest_stretch_without_a_time_left_is_from_the_first_frame_on():
    seen = [
        Frame(0.0, ""),
        Frame(3.0, "start"),
        Frame(4.0, "load", "about", 2.0),
        Frame(5.0, "load"),
        Frame(7.5, "load"),
        Frame(8.0, "end"),
    ]
    assert dark(seen) == (3.0, "load")
    assert ratios(seen) == {"about": [0.5]}


def test_frames_of_a_pseudo_terminal_are_read():
    seen, code = frames([sys.executable, "-c", SHOWN])
    assert code == 0
    told = {(frame.label, frame.how) for frame in seen}
    assert {("observe", ""), ("observe", "perhaps"), ("end", "")} <= told
    assert dark(seen)[0] > 0.2
