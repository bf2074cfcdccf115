"""The result of a run with engines: its record and verdict, and engines proven on the way.

What held-out data proved is useful whatever the rest of the run finds: once there is one, Ctrl-C
ends the run with the best.
"""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

from halfwise.case import Samples
from halfwise.errors import HalfwiseError, UsageError
from halfwise.fixing.engines.attempts import (
    UNREPAIRED,
    USUAL,
    WITH_TF32,
    Assignment,
    Attempts,
    Candidate,
    Chosen,
    Step,
    Terms,
    causes,
    is_steady,
)
from halfwise.fixing.engines.measure import with_shapes
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.engines.table import Offer, faster
from halfwise.fixing.engines.workbench import Workbench, low_format
from halfwise.fixing.planner import Planner
from halfwise.fixing.scoring import HeldOut
from halfwise.graph.model import node_name
from halfwise.interruption import Interruption, interruption
from halfwise.judging.judge import Judged
from halfwise.metrics import Outputs
from halfwise.records import (
    FULL_RUNGS,
    BuildOutcome,
    Cause,
    EngineRound,
    EngineRung,
    Engines,
    Failure,
    Latency,
    NodeName,
    Prefer,
    ProvenEngine,
    RungEnd,
    RungTried,
    Verdict,
)
from halfwise.reporting.remarks import under, with_failures
from halfwise.reporting.rungs import cause_line, proven_line
from halfwise.store import new_folder
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.tensorrt.link import model_files
from halfwise.tensorrt.recipe import recipe_of
from halfwise.tensorrt.rendering import python

ENGINE_FILE = "model.engine"
CLEARLY = 0.97
"""Maximum time of a further one, as a share of the last reported one's: a smaller gain is within
the noise of engines timed alone."""


