"""`choose`: take another plan from a run's curve, judge it on held-out samples, write it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any, Unpack

from halfwise.case import Case, Chosen, Settings
from halfwise.declarations import ChooseOptions, Inputs, Options, check, given, spelt
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
from halfwise.emulation.budget import forgiving
from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.fixing.command import concluded
from halfwise.fixing.curve import MEASURED, Measuring, is_fp32
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.outcome import Result
from halfwise.fixing.space import Space
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network
from halfwise.graph.quantised import quantised_nodes
from halfwise.judging.reference import frozen_named
from halfwise.metrics import AUTO, effective
from halfwise.metrics.recognised import REL_MAX, falling
from halfwise.options.loading import load_asked, load_start
from halfwise.options.metric import function_again, named_metric, not_run
from halfwise.options.options import Request, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import Criterion, Curve, NodeName, Note, Point, Recognised, Run, TaskScore
from halfwise.reporting.plan import chosen_line
from halfwise.store import free_folder, read_run, users_model
from halfwise.wording import count, number, ratio, typed

_OTHER = "Give another limit; `halfwise report RUN` shows the plans."


@dataclass(frozen=True)
class Wish:
    """What the user asks for; at most one field is set, and none for the recommended plan.

    Attributes:
        worth: Maximum cost relative to all low.
        kept: Maximum number of kept compute nodes.
        rel_max: Maximum error relative to the largest reference value of an output.
        metric_drop: Maximum loss of the task metric relative to FP32.
    """

    worth: float | None = None
    kept: int | None = None
    rel_max: float | None = None
    metric_drop: float | None = None

    @property
    def options(self) -> Mapping[str, float]:
        """What is set, by the name of the option."""
        every = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in every.items() if value is not None}

    @property
    def command(self) -> str:
        """The command that requests it, without the run."""
        options = (spelt(name, typed(value)) for name, value in self.options.items())
        return " ".join(["choose", *options])


Picked = tuple[Point, int]
"""The point that answers a request, and how many unmeasured points may answer it better."""


def pick(curve: Curve, criterion: Criterion, wish: Wish, measuring: Measuring | None) -> Picked:
    """Return the point that answers a request, measuring what it depends on, `MEASURED` at most.

    A limit on cost or nodes selects the point of smallest error; a limit on error or metric, the
    cheapest. A bound can only exclude a point; points that it does not exclude are measured.

    Args:
        curve: That of the run.
        criterion: What was acceptable in it.
        wish: The request.
        measuring: Measures points; None assumes that every plan passes, without an error.

    Raises:
        UsageError: two things are requested, or something the run does not know.
        CaseError: no point fits.
    """
    if len(wish.options) > 1:
        first, second = (spelt(name) for name in list(wish.options)[:2])
        raise UsageError(f"{first} and {second} are both given; only one can be used.", "Give one.")
    error = (lambda _: 0.0) if measuring is None else measuring.error
    fits = (lambda _: True) if measuring is None else measuring.fits
    if wish.worth is not None:
        return _best(curve, wish.worth, _costs(curve), (ratio, "costs"), error)
    if wish.kept is not None:
        wording = (lambda n: count(int(n), "node"), "keeps")
        return _best(curve, wish.kept, lambda p: p.count, wording, error)
    if wish.rel_max is not None:
        return _cheapest(curve, wish.rel_max, _rel_max(criterion), "has a rel max of", fits)
    if wish.metric_drop is not None:
        does = f"loses {_metric(curve)} by"
        return _cheapest(curve, wish.metric_drop, _fall(curve, criterion), does, fits)
    return _recommended(curve), 0


def implied(curve: Curve, criterion: Criterion, wish: Wish) -> dict[str, Any]:
    """Return the acceptance options that a request implies, by their names in the library.

    A requested error or metric decides; if there are other outputs, the metric becomes "auto" with
    the requested drop. Otherwise the recognised task decides, if there is one, else the run's
    criterion.
    """
    if wish.rel_max is not None:
        return {"rel_max": wish.rel_max}
    if wish.metric_drop is not None and not has_others(curve):
        return {"metric": _metric(curve), "metric_drop": wish.metric_drop}
    if curve.recognised:
        return {"metric": AUTO}
    acceptance = criterion.model_dump(
        exclude_defaults=True, exclude={"drop_source", "recognised", "untested"}
    )
    return (
        acceptance
        if criterion.metric is None
        else {**acceptance, "metric_drop": criterion.metric_drop}
    )


def has_others(curve: Curve) -> bool:
    """Return whether unrecognised outputs are held to the default tolerance."""
    return bool(curve.recognised) and any(score.metric == REL_MAX for score in curve.reference)


def _recommended(curve: Curve) -> Point:
    """Return the recommended plan, or the run's own if that passes and keeps nothing.

    Then none is cheaper, and the run scored none.
    """
    if curve.recommended is not None:
        return curve.points[curve.recommended]
    if curve.plan is not None and not curve.reference:
        delivered = curve.points[curve.plan]
        if delivered.count == 0 and delivered.error <= 1 and not delivered.is_bound:
            return delivered
    why = "no task metric is known to fit its outputs"
    if curve.recognised:
        why = "it measured no plan on held-out samples"
    if curve.reference:
        metrics = " and ".join(sorted({score.metric for score in curve.reference}))
        why = (
            f"none of the plans that it measured more closely passes {metrics} on both held-out "
            "and search samples without infinities"
        )
    raise CaseError(
        f"The run recommends no plan: {why}.",
        "Choose one: --worth X, --kept N or --rel-max X.",
    )


def _best(
    curve: Curve,
    limit: float,
    value: Callable[[Point], float],
    wording: tuple[Callable[[float], str], str],
    error_of: Callable[[Point], float],
) -> Picked:
    fitting = [point for point in curve.points if value(point) <= limit]
    if not fitting:
        (say, does), nearest = wording, min(curve.points, key=value)
        raise CaseError(
            f"No plan of the run {does} at most {say(limit)}; the nearest {does} "
            f"{say(value(nearest))}.",
            _OTHER,
        )
    # Points with only a bound: of equal bounds, the costliest has most room to be exact.
    bounds = sorted((p for p in fitting if p.is_bound), key=lambda p: (p.error, -p.price))
    ranks = {p: _by_error(p, p.error) for p in fitting if not p.is_bound}
    sound = [p for p in bounds if not p.infinite_inside and p.error < inf]
    least = min((p.error for p, (bad, *_) in ranks.items() if not bad), default=inf)
    for point in sound[:MEASURED]:
        if point.error >= least:
            break
        error = error_of(point)
        ranks[point] = _by_error(point, error)
        least = min(least, error)
    unmeasured = sum(p.error < least and p not in ranks for p in sound)
    return min(ranks, key=ranks.__getitem__) if ranks else bounds[0], unmeasured


def _by_error(point: Point, error: float) -> tuple[bool, float, float, float]:
    heldout = inf if point.heldout is None else point.heldout
    return bool(point.infinite_inside) or error == inf, error, heldout, point.price


def _cheapest(
    curve: Curve,
    limit: float,
    value_of: Callable[[Point], float | None],
    does: str,
    fits: Callable[[Point], bool],
) -> Picked:
    """Return the cheapest point that fits; the run's data can only exclude points.

    Those that fit on the run's held-out samples come first, from the cheapest on, until one fits;
    then cheaper ones: a few from the cheapest on, of many repeatedly the middle one.
    """
    values = {point: value_of(point) for point in sorted(curve.points, key=lambda p: p.price)}
    rest = [point for point, value in values.items() if value is None or value <= limit]
    best = next((point for point in rest if is_fp32(curve, point)), None)
    rest = [point for point in rest if best is None or point.price < best.price]
    measured = (p for p in rest if p.heldout is not None and not p.is_bound)
    hopeful = [point for point in measured if values[point] is not None]
    skipped, free = 0, MEASURED
    for point in hopeful[: MEASURED // 2]:
        free -= 1
        if fits(point):
            best, rest = point, rest[: rest.index(point)]
            break
        rest.remove(point)
    while rest and free:
        middle = 0 if len(rest) <= free else len(rest) // 2
        free -= 1
        if fits(rest[middle]):
            best, rest = rest[middle], rest[:middle]
        else:
            skipped, rest = skipped + middle, rest[middle + 1 :]
    if best is not None:
        return best, skipped + len(rest)
    exact = ((value, point) for point, value in values.items() if not point.is_bound)
    near = [(value, point) for value, point in exact if value is not None and limit < value < inf]
    why = f"No measured plan of the run {does} at most {number(limit)}"
    for value, point in sorted(near, key=lambda pair: pair[0])[:1]:
        why += f"; the nearest {does} {number(value)} and keeps {count(point.count, 'node')}"
    raise CaseError(f"{why}.", _OTHER)


def _costs(curve: Curve) -> Callable[[Point], float]:
    if any(point.cost is None for point in curve.points):
        raise CaseError(
            "The run could predict no costs, so --worth cannot choose.", "Give --kept N."
        )
    return lambda point: point.price


def _rel_max(criterion: Criterion) -> Callable[[Point], float | None]:
    """Return a lower bound of a point's value over all known samples; None if unknown."""
    limits = effective(criterion)
    limited = (limits.max_abs, limits.snr_db, limits.cosine, limits.metric)
    alone = limits.rel_max if all(other is None for other in limited) else None

    def bound(point: Point) -> float | None:
        if point.nonfinite or point.infinite_inside or point.error == inf:
            return inf
        searched = None if alone is None else point.error * alone
        return max((v for v in (point.rel_max, searched) if v is not None), default=None)

    return bound


