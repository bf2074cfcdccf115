"""Compare a run with an earlier one: what may get worse, and what did."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

from halfwise.case import Case
from halfwise.declarations.option import share
from halfwise.errors import RecordMismatch, UsageError
from halfwise.records import CHANCE, Baseline, Change, Failure, FigureKind, Run
from halfwise.reporting.remarks import with_failures
from halfwise.reporting.view import worsened
from halfwise.store import MODEL_FILE, read_run
from halfwise.tools.verify.gate import Again
from halfwise.wording import command, count

_MEASURED: frozenset[FigureKind] = frozenset(("measured", "time"))
"""Figures a run may lack: they depend on where a candidate is judged."""
_Figures = dict[tuple[FigureKind, str], float]


@dataclass(frozen=True)
class Earlier:
    """A baseline, and how much each figure may worsen.

    Attributes:
        folder: The run folder, as given.
        run: The run.
        allowed: A share of the baseline's figure.
        again: Whether it is the run that is verified again, which may be on another level.
    """

    folder: Path
    run: Run
    allowed: float = CHANCE
    again: bool = False


def earlier(
    folder: str | Path | None, may_worsen: str | None, again: Again | None = None
) -> Earlier | None:
    """Return the baseline; None if none is given.

    Args:
        folder: A run folder.
        again: The run that is verified again, if one is.
        may_worsen: How much worse each figure may be: a number ≥ 0, or a percentage; None for 5 %.

    Raises:
        UsageError: `may_worsen` is malformed, or given without a baseline.
        RecordMismatch: the folder holds no run, or a run without a verdict.
    """
    allowed = CHANCE if may_worsen is None else share(may_worsen)
    if allowed is None:
        raise UsageError(
            f"--may-worsen is {may_worsen!r}; expected a number or a percentage.",
            "For example: --may-worsen 10%.",
        )
    if folder is not None:
        run = read_run(Path(folder))
        if not _figures(run):
            raise RecordMismatch(
                f"{folder} is not a baseline: its verdict has no figures to compare with.",
                "Make one with: verify MODEL CANDIDATE --inputs DATA -o RUN.",
            )
        same = again is not None and again.folder == Path(folder)
        return Earlier(Path(folder), run, allowed, same)
    if may_worsen is not None:
        raise UsageError("--may-worsen does not apply without --baseline.", "Give --baseline too.")
    return None


def beside(run: Run, before: Earlier | None) -> Run:
    """Return the run with its baseline; its verdict fails if more got worse than allowed.

    Raises:
        RecordMismatch: the two are not comparable: one is emulated, or they judged other samples.
    """
    if before is None:
        return run
    versions = _versions(before.run)
    held = (h.model_copy(update={"before": versions.get(h.target, "")}) for h in run.held)
    run = run.model_copy(update={"held": tuple(held)})
    same_level = run.verdict.level == before.run.verdict.level
    if before.again and not same_level:
        return run
    figures, optional = _figures(run), _optional(run, before.run)
    changes = [
        _change(kind, of, value, figures.get((kind, of)), before.allowed, optional)
        for (kind, of), value in _figures(before.run).items()
    ]
    if not same_level:
        raise RecordMismatch(
            f"{before.folder} is not a baseline for this: its verdict is "
            f"{before.run.verdict.level}, this one {run.verdict.level}.",
            "Make a baseline that is judged the same way: verify MODEL CANDIDATE --inputs DATA -o "
            "RUN.",
        )
    baseline = Baseline(
        run=str(before.folder),
        date=before.run.provenance.date,
        same_samples=_on_same(run.verdict.samples, run.provenance.inputs_sha256, before),
        same_model=run.provenance.model_sha256 == before.run.provenance.model_sha256,
        changes=tuple(changes),
    )
    verdict = run.verdict
    if not baseline.passed:
        worse = (Failure(kind="worse", text=worsened(c)) for c in changes if not c.passed)
        verdict = with_failures(verdict, worse)
    return run.model_copy(update={"compared": baseline, "verdict": verdict})


def _versions(run: Run) -> dict[str, str]:
    """Return the versions of what ran or built a run's file, by target."""
    workers = [engines.worker for engines in run.devices]
    workers += [run.given_engine.worker] if run.given_engine else []
    engines = [(w.product, f"{w.tensorrt} on {w.gpu}") for w in workers[:1]]
    return dict([*((file.runner, file.version) for file in run.verdict.as_file), *engines])


