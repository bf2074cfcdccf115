"""Surroundings: missing or locked folders, failing streams, signals, names that are not text."""

from __future__ import annotations

import codecs
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from bench.attacks.attack import REFUSED, Attack, Command
from bench.attacks.models import drawn, save, small
from halfwise.records import replace

NOBODY = 65534
for _encoding in ("ascii", "cp437"):
    codecs.lookup(_encoding)  # Python loads codecs on demand; the user nobody may not read them
MODEL, INPUTS = "model.onnx", "x.npz"
VERIFY = ("verify", MODEL, MODEL, "--inputs", INPUTS)
SAVED = (*VERIFY, "-o", "run")
FIX = ("fix", MODEL, "--inputs", INPUTS, "-o", "run")
BUILD = ("build", MODEL, "-o", "e.engine")
ENDED = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
NO_TEXT = os.fsdecode(b"caf\xe9")


def _files(folder: Path) -> None:
    small(folder)
    np.savez(folder / INPUTS, x=drawn(8, 1, 4))


def _attack(
    name: str,
    arguments: tuple[str, ...],
    codes: tuple[int, ...],
    before: Callable[[], None] | None = None,
    environment: Mapping[str, str | None] | None = None,
    says: tuple[str, ...] = (),
) -> Attack:
    def make(folder: Path) -> Command:
        _files(folder)
        return Command(arguments, before=before, environment=environment or {})

    return Attack(name, make, codes, says=says)


def _leave() -> None:
    Path("gone").mkdir()
    os.chdir("gone")
    Path("../gone").rmdir()


def _drop() -> None:
    """Drop root's privileges."""
    if os.geteuid() == 0:
        os.chown(os.environ["TMPDIR"], NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _locked(name: str, *arguments: str) -> Attack:
    """Use files in the folder `locked`, which may not be entered."""

    def make(folder: Path) -> Command:
        _files(folder)
        (folder / "locked").mkdir()
        shutil.copy(folder / MODEL, folder / "locked")
        (folder / "locked").chmod(0)
        return Command(arguments, before=_drop)

    return Attack(f"a folder that may not be entered: {name}", make, (2, 3, 7))


def _stream(number: int, path: str | None) -> Callable[[], None]:
    def before() -> None:
        if path is None:
            os.close(number)
        else:
            os.dup2(os.open(path, os.O_WRONLY), number)

    return before


def _pipe_without_reader() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)


def _output(name: str, *arguments: str) -> Attack:
    """Write to something other than a regular file."""

    def make(folder: Path) -> Command:
        _files(folder)
        os.mkfifo(folder / "pipe.sh")
        (folder / "link").symlink_to(MODEL)
        return Command(arguments)

    return Attack(f"an output that is no regular file: {name}", make, (2,))


def _cloned(what: str, code: int, *arguments: str) -> Attack:
    """Find a halfwise.toml that came with the folder."""

    def make(folder: Path) -> Command:
        _files(folder)
        (folder / "halfwise.toml").write_text(f"[workers]\n{what}\n", encoding="utf-8")
        return Command(arguments)

    return Attack(f"a file that names programs: {what}, {arguments[0]}", make, (code,))


_BOXES = """g (float[n, 4] x) => (float[n, 4] y)
    { boxes = Concat<axis = 2>(left, low, right, high)
      s = NonMaxSuppression(boxes, scores, most, share)  f = Cast<to = 1>(s)
      m = ReduceMax<keepdims = 0>(f)  z = Mul(m, none)  y = Add(x, z) }"""
"""One operator that compares each of millions of boxes with all before it; none overlap."""


