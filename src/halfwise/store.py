"""The run folder: written under a temporary name, then renamed, so it is complete or absent."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from halfwise.errors import RecordMismatch, UsageError
from halfwise.files import is_regular, kind_of, read_text
from halfwise.records import SCHEMA_VERSION, Observations, Run, RunEvidence
from halfwise.records.record import Record
from halfwise.scratch import scratch
from halfwise.wording import argument, command

R = TypeVar("R", bound=Record)

RUN_FILE = "run.json"
OBSERVATIONS_FILE = "observations.json"
EVIDENCE_FILE = "evidence.json"
PAGE_FILE = "report.html"
FP32_FILE = "model.fp32.onnx"
"""The FP32 model with halfwise's node names: weakly typed engines are built from it."""
MODEL_FILE = "model.onnx"
STATIC_FILE = "model.static.onnx"
"""The model with the samples' shapes fixed, where TensorRT takes no other."""
BUILT_FILE = "model.built.onnx"
"""What weakly typed engines are built from, if it is not the FP32 model: repaired, or with INT8."""
_PARTIAL = ".halfwise."
_REPEAT = "Restore it from a copy, or repeat the run."


def engine_file(worker: str = "") -> str:
    """Return an engine's name in its run folder, with its worker's name if there are several."""
    return f"model.{worker}.engine" if worker else "model.engine"


def refuse_irregular(path: Path, what: str) -> None:
    """Raise UsageError unless `path`, which is to be replaced, is a regular file or missing.

    The file is replaced by renaming, so a device, pipe or link would be lost instead of written to.

    Args:
        path: The file to be replaced.
        what: Its name in the message, such as an option.
    """
    if os.path.lexists(path) and (path.is_symlink() or not is_regular(path)):
        raise UsageError(
            f"{what} {path} is {kind_of(path.lstat().st_mode)}; only regular files are replaced.",
            "Move it away, or name another file.",
        )


def free_folder(out: str | Path | None) -> Path | None:
    """Return the path of a folder to be created; None for none.

    Raises:
        UsageError: something exists there.
    """
    if out is None:
        return None
    refuse_existing(Path(out))
    return Path(out)


def refuse_existing(folder: Path, what: str = "folder") -> None:
    """Raise UsageError if `folder` exists (results are never overwritten) or cannot be created.

    Creation is tried next to it, as permissions do not show every obstacle: some file systems
    accept no new names. `what` is its kind: a folder or a file.
    """
    _refuse_there(folder, what)
    # Not the absolute path: folders above the working directory may be closed to the user.
    parent = next(p for p in folder.parents if os.path.lexists(p))
    refuse_unwritable(parent, folder, what)


def refuse_unwritable(parent: Path, output: Path, what: str = "folder") -> None:
    """Raise UsageError unless `output`, with its parents, can be created in the folder `parent`."""
    try:
        with scratch(parent, _PARTIAL) as place:
            for name in output.relative_to(parent).parts:
                (place / name).mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Cannot create the output {what} {output}: that name cannot be used in "
            f"{parent.absolute()} ({error.strerror}).",
            f"Name another {what} with -o.",
        ) from error


