"""Runs attacks, each in a fork of a process that has loaded halfwise: tens of milliseconds each.

`python -m bench.attacks.server MODULE …` reads a line of JSON for each attack from standard input
and answers with one. `Server` is the other end. The process that forks has a single thread and no
ONNX Runtime session: threads would be missing in the fork.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.attacks.attack import Attack, Command, Outcome, is_json
from tests.processes import adopt_orphans, children_of

ROOT = Path(__file__).resolve().parents[2]
_FILE_BYTES = 1 << 30
"""Largest file, so no attack fills the disk: writes beyond it fail as on a full disk."""
_SHOWN = 1 << 15
_REQUEST_BYTES = 1 << 16
"""Larger than any request; each is answered before the next one."""
_LOOK_SECONDS = 0.01
_GOING_SECONDS = 5.0
"""Seconds for workers to end after their pipe closes."""
_AT_THE_END = (".functions", ".surroundings", "planted_attacks")
"""Families that attack the end of an interpreter, with streams, threads and processes open."""
_NOT_LOADED = (
    "halfwise.__main__",
    "halfwise.targets.rtx_worker",
    "halfwise.tensorrt.worker",
    "halfwise.tools.diagnose.reproduce",
)


class Server:
    """A process that runs attacks, one at a time."""

    def __init__(self, modules: Sequence[str]) -> None:
        """Start it; `modules` hold lists `ATTACKS`."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.attacks.server", *modules],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, module: str, index: int, folder: Path) -> Outcome:
        """Run the attack at `index` of a module's list in an empty folder; see `Outcome`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([module, index, str(folder)]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"The server of attacks ended on {module}, attack {index}.")
        found = json.loads(answer)
        return Outcome(**{**found, "left": tuple(found["left"])})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if error is not None:
            self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _serve(modules: Sequence[str]) -> str:
    """Answer requests until standard input ends.

    Returns in the attacked process, ready to run, with the name of the module.
    """
    families = {name: importlib.import_module(name).ATTACKS for name in modules}
    _load()
    adopt_orphans()
    gc.freeze()  # scanning existing objects would copy their pages in every fork
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what tables print must not count as an answer
    while line := os.read(requests, _REQUEST_BYTES):
        module, index, place = json.loads(line)
        attack, folder = families[module][index], Path(place)
        command = attack.make(folder)
        for name in ("home", "tmp"):
            (folder / f".{name}").mkdir()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _become(command, folder)
            return str(module)
        outcome = _watch(child, attack, command, folder)
        os.write(answers, json.dumps(asdict(outcome)).encode() + b"\n")
    os._exit(0)


def _load() -> None:
    """Import all of halfwise, so that no attack waits for it."""
    import halfwise  # noqa: PLC0415 - after the families, which may set variables that it reads

    for found in pkgutil.walk_packages(halfwise.__path__, "halfwise."):
        if found.name not in _NOT_LOADED:
            importlib.import_module(found.name)
    # typer imports it for the first command, which may be unable to read it as another user.
    importlib.import_module("typer._adapters")
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"{len(threads)} threads would be missing in a fork"


def _become(command: Command, folder: Path) -> None:
    """Turn this fork into the process that runs the command."""
    os.setsid()
    for fd, flags, name in (
        (0, os.O_RDONLY, os.devnull),
        (1, os.O_WRONLY | os.O_CREAT, folder / ".out"),
        (2, os.O_WRONLY | os.O_CREAT, folder / ".err"),
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, fd)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    surroundings = {
        "HOME": str(folder / ".home"),
        "TMPDIR": str(folder / ".tmp"),
        "XDG_CACHE_HOME": None,
        "XDG_CONFIG_HOME": None,
        **command.environment,
    }
    for variable, value in surroundings.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    # Whoever starts this in the background may have them ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(command.folder or folder)
    warnings.simplefilter("always")
    sys.argv = ["halfwise", *command.arguments]
    if command.before is not None:
        command.before()
    if command.fresh:
        started = [sys.executable, "-m", "halfwise", *command.arguments]
        os.execv(sys.executable, started)  # noqa: S606 - no shell is wanted


def _watch(child: int, attack: Attack, command: Command, folder: Path) -> Outcome:
    """Wait for the process, or end it at a limit; look at what it left."""
    started, over = time.monotonic(), None
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if over is None:
            over = _exceeded(child, attack, time.monotonic() - started)
            if over is not None:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                    os.kill(child, signal.SIGKILL)
        time.sleep(_LOOK_SECONDS)
    seconds = time.monotonic() - started
    left = [f"process {name}" for name in _ended_orphans()] if over is None else []
    _ended_orphans(patience=0)
    out, err = ((folder / name).read_bytes() for name in (".out", ".err"))
    peak = usage.ru_maxrss * 1024
    asked = "--json" in command.arguments
    return Outcome(
        code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        over=over or ("memory" if peak > attack.memory else None),
        seconds=round(seconds, 3),
        memory=peak,
        out=_shown(out),
        err=_shown(err),
        out_bytes=len(out),
        err_bytes=len(err),
        left=(*left, *sorted(f"temporary {p.name}" for p in (folder / ".tmp").glob("*"))),
        json=asked,
        out_json=asked and is_json(out.decode(errors="replace")),
    )


def _exceeded(child: int, attack: Attack, seconds: float) -> str | None:
    if seconds > attack.seconds:
        return "time"
    try:
        pages = int(Path(f"/proc/{child}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return None
    return "memory" if pages * os.sysconf("SC_PAGE_SIZE") > attack.memory else None


def _ended_orphans(patience: float = _GOING_SECONDS) -> list[str]:
    """Wait for processes that the attack started, then kill the rest; return their names."""
    deadline = time.monotonic() + patience
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if not ended and time.monotonic() > deadline:
            break
        if not ended:
            time.sleep(_LOOK_SECONDS)
    names = []
    for child in children_of(os.getpid()):
        with suppress(OSError):
            names.append(Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip())
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    # Their own children are adopted by this process now.
    return names + (_ended_orphans(patience) if names else [])


def _shown(text: bytes) -> str:
    if len(text) > _SHOWN:
        text = text[: _SHOWN // 2] + b" ... " + text[-_SHOWN // 2 :]
    return text.decode(errors="replace")


def _end(module: str) -> None:
    """End as Python does, but without freeing memory unless the attack is about that.

    Freeing what was loaded before the fork copies its pages, which takes longer than most attacks.
    """
    if module.endswith(_AT_THE_END):
        return
    # What Python itself calls, in this order.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    sys.stdout.flush()
    sys.stderr.flush()
    end = sys.exception()
    assert isinstance(end, SystemExit)
    assert isinstance(end.code, int)
    os._exit(end.code)


if __name__ == "__main__":
    attacked = _serve(sys.argv[1:])
    # Only a fork gets here. Its exceptions end it as they end a command.
    from halfwise.cli import main

    try:
        main()
    except SystemExit:
        _end(attacked)
        raise
