"""The loop: observe, attribute, then plan, rewrite and judge until held-out samples agree."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from halfwise.backends.emulation.switched import emulate_switched
from halfwise.backends.emulation.typed import emulate_typed
from halfwise.backends.ort import Session
from halfwise.case import Case, Samples, Settings
from halfwise.graph.casts import Rewritten
from halfwise.graph.model import node_name
from halfwise.graph.movement import carried
from halfwise.graph.repetition import repeated
from halfwise.graph.roles import Role, Roles, roles_of
from halfwise.metrics import Outputs
from halfwise.progress import Watcher
from halfwise.records import (
    Growth,
    Guard,
    NodeName,
    Observations,
    Plan,
    Search,
    Verdict,
)
from halfwise.stages.attribute import attribute
from halfwise.stages.check import check
from halfwise.stages.growth import growth
from halfwise.stages.judge import Judged, judge
from halfwise.stages.observe import observe
from halfwise.stages.plan.ranges import headroom_limits, producers_above
from halfwise.stages.plan.reasons import kept_nodes, plan_record
from halfwise.stages.plan.rules import apply_rules
from halfwise.stages.plan.search import Found
from halfwise.stages.plan.search import Search as PlanSearch
from halfwise.stages.reference import inspected_reference, reference_outputs
from halfwise.stages.rewrite import rewrite
from halfwise.stages.trial import WORST, Trials

Assignment = frozenset[NodeName]

BASELINE_INSPECTED = 4
"""Samples of the all-low model that are searched for non-finite values inside."""


@dataclass(frozen=True)
class Fixed:
    """What `fix` found.

    Attributes:
        rewritten: The mixed model.
        observations: What the reference looked like.
        guards: Suspicions.
        growth: Error growth; empty where it was not needed.
        plan: The plan.
        search: How it was found.
        baseline: Verdict on the model with everything low.
        verdict: Verdict on the mixed model.
        references: Reference outputs of the calibration samples.
        evaluations: Number of assignments tried.
        stage_seconds: Time per stage.
    """

    rewritten: Rewritten
    observations: Observations
    guards: tuple[Guard, ...]
    growth: tuple[Growth, ...]
    plan: Plan
    search: Search
    baseline: Verdict
    verdict: Verdict
    references: Sequence[Outputs]
    evaluations: int
    stage_seconds: dict[str, float]


def fix(case: Case, settings: Settings, watcher: Watcher) -> Fixed:
    """Return the smallest plan found for `case`, its model and the verdict on held-out samples."""
    return _Fix(case, settings, watcher).run()


@dataclass
class _Fix:
    case: Case
    settings: Settings
    watcher: Watcher
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self) -> Fixed:
        settings, network = self.settings, self.case.network
        with self._stage("reference"):
            check(network, device=settings.device, libraries=settings.libraries)
            self.roles: Roles = roles_of(network)
            self.forced = apply_rules(network, self.roles, settings.rules)
            self.heldout = self.case.heldout
            self.heldout_references, self.nonfinite = inspected_reference(
                network, self.heldout, device=settings.device, libraries=settings.libraries
            )
        with self._stage("observe"):
            self.observations, references = observe(
                network,
                self.case.calibration,
                settings.fmt,
                roles=self.roles,
                device=settings.device,
                libraries=settings.libraries,
                progress=self.watcher.step,
            )
            self.nonfinite |= {o.tensor for o in self.observations.tensors if o.nonfinite}
        with self._stage("attribute"):
            self.guards = attribute(
                network,
                self.roles,
                self.observations,
                settings.fmt,
                headroom=settings.headroom,
                accumulate=settings.accumulate,
            )
        with self._stage("baseline"):
            all_low = self._rewrite(frozenset())[0]
            baseline = self._judge(all_low, inspected=BASELINE_INSPECTED).verdict
        with self._stage("emulate"):
            self.trials = self._trials(references)
        return self._rounds(all_low, baseline)

    def _rounds(self, all_low: Rewritten, baseline: Verdict) -> Fixed:
        searcher = self._searcher()
        joined: list[str] = []
        previous: Assignment = frozenset()
        self._announce()
        while True:
            with self._stage("search"):
                found = self._find(searcher, previous)
            with self._stage("judge"):
                rewritten, placed = self._rewrite(found.kept)
                judged = self._judge(rewritten)
            if not self._join(judged, found, joined):
                break
            previous = found.kept
        path = self._growth(all_low, found)
        return Fixed(
            rewritten=rewritten,
            observations=self.observations,
            guards=self.guards,
            growth=path,
            plan=plan_record(
                self.case.network,
                self.roles,
                self.settings.fmt,
                placed,
                rewritten.casts,
                keep=kept_nodes(
                    self.case.network,
                    found.kept,
                    self.guards,
                    self.forced.kept,
                    found.excess_without,
                    limit=self.settings.keep_above,
                    metric=self.case.criterion.metric,
                ),
                minimal=found.minimal,
                growth=path,
                remarks=self._remarks(found, baseline),
            ),
            search=self._search_record(found, joined),
            baseline=baseline,
            verdict=judged.verdict,
            references=self.trials.references,
            evaluations=self.trials.evaluations,
            stage_seconds=self.seconds,
        )

    def _remarks(self, found: Found, baseline: Verdict) -> list[str]:
        kept = found.kept - frozenset(self.forced.kept)
        if not kept or not baseline.passed or self.settings.keep_above is not None:
            return []
        return [
            "With everything low the held-out samples pass, but calibration samples fail, with the "
            f"margin {self.settings.margin:g} and headroom {self.settings.headroom:g}."
        ]

    def _find(self, searcher: PlanSearch, previous: Assignment) -> Found:
        limit = self.settings.keep_above
        if limit is None:
            return searcher.run(previous)
        kept = producers_above(limit, self.observations, self.roles)
        kept |= frozenset(n for n in self.forced.kept if self.roles[n].role is Role.COMPUTE)
        kept -= frozenset(self.forced.lowered)
        passed = self.trials.evaluate(kept, confirm=True).passed
        step = f"--keep-above {limit:g} keeps {len(kept)} nodes; no search"
        return Found(kept, passed, False, {}, False, (step,))

    def _resolve(self, kept: Assignment) -> Assignment:
        """Return all FP32 nodes: kept ones, what moves data between them, and what rules say."""
        moves = frozenset(n for n in self.forced.kept if self.roles[n].role is Role.MOVEMENT)
        full = kept | moves | carried(self.case.network, self.roles, kept)
        return full - frozenset(self.forced.lowered)

    def _rewrite(self, kept: Assignment) -> tuple[Rewritten, Assignment]:
        fixed = frozenset(
            n
            for n in {**self.forced.kept, **self.forced.lowered}
            if self.roles[n].role is Role.MOVEMENT
        )
        return rewrite(
            self.case.network,
            self.roles,
            self._resolve(kept),
            self.settings.fmt,
            fixed=fixed,
            low_io=self.settings.io != "fp32",
        )

    def _judge(self, rewritten: Rewritten, *, inspected: int | None = None) -> Judged:
        unseen = len(self.heldout) > 0
        samples: Samples = self.heldout if unseen else self.case.calibration
        references = self.heldout_references if unseen else self._calibration_references()
        return judge(
            rewritten.model,
            samples,
            references,
            self.case.criterion,
            self.case.metric,
            reference_nonfinite=self.nonfinite,
            accumulate=self.settings.accumulate,
            unseen=unseen,
            inspected=inspected,
            device=self.settings.device,
            libraries=self.settings.libraries,
        )

    def _calibration_references(self) -> list[Outputs]:
        session = Session(
            self.case.network.model,
            device=self.settings.device,
            libraries=self.settings.libraries,
        )
        return reference_outputs(session, self.case.calibration)

    def _trials(self, references: Sequence[Outputs]) -> Trials:
        settings = self.settings
        switched = emulate_switched(
            self.case.network,
            self.roles,
            settings.fmt,
            accumulate=settings.accumulate,
            limits=headroom_limits(self.observations, settings.fmt, settings.headroom),
            low_io=settings.io != "fp32",
        )
        session = Session(switched.model, device=settings.device, libraries=settings.libraries)
        trials = Trials(
            switched=switched,
            session=session,
            samples=self.case.calibration,
            references=list(references),
            criterion=self.case.criterion,
            factor=1.0 if self.case.metric else settings.margin,
            metric=self.case.metric,
            resolve=self._resolve,
        )
        started = time.monotonic()
        trials.survey(frozenset())
        self.run_seconds = (time.monotonic() - started) / len(trials.samples)
        return trials

    def _announce(self) -> None:
        """Tell how long the search will take, from one run's time and what is suspected."""
        certain = frozenset(n for g in self.guards if g.severity >= 1 for n in g.nodes)
        samples = len(self.trials.samples)
        runs = len(certain) + 10 * min(WORST, samples) + 3 * samples
        expected = min(runs * self.run_seconds, self.settings.time_budget)
        self.watcher.note(
            f"about {expected:.0f} s expected where the guards are right, at most "
            f"{self.settings.time_budget:g} s ({self.run_seconds * 1e3:.0f} ms a run)"
        )

    def _searcher(self) -> PlanSearch:
        network = self.case.network
        nodes = [
            name
            for name in (node_name(n) for n in network.nodes())
            if self.roles[name].role is Role.COMPUTE and name not in self.forced.lowered
        ]
        return PlanSearch(
            nodes=nodes,
            forced=frozenset(n for n in nodes if n in self.forced.kept),
            suspects=[frozenset(g.nodes) for g in self.guards],
            certain=sum(g.severity >= 1 for g in self.guards),
            classes=repeated(network, self.roles),
            evaluate=self.trials.evaluate,
            contribution=self.trials.contribution,
            harmless=float("inf") if self.case.metric else 0.5,
            deadline=time.monotonic() + self.settings.time_budget,
            progress=self.watcher.note,
        )

    def _join(self, judged: Judged, found: Found, joined: list[str]) -> bool:
        """Move failing held-out samples to the calibration; return whether to search again."""
        verdict = judged.verdict
        stuck = not found.passed or found.exhausted or self.settings.keep_above is not None
        if verdict.passed or not verdict.unseen or stuck or len(self.heldout) < 2:
            return False
        chosen = judged.failing[: max(1, len(self.heldout) // 4)]
        rest = [i for i in range(len(self.heldout)) if i not in chosen]
        self.watcher.note(
            f"{len(judged.failing)} held-out samples fail; {len(chosen)} join the calibration"
        )
        joined += [self.heldout.ids[i] for i in chosen]
        self.trials.join(self.heldout.select(chosen), [self.heldout_references[i] for i in chosen])
        self.heldout_references = [self.heldout_references[i] for i in rest]
        self.heldout = self.heldout.select(rest)
        return True

    def _growth(self, all_low: Rewritten, found: Found) -> tuple[Growth, ...]:
        explained = {n for g in self.guards for n in g.nodes} | set(self.forced.kept)
        if not found.kept - explained and found.passed:
            return ()
        with self._stage("growth"):
            low = emulate_typed(all_low.model, accumulate=self.settings.accumulate)
            return growth(
                self.case.network,
                low,
                self.roles,
                self.case.calibration[0],
                device=self.settings.device,
                libraries=self.settings.libraries,
            )

    def _search_record(self, found: Found, joined: list[str]) -> Search:
        return Search(
            tolerance_factor=self.trials.factor,
            calibration=self.trials.samples.ids,
            joined=tuple(joined),
            seconds_budget=self.settings.time_budget,
            exhausted=found.exhausted,
            steps=found.steps,
        )

    @contextmanager
    def _stage(self, name: str, total: int | None = None) -> Iterator[None]:
        self.watcher.stage(name, total)
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