def _refuse_there(path: Path, what: str) -> None:
    if os.path.lexists(path):
        raise UsageError(
            f"The output {what} {path} already exists.",
            "Name another with -o, or remove it; halfwise overwrites nothing.",
        )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder` that becomes `folder` if the block succeeds.

    If the block ends early, even by Ctrl-C, it is removed.

    Raises:
        UsageError: `folder` exists, or its parent cannot be written to.
    """
    refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch(folder.parent, _PARTIAL) as partial:
        yield partial
        _refuse_there(folder, "folder")
        partial.rename(folder)


def refuse_existing_file(path: Path, *beside: str) -> None:
    """Raise UsageError if `path`, or it plus a suffix in `beside`, exists or cannot be made."""
    for file in (path, *(path.with_name(path.name + ending) for ending in beside)):
        refuse_existing(file, "file")
    if not path.parent.is_dir():
        raise UsageError(
            f"There is no folder {path.parent}.", "Create it, or name another with -o."
        )


@contextmanager
def new_file(path: Path, *beside: str) -> Iterator[Path]:
    """Yield a path whose file moves to `path` if the block succeeds, with those next to it.

    Args:
        path: Must not exist.
        beside: Suffixes of files next to it that must not exist either.

    Raises:
        UsageError: one of them exists, or cannot be written.
    """
    refuse_existing_file(path, *beside)
    with scratch(path.parent, _PARTIAL) as partial:
        yield partial / path.name
        made = sorted(partial.iterdir(), key=lambda file: file.name == path.name)
        for file in made:
            _refuse_there(path.parent / file.name, "file")
        # The model comes last: if it is there, so is the rest.
        for file in made:
            file.rename(path.parent / file.name)


def write_run(folder: Path, run: Run) -> None:
    """Write `run.json` into `folder`."""
    (folder / RUN_FILE).write_text(run_json(run), encoding="utf-8")


def run_json(run: Run) -> str:
    """Return the text of `run.json`; non-finite numbers are strings."""
    return run.to_json(indent=2) + "\n"


def write_observations(folder: Path, observations: Observations) -> None:
    """Write `observations.json` into `folder`."""
    text = observations.to_json(indent=1)
    (folder / OBSERVATIONS_FILE).write_text(text + "\n", encoding="utf-8")


def write_evidence(folder: Path, evidence: RunEvidence) -> None:
    """Write `evidence.json` into `folder`, on one line, as it is mostly columns of numbers."""
    (folder / EVIDENCE_FILE).write_text(evidence.to_json() + "\n", encoding="utf-8")


def read_observations(folder: Path) -> Observations | None:
    """Return the observations in a run folder; None if the run has none.

    Raises:
        RecordMismatch: they cannot be read.
    """
    return _read_beside(folder, OBSERVATIONS_FILE, Observations)


def read_evidence(folder: Path) -> RunEvidence | None:
    """Return the evidence in a run folder; None if it has none, like older folders.

    Raises:
        RecordMismatch: it cannot be read.
    """
    return _read_beside(folder, EVIDENCE_FILE, RunEvidence)


def _read_beside(folder: Path, name: str, kind: type[R]) -> R | None:
    path = folder_of(folder) / name
    if not path.exists():
        return None
    try:
        return kind.from_json(read_text(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it does not match its schema"
        raise RecordMismatch(f"{path} cannot be read: {why}.", "Repeat the run.") from error


def folder_of(run: str | Path) -> Path:
    """Return a run's folder, named by itself or by the `run.json` in it."""
    path = Path(run)
    return path.parent if path.suffix == ".json" else path


def read_run(folder: Path) -> Run:
    """Return the run in a folder; the path of its `run.json` works too.

    Raises:
        RecordMismatch: no `run.json`, damaged, or of another schema version.
    """
    path = folder if folder.suffix == ".json" else folder / RUN_FILE
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise RecordMismatch(
            _no_run(folder, path, error), "Give the folder that -o named."
        ) from error
    try:
        version = json.loads(text).get("schema_version")
    # ValueError: not JSON, or a number of thousands of digits; RecursionError: nested too deeply.
    except (ValueError, AttributeError, RecursionError) as error:
        raise RecordMismatch(f"{path} is damaged: it is not a JSON object.", _REPEAT) from error
    if version is None:
        raise RecordMismatch(
            f"{path} is not the record of a run: it has no schema version.", _REPEAT
        )
    if version != SCHEMA_VERSION:
        raise RecordMismatch(
            f"{path} has schema version {str(version)[:20]}; this halfwise reads {SCHEMA_VERSION}.",
            "Use the version of halfwise that wrote it, or repeat the run.",
        )
    try:
        return Run.from_json(text)
    except msgspec.MsgspecError as error:
        raise RecordMismatch(
            f"{path} is damaged, or of another version of halfwise: {error}.", _REPEAT
        ) from error


def _no_run(folder: Path, path: Path, error: OSError | UnicodeDecodeError) -> str:
    """Return the sentence for a folder whose run, at `path`, cannot be read."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        return f"{folder} is not a run folder: {path.name} cannot be read ({why})."
    if folder.is_dir():
        return f"{folder} is not a run folder: it has no {path.name}."
    return (
        f"{folder} is a file, not a run folder."
        if folder.exists()
        else f"There is no run folder {folder}."
    )


def users_model(run: Run) -> Path:
    """Return the path of the model of a run: its original location, otherwise the path as given."""
    path = Path(run.provenance.model)
    there = Path(run.provenance.folder, path)
    return there if there.is_file() else path


def lost_model(folder: Path, run: Run) -> Path | None:
    """Return the model that `fix` left next to its record if the user's is gone; otherwise None."""
    model = folder_of(folder) / MODEL_FILE
    return model if run.kind == "fix" and not model.is_file() else None


def refuse_run(path: Path) -> None:
    """Raise UsageError if `path` is a run folder, where one of its files is expected."""
    if (path / RUN_FILE).is_file():
        raise UsageError(
            f"{path} is a run folder; expected a model, an engine or outputs to judge.",
            f"Give {argument(path / MODEL_FILE)}, or repeat the run with: "
            f"{command('halfwise', 'verify', path, '--target', 'tensorrt')}.",
        )


def on_one_device(run: Run, name: str | None) -> Run:
    """Return a run as if one of its devices had been the only one.

    Args:
        run: A run; with at most one device and no name, it is returned unchanged.
        name: The worker's name; None if none was given.

    Raises:
        UsageError: it has several devices and none is named, or none has that name.
    """
    names = [engines.worker.name for engines in run.devices]
    if name is None and len(names) < 2:
        return run
    if name is None or name not in names:
        wrong = "has several devices" if name is None else f"has no device {name}"
        raise UsageError(
            f"The run {wrong}: {', '.join(names)}."
            if names
            else f"--trt-worker {name} does not apply: the run is not one for several devices.",
            "Name one of them: --trt-worker NAME." if names else "Leave it out.",
        )
    return run.on(name)


def report(folder: str | Path, *, trt_worker: str | None = None) -> Run:
    """Return the run that a folder holds, to render it again.

    Args:
        folder: The run folder.
        trt_worker: One of its devices, shown as if it were the only one; None for all.

    Raises:
        UsageError: the run has no device of that name.
    """
    run = read_run(Path(folder))
    return run if trt_worker is None else on_one_device(run, trt_worker)
