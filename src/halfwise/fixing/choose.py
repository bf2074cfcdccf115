"""`choose`: take another plan from a run's curve, judge it on held-out samples, write it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from halfwise.case import Case, Chosen, Settings
from halfwise.declarations import ChooseOptions, Inputs, Options, check, given
from halfwise.declarations.option import check_value, shell_type
from halfwise.declarations.options import (
    Arithmetic,
    Data,
    Heldout,
    Labels,
    Lowest,
    Plan,
    Running,
    Shown,
)
from halfwise.declarations.options import Unjudged as Accepted
from halfwise.emulation.bounded import forgiving
from halfwise.errors import RecordMismatch, UsageError
from halfwise.fixing.command import concluded
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.measuring import Measuring
from halfwise.fixing.outcome import Result
from halfwise.fixing.pick import Hopeful, Wish, has_others, implied, pick
from halfwise.fixing.planner import Planner
from halfwise.fixing.types import Types
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network
from halfwise.graph.quantisation.pairs import quantised_nodes
from halfwise.judging.reference import frozen_named
from halfwise.metrics.recognised import falling
from halfwise.options.loading import load_asked, load_start
from halfwise.options.metric import function_again, named_metric, not_run
from halfwise.options.options import Request, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import Curve, NodeName, Note, Repair, Run, Verdict
from halfwise.reporting.plan import chosen_line
from halfwise.store import free_folder, read_run, users_model

_WISHES = tuple(Wish.__dataclass_fields__)
_OF_THE_RUN = frozenset[str]().union(
    *(
        k.__annotations__
        for k in (Heldout, Labels, Data, Shown, Accepted, Lowest, Plan, Arithmetic, Running)
    )
) - {"start_from", "no_repair"}
"""Options of `fix` with the same meaning here."""
_TYPES = frozenset(("allow_bf16", "allow_tf32"))
_CODE = ("preprocess", "ort_library")
"""Options that run code: code that only a run folder names is not run."""
_OF_THE_DATA = ("heldout", "labels", "heldout_labels", "preprocess", "allow_random")


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
    judge. Without an option that chooses, it takes the recommended plan. The choice implies what is
    acceptable: see `halfwise.fixing.pick.implied`.

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
    folder, asked = free_folder(out), given(**options)
    wish = Wish(**{name: asked.pop(name) for name in _WISHES if name in asked})
    for name, value in wish.given.items():
        check_value(name, ChooseOptions.__annotations__[name], value)
    record = read_run(Path(run))
    curve = _curve(record, Path(run))
    pick(curve, own := curve.criterion or record.criterion, wish, Hopeful())
    request = replace(_request(record, curve, wish, inputs, asked), command="choose")
    case = _falling(_case(record, model, request, watcher, others=inputs is not None), wish, curve)
    same = case.data_sha256 == record.provenance.inputs_sha256
    before, now = _seen(record), frozenset(case.calibration.marks or ())

    def choosing(planner: Planner, heldout: HeldOut) -> Chosen:
        nonlocal curve
        _take_types(planner, curve)
        measuring = Measuring(curve, own, planner, heldout)
        picked = pick(curve, own, wish, measuring)
        watcher.note(chosen_line(curve, picked.point, case.criterion, measuring.count, picked.left))
        if same and before == now:
            curve = measuring.told(picked.point, scored=wish.metric_drop is None)
        return Chosen(curve.kept(picked.point), wish.told)

    settings, made = _settings(request, record, curve, wish), _repairs(record)
    with frozen_named(case, settings):
        start = _quantised(record)
        fixed = run_fix(case, settings, watcher, start_from=start, choosing=choosing, repairs=made)
    # A later choice from this run must know them too.
    update = {"joined": _joined(record) if same else (), "seen": tuple(sorted(before | now))}
    search, verdict = fixed.search.model_copy(update=update), _unbound(fixed.verdict, wish)
    fixed = replace(fixed, curve=curve, search=search, verdict=verdict)
    return concluded(case, _known(request, record, same), fixed, folder, started, watcher)


def _take_types(planner: Planner, curve: Curve) -> None:
    """Have each plan use the types of its point for what it keeps."""
    for point in curve.points:
        types = Types(curve.bf16(point), tf32=point.tf32)
        planner.narrowing.take(curve.kept(point), types)


def _known(request: Request, run: Run, same: bool) -> Request:
    """Return the options with the run's check of FP32, if the inputs are the `same`."""
    if not same:
        return request
    return replace(request, right_by=run.rungs[0].by if run.rungs else None)


def _settings(request: Request, run: Run, curve: Curve, wish: Wish) -> Settings:
    """Return the settings of a choice; with INT8, those of the plan below and its ranges."""
    int8, plan = curve.rung == "int8", run.plan
    found = replace(request.settings, int8=int8)
    kept = frozenset[NodeName]()
    if int8 and plan is not None:
        kept = frozenset(node.node for node in plan.keep)
        found = replace(found, ranges=plan.ranges or found.ranges)
    return replace(found, chosen=Chosen(kept, wish.told))


def _quantised(run: Run) -> Network | None:
    """Return the quantised model that the run began with and its plans refer to; or None.

    Raises:
        CaseError: the file is unreadable.
        RecordMismatch: the file is gone.
    """
    named = run.provenance.options.get("start_from", "")
    path = next((p for p in (Path(run.provenance.folder, named), Path(named)) if p.is_file()), None)
    start = None if path is None or path.suffix == ".json" else load_start(path)
    if isinstance(start, Network) and quantised_nodes(upcast(start)[0]):
        return start
    if run.plan is not None and run.plan.int8 and run.plan.ranges is None:
        raise RecordMismatch(
            f"The quantised model that the run began with, {named}, is missing.",
            "Restore the file, or repeat the run.",
        )
    return None


