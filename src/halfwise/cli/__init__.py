"""The command line: options in, reports and exit codes out.

Commands import the library when they run, so `halfwise --help` does not wait for it.
"""

import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from signal import SIGINT
from types import FrameType
from typing import Annotated, Any, TextIO

import typer
from msgspec import Struct

from halfwise import memory
from halfwise.cli import commands
from halfwise.cli.options import Command
from halfwise.errors import CaseError, HalfwiseError, UsageError
from halfwise.progress import Interruption, interruption, offered
from halfwise.wording import LONGEST_EXCERPT, clean, size_of

_ENDING = tuple(each for each in signal.Signals if each.name in ("SIGTERM", "SIGHUP"))
"""Windows has no SIGHUP."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TOO_MANY = (errno.EMFILE, errno.ENFILE)
_OURS = (None, errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTSOCK)
"""System errors that wrong calls cause, so perhaps bugs in halfwise."""
_SAME = 1.0
"""Seconds within which the same signal counts once: coreutils' `timeout` sends it to the process,
and at once to its group."""
_KEPT = (
    b"\ninterrupted: the search stops and keeps what it found so far; Ctrl-C again quits at once\n"
)


class Ended(Struct):
    """Whether a signal ends the run.

    Attributes:
        by: The signal; SIGINT (Ctrl-C) if no other came.
    """

    by: signal.Signals = signal.SIGINT

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells report it."""
        return 128 + self.by


@contextmanager
def surroundings() -> Iterator[Ended]:
    """Prepare the process for a command; undo that afterwards.

    Raises:
        UsageError: the working directory is gone.
    """
    _open_closed_streams()
    _write_any_name()
    memory.allow_files()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr, whatever=True)
    try:
        with offered() as interruption, _interrupting(interruption) as ended:
            yield ended
    finally:
        sys.stdout, sys.stderr = before


def demand_folder() -> None:
    """Raise UsageError if the working directory is gone: every relative path would fail."""
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"The working directory cannot be used: {error.strerror}.", "Change to another one."
        ) from error


def usage_error(error: OSError) -> UsageError | None:
    """Return the message for a system error; None if it could be a bug in halfwise.

    Args:
        error: The error that reached the command line.
    """
    name = error.filename
    what = os.fsdecode(name) if isinstance(name, str | bytes) else None
    if error.errno in _FULL:
        where = f" for {what}" if what else ""
        return UsageError(f"There is no space left{where}.", "Free some, or write elsewhere.")
    if error.errno in _TOO_MANY:
        return UsageError("Too many files are open.", f"Allow more: ulimit -n {memory.FILES}.")
    if what is None:
        if error.errno in _OURS:
            return None
        # For example: no folder for temporary files, with the folders tried.
        return UsageError(
            f"The system reported: {error.strerror}.", "Check the environment of the command."
        )
    return UsageError(f"{what} cannot be used: {error.strerror}.", "Check it, or name another.")


class _Stream:
    """A standard stream; after a failure, it drops what is written.

    A closed reader (`| head`) does not end the command: the exit code is the verdict's.
    """

    def __init__(self, stream: TextIO, *, whatever: bool = False) -> None:
        """Wrap `stream`; errors other than a missing reader are raised unless `whatever`."""
        self._stream, self._whatever = stream, whatever

    def write(self, text: str) -> int:
        # Click writes an empty string to test for byte streams, and swallows errors.
        if not isinstance(text, str):
            raise TypeError("a text stream")
        if text:
            with self._failing():
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._failing():
            self._stream.flush()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Its buffer would fail again when Python exits.
            with suppress(OSError), Path(os.devnull).open("wb") as null:
                os.dup2(null.fileno(), self._stream.fileno())
            if not self._whatever and error.errno != errno.EPIPE:
                error.filename = "standard output"
                raise

    # All other attributes of a text stream.
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._stream, name)


def _open_closed_streams() -> None:
    """Open /dev/null for each closed standard stream: the next file would become it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _write_any_name() -> None:
    """Let standard output and error replace characters that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _interrupting(interruption: Interruption) -> Iterator[Ended]:
    """Give the first terminating signal to `interruption` if it takes it; others raise.

    What is raised is KeyboardInterrupt, whatever the signal: it removes everything temporary.
    """
    ended = Ended()
    last = signal.SIGINT, 0.0

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not interruption.take():
            signal.default_int_handler(number, frame)
        ended.by = signal.SIGINT
        # Not through Python's streams: the main thread may be writing to them.
        with suppress(OSError):
            os.write(2, _KEPT)

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, (signal.Signals(number), time.monotonic())
        if before[0] == number and last[1] - before[1] < _SAME:
            return
        ended.by = last[0]
        interrupt(number, frame)

    # Other threads get no signals.
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return

    # Ignored signals, as under nohup, stay ignored.
    signals = [s for s in _ENDING if signal.getsignal(s) == signal.SIG_DFL]
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    for number in signals:
        signal.signal(number, end)
    # Shells start a script's background jobs with it ignored: Ctrl-C does not end them.
    if on_ctrl_c == signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield ended
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, on_ctrl_c)


INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells report it."""


app = typer.Typer(
    name="halfwise",
    invoke_without_command=True,
    epilog="Exit codes: 0 passed; 10 failed, or something found; 2 wrong command line; 3 model or "
    "inputs cannot be used; 4 library or device missing; 5 build or export failed; 6 run failed; 7 "
    "run folder, record or engine damaged, or of another version or model; 128 + N ended by signal "
    "N.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Verdicts come first, then diagnosis, model preparation, and engines; Typer lists groups last.
for command, example in {
    commands.fix: "fix model.onnx --inputs data.npz -o run",
    commands.ladder: "ladder model.onnx --inputs data.npz -o run",
    commands.choose: "choose run --worth 1.05 -o cheaper",
    commands.verify: "verify model.onnx mixed.onnx --inputs data.npz",
    commands.report: "report run --full",
    commands.diagnose: "diagnose model.onnx --inputs data.npz -o run",
    commands.demo: "demo",
    commands.lint: "lint model.onnx --trt-version 10.13",
    commands.compare: "compare model.onnx --inputs data.npz --b emulation:fp16",
    commands.observe: "observe model.onnx --inputs data.npz",
    commands.migrate: "migrate build.py --inputs data.npz -o typed",
    commands.reduce: "reduce model.onnx --inputs data.npz --fails verdict -o small.onnx",
    commands.build: "build run/model.onnx -o model.engine --typing strong",
    commands.inspect: "inspect model.engine --model run/model.onnx",
    commands.explain_log: "explain-log build.log --model model.onnx",
    commands.export: "export run --as trtexec -o recipe.sh",
    commands.doctor: 'doctor --trt-command "ssh orin python3"',
}.items():
    name = command.__name__.replace("_", "-")
    # trtexec's options are part of what is migrated.
    unknown = {"ignore_unknown_options": command is commands.migrate}
    epilog = f"Example: halfwise {example}"
    app.command(name, cls=Command, epilog=epilog, context_settings=unknown)(command)
_START = """Start here: halfwise fix MODEL --inputs DATA -o RUN
On a bundled example: halfwise demo
All commands: halfwise --help"""


def main() -> None:
    """Run the command line; always ends with `SystemExit` or a traceback."""
    memory.cap()
    with surroundings() as ended:
        _run(ended)


def _run(ended: Ended) -> None:
    try:
        # Blocked while this package was imported: see `halfwise.__main__`.
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {SIGINT})
        demand_folder()
        try:
            app(prog_name="halfwise")
        finally:
            # Now, while a failure can still be reported.
            sys.stdout.flush()
    except HalfwiseError as error:
        _complain(error)
        sys.exit(error.exit_code)
    except OSError as error:
        message = usage_error(error)
        if message is None:
            raise
        _complain(message)
        sys.exit(message.exit_code)
    except MemoryError as error:
        _complain(_out_of_memory(error))
        sys.exit(CaseError.exit_code)
    except KeyboardInterrupt:
        _say(ended)
        sys.exit(ended.exit_code)
    except SystemExit as end:
        # Typer turns Ctrl-C into this exit code without a message.
        if end.code == INTERRUPTED:
            _say(ended)
            sys.exit(ended.exit_code)
        raise


def _complain(error: HalfwiseError) -> None:
    for title, text in (("error", error.message), ("hint", error.hint)):
        if text:
            # ONNX Runtime's messages span lines; indent all but the first.
            lines = "\n  ".join(clean(line) for line in _readable(text).splitlines())
            typer.echo(f"{title}: {lines}", err=True)


def _readable(text: str) -> str:
    """Return a text, cut in the middle if too long to read, as names may be."""
    half = LONGEST_EXCERPT
    return text if len(text) <= 2 * half else f"{text[:half]} … {text[-half:]}"


def _out_of_memory(error: MemoryError) -> CaseError:
    free = memory.available()
    rest = "" if free is None else f" ({size_of(free)} are available)"
    return CaseError(
        f"There is not enough memory{rest}: {str(error) or 'an allocation failed'}.",
        "Give smaller files, or check the sizes that they declare.",
    )


def _say(ended: Ended) -> None:
    how = "interrupted" if ended.by == SIGINT else f"ended by {ended.by.name}"
    kept = interruption().asked
    typer.echo(how + " before there was a result; nothing was written" * (not kept), err=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"halfwise {version('halfwise')}")
        raise typer.Exit


@app.callback()
def _halfwise(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Get an ONNX model into FP16, BF16 or INT8 with outputs that are still right."""
    del show_version  # It ended the command.
    if context.invoked_subcommand is None:
        typer.echo(_START, err=True)
        raise typer.Exit(UsageError.exit_code)