def _figures(run: Run) -> _Figures:
    """Return the figures that can worsen; a metric decides alone, without output errors."""
    verdict, metric = run.verdict, run.verdict.metric
    figures: _Figures = {}
    for name, error in verdict.outputs.items():
        figures["non-finite", name] = error.nonfinite
        if metric is None and error.agreement is not None:
            figures["unequal", name] = 1 - error.agreement
        elif metric is None:
            figures |= {("rel-max", name): error.rel_max, ("mean-abs", name): error.mean_abs}
    if metric is not None:
        figures["metric", metric.name] = metric.reference - metric.candidate
    if run.worth is not None:
        figures["cost", ""] = run.worth.cost
        figures |= {} if run.worth.measured is None else {("measured", ""): run.worth.measured}
    engine = run.given_engine
    timed = [] if engine is None else [(engine.worker, engine.latency)]
    timed += [(e.worker, e.row.latency) for e in run.devices if e.row and e.row.latency]
    for worker, latency in timed:
        figures["time", f"{worker.gpu}, {worker.product} {worker.tensorrt}"] = latency.median_ms
    return figures


def _optional(run: Run, before: Run) -> frozenset[FigureKind]:
    """Return the figures a run may lack.

    If the baseline comes from the same command and has a predicted cost, a run without one has
    nothing low or is another model: that is worse.
    """
    return _MEASURED if run.kind == before.kind else _MEASURED | {"cost"}


def _change(
    kind: FigureKind,
    of: str,
    before: float,
    now: float | None,
    allowed: float,
    optional: frozenset[FigureKind],
) -> Change:
    # More non-finite values are never accepted; without the output there are none to count.
    by = 0.0 if kind == "non-finite" and now is not None else allowed
    # A candidate that beat the reference was lucky: matching the reference is no loss.
    limit = (max(before, 0.0) if kind == "metric" else before) * (1 + by)
    passed = kind in optional if now is None else now <= limit or isnan(before)
    return Change(kind=kind, of=of, before=before, now=now, limit=limit, passed=passed)


def demand_comparable(case: Case, before: Earlier | None) -> None:
    """Check that a baseline judged a case's samples, before anything runs on them.

    Raises:
        RecordMismatch: it judged others.
    """
    if before is not None:
        _on_same(case.calibration.ids, case.data_sha256, before)


def _on_same(samples: Sequence[str], sha256: str, before: Earlier) -> bool:
    """Return whether the baseline judged the same values; False if only the names are known."""
    other, fixed = before.run.verdict.samples, before.run.kind == "fix"
    if before.run.provenance.inputs_sha256 == sha256 and len(samples) == len(other):
        return True
    # For `fix`, the hash covers more than what it judged.
    if tuple(samples) == tuple(other) and fixed:
        return False
    on = count(len(other), "other sample")
    if fixed and set(other) < set(samples):
        on = f"{len(other)} of these {len(samples)} samples"
    candidate = command(before.folder / MODEL_FILE) if fixed else "CANDIDATE"
    later = "; or let fix judge all of DATA: fix MODEL --inputs OTHERS --heldout DATA" * fixed
    raise RecordMismatch(
        f"{before.folder} is not a baseline for this: its verdict is on {on}.",
        f"Make a baseline on these samples: verify MODEL {candidate} --inputs DATA -o RUN{later}.",
    )