def _unbound(verdict: Verdict, wish: Wish) -> Verdict:
    """Drop the bound if the judged samples chose: then they say nothing about other samples."""
    chose = wish.rel_max is not None
    return verdict.model_copy(update={"failure_bound": None}) if chose else verdict


def _falling(case: Case, wish: Wish, curve: Curve) -> Case:
    """Let the additional metrics fall as requested; those not named keep their limits."""
    drop = wish.metric_drop
    if drop is None or not has_others(curve):
        return case
    recognised = tuple(falling(one, drop) for one in case.criterion.recognised)
    update = {"recognised": recognised, "drop_source": ""}
    criterion = case.criterion.model_copy(update=update)
    return replace(case, criterion=criterion, metric=named_metric(criterion))


def _repairs(run: Run) -> tuple[Repair, ...]:
    return run.plan.repairs if run.plan else ()


def _joined(run: Run) -> tuple[str, ...]:
    return run.search.joined if run.search else ()


def _curve(run: Run, folder: Path) -> Curve:
    if run.curve is None:
        raise RecordMismatch(
            f"The run {folder} has no plans to choose from: `halfwise {run.kind}` makes none.",
            "Give a run of `halfwise fix`, or repeat it.",
        )
    return run.curve.model_copy(update={"criterion": run.curve.criterion or run.criterion})


def _request(
    run: Run, curve: Curve, wish: Wish, inputs: Inputs | None, asked: Mapping[str, Any]
) -> Request:
    """Return the run's options, updated with the given ones and what the choice implies."""
    check(asked)
    data = run.provenance.data if inputs is None else inputs
    if data is None:
        raise RecordMismatch(
            "The run does not record where its inputs are: they were in memory, or the run is too "
            "old.",
            "Give them: --inputs DATA.",
        )
    left_out = () if inputs is None else _OF_THE_DATA
    recorded = {
        name: text
        for name, text in run.provenance.options.items()
        if name in _OF_THE_RUN and name not in asked and name not in left_out
    }
    _refuse_code(recorded, run.provenance.data if inputs is None else None)
    accepted = _acceptance(run, curve, wish, asked.get("metric"))
    # Repairs are those of the run, and INT8 knows neither BF16 nor TF32.
    if curve.rung == "int8":
        recorded = {name: text for name, text in recorded.items() if name not in _TYPES}
    options = {name: _typed(name, text) for name, text in recorded.items()}
    options |= {name: value for name, value in asked.items() if name != "metric"}
    return understand(data, options | accepted)


def _refuse_code(recorded: Mapping[str, str], inputs: str | None) -> None:
    """Raise UsageError if a recorded option names code: the folder may come from anybody."""
    named = {name: text for name, text in recorded.items() if name in _CODE or _is_code(text)}
    named |= {"inputs": inputs} if inputs is not None and _is_code(inputs) else {}
    for name, text in named.items():
        raise not_run(name, text)


def _is_code(option: str) -> bool:
    return option.rpartition(":")[0].endswith(".py")


def _acceptance(run: Run, curve: Curve, wish: Wish, named: str | None) -> dict[str, Any]:
    accepted = implied(curve, run.criterion, wish)
    metric = accepted.get("metric")
    if metric is not None and ":" in metric:
        return {**accepted, "metric": function_again(metric, named)}
    if named is not None and named not in (metric, *(one.metric for one in curve.recognised)):
        raise UsageError(
            f"--metric is {named}, but the choice is judged "
            f"{f'by {metric}' if metric else 'without a metric'}.",
            "Leave it out: the choice implies the tolerance.",
        )
    return accepted


def _typed(name: str, text: str) -> Any:  # noqa: ANN401 - as declared
    """Return the value of a recorded option, which is stored as text."""
    kind = shell_type(Options.__annotations__[name])
    if kind in (int, float):
        return kind(text)
    if kind is bool:
        return text == "True"
    return text.split(", ") if name in ("keep", "keep_op", "lower") else text


def _case(
    run: Run, named: str | Path | None, request: Request, watcher: Watcher, *, others: bool
) -> Case:
    """Return the run's case; held-out samples that its search saw count as searched."""
    model = users_model(run) if named is None else Path(named)
    if not model.exists():
        raise RecordMismatch(
            f"The model of the run, {model}, is missing.",
            "Run it where that path exists, or name the model: --model FILE.",
        )
    case = load_asked(model, request, watcher)
    if case.network.sha256 != run.provenance.model_sha256:
        raise RecordMismatch(
            f"{model} is not the model that the run was made from: its hash differs.",
            "Give that model: --model FILE.",
        )
    known = case.heldout.marked(_seen(run))
    if case.data_sha256 != run.provenance.inputs_sha256:
        if not others:
            raise RecordMismatch(
                f"{run.provenance.data} no longer has the inputs of the run: its hash differs.",
                "Restore them, or judge on others: --inputs DATA.",
            )
        return _without(case, known)
    case = replace(case, notes=(*case.notes, Note(kind="of-the-run")))
    return _without(case, known)


def _seen(run: Run) -> frozenset[str]:
    """Return marks of the samples seen by the search, of this run or one it derives from."""
    return frozenset(run.search.seen if run.search else ())


def _without(case: Case, seen: Sequence[int]) -> Case:
    """Return the case with held-out samples moved to the searched ones: a search saw them."""
    unseen = [i for i in range(len(case.heldout)) if i not in seen]
    return replace(
        case,
        calibration=case.calibration + case.heldout.select(seen),
        heldout=case.heldout.select(unseen),
    )
