"""What a number of judged samples can show of all inputs."""

import math

from halfwise.records import FailureBound

CONFIDENCE = 0.95
"""How often, over many runs, a bound holds at least."""


def upper_bound(failing: int, judged: int) -> float:
    """Return the one-sided 95 % upper bound of the share of inputs that fail, in (0, 1].

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial" (1934): the 95 % quantile of Beta(failing + 1, judged - failing). Without a failure
    that is 1 - 0.05^(1/n): 26 % for ten samples, 5 % for 59, 1 % for 299. It holds for samples that
    are drawn independently of each other, and of what is judged, from the distribution of the
    inputs. A limit that depends on the samples (a share of their largest value) does not spoil it
    where none fails: the largest error of n samples is exceeded by a share that is distributed as
    Beta(1, n) (Wilks, "Determination of sample sizes for setting tolerance limits", 1941), and the
    limit is no smaller.

    Args:
        failing: Samples that failed, 0 ≤ failing ≤ judged.
        judged: Samples that were judged, ≥ 1.
    """
    if failing == judged:
        return 1.0
    if failing == 0:
        return -math.expm1(math.log1p(-CONFIDENCE) / judged)
    from scipy.special import betaincinv  # noqa: PLC0415 - a quarter of a second, and seldom needed

    return float(betaincinv(failing + 1, judged - failing, CONFIDENCE))


def failure_bound(failing: int, judged: int, joined: int = 0) -> FailureBound:
    """Return what the judged samples show of all inputs, with those that joined counted as failing.

    A sample that failed and joined a search is not judged, and those that stay are the ones that
    passed before: a plan that learns nothing but the samples that joined would pass on all of them.
    Counted as failing, those that joined bound the inputs that fail for each such cause alone.

    Args:
        failing: Judged samples that failed.
        judged: Samples that were judged, ≥ 1.
        joined: Samples that failed at first and joined the search.
    """
    return FailureBound(
        judged=judged,
        failing=failing,
        joined=joined,
        upper=upper_bound(failing + joined, judged + joined),
        confidence=CONFIDENCE,
    )