def _metric(curve: Curve) -> str:
    """Return the task metric of the points; for outputs without a task, no fall is allowed.

    Of several metrics of the same outputs, it is the first: which class, not how sure.
    """
    scores: Sequence[TaskScore | Recognised] = curve.reference or curve.recognised
    first = {one.outputs: one.metric for one in reversed(scores)}
    metrics = sorted({*first.values()} - {REL_MAX})
    if len(metrics) == 1:
        return metrics[0]
    if not metrics:
        raise UsageError(
            "The run knows no task metric for its outputs, so --metric-drop cannot choose.",
            "Give --worth X, --kept N or --rel-max X.",
        )
    raise UsageError(
        f"The outputs have several metrics, {' and '.join(metrics)}, in different units.",
        "Give --worth X, --kept N or --rel-max X, or nothing for the recommended plan.",
    )


def _fall(curve: Curve, criterion: Criterion) -> Callable[[Point], float | None]:
    """Return how far a point's metric falls on held-out samples; None if unknown.

    inf with infinities, and if outputs without a metric exceed the tolerance.
    """
    metric = _metric(curve)
    # Where no drop was allowed, the error of every drop is infinite.
    by_drop = criterion.metric is not None and not criterion.metric_drop
    reference = [score.value for score in curve.reference if score.metric == metric]

    def fall(point: Point) -> float | None:
        unscored = [score.passed for score in point.scores if score.metric == REL_MAX]
        endless = point.error == inf and not by_drop
        if point.nonfinite or point.infinite_inside or endless or not all(unscored):
            return inf
        values = [score.value for score in point.scores if score.metric == metric]
        if not reference or len(values) != len(reference):
            return None
        return max(0.0, *(before - after for before, after in zip(reference, values, strict=True)))

    return fall


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
    acceptable: see `halfwise.fixing.choose.implied`.

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
    wish = _wish(updates)
    record, curve = _recorded(Path(run))
    pick(curve, criterion := curve.criterion or record.criterion, wish, None)
    request = replace(_request(record, curve, wish, inputs, updates), command="choose")
    case = _falling(
        _case(record, model, request, watcher, other_inputs=inputs is not None), wish, curve
    )
    same = case.data_sha256 == record.provenance.inputs_sha256
    before, now = _searched(record), frozenset(case.calibration.marks or ())

    def choosing(space: Space, heldout: HeldOut) -> Chosen:
        nonlocal curve
        measuring = Measuring(curve, criterion, space, heldout)
        point, unmeasured = pick(curve, criterion, wish, measuring)
        watcher.note(chosen_line(curve, point, case.criterion, measuring.count, unmeasured))
        if same and before == now:
            curve = measuring.measured(point, scored=wish.metric_drop is None)
        plan = measuring.plan(point)
        return Chosen(curve.kept(point), wish.command, plan.bf16, plan.tf32)

    settings, start = _settings(request, record, curve, wish), _quantised(record)
    repairs = record.plan.repairs if record.plan else ()
    with frozen_named(case, settings):
        fixed = run_fix(
            case, settings, watcher, start_from=start, choosing=choosing, repairs=repairs
        )
    # A later choice from this run must know them too.
    if same:
        request = replace(request, right_by=record.rungs[0].by if record.rungs else None)
    joined = record.search.joined if same and record.search else ()
    update = {"joined": joined, "seen": tuple(sorted(before | now))}
    # Samples that chose the plan say nothing about others.
    verdict = {} if wish.rel_max is None else {"failure_bound": None}
    fixed = replace(
        fixed,
        curve=curve,
        search=fixed.search.model_copy(update=update),
        verdict=fixed.verdict.model_copy(update=verdict),
    )
    return concluded(case, request, fixed, folder, started, watcher)