def _one_operator(number: signal.Signals, seconds: float) -> Attack:
    """Send a signal during an operator that would take hours and cannot be stopped."""

    def make(folder: Path) -> Command:
        left = np.arange(1_000_000, dtype=np.float32).reshape(1, -1, 1)
        weights = {
            "left": left,
            "right": left + 1,
            "low": 0 * left,
            "high": 0 * left + 1,
            "scores": left.reshape(1, 1, -1),
            "none": np.zeros((), np.float32),
            "most": np.full(1, 10**9),
            "share": np.full(1, 0.5, np.float32),
        }
        save(folder / MODEL, _BOXES, weights)
        np.savez(folder / INPUTS, x=drawn(8, 1, 4))
        return Command(VERIFY, before=lambda: _send(number, seconds))

    # Two seconds until it is abandoned, plus the time to get there on a busy machine.
    name = f"{number.name} while one operator computes"
    return Attack(name, make, (ENDED[number],), seconds=seconds + 12)


def _signalled(number: signal.Signals, seconds: float, *, background: bool = False) -> Attack:
    """Send a signal during a Loop in ONNX Runtime that would take hours."""

    def before() -> None:
        if background:  # as shells do
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        _send(number, seconds)

    def make(folder: Path) -> Command:
        text = """g (float[n, 4] x, int64 t) => (float[n, 4] y)
            { c = Constant<value = bool {1}>()
              y = Loop(t, c, x) <body = b (int64 i, bool ci, float[n, 4] s)
              => (bool co, float[n, 4] so) { co = Identity(ci)  so = Add(s, s) }> }"""
        save(folder / MODEL, text)
        np.savez(folder / INPUTS, x=drawn(8, 1, 4), t=np.full(8, 10**12, np.int64))
        return Command(VERIFY, before=before)

    where = " in the background" if background else ""
    return Attack(f"{number.name} while ONNX Runtime computes{where}", make, (ENDED[number],))


def _send(number: signal.Signals, seconds: float) -> None:
    """Send this process a signal after that much of its processor time.

    By the clock of a busy machine, it could come before the command itself begins.
    """
    begun = time.process_time()

    def wait() -> None:
        while time.process_time() - begun < seconds:
            time.sleep(0.005)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


def _during(number: signal.Signals, seconds: float) -> Attack:
    return _attack(
        f"{number.name} after {seconds:g} s of fix",
        FIX,
        (0, ENDED[number]),
        before=lambda: _send(number, seconds),
    )


