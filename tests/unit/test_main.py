import subprocess
import sys

import pytest

RUN = "import atexit, sys, halfwise.__main__ as entry; entry.main = lambda: ({}); entry.run()"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(7)", 7),
        ("sys.exit()", 0),
        ("sys.exit('words')", 1),
        ("1 / 0", 1),
        ("None", 0),
    ],
)
def test_the_exit_code_stays_and_what_is_registered_runs(end, code):
    command = RUN.format(f"atexit.register(print, 'cleaned'), print('said'), {end}")
    ended = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=False
    )
    assert ended.returncode == code
    assert ended.stdout == "said\ncleaned\n"
    assert ("Traceback" in ended.stderr) == ("/" in end)


def test_objects_are_left_to_the_system():
    command = RUN.format("sys.exit(3)").replace(
        "entry.run()",
        "entry.kept = type('Kept', (), {'__del__': lambda s: print('freed')})(); entry.run()",
    )
    ended = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (3, "")