def _settings(request: Request, run: Run, curve: Curve, wish: Wish) -> Settings:
    """Return the settings of a choice; with INT8, those of the plan below and its ranges."""
    int8, plan = curve.rung == "int8", run.plan
    settings = replace(request.settings, int8=int8)
    kept = frozenset[NodeName]()
    if int8 and plan is not None:
        kept = frozenset(node.node for node in plan.keep)
        settings = replace(settings, ranges=plan.ranges or settings.ranges)
    return replace(settings, chosen=Chosen(kept, wish.command))


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


def _falling(case: Case, wish: Wish, curve: Curve) -> Case:
    """Let the metric fall as requested; others keep their limits."""
    drop = wish.metric_drop
    if drop is None or not has_others(curve):
        return case
    metric = _metric(curve)
    recognised = tuple(
        falling(one, drop) if one.metric == metric else one for one in case.criterion.recognised
    )
    update = {"recognised": recognised, "drop_source": ""}
    criterion = case.criterion.model_copy(update=update)
    return replace(case, criterion=criterion, metric=named_metric(criterion))


def _wish(options: dict[str, Any]) -> Wish:
    """Take the request out of the options."""
    wish = Wish(**{name: options.pop(name) for name in _WISHES if name in options})
    for name, value in wish.options.items():
        check_value(name, ChooseOptions.__annotations__[name], value)
    return wish


