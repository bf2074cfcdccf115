"""The case and the options of a run, for a command that goes on from its folder."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from halfwise.case import Case
from halfwise.declarations import Inputs, Options
from halfwise.declarations.option import shell_type
from halfwise.errors import RecordMismatch
from halfwise.inputs import split_sources
from halfwise.options.loading import load_asked
from halfwise.options.metric import not_run
from halfwise.options.options import Request
from halfwise.progress import Watcher
from halfwise.records import Note, Run
from halfwise.store import users_model

_CODE = ("preprocess", "ort_library")
"""Options that run code: code that only a run folder names is not run."""
_FILES = ("heldout", "labels", "heldout_labels")
_OF_THE_DATA = (*_FILES, "preprocess", "allow_random")


def recorded(
    run: Run, names: Collection[str], inputs: Inputs | None, updates: Collection[str]
) -> tuple[Inputs, dict[str, Any]]:
    """Return the inputs and the options of a run, for another command.

    Args:
        run: The run.
        names: The options that the other command takes.
        inputs: Inputs in place of the run's; the options of those do not apply to them.
        updates: Names of options that are given anew.

    Raises:
        RecordMismatch: the run does not say where its inputs are.
        UsageError: an option names code: the folder may come from anybody.
    """
    data = run.provenance.data if inputs is None else inputs
    if data is None:
        raise RecordMismatch(
            "The run does not record where its inputs are: they were in memory, or the run is too "
            "old.",
            "Give them: --inputs DATA.",
        )
    ignored = {*updates, *(() if inputs is None else _OF_THE_DATA)}
    every = run.provenance.options.items()
    texts = {n: text for n, text in every if n in names and n not in ignored}
    for name, given in {**texts, **({} if inputs is not None else {"inputs": str(data)})}.items():
        if name in _CODE or given.rpartition(":")[0].endswith(".py"):
            raise not_run(name, given)
    texts |= {name: _data(run, texts[name]) for name in _FILES if name in texts}
    options = {name: _typed(name, text) for name, text in texts.items()}
    return _data(run, str(data)) if inputs is None else data, options


def from_folder(run: Run, path: str | Path) -> Path:
    """Return where a file is that a run recorded by its path from the working directory."""
    path = Path(path)
    there = Path(run.provenance.folder, path)
    return path if path.exists() and not there.exists() else there


def _data(run: Run, source: str) -> str:
    if sources := split_sources(source):
        return ",".join(f"{name}={from_folder(run, path)}" for name, path in sources.items())
    return str(from_folder(run, source))


def _typed(name: str, text: str) -> Any:  # noqa: ANN401 - as declared
    """Return the value of a recorded option, which is stored as text."""
    kind = shell_type(Options.__annotations__[name])
    if kind in (int, float):
        return kind(text)
    if kind is bool:
        return text == "True"
    return text.split(", ") if name in ("keep", "keep_op", "lower") else text


def case_of(
    run: Run,
    named: str | Path | None,
    request: Request,
    watcher: Watcher,
    *,
    other_inputs: bool,
    split: bool = True,
) -> Case:
    """Return a run's case; held-out samples that its search saw count as searched.

    Args:
        run: The run.
        named: Its model, if that has moved.
        request: The options.
        watcher: Receives progress.
        other_inputs: Whether other inputs than the run's may be given.
        split: Whether the run held samples out.

    Raises:
        RecordMismatch: model or inputs are gone, or not those of the run.
        CaseError: they are unusable.
    """
    model = users_model(run) if named is None else Path(named)
    if not model.exists():
        raise RecordMismatch(
            f"The model of the run, {model}, is missing.",
            "Run it where that path exists, or name the model: --model FILE.",
        )
    case = load_asked(model, request, watcher, split=split)
    if case.network.sha256 != run.provenance.model_sha256:
        raise RecordMismatch(
            f"{model} is not the model that the run was made from: its hash differs.",
            "Give that model: --model FILE.",
        )
    if case.data_sha256 == run.provenance.inputs_sha256:
        case = replace(case, notes=(*case.notes, Note(kind="of-the-run")))
    elif not other_inputs:
        raise RecordMismatch(
            f"{run.provenance.data} no longer has the inputs of the run: its hash differs.",
            "Restore them, or judge on others: --inputs DATA.",
        )
    seen, heldout = case.heldout.marked(searched(run)), case.heldout
    return replace(
        case,
        calibration=case.calibration + heldout.select(seen),
        heldout=heldout.select([i for i in range(len(heldout)) if i not in seen]),
    )


def searched(run: Run) -> frozenset[str]:
    """Return marks of the samples seen by the search, of this run or one it derives from."""
    return frozenset(run.search.seen if run.search else ())
