"""Decide which files may name commands: those in the user's configuration folder or once trusted.

Any folder that is cloned or unpacked may bring a `halfwise.toml` that names programs to run.
"""

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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
