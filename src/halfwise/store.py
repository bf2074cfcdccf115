"""The run folder: written beside its place, then renamed, so that it is whole or absent."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from halfwise.errors import RecordMismatch, UsageError
from halfwise.records import SCHEMA_VERSION, Observations, Run

RUN_FILE = "run.json"
OBSERVATIONS_FILE = "observations.json"
MODEL_FILE = "model.onnx"


def refuse_existing(folder: Path, what: str = "folder") -> None:
    """Raise UsageError when `folder` exists (results are never overwritten) or cannot be made.

    `what` it is: a folder, or a file.
    """
    try:
        folder.lstat()
    except FileNotFoundError:
        parent = next(p for p in folder.absolute().parents if p.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            return
        raise _not_writable(folder, f"no permission to write to {parent}", what) from None
    except OSError as error:
        raise _not_writable(folder, error.strerror, what) from error
    raise UsageError(
        f"The output {what} {folder} exists.",
        "Name another with -o, or remove it; halfwise overwrites nothing.",
    )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder beside `folder` that becomes `folder` when the block succeeds.

    Whatever ends the block early, Ctrl-C included, removes it.

    Raises:
        UsageError: `folder` exists, or its parent cannot be written to.
    """
    refuse_existing(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".halfwise.", dir=folder.parent))
    except OSError as error:
        raise _not_writable(folder, error.strerror) from error
    try:
        yield partial
        refuse_existing(folder)
        partial.chmod(0o777 & ~_umask())
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_run(folder: Path, run: Run) -> None:
    """Write `run.json` into `folder`."""
    (folder / RUN_FILE).write_text(run_json(run), encoding="utf-8")


def run_json(run: Run) -> str:
    """Return the text of `run.json`; non-finite numbers are strings."""
    return run.model_dump_json(indent=2) + "\n"


def write_observations(folder: Path, observations: Observations) -> None:
    """Write `observations.json` into `folder`."""
    text = observations.model_dump_json(indent=1)
    (folder / OBSERVATIONS_FILE).write_text(text + "\n", encoding="utf-8")


def read_run(folder: Path) -> Run:
    """Return the run that a folder holds; the path of its `run.json` stands for the folder.

    Raises:
        RecordMismatch: no `run.json`, damaged, or of another schema version.
    """
    path = folder if folder.suffix == ".json" else folder / RUN_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordMismatch(
            f"{folder} is no run folder: {path.name} cannot be read.",
            "Give the folder that was named with -o.",
        ) from error
    try:
        found = json.loads(text).get("schema_version")
    # ValueError: no JSON, or a number of thousands of digits; RecursionError: nested as deeply.
    except (ValueError, AttributeError, RecursionError) as error:
        raise RecordMismatch(f"{path} is damaged: {error}.", "Make the run again.") from error
    if found != SCHEMA_VERSION:
        raise RecordMismatch(
            f"{path} has schema version {found}; this halfwise reads {SCHEMA_VERSION}.",
            "Use the halfwise that made it, or make the run again.",
        )
    try:
        return Run.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RecordMismatch(
            f"{path} does not fit its schema at {place}: {first['msg']}.", "Make the run again."
        ) from error


def _not_writable(folder: Path, reason: str | None, what: str = "folder") -> UsageError:
    return UsageError(
        f"Cannot make the output {what} {folder}: {reason}.", f"Name another {what} with -o."
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
