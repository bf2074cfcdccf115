"""Which engine of a run is delivered, and what became of every rung.

Of all engines that pass, the fastest is delivered. Times have noise: engines take turns, a few
rounds each, and one counts as faster where all of its rounds are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from halfwise.fixing.engines.candidates import Candidate, is_steady
from halfwise.fixing.engines.measure import with_shapes
from halfwise.records import (
    FULL_RUNGS,
    EngineResult,
    EngineRung,
    Latency,
    Prefer,
    RungEnd,
    RungTried,
    Verdict,
)


@dataclass(frozen=True)
class Offer:
    """An engine that may be delivered, with its row of the final table.

    Attributes:
        rung: The lowest type that it may compute in.
        candidate: How it was built, and its error on the calibration samples.
        limit: The largest such error with which it is delivered.
        row: Verdicts and times.
        allowed: Whether it may be delivered at all: not what the user's rules forbid, nor what
            passes by chance.
        checked: Whether its verdict is the one before the search, since the worker was lost then.
        unfetched: Whether it was to be delivered, and could not be fetched.
    """

    rung: EngineRung
    candidate: Candidate
    limit: float
    row: EngineResult
    allowed: bool = True
    checked: bool = False
    unfetched: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """On held-out samples, and at the shapes of every profile."""
        found = self.row.verdict
        return None if found is None else with_shapes(found, self.row.shapes)

    @property
    def known(self) -> bool:
        """Whether it is allowed, and within its limit on the samples that the search knows.

        The FP32 engine, that no search has chosen, was judged on the held-out ones before.
        """
        excess = self.candidate.excess
        return self.allowed and (self.checked if excess is None else excess <= self.limit)

    @property
    def passed(self) -> bool:
        """Whether it may be delivered; where no sample was held out, by those that there are."""
        verdict, at = self.row.verdict, (s.verdict for s in self.row.shapes)
        return (
            self.known
            and verdict is not None
            and verdict.within
            and all(shaped is None or shaped.passed for shaped in at)
        )

    @property
    def milliseconds(self) -> float:
        """Its median time; inf where it was not timed."""
        return inf if self.row.latency is None else self.row.latency.median_ms


def quicker(one: Candidate, other: Candidate) -> bool:
    """Return whether an engine seems faster than another, as each was timed alone."""
    if one.latency is None or other.latency is None:
        return False
    return one.latency.median_ms < other.latency.median_ms


def faster(one: Latency | None, other: Latency | None) -> bool:
    """Return whether an engine is faster than another by more than the noise of their times.

    That is shown by rounds in which they took turns; without any it is not.
    """
    if one is None or other is None or not (one.medians and other.medians):
        return False
    return max(one.medians) < min(other.medians)


def choose(offers: Sequence[Offer], prefer: Prefer) -> Offer | None:
    """Return the offer to deliver: the fastest that passes; None where none does.

    Among those that are not slower than it by more than noise, `prefer` decides; what is equal in
    that too is told apart by time, then as `offers` has it. What failed while others took turns is
    not chosen, nor what was not timed where something else was.
    """
    passed = [o for o in offers if o.passed and not o.unfetched]
    passed = sorted(passed, key=lambda o: o.milliseconds)
    if not passed:
        return None
    passed = [o for o in passed if o.row.latency is not None] or passed
    passed = [o for o in passed if o.row.latency is not None and o.row.latency.medians] or passed
    equal = [o for o in passed if not faster(passed[0].row.latency, o.row.latency)]
    if prefer == "memory":
        return min(equal, key=_memory)
    if prefer == "exact":
        return min(equal, key=lambda o: o.candidate.excess or 0.0)
    return equal[0]


def better_known(before: Offer, now: Offer) -> Offer:
    """Return the later offer of an engine, but where its worker or result was lost meanwhile."""
    if before.checked or before.verdict is None:
        return now
    return before if now.checked or now.verdict is None else now


def _memory(offer: Offer) -> float:
    latency = offer.row.latency
    return inf if latency is None else latency.device_bytes


def rungs(
    offers: Sequence[Offer],
    delivered: Offer | None,
    tried: Sequence[Sequence[Candidate]],
    *,
    relative: bool = True,
) -> tuple[RungTried, ...]:
    """Return what became of every rung of a run, most exact first.

    Args:
        offers: The rows of the table, most exact rung first.
        delivered: What is delivered; None where nothing is.
        tried: All builds of each plan of the low rung.
        relative: Whether errors are shares of what is allowed, and told; not with a metric.
    """
    told = []
    for rung in dict.fromkeys(offer.rung for offer in offers):
        own = [o for o in offers if o.rung == rung]
        plans = [[o.candidate] for o in own] if rung in FULL_RUNGS else tried
        told.append(_rung(rung, own, plans, delivered))
    unsaid = {} if relative else {"excess": None}
    return tuple(t.model_copy(update=unsaid) for t in told)


def _rung(
    rung: EngineRung,
    offers: Sequence[Offer],
    plans: Sequence[Sequence[Candidate]],
    delivered: Offer | None,
) -> RungTried:
    builds = [c for plan in plans for c in plan]
    ran = [c for c in builds if c.excess is not None]
    nearest = min(ran, key=lambda c: c.excess or 0.0, default=None)
    shown = delivered.candidate if delivered is not None and delivered.rung == rung else nearest
    # That of the table, where it is in it: it was taken for longer, or in rounds.
    rows = [o.row.latency for o in offers if o.candidate == shown]
    timed = next((t for t in rows if t is not None), None if shown is None else shown.latency)
    return RungTried(
        rung=rung,
        end=_end(offers, plans, delivered),
        plans=len(plans),
        builds=len(builds),
        built=sum(c.build.engine is not None for c in builds),
        ran=len(ran),
        excess=None if shown is None else shown.excess,
        kept=0 if shown is None else len(shown.keep),
        median_ms=None if timed is None else timed.median_ms,
    )


def _end(
    offers: Sequence[Offer],
    plans: Sequence[Sequence[Candidate]],
    delivered: Offer | None,
) -> RungEnd:
    passed = [o for o in offers if o.passed and not o.unfetched]
    if delivered is not None and passed:
        if delivered in passed:
            return "delivered"
        slower = all(faster(delivered.row.latency, o.row.latency) for o in passed)
        return "slower" if slower else "not-preferred"
    if any(o.unfetched for o in offers):
        return "unfetched"
    builds = [c for plan in plans for c in plan]
    ends: tuple[tuple[RungEnd, bool], ...] = (
        ("held-out", any(o.known and o.verdict is not None for o in offers)),
        ("lost", any(o.known and o.row.lost for o in offers)),
        ("not-run", any(o.known for o in offers)),
        ("unsteady", any(c.passed for p in plans if not is_steady(p) for c in p)),
        ("tolerance", any(c.excess is not None for c in builds)),
        ("lost", bool(builds) and all(c.untold for c in builds)),
        ("not-run", any(c.build.engine is not None for c in builds)),
    )
    return next((end for end, came in ends if came), "unbuildable")
