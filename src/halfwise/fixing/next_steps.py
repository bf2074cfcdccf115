"""What to do after a `fix`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from halfwise.case import Case
from halfwise.declarations import Inputs, spelt
from halfwise.fixing.building import building
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.offering import choosing
from halfwise.options.options import Request
from halfwise.records import (
    CauseKind,
    Engines,
    Plan,
    Profile,
    Search,
    Step,
    StepKind,
    Verdict,
    Worth,
)
from halfwise.reporting.remarks import lacking
from halfwise.store import MODEL_FILE, engine_file
from halfwise.tensorrt.versions import FIRST_WITH, text_of
from halfwise.wording import argument

_JUDGED = (
    *("preprocess", "labels", "seed", "allow_random", "allow_unjudged", "no_previews", "max_abs"),
    *("rel_max", "snr_db", "cosine", "agreement", "metric", "metric_drop", "accumulate", "device"),
    *("ort_library", "trt_command", "trt_worker"),
)
"""Options of `fix` with the same meaning in `verify` and `diagnose`."""
_SEARCHED = (
    *("to", "target", "typing", "min_shapes", "opt_shapes", "max_shapes", "workspace"),
    *("optimization_level", "tactic_sources", "plugin"),
)
"""The others with the same meaning in `diagnose`."""
_COMPARED = ("preprocess", "seed", "allow_random", "accumulate", "device", "ort_library")
_REPEATED = ("preprocess", "labels", "allow_random", "device", "ort_library")
"""Options of `fix` that a `verify` of its run needs again."""
_SEVERAL = ("min_shapes", "opt_shapes", "max_shapes", "plugin", "ort_library")


def diagnose_step(case: Case, request: Request, out: Path | None, worker: str = "") -> Step:
    """Return the `halfwise diagnose` of the same case and worker.

    `worker` names one of several workers.
    """
    given = request.given | ({"trt_worker": worker} if worker else {})
    words = _same(case, request, (*_JUDGED, *_SEARCHED), given)
    folder = Path("DIAGNOSIS") if out is None else out.with_name(f"{out.name}.diagnosis")
    return Step(kind="diagnose", command=("halfwise", "diagnose", *words, "-o", argument(folder)))


def fix_step(case: Case, request: Request, out: Path | None, quantised: Path | None = None) -> Step:
    """Return the `halfwise fix` of the same case as a diagnosis; of a quantised model of it."""
    words = _same(case, request, (*_JUDGED, *_SEARCHED), request.given)
    if quantised is not None:
        words += ["--start-from", argument(quantised)]
    folder = Path("FIXED") if out is None else out.with_name(f"{out.name}.fixed")
    kind: StepKind = "fix" if quantised is None else "fix-quantised"
    return Step(kind=kind, command=("halfwise", "fix", *words, "-o", argument(folder)))


def int8_step(case: Case, request: Request, out: Path | None) -> Step:
    """Return the `halfwise fix` of the same case to INT8, for files without pairs to leave out."""
    return fix_step(case, replace(request, given=request.given | {"to": "int8"}), out)


def after_verify(
    case: Case,
    request: Request,
    candidate: Path,
    *,
    passed: bool,
    quantised: bool = False,
    integers: bool = False,
) -> tuple[Step, ...]:
    """Return what to do after an emulated `verify` of a model file.

    Args:
        case: The case.
        request: The options.
        candidate: The file.
        passed: Whether it passed.
        quantised: Whether it has pairs that can be left out.
        integers: Whether it is quantised without such pairs: QOperator, or dynamic.
    """
    if passed:
        words = [_model(case), argument(candidate), "--inputs", _data(request.data.inputs)]
        words += _options(request.given, _JUDGED)
        names = {"heldout": ""}
        return (Step(kind="prove", names=names, command=("halfwise", "verify", *words, *_ENGINE)),)
    comparing = _same(case, request, _COMPARED, request.given)
    comparing += ["--b", f"emulation:{candidate}"]
    return (
        Step(kind="compare", command=("halfwise", "compare", *comparing)),
        int8_step(case, request, None)
        if integers and not quantised
        else fix_step(case, request, None, candidate if quantised else None),
    )


def _same(
    case: Case, request: Request, names: Iterable[str], given: Mapping[str, str]
) -> list[str]:
    """Return the model, the inputs, and those of the options that have a name among `names`."""
    return [_model(case), "--inputs", _data(request.data.inputs), *_options(given, names)]


def _model(case: Case) -> str:
    return "MODEL" if case.network.path is None else argument(case.network.path)


def _data(inputs: Inputs | None) -> str:
    return argument(inputs) if isinstance(inputs, str | Path) else "DATA"


def _options(given: Mapping[str, str], names: Iterable[str]) -> list[str]:
    return [word for name in names if name in given for word in _option(name, given[name])]


def delivered_next(
    out: Path | None, request: Request, devices: Sequence[Engines] = ()
) -> tuple[Step, ...]:
    """Return what to do with the engine in the run folder `out`; None if there is none.

    `devices` are those of a run with several.
    """
    if out is None:
        return ()
    files, export = {"": str(out / engine_file())}, ["halfwise", "export", argument(out)]
    if len(devices) > 1:
        files = {e.worker.name: str(out / engine_file(e.shares or e.worker.name)) for e in devices}
        export += ["--trt-worker", devices[0].worker.name]
    data, given = request.data, request.given
    if data.heldout is not None:
        given = _heldout(given)
    # Of the inputs of the run, `verify` judges only those that it held out.
    words = [argument(out), "--inputs", _data(data.heldout or data.inputs)]
    words += _options(given, _REPEATED)
    words += _option("metric", given["metric"]) if ":" in given.get("metric", "") else []
    return (
        Step(kind="engines", names=files),
        Step(kind="verify-elsewhere", command=("halfwise", "verify", *words, *_ENGINE)),
        Step(kind="export", command=(*export, "--as", "trtexec")),
    )


def _heldout(given: dict[str, str]) -> dict[str, str]:
    """Return options with the labels of the held-out samples."""
    labels = given.get("heldout_labels")
    return given if labels is None else {**given, "labels": labels}


_ENGINE = ("--target", "tensorrt")


def lower_next(engines: Engines, case: Case) -> tuple[Step, ...]:
    """Return what may lead to an engine of the low format if none passed."""
    low = engines.rungs[-1] if engines.rungs else None
    if low is None or low.end in ("delivered", "slower", "not-preferred", "no-part"):
        return ()
    kinds: tuple[CauseKind, ...] = tuple(cause.kind for cause in engines.causes)
    rung = {"rung": low.rung.upper()}
    steps = list[Step]()
    if low.end == "lost":
        steps.append(Step(kind="lost", names=rung))
    if low.end == "unfetched":
        steps.append(Step(kind="unfetched", names=rung))
    if {"no-engine", "refused"} & set(kinds):
        model = case.network.path
        words = ["halfwise", "modernize", argument(model or "MODEL"), "-o"]
        words.append(argument(model.with_suffix(".modern.onnx") if model else "MODERN.onnx"))
        steps.append(Step(kind="modernize", names=rung, command=tuple(words)))
    if "ignored" in kinds and engines.typing == "weak":
        first = text_of(FIRST_WITH["strong typing by default"])
        steps.append(Step(kind="typing-strong", names={"since": first}))
    if {"no-engine", "refused", "not-run", "kernel"} & set(kinds):
        steps.append(Step(kind="other-builds", names=rung))
    if "kernel" in kinds:
        steps.append(Step(kind="accumulate-fp16"))
    shown = {number for cause in engines.causes for number in cause.builds}
    if "unknown" in kinds and any(b.config.tf32 for b in engines.builds if b.number in shown):
        steps.append(Step(kind="no-tf32"))
    unclear = {"no-effect", "precision", "unknown", "ignored"} & set(kinds)
    spared = any(s.kind != "no-tf32" for s in engines.spared)
    if not spared and (unclear or not (kinds or low.end in ("lost", "unfetched"))):
        steps.append(Step(kind="more-builds"))
    return tuple(steps)


def _option(name: str, value: str) -> list[str]:
    if value == "True":
        return spelt(name).split()
    values = value.split(", ") if name in _SEVERAL else [value]
    return [word for one in values for word in spelt(name, one).split(maxsplit=1)]


def next_steps(
    verdict: Verdict,
    case: Case,
    request: Request,
    fixed: Fixed,
    profiles: tuple[Profile, ...],
    out: Path | None,
    devices: Sequence[Engines],
    worth: Worth | None,
) -> tuple[Step, ...]:
    """Return what to do after a `fix`, in the order of the report.

    Args:
        verdict: The final one, with its reasons for failure.
        case: The case.
        request: The options.
        fixed: Result of the run.
        profiles: Of the samples; none for fixed shapes.
        out: The run folder; None if nothing was written.
        devices: Results of real engines per device; empty without engines.
        worth: Worth of the plan, if known.
    """
    engines = devices[0] if devices else None
    lower = () if engines is None else lower_next(engines, case)
    other = choosing(fixed.curve, out, verdict, case.criterion, devices)
    if verdict.required_worth is not None:
        steps = (*other, *lower, *_after_cost(verdict.required_worth, fixed, worth, engines))
    elif not verdict.passed:
        steps = (*other, *lower, *_after_failure(verdict, case, fixed, devices))
    elif verdict.level == "engine":
        steps = (*delivered_next(out, request, devices), *other, *lower)
    else:
        strong, weak = building(case, fixed.plan, profiles, out)
        dear = worth is not None and worth.times_fp32 >= 1
        idle = dear or (worth is not None and not worth.gains)
        proof = _proving(case, request, out)
        # A plan that gains little is not worth building where a cheaper one is offered.
        built = (*(Step(kind="use-fp32") for _ in range(dear)), strong, proof, weak)
        why = [diagnose_step(case, request, out)] if _keeps_all(fixed.plan) else []
        stopped = "interrupt" in fixed.search.ended_by and fixed.plan.keep
        first = (*other, *(_unfinished(fixed.search) if stopped else ()))
        steps = first if other and idle else (*first, *why, *built)
    linted = any(note.kind == "linted" for note in case.notes) and case.network.path is not None
    lint = ("halfwise", "lint", argument(case.network.path or ""))
    return (*steps, *(Step(kind="lint", command=lint) for _ in range(linted)))


def _keeps_all(plan: Plan) -> bool:
    """Return whether all compute nodes stay in FP32, some of them for an unknown reason."""
    unexplained = any(kept.kept_by == "search" and kept.guard is None for kept in plan.keep)
    return len(plan.keep) >= plan.candidates and unexplained


def _proving(case: Case, request: Request, out: Path | None) -> Step:
    if out is None:
        return Step(kind="prove")
    given, names = request.given, {"heldout": ""}
    if request.data.heldout is not None:
        given = _heldout(given)
    else:
        names = {"unseen": "DATA"}
        given = {**given, "labels": "LABELS"} if "labels" in given else given
    words = [_model(case), argument(out / MODEL_FILE), "--inputs", _data(request.data.heldout)]
    words += _options(given, _JUDGED)
    return Step(kind="prove", names=names, command=("halfwise", "verify", *words, *_ENGINE))


def _after_failure(
    verdict: Verdict, case: Case, fixed: Fixed, devices: Sequence[Engines]
) -> Iterator[Step]:
    yield from _rules_in_the_way(verdict, fixed)
    if fixed.search.exhausted:
        yield Step(kind="search-on", names={"more": lacking(fixed.search)})
    if not verdict.unseen:
        alike = {"alike": ""} if any(note.kind == "copies" for note in case.notes) else {}
        yield Step(kind="more-samples", names=alike)
    yield from after_untested(verdict)
    if not (case.real or fixed.planner.settings.allow_random):
        yield Step(kind="real-inputs")
    ran = not devices or any(tried.ran for tried in devices[0].rungs)
    yield from (alone := runs_of_their_own(devices))
    if not alone and ran and _is_out_of_tolerance(verdict):
        yield Step(kind="check-tolerance")
    if (batch := verdict.batch) and all("batch" in failure.under for failure in verdict.failures):
        yield Step(kind="batches", numbers={"size": batch.size})
    if fixed.planner.settings.chosen is None:
        yield Step(kind="best-model")


def runs_of_their_own(devices: Sequence[Engines]) -> tuple[Step, ...]:
    """Return what to do if one plan is right on some devices only."""
    passed = [e.verdict is not None and e.verdict.passed for e in devices]
    failing = [e.worker.name for e, right in zip(devices, passed, strict=True) if not right]
    return (Step(kind="own-runs", items=tuple(failing)),) if any(passed) and failing else ()


def after_untested(verdict: Verdict) -> tuple[Step, ...]:
    """Return what to do if something was not tested and may be the only fault."""
    if verdict.passed or not verdict.unjudged:
        return ()
    idle = [found.around or found.name for found in verdict.unjudged if found.kind == "never-ran"]
    return (Step(kind="untested", items=tuple(dict.fromkeys(idle))),)


def _after_cost(
    required: float, fixed: Fixed, worth: Worth | None, engines: Engines | None
) -> Iterator[Step]:
    # Engines that refuted all plans but FP32 outweigh predictions about plans.
    if worth is not None and (engines is None or not engines.full):
        yield from cheaper(worth, required)
    if required >= 1 and fixed.plan.keep:
        yield from _unfinished(fixed.search)


def _unfinished(search: Search) -> Iterator[Step]:
    if search.exhausted:
        yield Step(kind="keep-less", names={"more": lacking(search)})


def cheaper(worth: Worth, required: float) -> Iterator[Step]:
    """Yield what to do about a plan that fails only for its cost, as far as known."""
    if near := worth.nearest:
        found = {"kept": near.kept, "cost": near.cost, "error": near.error}
        yield Step(kind="near-plan", numbers={"required": required, **found})
    else:
        yield Step(kind="no-near-plan", numbers={"required": required})
    if worth.metric is not None:
        yield Step(kind="use-metric", names={"metric": worth.metric})


def _rules_in_the_way(verdict: Verdict, fixed: Fixed) -> Iterator[Step]:
    """Yield which of the user's rules affected a plan whose outputs fail."""
    if not (_is_out_of_tolerance(verdict) or any(o.nonfinite for o in verdict.outputs.values())):
        return
    if fixed.plan.lowered:
        yield Step(kind="leave-lower", numbers={"lowered": len(fixed.plan.lowered)})


def _is_out_of_tolerance(verdict: Verdict) -> bool:
    """Return whether another tolerance could accept the outputs: none accepts new NaN."""
    if any(o.nonfinite for o in verdict.outputs.values()):
        return False
    if verdict.metric is not None:
        return not verdict.metric.passed
    return not all(o.passed for o in verdict.outputs.values())
