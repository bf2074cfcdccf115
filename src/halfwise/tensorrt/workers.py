"""Find TensorRT workers: options, environment, halfwise.toml, else this interpreter.

Any folder that is cloned or unpacked may bring a `halfwise.toml` that names programs to run. Only
those in the user's configuration folder, or once trusted, may name commands.
"""

import hashlib
import json
import math
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from halfwise.errors import UsageError
from halfwise.wording import clean, shorten

_PLACE = "Give a writable folder: XDG_CONFIG_HOME=FOLDER halfwise …"
_WIDEST = 400
"""Largest number of characters of a command in a message."""
_TRUSTED = "trusted.jsonl"
_announced: set[tuple[str, ...]] = set()


def configuration(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the user's folder for halfwise's settings; None if nothing names one.

    It lies in `XDG_CONFIG_HOME` if that is absolute (XDG Base Directory Specification 0.8), else
    in `~/.config`.
    """
    base = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".config"
        except RuntimeError:
            return None
    return base / "halfwise"


def demand_trust(path: Path, content: bytes, what: Sequence[str]) -> None:
    """Raise UsageError unless `path` is trusted to run what it names.

    Args:
        path: The file.
        content: Its content.
        what: What it would run or load, for the message.
    """
    own = configuration()
    if own is not None and path.parent.resolve() == own.resolve():
        return
    if _entry(path, content) not in _known(own):
        whole = "; ".join(what)
        cut = "The command is shortened here: read the file. " if len(whole) > _WIDEST else ""
        raise UsageError(
            f"{path} is outside your configuration folder and would run: "
            f"{shorten(whole, _WIDEST)}.",
            f"{cut}If you trust it, run halfwise doctor --trust-config once; that lasts "
            "until the file changes.",
        )


def remember(path: Path, content: bytes) -> None:
    """Trust `path` until its content changes.

    Raises:
        UsageError: the trust cannot be recorded.
    """
    own = configuration()
    if own is None:
        raise UsageError("--trust-config cannot be remembered: there is no home folder.", _PLACE)
    try:
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _entry(path, content) not in _known(own):
            with (own / _TRUSTED).open("a", encoding="utf-8") as file:
                file.write(_entry(path, content) + "\n")
    except OSError as error:
        raise UsageError(
            f"--trust-config cannot be remembered in {own}: {error.strerror}.", _PLACE
        ) from error


def announce(command: Sequence[str], file: Path) -> None:
    """Print to standard error, once, the command that a file is about to run."""
    if tuple(command) not in _announced:
        _announced.add(tuple(command))
        sys.stderr.write(clean(f"{file} runs: {shorten(shlex.join(command), _WIDEST)}") + "\n")


def _entry(path: Path, content: bytes) -> str:
    place = str(path.parent.resolve() / path.name)
    return json.dumps([hashlib.sha256(content).hexdigest(), place])


def _known(own: Path | None) -> frozenset[str]:
    try:
        text = "" if own is None else (own / _TRUSTED).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return frozenset()
    return frozenset(text.splitlines())


FILE = "halfwise.toml"
_VARIABLE = "HALFWISE_TRT_COMMAND"
UNNAMED = "tensorrt"
"""Name of a worker without a name of its own."""

_TOO_LARGE = 1 << 60
"""1 EiB, beyond any GPU's memory; TensorRT takes a 64-bit number (`size_t`)."""
_UNITS = {"": 1 << 20, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SAY_HOW = "See docs/tensorrt-workers.md."


@dataclass(frozen=True)
class WorkerDefaults:
    """Default settings of a worker's builds and runs; options override them.

    Attributes:
        workspace_bytes: Largest workspace of one layer; None for TensorRT's default.
        optimization_level: Builder optimisation level, 0 to 5; None for TensorRT's default.
        tactic_sources: Names of `TacticSource`; None for TensorRT's default.
        plugins: Paths of plugin libraries in the worker's file system.
        build_timeout: Seconds per build; None for halfwise's default.
        run_timeout: Seconds per inference; None for halfwise's default.
    """

    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    plugins: tuple[str, ...] = ()
    build_timeout: float | None = None
    run_timeout: float | None = None


@dataclass(frozen=True)
class WorkerSpec:
    """How to start a worker.

    Attributes:
        name: Its name in messages.
        command: Command words, the last one an interpreter.
        source: What named it: an option, an environment variable, a file, or "default".
        defaults: Its settings.
        file: The file that names the command; None if the user does.
    """

    name: str
    command: tuple[str, ...]
    source: str
    defaults: WorkerDefaults = field(default_factory=WorkerDefaults)
    file: Path | None = None

    def announce(self) -> None:
        """Announce the command if it comes from a file."""
        if self.file is not None:
            announce(self.command, self.file)


def resolve(
    *,
    trt_command: str | None = None,
    trt_worker: str | None = None,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> list[WorkerSpec]:
    """Return the configured workers, best first; at least one.

    Options beat the environment (`HALFWISE_TRT_COMMAND`), which beats
    `halfwise.toml` in `folder` or the nearest folder above it, else in the user's configuration
    folder, which beats this interpreter. The settings in `[tensorrt]` always apply.

    Args:
        trt_command: Command that ends in an interpreter, quoted as for a shell.
        trt_worker: Name of a worker in the file.
        environment: Environment variables.
        folder: Where the search starts; the working directory by default.

    Raises:
        UsageError: two workers are named at once, a command is empty or cannot be parsed, the
            file has unknown content, or is not trusted to run what it names.
    """
    if trt_command is not None and trt_worker is not None:
        raise UsageError("--trt-command and --trt-worker each name a worker.", "Give one of them.")
    path = _nearest(folder or Path.cwd())
    content = b"" if path is None else _content(path)
    file = _File(path, {} if path is None else _parse(path, content))
    found = _resolved(file, trt_command, trt_worker, environment)
    if path is not None:
        runs = [shlex.join(spec.command) for spec in found if spec.file]
        if runs := [*runs, *dict.fromkeys(p for spec in found for p in spec.defaults.plugins)]:
            demand_trust(path, content, runs)
    return found


def trust_nearest() -> None:
    """Trust the file that `resolve` would read, with its current content.

    Raises:
        UsageError: there is no such file, or the trust cannot be recorded.
    """
    path = _nearest(Path.cwd())
    if path is None:
        raise UsageError(f"There is no {FILE} to trust here or above.", "Leave --trust-config out.")
    remember(path, _content(path))


def _resolved(
    file: "_File",
    trt_command: str | None,
    trt_worker: str | None,
    environment: Mapping[str, str],
) -> list[WorkerSpec]:
    if trt_worker is not None:
        return [file.worker(trt_worker)]
    source, command = "--trt-command", trt_command
    if command is None:
        source, command = _VARIABLE, environment.get(_VARIABLE) or None
    if command is not None:
        words = _words(command, source, Path.cwd())
        return [WorkerSpec(UNNAMED, words, source, file.shared)]
    return file.workers() or [WorkerSpec(UNNAMED, (sys.executable,), "default", file.shared)]


def memory_bytes(text: str | int, where: str) -> int:
    """Return a size in bytes from trtexec's --memPoolSize notation: 4G, 512M; MiB without a unit.

    Raises:
        UsageError: `text` is no such size; `where` names its place in the message.
    """
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([BKMG]?)", str(text).strip(), re.ASCII)
    size = float(match[1]) * _UNITS[match[2]] if match and not isinstance(text, bool) else 0.0
    if not 1 <= size < _TOO_LARGE:
        raise UsageError(
            f"{where} is {str(text)[:40]!r}; expected a size, at least 1B and below 1 EiB.",
            "Give MiB, or a number with B, K, M or G: 4G.",
        )
    return int(size)


class _File:
    """The `[tensorrt]` table of `halfwise.toml`."""

    def __init__(self, path: Path | None, table: dict[str, Any]) -> None:
        self._path, self._table = path, table
        self._named = table.pop("workers", {})
        if not isinstance(self._named, dict) or not all(
            isinstance(entry, dict) for entry in self._named.values()
        ):
            raise self._odd("workers", self._named, "tables [tensorrt.workers.NAME]")
        self.shared = self._defaults("[tensorrt]", table, WorkerDefaults())

    def workers(self) -> list[WorkerSpec]:
        """Return the workers that have a command, starting with `[tensorrt]` itself."""
        own = self._command("[tensorrt]", self._table)
        first = [self._spec(UNNAMED, own, self.shared)] if own else []
        return first + [self.worker(name) for name in self._named]

    def worker(self, name: str) -> WorkerSpec:
        """Return the worker of that name."""
        if name not in self._named:
            names = ", ".join(self._named) or "none"
            raise UsageError(
                f"--trt-worker {name} is not in {self._path or FILE}; workers there: {names}.",
                f"Add a table [tensorrt.workers.{name}]. {_SAY_HOW}",
            )
        table, place = self._named[name], f"[tensorrt.workers.{name}]"
        words = self._command(place, table)
        if not words:
            raise UsageError(f"{place} in {self._path} needs a command.", _SAY_HOW)
        defaults = self._defaults(place, table, self.shared)
        return self._spec(name, words, defaults)

    def _spec(self, name: str, command: tuple[str, ...], defaults: WorkerDefaults) -> WorkerSpec:
        return WorkerSpec(name, command, str(self._path), defaults, self._path)

    def _command(self, place: str, table: dict[str, Any]) -> tuple[str, ...]:
        command = table.get("command")
        if command is None:
            return ()
        assert self._path is not None
        if _is_strings(command):
            command = shlex.join(command)
        if not isinstance(command, str):
            raise self._odd(f"command of {place}", command, "a string, or a list of words")
        return _words(command, f"command of {place} in {self._path}", self._path.parent)

    def _defaults(
        self, place: str, table: dict[str, Any], shared: WorkerDefaults
    ) -> WorkerDefaults:
        known = {"command", *_SETTINGS}
        if unknown := table.keys() - known:
            raise UsageError(
                f"{place} in {self._path} has unknown keys: {', '.join(sorted(unknown))}.",
                f"Known keys: {', '.join(sorted(known))}.",
            )
        changed: dict[str, Any] = {}
        for key, (name, expected, convert) in _SETTINGS.items():
            if key in table:
                try:
                    changed[name] = convert(table[key])
                except (UsageError, ValueError, TypeError):
                    raise self._odd(f"{key} of {place}", table[key], expected) from None
        return replace(shared, **changed)

    def _odd(self, what: str, value: object, expected: str) -> UsageError:
        return UsageError(f"{what} in {self._path} is {value!r}; expected {expected}.", _SAY_HOW)


def _strings(value: object) -> tuple[str, ...]:
    if not _is_strings(value):
        raise TypeError
    return tuple(value)


def _is_strings(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) and v for v in value)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError
    return float(value)


def _level(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 5:
        raise ValueError
    return value


_SETTINGS: dict[str, tuple[str, str, Callable[[Any], object]]] = {
    "workspace": ("workspace_bytes", 'a size such as "4G"', partial(memory_bytes, where="")),
    "optimization_level": ("optimization_level", "a number from 0 to 5", _level),
    "tactic_sources": ("tactic_sources", 'a list such as ["CUBLAS"]', _strings),
    "plugins": ("plugins", "a list of paths", _strings),
    "build_timeout": ("build_timeout", "seconds above 0", _seconds),
    "run_timeout": ("run_timeout", "seconds above 0", _seconds),
}
"""By key of the file: the field of `WorkerDefaults`, the expected value, and its converter."""


def _nearest(folder: Path) -> Path | None:
    """Return the nearest file in `folder` or above it, else the user's own.

    Raises:
        UsageError: it belongs to another user, who could make it run any command.
    """
    own = configuration()
    places: list[Path] = [folder.absolute(), *folder.absolute().parents, *([own] if own else ())]
    for place in places:
        path = place / FILE
        if _is_file(path):
            if path.stat().st_uid not in (os.getuid(), 0):
                raise UsageError(
                    f"{path} belongs to another user, who could make it run any command.",
                    "Copy it, so that it is yours, or remove it.",
                )
            return path
    return None


def _is_file(path: Path) -> bool:
    """Return whether `path` is a file; False if it may not be accessed."""
    try:
        return path.is_file()
    except OSError:
        return False


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", _SAY_HOW) from error


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        found = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}.", "Expected TOML; " + _SAY_HOW
        ) from error
    if unknown := found.keys() - {"tensorrt"}:
        raise UsageError(
            f"{path} has unknown tables or keys: {', '.join(sorted(unknown))}.",
            "The only known table is [tensorrt].",
        )
    table = found.get("tensorrt", {})
    if not isinstance(table, dict):
        raise UsageError(f"tensorrt in {path} is {table!r}; expected a table.", _SAY_HOW)
    return table


def _words(command: str, where: str, folder: Path) -> tuple[str, ...]:
    """Return a command's words; a program's path is resolved against `folder`, a name is not."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(
            f"{where} cannot be parsed ({error}): {command}", "Quote it as for a shell."
        ) from error
    if not words:
        raise UsageError(f"{where} is empty.", "Give a command that ends in a Python interpreter.")
    program, *others = words
    return (str(folder / Path(program).expanduser()) if "/" in program else program, *others)
