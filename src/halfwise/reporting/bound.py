"""Words on what the judged samples can show of all inputs."""

from halfwise.metrics import is_default
from halfwise.records import Criterion, FailureBound, Run, Verdict
from halfwise.reporting.parts import Lines
from halfwise.wording import count, sentence

WEAK = 0.1
"""Share of failing inputs that samples must exclude, not to be too few: 29 that all pass do."""


def bound_part(run: Run) -> Lines | None:
    """Return what the verdict's samples show of inputs like them; None where that is not known."""
    verdict = run.verdict
    if verdict.failure_bound is not None:
        line = _bounded(verdict.failure_bound, run.criterion)
    elif verdict.metric is not None and verdict.unseen:
        line = (
            f"No bound on the share of inputs that fail: {verdict.metric.name} is one number of "
            f"all {count(len(verdict.samples), 'sample')} together."
        )
    else:
        return None
    return Lines("What the samples can show", (sentence(line),))


def doubt(verdict: Verdict) -> str:
    """Return what a result's title adds: that inputs are no real ones, or few and bound little."""
    bound = verdict.failure_bound
    if not verdict.on_real_data:
        return ": the inputs are noise or made up"
    if not verdict.passed or bound is None or bound.upper <= WEAK:
        return ""
    return f", at most {_share(bound.upper)} of inputs fail ({100 * bound.confidence:g} %)"


def _bounded(bound: FailureBound, criterion: Criterion) -> str:
    failing = f"{bound.failing} of" if bound.failing else "None of"
    pooled = criterion.snr_db is not None or criterion.cosine is not None
    alone = " by itself" if pooled and not is_default(criterion) else ""
    verb = "is" if bound.failing < 2 else "are"
    joined = f"; with the {bound.joined} that joined the search as failing too," * (
        bound.joined > 0
    )
    sure = f"with {100 * bound.confidence:g} % confidence"
    return (
        f"{failing} {count(bound.judged, 'sample')} {verb} out of tolerance{alone}{joined or ':'} "
        f"{sure} at most {_share(bound.upper)} of all inputs are, if these were drawn from them "
        "independently (Clopper and Pearson)."
    )


def _share(upper: float) -> str:
    """Return a share in %, rounded up: what is printed is a bound, too."""
    digits = 0 if upper > 0.1 else 1 if upper > 0.01 else 2
    step = 10.0**digits
    return f"{-(-upper * 100 * step // 1) / step:.{digits}f} %"