@dataclass
class Early:
    """Judges engines on held-out samples during the run, and reports those that pass.

    Attributes:
        bench: Has the engines.
        place: Folder to create next to the run folder, with one folder for each reported engine;
            None for none.
        started: `time.monotonic()` at the start of the command.
        told: Reported engines, in order.
        over: Whether Ctrl-C came when there was one: then nothing more is built.
    """

    bench: Workbench
    place: Path | None = None
    started: float = field(default_factory=time.monotonic)
    told: list[ProvenEngine] = field(default_factory=list)
    interruption: Interruption = field(default_factory=interruption)
    over: bool = False

    def __post_init__(self) -> None:
        """Listen for Ctrl-C."""
        self.interruption.then.append(self._end)

    def _end(self) -> None:
        self.over = bool(self.told)

    def worth(self, latency: Latency | None) -> bool:
        """Return whether a proven engine would be reported: the first, or a faster one."""
        known = [t.median_ms for t in self.told if t.median_ms is not None]
        time_ = inf if latency is None else latency.median_ms
        return not self.told or time_ < CLEARLY * min(known, default=0.0)

    def yardstick(self, prefer: Prefer) -> ProvenEngine | None:
        """Return the engine that a plan has to beat, if speed decides at all."""
        return next(iter(self.told), None) if prefer == "speed" else None

    def judge(
        self, build: BuildOutcome, samples: Samples, references: Sequence[Outputs]
    ) -> Judged | None:
        """Return the verdict on an engine, at the shapes of all profiles too; None if it fails."""
        assert build.engine is not None
        measure = self.bench.measure
        try:
            judged = measure.judge(build.engine, samples, references)
            if judged.verdict.passed:
                at = measure.at_shapes(build.engine, samples)
                return Judged(with_shapes(judged.verdict, at), judged.failing)
        except ENGINE_FAULTS:
            return None
        return judged

    def full(
        self,
        build: BuildOutcome,
        rung: EngineRung,
        model: Path,
        samples: Samples,
        references: Sequence[Outputs],
    ) -> bool:
        """Report an engine with nothing low if it passes on held-out samples; return whether.

        No search chose it, so it must pass on the calibration samples too.

        Args:
            build: Its build.
            rung: "tf32" or "fp32".
            model: The ONNX file that it was built from.
            samples: Held-out samples; without any, nothing is proven.
            references: Their reference outputs.
        """
        if build.engine is None or not len(samples):
            return False
        judged = self.judge(build, samples, references)
        if judged is None or not judged.verdict.passed or not self._within(build):
            return False
        latency = None
        with suppress(*ENGINE_FAULTS):
            latency = self.bench.measure.latency(build.engine)
        self.tell(build, model, latency, rung)
        return True

    def _within(self, build: BuildOutcome) -> bool:
        """Return whether an engine is within the tolerance on the calibration samples."""
        assert build.engine is not None
        measure = self.bench.measure
        try:
            judged = measure.judge(build.engine, *self._calibration, unseen=False)
        except ENGINE_FAULTS:
            return False
        return judged.verdict.within

    @cached_property
    def _calibration(self) -> tuple[Samples, Sequence[Outputs]]:
        samples = self.bench.case.calibration
        return samples, self.bench.measure.references(samples)

    def tell(
        self,
        build: BuildOutcome,
        model: Path,
        latency: Latency | None,
        rung: EngineRung,
        kept: int = 0,
    ) -> None:
        """Report an engine that passed; store it, with its recipe, in a separate folder.

        Args:
            build: Its build.
            model: The ONNX file that it was built from, which is stored with it.
            latency: Its speed, timed alone.
            rung: The lowest type that it may compute in.
            kept: Number of nodes that it keeps in FP32.
        """
        path = None
        # If there is no room for it, it is still reported, and ends up in the run folder.
        with suppress(OSError, HalfwiseError):
            path = self._put(build, model, rung)
        found = ProvenEngine(
            build=build.number,
            seconds=time.monotonic() - self.started,
            median_ms=None if latency is None else latency.median_ms,
            path=None if path is None else str(path),
        )
        self.told.append(found)
        if path is not None and self.place is not None:
            self.interruption.left[self.place] = path
        self.interruption.ready = True
        self.bench.watcher.note(proven_line(found, rung, kept))

    def _put(self, build: BuildOutcome, model: Path, rung: EngineRung) -> Path | None:
        if self.place is None or build.engine is None:
            return None
        bench, info = self.bench, self.bench.worker.info
        folder = self.place / f"build-{build.number}"
        files = model_files(model)
        recipe = recipe_of(
            build,
            bench.network_of(build),
            model.name,
            files.hashes,
            rung=rung,
            tensorrt=info.tensorrt or "",
            run=str(self.place),
        )
        if not self.told:  # those of the run that `--resume` continues
            shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as partial:
            here = bench.fetched.bring((ENGINE_FILE, build.number), build.engine)
            _link(Path(here.path), partial / ENGINE_FILE)
            for name, file in files.paths.items():
                _link(file, partial / name)
            for name, text in python(recipe).items():
                (partial / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        return folder / ENGINE_FILE


@dataclass
class Judging:
    """Tries plans, and judges their engines on held-out samples as soon as they pass.

    Attributes:
        attempts: Builds and measures them.
        early: Reports those that pass.
        heldout: The samples that judge. If the first passing engine fails there, samples join the
            calibration at once: nothing wrong is confirmed.
        passed: Whether one passed on the present calibration samples: its error on further ones
            would be unknown.
    """

    attempts: Attempts
    early: Early
    heldout: HeldOut
    passed: bool = False

    def attempt(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> Candidate:
        """Do what `Attempts.attempt` does."""
        found = self.attempts.attempt(keep, step, terms)
        if not found.passed:
            return found
        first, self.passed = not self.passed, True
        if not self.heldout.unseen or not self.early.worth(found.latency):
            return found
        samples, references = self.heldout.samples, self.heldout.references
        judged = self.early.judge(found.build, samples, references)
        if judged is None:
            return found
        if judged.verdict.passed:
            self.early.tell(
                found.build,
                self.attempts.model_of(found.plan),
                found.latency,
                "int8" if terms.int8 else low_format(self.attempts.planner.settings.fmt),
                len(found.kept(self.attempts.planner)),
            )
        elif first and self.heldout.join(judged, " in the engine"):
            found = self.attempts.again(found)
            self.passed = found.passed
        return found


def _link(file: Path, to: Path) -> None:
    """Make `file` also appear as `to`: as a hard link, or else as a copy."""
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, to)
    except OSError:
        shutil.copyfile(file, to)


def proven_folder(out: Path | None, *, resume: bool) -> Path | None:
    """Return the folder next to the run folder for engines proven before the run ends.

    If the run ends without an engine in the run folder, for whatever reason, they stay.

    Raises:
        UsageError: engines of a run that ended early are there, and it is not to be resumed.
    """
    if out is None:
        return None
    place = out.with_name(f"{out.name}.proven")
    if os.path.lexists(place) and not resume:
        raise UsageError(
            f"{place} has engines of a run that ended early.",
            "Move or remove it, or continue that run: --resume.",
        )
    return place


@dataclass(frozen=True)
class Proven:
    """Result of a run with engines.

    Attributes:
        engines: The record.
        verdict: On the held-out samples: of the delivered engine, or the closest one; of the FP32
            engine if that is wrong; of the emulation, failed, if no engine runs.
        keep: Compute nodes that the delivered plan keeps; None if none passed.
        minimal: Whether no kept node can be dropped, by engines or predictions.
        joined: Held-out samples that joined the calibration.
        ended: The search behind it; None if the FP32 engine is wrong.
    """

    engines: Engines
    verdict: Verdict
    keep: Assignment | None = None
    minimal: bool = False
    joined: tuple[str, ...] = ()
    ended: "Ended | None" = None

    @property
    def unrepaired(self) -> bool:
        """Whether the delivered plan is of the model without repairs."""
        delivered = None if self.ended is None else self.ended.delivered
        return delivered is not None and delivered.candidate.terms.unrepaired

    @property
    def int8(self) -> bool:
        """Whether the delivered plan has INT8."""
        return self.engines.rung == "int8"

    @property
    def refuted(self) -> bool:
        """Whether engines refute every plan built in the low format."""
        return self.ended is not None and self.ended.refuted


@dataclass(frozen=True)
class Ended:
    """A run whose engines are all built and judged.

    Attributes:
        search: The search.
        chosen: Its choice.
        offers: Rows of the final table.
        delivered: The delivered offer; None if nothing passed.
    """

    search: EngineSearch
    chosen: Chosen
    offers: Sequence[Offer]
    delivered: Offer | None

    @property
    def last(self) -> Offer | None:
        """The delivered engine, or the last engine in the low format that runs; None if none."""
        low = [o for o in self._low if o.candidate.excess is not None]
        return self.delivered or (low[-1] if low else None)

    @property
    def as_searched(self) -> bool:
        """Whether the search's choice is delivered."""
        return self.delivered is not None and self.delivered.candidate == self.chosen.best

    @property
    def keep(self) -> Assignment | None:
        """Compute nodes that the delivered plan keeps; None if it is not of the low rung."""
        delivered = self.delivered
        if delivered is None or delivered.rung in FULL_RUNGS:
            return None
        return delivered.candidate.keep

    @property
    def refuted(self) -> bool:
        """Whether no built plan in the low format passed although time was left."""
        known = any(not c.untold for group in self.search.groups for c in group)
        return known and not any(o.passed for o in self._low) and not self.search.budget.over()

    def found(self, planner: Planner) -> dict[str, Any]:
        """Return the engines' record; the trials of `planner` are without fusion."""
        search, delivered, keep = self.search, self.delivered, self.keep
        low = None if delivered is None or keep is None else delivered.candidate
        excesses = () if low is None else search.excesses(low)
        told, refusals = rounds(search, planner), search.proposals.refusals.records()
        others = WITH_TF32, UNREPAIRED
        why = causes(
            [c for group in search.groups for c in group if c.terms not in others],
            told,
            passed=any(o.passed for o in self._low),
            relative=search.relative,
            refusals=refusals,
        )
        refused = any(cause.kind == "refused" for cause in why)
        return {
            "rounds": told,
            "keep": () if low is None else _in_order(search, planner, low),
            "needed_as_predicted": tuple(
                n for n in search.order if self.as_searched and n in self.chosen.predicted
            ),
            "delivered": None if delivered is None else delivered.row.build.engine,
            "rung": None if delivered is None else delivered.rung,
            "rungs": rungs(
                self.offers,
                delivered,
                search.groups,
                relative=search.relative,
                refused=refused,
                int8=list(search.int8.values()),
            ),
            "causes": why,
            "refusals": refusals,
            "spread": excesses,
            "confirmed": sum(e <= 1 for e in excesses),
        }

    def verdict(self, emulated: Verdict, causes_: Sequence[Cause], builds: int) -> Verdict:
        """Return the verdict on the delivered engine; else a failed one, on the closest engine.

        Args:
            emulated: Verdict on the plan in the emulation.
            causes_: Why nothing in the low format passed.
            builds: Number of all builds.
        """
        if self.delivered is not None and self.delivered.verdict is not None:
            return self.delivered.verdict
        failures, last = [], self.last
        if not any(o.known for o in self.offers):
            failures.append(Failure(kind="no-engine", numbers={"elements": builds}))
        failures += [
            Failure(kind="fp32-lost", names={"why": o.row.failure})
            for o in self.offers
            if o.rung == "fp32" and o.row.failure
        ]
        for o in self.offers:
            if o.checked and o.verdict is not None:
                failures += under("checked", "", o.verdict.failures)
        failures += [Failure(kind="cause", text=cause_line(cause)) for cause in causes_]
        if last is not None and last.verdict is None:
            failures.append(Failure(kind="not-run", names={"why": last.row.failure}))
        verdict = last.verdict if last is not None and last.verdict is not None else emulated
        return with_failures(verdict, failures, ahead=True)

    @property
    def _low(self) -> list[Offer]:
        return [o for o in self.offers if o.rung not in FULL_RUNGS]


def rounds(search: EngineSearch, planner: Planner) -> tuple[EngineRound, ...]:
    """Return every built plan with the emulation's predictions, with fusion and without."""
    groups = [*search.groups, *search.int8.values()]
    plans = {_predicted_as(group[0]): group[0] for group in groups}
    predicted = {plan: c.terms.of(planner).trials.excess(c.keep) for plan, c in plans.items()}
    prediction = search.prediction
    kept = {keep for keep, *others in plans if not any(others)}
    fused = {} if prediction is None else {keep: prediction.excess(keep) for keep in kept}
    return tuple(
        EngineRound(
            step=c.step if isinstance(c.step, str) else "",
            move=None if isinstance(c.step, str) else c.step,
            build=c.build.number,
            keep=_in_order(search, planner, c),
            predicted=predicted[_predicted_as(c)],
            predicted_fused=None if any(_predicted_as(c)[1:]) else fused.get(c.keep),
            measured=c.excess,
            passed=c.passed,
            median_ms=None if c.latency is None else c.latency.median_ms,
            band=c.band,
        )
        for c in sorted((c for g in groups for c in g), key=lambda c: c.build.number)
    )


def _predicted_as(candidate: Candidate) -> tuple[Assignment, bool, bool]:
    """Return what distinguishes a candidate's emulation from others."""
    return candidate.keep, candidate.terms.unrepaired, candidate.terms.int8


def _in_order(search: EngineSearch, planner: Planner, of: Candidate) -> tuple[NodeName, ...]:
    """Return a candidate's kept nodes in graph order."""
    order, kept = search.order, of.kept(planner)
    if of.terms.unrepaired:
        order = [node_name(n) for n in of.terms.of(planner).case.network.nodes()]
    return tuple(n for n in order if n in kept)


def rungs(
    offers: Sequence[Offer],
    delivered: Offer | None,
    tried: Sequence[Sequence[Candidate]],
    *,
    relative: bool = True,
    refused: bool = False,
    int8: Sequence[Sequence[Candidate]] = (),
) -> tuple[RungTried, ...]:
    """Return the result of every rung of a run, most exact first.

    Args:
        offers: The rows of the table, most exact rung first.
        delivered: The delivered offer; None if there is none.
        tried: All builds of each plan of the low rung.
        relative: Whether errors are shares of what is allowed, and reported; not with a metric.
        refused: Whether every plan of the low rung predicted to pass was refused.
        int8: All builds of each plan with INT8.
    """
    told = []
    for rung in dict.fromkeys(offer.rung for offer in offers):
        own = [o for o in offers if o.rung == rung]
        plans = [[o.candidate] for o in own] if rung in FULL_RUNGS else tried
        plans = int8 if rung == "int8" else plans
        tried_of = _rung(rung, own, plans, delivered)
        if refused and rung not in FULL_RUNGS and tried_of.end == "tolerance":
            tried_of = tried_of.model_copy(update={"end": "refused"})
        told.append(tried_of)
    unsaid = {} if relative else {"excess": None, "band": None}
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
    return RungTried(
        rung=rung,
        end=_end(offers, plans, delivered),
        plans=len(plans),
        builds=len(builds),
        built=sum(c.build.engine is not None for c in builds),
        ran=len(ran),
        excess=None if shown is None else shown.excess,
        kept=0 if shown is None else len(shown.keep),
        band=None if shown is None else shown.band,
    )


def _end(
    offers: Sequence[Offer],
    plans: Sequence[Sequence[Candidate]],
    delivered: Offer | None,
) -> RungEnd:
    passed = [o for o in offers if o.passed]
    if delivered is not None and passed:
        effective = [o for o in passed if o.row.shows is None]
        if not effective or (delivered in passed and delivered not in effective):
            return "no-part"
        passed = effective
        if delivered in passed:
            return "delivered"
        if all(o.elsewhere for o in passed):
            return "elsewhere"
        slower = all(faster(delivered.row.latency, o.row.latency) for o in passed)
        return "slower" if slower else "not-preferred"
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
