import builtins
import os
import random
import signal
import subprocess
import sys
import threading
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path

import pytest

from halfwise.cli.surroundings import surroundings
from tests.processes import end, wait_for

SOURCE = Path(__file__).parents[2] / "src"
DIGITS = Path(__file__).parents[2] / "examples" / "digits"
ENDLESS = "import time\nwhile True:\n    time.sleep(0.01)\n"
NUMBERS = count()
GO = threading.Event()
PRESSED = "import signal\nsignal.raise_signal(signal.SIGINT)\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that can be imported; return its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def module(text: str) -> str:
        name = f"imported_{next(NUMBERS)}_in_test_importing"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return module


@pytest.fixture(autouse=True)
def default_ctrl_c():
    """Let Ctrl-C raise, even where a shell runs the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_waits_until_the_import_is_over(module, number):
    inner = module(f"import signal\nsignal.raise_signal({int(number)})\n")
    outer = module(f"import {inner}\nended = True\n")
    before = builtins.__import__
    with surroundings() as ended:
        with pytest.raises(KeyboardInterrupt):
            exec(f"import {outer}")  # noqa: S102 - its name is known here only
        assert sys.modules[outer].ended
        assert ended.exit_code == 128 + number
    assert builtins.__import__ == before


def test_an_import_that_fails_does_not_hide_ctrl_c(module):
    name = module(PRESSED + "1 / 0\n")
    with surroundings(), pytest.raises(KeyboardInterrupt):
        exec(f"import {name}")  # noqa: S102


def test_imports_of_other_threads_hold_nothing(module):
    name = module("import time\nfrom tests.cli.test_importing import GO\nGO.wait()\n")
    thread = threading.Thread(target=lambda: __import__(name))
    with surroundings():
        thread.start()
        wait_for(lambda: name in sys.modules)
        try:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        finally:
            GO.set()
            thread.join()


def test_a_file_that_is_executed_is_no_import(module, tmp_path):
    spec = spec_from_file_location("theirs", tmp_path / f"{module(PRESSED)}.py")
    assert spec is not None
    assert spec.loader is not None
    with surroundings(), pytest.raises(KeyboardInterrupt):
        spec.loader.exec_module(module_from_spec(spec))


def test_ctrl_c_again_ends_the_process_at_once(module, tmp_path):
    name = module(PRESSED + PRESSED + ENDLESS)
    command = (
        "from halfwise.cli.surroundings import surroundings\n"
        "with surroundings():\n"
        f"    import {name}\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize("seed", range(4))
def test_ctrl_c_anywhere_in_the_imports_of_a_command(tmp_path, seed):
    (tmp_path / "theirs.py").write_text("import time\ndef load():\n    time.sleep(600)\n")
    # Of more than 1100 imports.
    place = random.Random(seed).randrange(1100)  # noqa: S311
    command = [sys.executable, "-X", "importtime", "-m", "halfwise", "fix"]
    process = subprocess.Popen(
        [*command, DIGITS / "model.onnx", "--inputs", "theirs.py:load", "-o", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.endswith(" gc\n"):  # the first of the command line
                break
        for line in process.stderr:
            place -= 1
            if place < 0 or line == "load\n":
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        end(process)
    told = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert process.returncode == 130, err
    assert out == ""
    assert told[-1] == "interrupted before there was a result; nothing was written"
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()
