"""Find TensorRT workers: options, environment, the user's halfwise.toml, else this interpreter.

Any folder that is cloned or unpacked may bring files that name programs to run, so the only
`halfwise.toml` is that of the user's configuration folder.
"""

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from halfwise.errors import UsageError
from halfwise.files import read_text

FILE = "halfwise.toml"
_VARIABLE = "HALFWISE_TRT_COMMAND"
UNNAMED = "tensorrt"
"""Name of a worker without a name of its own."""

_TOO_LARGE = 1 << 60
"""1 EiB, beyond any GPU's memory; TensorRT takes a 64-bit number (`size_t`)."""
_UNITS = {"": 1 << 20, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SAY_HOW = "See docs/tensorrt-workers.md."


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


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `halfwise.toml`: commands by name, each a string as for a shell."""

    workers: dict[str, Any] = {}
    targets: dict[Literal["webgpu", "rtx"], Any] = {}


class WorkerSpec(Struct, frozen=True):
    """How to start a worker.

    Attributes:
        name: Its name in messages.
        command: Command words, the last one an interpreter.
        source: What named it: an option, an environment variable, a file, or "default".
    """

    name: str
    command: tuple[str, ...]
    source: str


def configuration(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the user's `halfwise.toml`, which need not exist; it is absolute.

    Its folder is `halfwise` in `XDG_CONFIG_HOME` if that is absolute (XDG Base Directory
    Specification 0.8), else in `~/.config`.
    """
    base = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        # Absolute even without a home: it must not lead into the working directory.
        base = Path("/", environment.get("HOME", ""), ".config")
    return base / "halfwise" / FILE


def resolve(
    *,
    trt_command: str | None = None,
    trt_worker: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> list[WorkerSpec]:
    """Return the configured workers, best first; at least one.

    Options beat the environment (`HALFWISE_TRT_COMMAND`), which beats `halfwise.toml` in the user's
    configuration folder, which beats this interpreter.

    Args:
        trt_command: Command that ends in an interpreter, quoted as for a shell.
        trt_worker: Name of a worker in the file.
        environment: Environment variables.

    Raises:
        UsageError: two workers are named at once, a command is empty or cannot be parsed, or the
            file has unknown content.
    """
    if trt_command is not None and trt_worker is not None:
        raise UsageError("--trt-command and --trt-worker each name a worker.", "Give one of them.")
    path = configuration(environment)
    named = {
        name: WorkerSpec(name, _words(text, f"Worker {name} in {path}", path.parent), str(path))
        for name, text in _content(path).workers.items()
    }
    if trt_worker is not None:
        if trt_worker not in named:
            raise UsageError(
                f"--trt-worker {trt_worker} is not in {path}; workers there: "
                f"{', '.join(named) or 'none'}.",
                f"Add it to the table [workers]. {_SAY_HOW}",
            )
        return [named[trt_worker]]
    source, command = "--trt-command", trt_command
    if command is None:
        source, command = _VARIABLE, environment.get(_VARIABLE) or None
    if command is not None:
        return [WorkerSpec(UNNAMED, _words(command, source, Path.cwd()), source)]
    return [*named.values()] or [WorkerSpec(UNNAMED, (sys.executable,), "default")]


def target_command(
    name: Literal["webgpu", "rtx"], environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the command that starts the program of a target: Node.js, or a Python.

    The environment (`HALFWISE_WEBGPU_COMMAND`) beats `[targets]` in `halfwise.toml`, which beats
    `node` and this interpreter.

    Raises:
        UsageError: a command is empty or cannot be parsed, or the file has unknown content.
    """
    variable, path = f"HALFWISE_{name.upper()}_COMMAND", configuration(environment)
    if command := environment.get(variable):
        return _words(command, variable, Path.cwd())
    if command := _content(path).targets.get(name):
        return _words(command, f"{name} in {path}", path.parent)
    return ("node",) if name == "webgpu" else (sys.executable,)


def _content(path: Path) -> _File:
    """Return the content of `halfwise.toml`; empty tables if it does not exist."""
    try:
        content: dict[str, Any] = tomllib.loads(read_text(path))
        return msgspec.convert(content, _File)
    except (FileNotFoundError, NotADirectoryError):
        return _File()
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} cannot be used: {error}.", _SAY_HOW) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", _SAY_HOW) from error


def _words(command: object, where: str, folder: Path) -> tuple[str, ...]:
    """Return a command's words; a program's path is resolved against `folder`, a name is not."""
    if not isinstance(command, str):
        raise UsageError(f"{where} is {str(command)[:40]!r}; expected a string.", _SAY_HOW)
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(
            f"{where} cannot be parsed ({error}): {command}", "Quote it as for a shell."
        ) from error
    if "\0" in command:
        raise UsageError(f"{where} contains NUL.", "Give a command as for a shell.")
    if not words:
        raise UsageError(f"{where} is empty.", "Give a command that ends in a Python interpreter.")
    program, *others = words
    return (str(folder / Path(program).expanduser()) if "/" in program else program, *others)
