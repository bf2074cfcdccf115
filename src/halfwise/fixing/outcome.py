"""Put a run on record: costs, provenance, remarks, and what to do next."""

import platform
import resource
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from halfwise.case import Case
from halfwise.emulation.ort import runtime_version
from halfwise.fixing.after_engines import delivered_next, lower_next
from halfwise.fixing.loop import Fixed
from halfwise.fixing.next_step import building_commands, sample_profiles
from halfwise.fixing.unjudged import with_unjudged
from halfwise.fixing.worth import worth_of
from halfwise.metrics.confidence import failure_bound
from halfwise.options.options import Request
from halfwise.records import (
    Cost,
    Engines,
    GivenEngine,
    Profile,
    Provenance,
    Run,
    RunKind,
    Verdict,
    Worth,
)
from halfwise.reporting.made_up import not_real
from halfwise.reporting.worth import cheaper
from halfwise.wording import count

PACKAGES = ("halfwise", "onnx", "onnx-ir", "numpy", "ml-dtypes", "scipy")


def fix_run(
    case: Case,
    request: Request,
    fixed: Fixed,
    seconds: float,
    hints: tuple[str, ...],
    out: Path | None,
    engines: Engines | None = None,
) -> Run:
    """Return the record of a `fix`.

    Args:
        case: The case.
        request: The options.
        fixed: What was found.
        seconds: Wall time of the whole run.
        hints: Remarks about the criterion.
        out: The run folder.
        engines: What real engines showed.
    """
    verdict = counting_joined(fixed.verdict, fixed.search.joined)
    model = None if verdict.level == "engine" else fixed.rewritten.model
    heldout = fixed.heldout, fixed.heldout_references
    verdict = with_unjudged(verdict, case, request, model, *heldout)
    verdict = final_verdict(verdict, case, request, hints)
    kept = frozenset(k.node for k in fixed.plan.keep)
    worth = worth_of(fixed.planner, kept, engines, request.require_worth)
    verdict = worth_enough(verdict, worth, request)
    profiles = sample_profiles(case) if engines is None else ()
    return Run(
        kind="fix",
        criterion=case.criterion,
        accumulate=request.settings.accumulate,
        io=request.settings.io,
        headroom=request.settings.headroom,
        baseline=fixed.baseline,
        guards=fixed.guards,
        growth=fixed.growth,
        followed=fixed.followed,
        plan=fixed.plan,
        search=fixed.search.model_copy(update={"cut": tuple(fixed.planner.budget.cut)}),
        verdict=verdict,
        original_names=dict(case.network.original_names),
        warnings=warnings(case),
        engines=engines,
        profiles=profiles,
        worth=worth,
        next_step=_next_step(verdict, case, fixed, profiles, out, engines, worth),
        cost=cost(fixed.evaluations, seconds, fixed.stage_seconds),
        provenance=provenance(case, request),
    )


def verify_run(
    case: Case,
    request: Request,
    verdict: Verdict,
    seconds: float,
    hints: tuple[str, ...],
    engine: GivenEngine | None = None,
    worth: Worth | None = None,
) -> Run:
    """Return the record of a `verify`.

    Args:
        case: The case.
        request: The options.
        verdict: On the candidate.
        seconds: Wall time of the whole run.
        hints: Remarks about the criterion.
        engine: The candidate, where it is an engine.
        worth: What the candidate is worth, where that is known.
    """
    final = worth_enough(final_verdict(verdict, case, request, hints), worth, request)
    run = unsearched_run("verify", case, request, final, cost(1, seconds, {}))
    return run.model_copy(update={"given_engine": engine, "worth": worth})


def unsearched_run(
    kind: RunKind,
    case: Case,
    request: Request,
    verdict: Verdict,
    spent: Cost,
    next_step: tuple[str, ...] = (),
) -> Run:
    """Return the record of a run without a plan, because it searched none."""
    return Run(
        kind=kind,
        criterion=case.criterion,
        accumulate=request.settings.accumulate,
        io=request.settings.io,
        headroom=request.settings.headroom,
        baseline=None,
        guards=(),
        growth=(),
        plan=None,
        search=None,
        verdict=verdict,
        original_names=dict(case.network.original_names),
        warnings=warnings(case),
        next_step=next_step or _after_untested(verdict),
        cost=spent,
        provenance=provenance(case, request),
    )


def counting_joined(verdict: Verdict, joined: Sequence[str]) -> Verdict:
    """Return the verdict, its bound with the held-out samples that joined the search."""
    bound = verdict.failure_bound
    if bound is None or not joined:
        return verdict
    bound = failure_bound(bound.failing, bound.judged, len(joined))
    return verdict.model_copy(update={"failure_bound": bound})


def final_verdict(
    verdict: Verdict, case: Case, request: Request, hints: tuple[str, ...]
) -> Verdict:
    """Return the verdict with hints; one on inputs that are not real fails unless allowed."""
    verdict = verdict.model_copy(update={"hints": (*verdict.hints, *hints, *_weak_pass(verdict))})
    if case.real or request.data.allow_random:
        return verdict
    reasons = (*verdict.reasons, not_real(case.made_up))
    failed = {"passed": False, "on_real_data": False, "reasons": reasons}
    return verdict.model_copy(update=failed)


def worth_enough(verdict: Verdict, worth: Worth | None, request: Request) -> Verdict:
    """Return the verdict; it fails where less is gained than --require-worth asks for."""
    limit = request.require_worth
    if limit is None or (worth is not None and worth.ratio <= limit):
        return verdict
    reason = (
        "what it is worth is not known, and --require-worth asks for it"
        if worth is None
        else f"it costs {worth.ratio:.3g} × as much as everything low, {limit:g} × is required"
    )
    alone = limit if verdict.passed else None
    reasons = (*verdict.reasons, reason)
    return verdict.model_copy(update={"passed": False, "reasons": reasons, "required_worth": alone})


