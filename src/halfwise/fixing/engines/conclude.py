"""What a run with engines comes to: its record, its verdict, and why nothing lower passed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halfwise.fixing.engines.candidates import Assignment, Chosen
from halfwise.fixing.engines.causes import causes
from halfwise.fixing.engines.delivery import Offer, choose, rungs
from halfwise.fixing.engines.forecast import rounds
from halfwise.fixing.engines.localise import Departure
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.trial import Trials
from halfwise.records import FULL_RUNGS, Cause, EngineRound, Engines, Prefer, Verdict
from halfwise.reporting.rungs import cause_line


@dataclass(frozen=True)
class Proven:
    """What a run with engines found.

    Attributes:
        engines: The record.
        verdict: On the held-out samples: in the delivered engine, or the one that came closest; in
            the FP32 engine where that is wrong; the emulation's, failed, where no engine runs.
        keep: Compute nodes of the delivered plan; None where none passed.
        minimal: Whether no kept node can be dropped, as engines or predictions show.
        joined: Held-out samples that joined the calibration.
        ended: What it was concluded from; None where the FP32 engine is wrong.
    """

    engines: Engines
    verdict: Verdict
    keep: Assignment | None = None
    minimal: bool = False
    joined: tuple[str, ...] = ()
    ended: "Ended | None" = None


@dataclass(frozen=True)
class Ended:
    """A run whose engines are all built and judged.

    Attributes:
        search: What was tried.
        chosen: What it chose.
        offers: Rows of the final table.
        delivered: What is delivered; None where nothing passed.
        departures: Where engines depart from the emulation, by the number of the build.
    """

    search: EngineSearch
    chosen: Chosen
    offers: Sequence[Offer]
    delivered: Offer | None
    departures: Mapping[int, Departure]

    def unfetched(self, prefer: Prefer) -> "Ended":
        """Return it with what is delivered instead, since that cannot be fetched."""
        assert self.delivered is not None
        gone = replace(self.delivered, unfetched=True)
        offers = tuple(gone if o is self.delivered else o for o in self.offers)
        return replace(self, offers=offers, delivered=choose(offers, prefer))

    @property
    def last(self) -> Offer | None:
        """What is delivered, or the last engine of the low format that runs; None without."""
        low = [o for o in self._low if o.candidate.excess is not None]
        return self.delivered or (low[-1] if low else None)

    @property
    def as_searched(self) -> bool:
        """Whether what is delivered is what the search chose."""
        return self.delivered is not None and self.delivered.candidate == self.chosen.best

    @property
    def keep(self) -> Assignment | None:
        """Compute nodes that the delivered plan keeps; None where none of the low rung is."""
        delivered = self.delivered
        if delivered is None or delivered.rung in FULL_RUNGS:
            return None
        return delivered.candidate.keep

    def found(self, trials: Trials) -> dict[str, Any]:
        """Return what the record says of all this; `trials` are those without fusion."""
        search, delivered, keep = self.search, self.delivered, self.keep
        low = delivered if keep is not None else None
        excesses = () if low is None else search.excesses(low.candidate)
        told = rounds(search, trials)
        return {
            "rounds": told,
            "keep": tuple(n for n in search.order if n in (keep or ())),
            "needed_as_predicted": tuple(
                n for n in search.order if self.as_searched and n in self.chosen.predicted
            ),
            "delivered": None if delivered is None else delivered.row.build.engine,
            "rung": None if delivered is None else delivered.rung,
            "rungs": rungs(self.offers, delivered, search.groups, relative=search.relative),
            "causes": self._causes(told),
            "spread": excesses,
            "confirmed": sum(e <= 1 for e in excesses),
        }

    def verdict(self, emulated: Verdict, causes_: Sequence[Cause], builds: int) -> Verdict:
        """Return the verdict on what is delivered; else a failed one, on what came closest.

        Args:
            emulated: That of the plan in the emulation.
            causes_: Why nothing low passed.
            builds: Number of all builds.
        """
        if self.delivered is not None and self.delivered.verdict is not None:
            return self.delivered.verdict
        verdict, reasons, last = emulated, [], self.last
        if not any(o.known for o in self.offers):
            reasons.append(
                f"no engine of {builds} builds is shown to be within the tolerance on the "
                "calibration samples"
            )
        reasons += [
            f"the FP32 engine was right at first, and does not run to the end: {o.row.failure}"
            for o in self.offers
            if o.rung == "fp32" and o.row.failure
        ]
        reasons += [
            f"the FP32 engine, which was judged before the worker was lost, fails: {reason}"
            for o in self.offers
            if o.checked and o.verdict is not None
            for reason in o.verdict.reasons
        ]
        reasons += map(cause_line, causes_)
        if last is not None and last.verdict is not None:
            verdict = last.verdict
        elif last is not None:
            reasons.append(f"the engine does not run on the held-out samples: {last.row.failure}")
        reasons += verdict.reasons
        return verdict.model_copy(update={"passed": False, "reasons": tuple(reasons)})

    @property
    def _low(self) -> list[Offer]:
        return [o for o in self.offers if o.rung not in FULL_RUNGS]

    def _causes(self, told: Sequence[EngineRound]) -> tuple[Cause, ...]:
        candidates = [c for group in self.search.tried.values() for c in group]
        return causes(
            candidates,
            self.chosen.plain,
            told,
            self.departures,
            passed=any(o.passed for o in self._low),
            relative=self.search.relative,
        )
