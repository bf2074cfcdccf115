"""Attacks that halfwise would not withstand, each for one reason, and some that it does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.attacks.attack import Attack, Command

MB = 1 << 20


def does(before: Callable[[], None], *arguments: str) -> Callable[[Path], Command]:
    def make(folder: Path) -> Command:
        (folder / "here").touch()
        return Command(arguments or ("--version",), before=before)

    return make


def exits(code: int, *, err: str = "", out: str = "") -> Callable[[], None]:
    def end() -> None:
        sys.stdout.write(out)
        sys.stderr.write(err)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    return end


def finds_its_files() -> None:
    assert Path("here").exists()


def raises() -> None:
    raise RuntimeError("planted")


def fills_memory() -> None:
    held = bytearray(400 * MB)
    time.sleep(len(held))


def leaves_a_file() -> None:
    (Path(os.environ["TMPDIR"]) / "forgotten").touch()


def leaves_a_process() -> None:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)


def planted(name: str, make: Callable[[Path], Command], **further: Any) -> Attack:
    return Attack(name, make, **{"codes": (0,), **further})


ATTACKS = [
    planted("sound", does(finds_its_files)),
    planted("sound in a new interpreter", lambda _: Command(["--version"], fresh=True)),
    planted("refused", lambda _: Command(["verify"]), codes=(2,)),
    planted("traceback", does(raises), codes=(2, 3)),
    planted("crash", does(lambda: os.kill(os.getpid(), signal.SIGSEGV))),
    planted("hang", does(lambda: time.sleep(1000)), seconds=0.5),
    planted("memory", does(fills_memory), memory=300 * MB),
    planted("wrong code", does(exits(6, err="error: x")), codes=(3,)),
    planted("long message", does(exits(3, err="x" * 3000)), codes=(3,)),
    planted("own noise", does(exits(3, err="x" * 3000)), codes=(3,), noise=3000),
    planted("silent", does(exits(3)), codes=(3,)),
    planted("lie", does(exits(0)), codes=(0, 10), broken=True),
    planted("no JSON", does(exits(0, out="hello {}"), "doctor", "--json")),
    planted("JSON", does(exits(0, out="{}"), "doctor", "--json")),
    planted("no place", does(exits(3, err="error: somewhere")), codes=(3,), says=("line 3",)),
    planted("leftover file", does(leaves_a_file)),
    planted("leftover process", does(leaves_a_process)),
]
