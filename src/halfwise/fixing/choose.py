"""`choose`: take another plan from a run's curve, judge it on held-out samples, write it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Unpack

from halfwise.case import Chosen, Settings
from halfwise.declarations import ChooseOptions, Inputs, check, given, spelt
from halfwise.declarations.option import check_value
from halfwise.declarations.options import (
    Arithmetic,
    Choice,
    Data,
    Heldout,
    Labels,
    Lowest,
    Plan,
    Running,
)
from halfwise.declarations.options import Unjudged as Accepted
from halfwise.emulation.budget import forgiving
from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.fixing.again import case_of, from_folder, recorded, searched
from halfwise.fixing.command import concluded
from halfwise.fixing.curve import spread
from halfwise.fixing.loop import fix as run_fix
from halfwise.fixing.result import Result
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network
from halfwise.graph.quantised import quantised_nodes
from halfwise.judging.reference import frozen_named
from halfwise.metrics import AUTO
from halfwise.options.loading import load_start
from halfwise.options.metric import function_again
from halfwise.options.options import Request, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import Criterion, Curve, Point, Run
from halfwise.reporting.plan import chosen_line
from halfwise.store import free_folder, read_run
from halfwise.wording import count, listed, number, ratio, typed


@dataclass(frozen=True)
class Wish:
    """What the user asks for.

    Attributes:
        name: "worth", the cost relative to all low, or "kept", the number of kept compute nodes.
        limit: Its largest value.
    """

    name: str
    limit: float

    @property
    def command(self) -> str:
        """The command that requests it, without the run."""
        return f"choose {spelt(self.name, typed(self.limit))}"


def pick(curve: Curve, wish: Wish) -> Point:
    """Return the point of smallest error, of those whose error is known, that fits a request.

    Raises:
        CaseError: no point fits.
    """
    by_cost = wish.name == "worth"
    value = _costs(curve) if by_cost else lambda point: float(point.count)
    does = "costs" if by_cost else "keeps"

    def say(number: float) -> str:
        return ratio(number) if by_cost else count(int(number), "node")

    points = [point for point in curve.points if not point.is_bound]
    fitting = [point for point in points if value(point) <= wish.limit]
    if not fitting:
        nearest = min(map(value, points), default=inf)
        raise CaseError(
            f"No measured plan of the run {does} at most {say(wish.limit)}; the nearest {does} "
            f"{say(nearest)}.",
            "Give another limit; `halfwise report RUN` shows the plans.",
        )

    def rank(point: Point) -> tuple[bool, float, float, float]:
        heldout = inf if point.heldout is None else point.heldout
        broken = bool(point.infinite_inside) or point.error == inf
        return broken, point.error, heldout, point.price

    return min(fitting, key=rank)


def implied(curve: Curve, criterion: Criterion) -> dict[str, Any]:
    """Return the acceptance options of a choice, by their names in the library.

    The recognised task decides, if there is one, else the run's criterion.
    """
    if curve.recognised:
        return {"metric": AUTO}
    found = {"drop_source", "recognised", "untested"}
    acceptance = criterion.model_dump(exclude_defaults=True, exclude=found)
    drop = {} if criterion.metric is None else {"metric_drop": criterion.metric_drop}
    return {**acceptance, **drop}


def _costs(curve: Curve) -> Callable[[Point], float]:
    if any(point.cost is None for point in curve.points):
        raise CaseError(
            "The run could predict no costs, so --worth cannot choose.", "Give --kept N."
        )
    # A user repeats the cost as the report rounds it.
    return lambda point: min(point.price, float(number(point.price)))


_WISHES = tuple(Choice.__annotations__)
_OF_THE_RUN = frozenset[str]().union(
    *(
        k.__annotations__
        for k in (Heldout, Labels, Data, Accepted, Lowest, Plan, Arithmetic, Running)
    )
) - {"start_from", "no_repair"}
"""Options of `fix` with the same meaning here."""
_TYPES = frozenset(("allow_bf16", "allow_tf32"))


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
    judge. The choice implies what is acceptable: see `halfwise.fixing.choose.implied`.

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
    point = pick(curve, wish)
    request = replace(_request(record, curve, inputs, updates), command="choose")
    case = case_of(record, model, request, watcher, other_inputs=inputs is not None)
    watcher.note(chosen_line(curve, point, case.criterion))
    same = case.data_sha256 == record.provenance.inputs_sha256
    before, now = searched(record), frozenset(case.calibration.marks or ())
    settings, start = _settings(request, record, curve, point, wish), _quantised(record)
    repairs = record.plan.repairs if record.plan else ()
    with frozen_named(case, settings):
        fixed = run_fix(case, settings, watcher, start_from=start, repairs=repairs)
    # A later choice from this run must know them too.
    if same:
        request = replace(request, right_by=record.rungs[0].by if record.rungs else None)
    joined = record.search.joined if same and record.search else ()
    update = {"joined": joined, "seen": tuple(sorted(before | now))}
    place = curve.points.index(point)
    shown = {"plan": place, "front": tuple(spread(curve.points, [place]))}
    fixed = replace(
        fixed,
        curve=curve.model_copy(update=shown),
        search=fixed.search.model_copy(update=update),
    )
    return concluded(case, request, fixed, folder, started, watcher)


def _settings(request: Request, run: Run, curve: Curve, point: Point, wish: Wish) -> Settings:
    """Return the settings of a choice; with INT8, those of the plan below."""
    kept, plan = curve.named(point.kept), run.plan
    if curve.rung != "int8" or plan is None:
        chosen = Chosen(kept, wish.command, curve.named(point.bf16), point.tf32)
        return replace(request.settings, int8=False, chosen=chosen)
    below = frozenset(node.node for node in plan.keep)
    chosen = Chosen(below, wish.command, left_out=kept)
    return replace(request.settings, int8=True, chosen=chosen)


def _quantised(run: Run) -> Network | None:
    """Return the quantised model that the run began with and its plans refer to; or None.

    Raises:
        CaseError: the file is unreadable.
        RecordMismatch: the file is gone.
    """
    named = run.provenance.options.get("start_from", "")
    path = from_folder(run, named)
    start = load_start(path) if path.is_file() and path.suffix != ".json" else None
    if isinstance(start, Network) and quantised_nodes(upcast(start)[0]):
        return start
    if run.plan is not None and run.plan.int8 and path.suffix == ".onnx" and start is None:
        raise RecordMismatch(
            f"The quantised model that the run began with, {named}, is missing.",
            "Restore the file, or repeat the run.",
        )
    return None


def _wish(options: dict[str, Any]) -> Wish:
    """Take the request out of the options.

    Raises:
        UsageError: it is outside its domain, or there is not one.
    """
    wishes = [Wish(name, options.pop(name)) for name in _WISHES if name in options]
    if not wishes:
        names = listed([spelt(name) for name in _WISHES])
        raise UsageError("Nothing says which plan to take.", f"Give one of {names}.")
    if len(wishes) > 1:
        first, second = (spelt(wish.name) for wish in wishes[:2])
        raise UsageError(f"{first} and {second} are both given; only one can be used.", "Give one.")
    (wish,) = wishes
    check_value(wish.name, ChooseOptions.__annotations__[wish.name], wish.limit)
    return wish


def _recorded(folder: Path) -> tuple[Run, Curve]:
    run = read_run(folder)
    if (curve := run.curve) is None:
        raise RecordMismatch(
            f"The run {folder} has no plans to choose from: `halfwise {run.kind}` makes none.",
            "Give a run of `halfwise fix`, or repeat it.",
        )
    return run, curve.model_copy(update={"criterion": curve.criterion or run.criterion})


def _request(run: Run, curve: Curve, inputs: Inputs | None, updates: Mapping[str, Any]) -> Request:
    """Return the run's options, updated with the given ones and what the choice implies."""
    check(updates)
    # Repairs are those of the run, and INT8 knows neither BF16 nor TF32.
    names = _OF_THE_RUN - _TYPES if curve.rung == "int8" else _OF_THE_RUN
    data, options = recorded(run, names, inputs, updates)
    accepted = _acceptance(run, curve, updates.get("metric"))
    options |= {name: value for name, value in updates.items() if name != "metric"}
    return understand(data, options | accepted)


def _acceptance(run: Run, curve: Curve, named: str | None) -> dict[str, Any]:
    accepted = implied(curve, run.criterion)
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