def _recorded(folder: Path) -> tuple[Run, Curve]:
    run = read_run(folder)
    if (curve := run.curve) is None:
        raise RecordMismatch(
            f"The run {folder} has no plans to choose from: `halfwise {run.kind}` makes none.",
            "Give a run of `halfwise fix`, or repeat it.",
        )
    return run, curve.model_copy(update={"criterion": curve.criterion or run.criterion})


def _request(
    run: Run, curve: Curve, wish: Wish, inputs: Inputs | None, updates: Mapping[str, Any]
) -> Request:
    """Return the run's options, updated with the given ones and what the choice implies."""
    check(updates)
    data = run.provenance.data if inputs is None else inputs
    if data is None:
        raise RecordMismatch(
            "The run does not record where its inputs are: they were in memory, or the run is too "
            "old.",
            "Give them: --inputs DATA.",
        )
    ignored = {*updates, *(() if inputs is None else _OF_THE_DATA)}
    # Repairs are those of the run, and INT8 knows neither BF16 nor TF32.
    ignored |= _TYPES if curve.rung == "int8" else set()
    every = run.provenance.options.items()
    recorded = {n: text for n, text in every if n in _OF_THE_RUN and n not in ignored}
    _refuse_code(recorded, run.provenance.data if inputs is None else None)
    accepted = _acceptance(run, curve, wish, updates.get("metric"))
    options = {name: _typed(name, text) for name, text in recorded.items()}
    options |= {name: value for name, value in updates.items() if name != "metric"}
    return understand(data, options | accepted)


def _refuse_code(recorded: Mapping[str, str], inputs: str | None) -> None:
    """Raise UsageError if a recorded option names code: the folder may come from anybody."""
    named = dict(recorded) if inputs is None else {**recorded, "inputs": inputs}
    for name, option in named.items():
        if name in _CODE or option.rpartition(":")[0].endswith(".py"):
            raise not_run(name, option)


def _acceptance(run: Run, curve: Curve, wish: Wish, named: str | None) -> dict[str, Any]:
    accepted = implied(curve, run.criterion, wish)
    metric = accepted.get("metric")
    if metric is not None and ":" in metric:
        return {**accepted, "metric": function_again(metric, named)}
    if named not in (None, metric, *(one.metric for one in curve.recognised)):
        by = f"by {metric}" if metric else "without a metric"
        raise UsageError(
            f"--metric is {named}, but the choice is judged {by}.",
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
    run: Run, named: str | Path | None, request: Request, watcher: Watcher, *, other_inputs: bool
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
    if case.data_sha256 == run.provenance.inputs_sha256:
        case = replace(case, notes=(*case.notes, Note(kind="of-the-run")))
    elif not other_inputs:
        raise RecordMismatch(
            f"{run.provenance.data} no longer has the inputs of the run: its hash differs.",
            "Restore them, or judge on others: --inputs DATA.",
        )
    searched, heldout = case.heldout.marked(_searched(run)), case.heldout
    return replace(
        case,
        calibration=case.calibration + heldout.select(searched),
        heldout=heldout.select([i for i in range(len(heldout)) if i not in searched]),
    )


def _searched(run: Run) -> frozenset[str]:
    """Return marks of the samples seen by the search, of this run or one it derives from."""
    return frozenset(run.search.seen if run.search else ())