def _weak_pass(verdict: Verdict) -> tuple[str, ...]:
    """Return a hint where a task metric passed although the outputs are far off."""
    worst = max((o.rel_max for o in verdict.outputs.values()), default=0.0)
    if verdict.metric is None or not verdict.passed or worst <= 0.1:
        return ()
    return (
        f"{verdict.metric.name} passed on {count(len(verdict.samples), 'sample')} although an "
        f"output is off by {worst:.2g} of its largest value: judge on more samples before relying "
        "on it.",
    )


def warnings(case: Case) -> tuple[str, ...]:
    """Return the warnings among the notes on the case."""
    found = tuple(n.removeprefix("warning: ") for n in case.notes if n.startswith("warning: "))
    renamed = len(case.network.original_names)
    if renamed:
        found += (
            f"{count(renamed, 'node')} had no name or shared one; original_names in run.json tells",
        )
    return found


def cost(evaluations: int, seconds: float, stages: dict[str, float]) -> Cost:
    """Return what the run took; peak memory is that of this process."""
    return Cost(
        evaluations=evaluations,
        seconds=seconds,
        stage_seconds=stages,
        peak_rss_bytes=_peak_rss_bytes(),
    )


def _peak_rss_bytes() -> int:
    """Return the peak of this process alone; what getrusage tells includes the parent's."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def provenance(case: Case, request: Request) -> Provenance:
    """Return what is needed to repeat the run."""
    return Provenance(
        versions=versions(),
        platform=f"{platform.system()} {platform.machine()}",
        device=request.settings.runtime.device,
        model=str(case.network.path or "in memory"),
        model_sha256=case.network.sha256,
        inputs=case.notes,
        inputs_sha256=case.data_sha256,
        options=request.given,
        seed=request.data.seed,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def versions() -> dict[str, str]:
    """Return the versions of everything that influences a result."""
    return {
        "python": platform.python_version(),
        "onnxruntime": runtime_version(),
        **{package: version(package) for package in PACKAGES},
    }


def _next_step(
    verdict: Verdict,
    case: Case,
    fixed: Fixed,
    profiles: tuple[Profile, ...],
    out: Path | None,
    engines: Engines | None,
    worth: Worth | None,
) -> tuple[str, ...]:
    lower = () if engines is None else lower_next(engines, case)
    if verdict.required_worth is not None:
        return (*lower, *_after_cost(verdict.required_worth, fixed, worth, engines))
    if not verdict.passed:
        return (*lower, *_after_failure(verdict, case, fixed, engines))
    if verdict.level == "engine":
        return (*delivered_next(out), *lower)
    return (
        *building_commands(case, fixed.plan, profiles, out),
        "This verdict is emulated; only the engine itself, run on held-out data, proves it: "
        "--target tensorrt.",
    )


def _after_failure(
    verdict: Verdict, case: Case, fixed: Fixed, engines: Engines | None
) -> tuple[str, ...]:
    lines = list(_rules_in_the_way(verdict, fixed))
    if fixed.search.exhausted:
        lines.append("Give the search more time: --time-budget SECONDS.")
    if not verdict.unseen:
        lines.append("Give more samples, or a second set with --heldout DATA.")
    lines += _after_untested(verdict)
    if not case.real:
        lines.append("Give real inputs; --allow-random accepts a verdict without.")
    ran = engines is None or any(tried.ran for tried in engines.rungs)
    if ran and _is_out_of_tolerance(verdict):
        lines.append(
            "Check that the tolerance fits the task: --rel-max, --snr-db, or a task metric with "
            "--metric."
        )
    lines.append("The best model found and the reasons are in the run folder.")
    return tuple(lines)


def _after_untested(verdict: Verdict) -> tuple[str, ...]:
    """Return what to do where something was not tested and that alone may be wrong."""
    if verdict.passed or not verdict.unjudged:
        return ()
    idle = any(found.kind == "never-ran" for found in verdict.unjudged)
    keep = ", or keep the node whose body never ran in FP32 (--keep NODE)" if idle else ""
    return (
        f"Give samples that test what is not judged{keep}; --allow-unjudged accepts a verdict "
        "without.",
    )


def _after_cost(
    required: float, fixed: Fixed, worth: Worth | None, engines: Engines | None
) -> Iterator[str]:
    # Engines that refuted all plans but FP32 say more than what is predicted of plans.
    if engines is None or not engines.full:
        yield from cheaper(worth, required)
    if fixed.search.exhausted and required >= 1 and fixed.plan.keep:
        yield "The search was not finished; --time-budget SECONDS may find a plan that keeps less."


def _rules_in_the_way(verdict: Verdict, fixed: Fixed) -> Iterator[str]:
    """Yield which of the user's rules decided about a plan whose outputs fail."""
    if not (_is_out_of_tolerance(verdict) or any(o.nonfinite for o in verdict.outputs.values())):
        return
    if fixed.planner.settings.keep_above is not None:
        yield "Leave --keep-above out: it searches nothing, and looks at no output."
    if fixed.plan.lowered:
        yield f"Leave --lower out: it decides about {count(len(fixed.plan.lowered), 'node')}."


def _is_out_of_tolerance(verdict: Verdict) -> bool:
    """Return whether another tolerance might accept the outputs: NaN that FP32 lacks none does."""
    if any(o.nonfinite for o in verdict.outputs.values()):
        return False
    if verdict.metric is not None:
        return not verdict.metric.passed
    return not all(o.passed for o in verdict.outputs.values())
