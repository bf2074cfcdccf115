"""Go on from a run's folder: its case and options; `choose`, which takes another plan of it."""

import time
from collections.abc import Collection, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, Unpack, get_origin

import msgspec

from halfwise.case import Case, Chosen
from halfwise.declarations import ChooseOptions, Inputs, Options, check, given, spelt
from halfwise.declarations.option import check_value, shell_type
from halfwise.declarations.options import (
    Acceptance,
    Arithmetic,
    Data,
    Heldout,
    Labels,
    Lowest,
    Plan,
    Running,
    Thresholds,
)
from halfwise.declarations.options import Unjudged as Accepted
from halfwise.emulation.budget import forgiving
from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.fixing.command import concluded
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.result import Result
from halfwise.inputs import split_sources
from halfwise.options.loading import load_asked
from halfwise.options.options import Request, bounded, not_run, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import Curve, Note, Point, Run, replace
from halfwise.reporting.plan import chosen_line
from halfwise.store import free_folder, read_run, users_model
from halfwise.wording import number, ratio, typed

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
    for name, value in {**texts, **({} if inputs is not None else {"inputs": str(data)})}.items():
        if name in _CODE or value.rpartition(":")[0].endswith(".py"):
            raise not_run(name, value)
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
    several = get_origin(kind) is Sequence
    return text.split(", ") if several else msgspec.convert(text, kind, strict=False)


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


def pick(curve: Curve, most: float) -> Point:
    """Return the point of smallest error within a cost.

    Args:
        curve: The plans.
        most: The largest cost relative to all low, as the report rounds it.

    Raises:
        CaseError: no point fits, or costs are unknown.
    """
    if any(point.cost is None for point in curve.points):
        raise CaseError(
            "The run could predict no costs, so no plan can be chosen by its cost.",
            "Search again with another limit: `halfwise fix --start-from RUN`.",
        )
    # A user repeats the cost as the report rounds it.
    costs = [min(point.price, float(number(point.price))) for point in curve.points]
    fitting = [point for point, cost in zip(curve.points, costs, strict=True) if cost <= most]
    if not fitting:
        raise CaseError(
            f"No measured plan of the run costs at most {ratio(most)}; the nearest costs "
            f"{ratio(min(costs, default=inf))}.",
            "Give another limit; `halfwise report RUN` shows the plans.",
        )

    return min(fitting, key=lambda point: (point.error, point.price))


_OF_THE_RUN = frozenset[str]().union(
    *(
        k.__annotations__
        for k in (Heldout, Labels, Data, Acceptance, Accepted, Lowest, Plan, Arithmetic, Running)
    )
) - {"start_from", "no_repair"}
"""Options of `fix` with the same meaning here."""
_BESIDE_A_METRIC = frozenset(Thresholds.__annotations__) | {"strict"}
"""Those of them that do not apply if another metric decides."""


@bounded
@forgiving()
def choose(
    run: str | Path,
    *,
    out: str | Path | None = None,
    inputs: Inputs | None = None,
    model: str | Path | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[ChooseOptions],
) -> Result:
    """Take the point of a run's curve that satisfies an option, judge it and write it.

    It does not search. The case is that of the run; held-out samples that joined its search do not
    judge. It is judged as the run was, or by another metric.

    Args:
        run: Folder of a `fix` or `choose` run.
        out: Run folder to create; must not exist. None writes nothing.
        inputs: Samples, as for `fix`; None for those of the run.
        model: The run's model, if it has moved.
        watcher: Receives progress.
        options: See `ChooseOptions`.

    Raises:
        UsageError: options contradict each other, or the run names code that the caller does not.
        CaseError: no plan fits, or the model or the inputs are unusable.
        RecordMismatch: no run folder, a run without a curve, or a changed model or inputs.
    """
    started, watcher = time.monotonic(), watcher or Silent()
    folder, updates = free_folder(out), given(**options)
    most = _asked(updates)
    record, curve = _recorded(Path(run))
    point = pick(curve, most)
    request = replace(_request(record, inputs, updates), command="choose")
    case = case_of(record, model, request, watcher, other_inputs=inputs is not None)
    watcher.note(chosen_line(curve, point, case.criterion))
    same = case.data_sha256 == record.provenance.inputs_sha256
    before, now = searched(record), frozenset(case.calibration.marks or ())
    named = curve.named(point.kept), curve.named(point.bf16)
    rule = f"choose {spelt('worth', typed(most))}"
    chosen = Chosen(named[0], rule, named[1], point.tf32)
    settings = replace(request.settings, int8=False, chosen=chosen)
    repairs = record.plan.repairs if record.plan else ()
    fixed = run_fix(case, settings, watcher, repairs=repairs)
    # A later choice from this run must know them too.
    if same:
        request = replace(request, right_by=record.rungs[0].by if record.rungs else None)
    joined = record.search.joined if same and record.search else ()
    fixed = replace(
        fixed,
        curve=replace(curve, plan=curve.points.index(point)),
        search=replace(fixed.search, joined=joined, seen=tuple(sorted(before | now))),
    )
    return concluded(case, request, fixed, folder, started, watcher)


def _asked(options: dict[str, Any]) -> float:
    """Take the largest cost out of the options.

    Raises:
        UsageError: it is missing, or outside its domain.
    """
    most = options.pop("worth", None)
    if most is None:
        raise UsageError("Nothing says which plan to take.", f"Give {spelt('worth', 'X')}.")
    check_value("worth", ChooseOptions.__annotations__["worth"], most)
    return float(most)


def _recorded(folder: Path) -> tuple[Run, Curve]:
    run = read_run(folder)
    if (curve := run.curve) is None:
        raise RecordMismatch(
            f"The run {folder} has no plans to choose from: `halfwise {run.kind}` makes none.",
            "Give a run of `halfwise fix`, or repeat it.",
        )
    if curve.rung == "int8":
        raise RecordMismatch(
            f"The plans of the run {folder} have INT8, and `choose` takes only plans without.",
            "Search on from it with another limit: `halfwise fix --to int8 --start-from RUN`.",
        )
    return run, replace(curve, criterion=curve.criterion or run.criterion)


def _request(run: Run, inputs: Inputs | None, updates: Mapping[str, Any]) -> Request:
    """Return the run's options, updated with the given ones."""
    check(updates)
    names = _OF_THE_RUN - _BESIDE_A_METRIC if "metric" in updates else _OF_THE_RUN
    data, options = recorded(run, names, inputs, updates)
    return understand(data, options | dict(updates)).by_use