def _few_files(most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _no_text(what: str) -> Attack:
    """Use a name that is not UTF-8."""

    def make(folder: Path) -> Command:
        place = folder / NO_TEXT if what == "the working directory" else folder
        place.mkdir(exist_ok=True)
        _files(place)
        model, inputs, out = MODEL, INPUTS, "run"
        if what == "the model":
            model = f"{NO_TEXT}.onnx"
            (place / MODEL).rename(place / model)
        elif what == "the inputs":
            inputs = f"{NO_TEXT}.npz"
            (place / INPUTS).rename(place / inputs)
        elif what == "files of inputs":
            inputs = "samples"
            (place / inputs).mkdir()
            for index in range(4):
                np.save(place / inputs / f"{NO_TEXT}{index}.npy", drawn(1, 4, seed=index))
        elif what == "the run folder":
            out = f"{NO_TEXT}run"
        return Command(("fix", model, "--inputs", inputs, "-o", out, "--json"), folder=place)

    return Attack(f"no UTF-8: {what}", make, (0,))


def _hub(name: str, target: str, codes: tuple[int, ...]) -> Attack:
    """Lay out a model as the Hugging Face cache does, with its external data as a link."""

    def make(folder: Path) -> Command:
        import onnx  # noqa: PLC0415

        _files(folder)
        blobs, snapshot = folder / "blobs", folder / "snapshots" / "abc"
        blobs.mkdir()
        snapshot.mkdir(parents=True)
        onnx.save(
            onnx.load(folder / MODEL),
            blobs / "1",
            save_as_external_data=True,
            location="w.data",
            size_threshold=0,
        )
        (blobs / "w.data").rename(blobs / "2")
        shutil.copy(blobs / "2", folder / "elsewhere")
        (snapshot / MODEL).symlink_to("../../blobs/1")
        (snapshot / "w.data").symlink_to(target)
        model = str(snapshot / MODEL)
        return Command(("verify", model, model, "--inputs", INPUTS))

    return Attack(f"a model of links: {name}", make, codes)


ATTACKS = [
    _attack("the working directory is gone", VERIFY, (2,), _leave),
    _attack("the working directory is gone: doctor", ("doctor",), (2,), _leave),
    _locked("model", "verify", f"locked/{MODEL}", MODEL, "--inputs", INPUTS),
    _locked("candidate", "verify", MODEL, f"locked/{MODEL}", "--inputs", INPUTS),
    _locked("engine", "verify", MODEL, "locked/e.engine", "--inputs", INPUTS),
    _locked("inputs", "verify", MODEL, MODEL, "--inputs", "locked/x.npz"),
    _locked("folder of inputs", "verify", MODEL, MODEL, "--inputs", "locked"),
    _locked("function", "verify", MODEL, MODEL, "--inputs", "locked/f.py:f"),
    _locked("labels", *VERIFY, "--metric", "top1", "--labels", "locked/l.json"),
    _locked("library", *VERIFY, "--ort-library", "locked/l.so"),
    _locked("start", *FIX, "--start-from", "locked/run"),
    _locked("output", "fix", MODEL, "--inputs", INPUTS, "-o", "locked/run"),
    _locked("run", "report", "locked/run"),
    _locked("run to export", "export", "locked/run", "--as", "python"),
    _locked("log", "explain-log", "locked/log.txt"),
    _locked("linted model", "lint", f"locked/{MODEL}"),
    _attack("nobody's home", VERIFY, (0,), _drop, {"HOME": None}),
    _attack("no home", ("doctor",), (0,), None, {"HOME": None}),
    *(
        _attack(f"{most} open files", VERIFY, (0, *REFUSED), _few_files(most))
        for most in (4, 8, 32)
    ),
    _attack(
        "a workspace of 10^20 MiB",
        ("build", MODEL, "-o", "e.engine", "--engine", f"workspace={'9' * 20}"),
        (2,),
        says=("--engine workspace",),
    ),
    _attack("standard error is full", SAVED, (0,), _stream(2, "/dev/full")),
    _attack("standard output is full", SAVED, (2,), _stream(1, "/dev/full")),
    _attack("standard output is full: --json", (*SAVED, "--json"), (2,), _stream(1, "/dev/full")),
    _attack("standard output is closed", SAVED, (0,), _stream(1, None)),
    _attack("standard error is closed", SAVED, (0,), _stream(2, None)),
    _attack("standard input is closed", SAVED, (0,), _stream(0, None)),
    _attack("nobody reads standard output", SAVED, (0,), _pipe_without_reader),
    _attack("no folder for temporary files", FIX, (0, *REFUSED), None, {"TMPDIR": "/nonexistent"}),
    *(_during(number, seconds) for number in ENDED for seconds in (0.05, 0.3)),
    *(_signalled(number, 1.0) for number in ENDED),
    _one_operator(signal.SIGINT, 3.0),
    _signalled(signal.SIGTERM, 1.0, background=True),
    *(
        _no_text(what)
        for what in (
            "the model",
            "the inputs",
            "files of inputs",
            "the run folder",
            "the working directory",
        )
    ),
    _output("a run to standard output", *FIX[:-1], "/dev/stdout"),
    _output("an engine through a link", "build", MODEL, "-o", "link"),
    _cloned("mine = 'sleep 100'", 4, *BUILD, "--inputs", INPUTS),
    _cloned("mine = 'sleep 100'", 0, "doctor"),
    _hub("data beside its blob", "../../blobs/2", (0,)),
    _hub("data of elsewhere", "../../elsewhere", (3,)),
]

SLOWER = (
    *("engine", "labels", "library", "start", "run to export", "linted model", "inputs"),
    *("32 open files", "0.3 s of fix", "standard input", "SIGHUP", "files of inputs"),
    *("--json", "no home", "doctor"),
)
"""Parts of the names of attacks that tests skip, since they run similar ones."""
ATTACKS = [replace(a, quick=not any(part in a.name for part in SLOWER)) for a in ATTACKS]
