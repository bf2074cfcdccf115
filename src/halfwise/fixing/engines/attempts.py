"""Plans as engines: what is tried, how, and why nothing in the low format passed.

A plan is built, and its engine measured on the calibration samples. If the builder refused every
plan that the emulation predicts to pass, that is the cause: what the other engines show is why
other plans do not suffice.

What low precision explains in an engine is predicted before it is built (`prediction`). An error
within it is one of precision. A larger one is blamed on a kernel, or the compiler, only if the
inspector shows every kept node in FP32 and another engine passes that differs only in some more
FP32 nodes: the fault is there. Otherwise the cause is unknown.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path

from halfwise.fixing.engines.measure import again_if_lost, is_lost
from halfwise.fixing.engines.workbench import Workbench, low_format
from halfwise.fixing.int8.planner import Int8Planner
from halfwise.fixing.plan.found import Types
from halfwise.fixing.planner import Planner
from halfwise.graph.model import Network
from halfwise.graph.roles import Role, Roles
from halfwise.records import (
    Band,
    BuildOutcome,
    Cause,
    CauseKind,
    EngineRound,
    Latency,
    Move,
    NodeName,
    Precision,
    PrecisionProof,
    Refusal,
    TensorName,
)
from halfwise.reporting.rungs import move_line
from halfwise.tensorrt.constrain import constraints
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.tensorrt.layers import rim
from halfwise.wording import count, number

Assignment = frozenset[NodeName]


@dataclass(frozen=True)
class Terms:
    """What a build is told in addition to the run's settings.

    Attributes:
        tf32: Whether TF32 is allowed for FP32 nodes.
        level: The optimization level; None for the one in the settings.
        computing: Nodes of which only compute nodes are constrained, not data movement. In weak
            typing only, as `border`.
        border: Nodes of which only those next to a low node are constrained.
        unrepaired: Whether it is built from the model without repairs.
        int8: Whether it is a plan with INT8: what it "keeps" is left out of INT8, and is low.
        free: Whether nothing is constrained: the builder decides what is FP32. In weak typing only.
    """

    tf32: bool = False
    level: int | None = None
    computing: Assignment = frozenset()
    border: Assignment = frozenset()
    unrepaired: bool = False
    int8: bool = False
    free: bool = False

    def of(self, planner: Planner) -> Planner:
        """Return the planner of the built model."""
        if self.int8 and planner.int8 is not None:
            return planner.int8
        return planner.original if self.unrepaired and planner.original else planner

    def types_of(self, planner: Planner, keep: Assignment) -> Types:
        """Return the types of kept nodes in the engine; TF32 also where only the terms allow it."""
        types = self.of(planner).types_of(keep)
        return replace(types, tf32=self.tf32 or types.tf32)

    @property
    def loose(self) -> bool:
        """Whether some kept nodes may still be low."""
        return bool(self.computing or self.border) or self.free

    def constrained(self, network: Network, roles: Roles, fp32: Assignment) -> tuple[NodeName, ...]:
        """Return the nodes to constrain in weak typing so that `fp32` are FP32."""
        free = {n for n in fp32 & self.computing if roles[n].role is not Role.COMPUTE}
        free |= (fp32 & self.border) - rim(network, roles, fp32)
        return constraints(network, roles, fp32 - free)


USUAL = Terms()
"""Nothing in addition to the run's settings."""
WITH_TF32 = Terms(tf32=True)
UNREPAIRED = Terms(unrepaired=True)
INT8 = Terms(int8=True)
FREE_INT8 = Terms(int8=True, free=True)


Plan = tuple[Assignment, Terms]
Step = str | Move

LOW: tuple[Precision, ...] = ("fp16", "bf16")
"""Precision of a node requested in FP32 whose constraint was not honoured."""


@dataclass(frozen=True)
class Candidate:
    """One build of one plan, measured on the calibration samples.

    Attributes:
        keep: Compute nodes requested in FP32.
        step: Why it was tried: one sentence, or what changed after another plan was refused.
        build: Outcome of the build.
        excess: Error relative to what the search may use; 1 is the limit. None if no engine ran.
        latency: Its speed; None if not measured.
        failure: Why the engine did not run; empty if it ran.
        untimed: Why an engine that runs could not be timed; empty otherwise.
        terms: What the build was told in addition to the settings.
        lost: Whether the connection was lost after the build, which says nothing about the plan.
        proof: What it computes in; read if its error is too large, else None.
        band: The errors that low precision explains, predicted before the build; None if unknown.
    """

    keep: Assignment
    step: Step
    build: BuildOutcome
    excess: float | None = None
    latency: Latency | None = None
    failure: str = ""
    untimed: str = ""
    terms: Terms = USUAL
    lost: bool = False
    proof: PrecisionProof | None = None
    band: Band | None = None

    @property
    def plan(self) -> Plan:
        """What distinguishes its plan from others."""
        return self.keep, self.terms

    def kept(self, planner: Planner) -> Assignment:
        """Return the compute nodes requested in FP32, by the planner of the run's plan."""
        own = self.terms.of(planner)
        return own.fp32 if isinstance(own, Int8Planner) else self.keep

    def asked(self, planner: Planner) -> dict[NodeName, Precision]:
        """Return the types requested of kept nodes."""
        return self.terms.of(planner).narrowing.precisions(self.kept(planner))

    @property
    def milliseconds(self) -> float:
        """Median time, ms; inf if not timed."""
        return inf if self.latency is None else self.latency.median_ms

    @property
    def passed(self) -> bool:
        """Whether an engine exists and is within what the search may use."""
        return self.excess is not None and self.excess <= 1

    @property
    def untold(self) -> bool:
        """Whether a lost connection is all that is known about it."""
        return self.excess is None and (self.lost or self.build.status == "lost")

    @property
    def ignored(self) -> tuple[NodeName, ...]:
        """Kept nodes that the inspector shows in FP16 or BF16 although they were to have more."""
        nodes = () if self.proof is None else self.proof.nodes
        return tuple(n.node for n in nodes if n.precision in LOW and not n.suffices)

    @property
    def honoured(self) -> bool:
        """Whether the inspector shows every kept node in its type, or as vanished."""
        if self.proof is None or self.terms.int8:
            return False
        return all(n.suffices or n.precision == "other" for n in self.proof.nodes)


@dataclass(frozen=True)
class Chosen:
    """Result of the search.

    Attributes:
        best: The candidate to deliver; None if no engine passed.
        plain: The engine with nothing kept; None if Ctrl-C came before it was built.
        excesses: Errors of all builds of the delivered plan.
        minimal: Whether no single kept node can be dropped, by builds or predictions.
        predicted: Nodes that only a prediction shows to be needed.
        notes: Notes on it.
    """

    best: Candidate | None
    plain: Candidate | None
    excesses: tuple[float, ...]
    minimal: bool
    predicted: Assignment
    notes: tuple[str, ...]


def passing_share(builds: Sequence[Candidate]) -> float:
    """Return the share of a plan's builds, at least one, that pass."""
    return sum(c.passed for c in builds) / len(builds)


def is_steady(builds: Sequence[Candidate]) -> bool:
    """Return whether a plan passes in more than half of its builds: fewer may be chance."""
    return passing_share(builds) > 1 / 2


@dataclass
class Attempts:
    """Builds and measures plans.

    Attributes:
        planner: Has the model of every plan, and measures errors of outputs.
        bench: Builds engines and runs them.
    """

    planner: Planner
    bench: Workbench
    _built: set[Plan] = field(default_factory=set)
    _fastest: dict[Hashable, float] = field(default_factory=dict)
    _reasons: set[str] = field(default_factory=set)

    def attempt(self, keep: Assignment, step: Step, terms: Terms = USUAL) -> Candidate:
        """Build the plan that keeps `keep`, and measure its engine.

        `step` says why it is tried, `terms` what to tell the builder in addition to the settings.
        """
        build = self.builder(keep, step, terms)
        candidate = self.measured(Candidate(keep, step, build(), terms=terms), (keep, terms))
        if candidate.lost:  # this concerns the connection, not yet the plan
            candidate = self.measured(Candidate(keep, step, build(), terms=terms), (keep, terms))
        return candidate

    def builder(
        self, keep: Assignment, step: Step, terms: Terms = USUAL
    ) -> Callable[[], BuildOutcome]:
        """Return what builds a plan, in any thread; its model is written now."""
        fresh = (keep, terms) in self._built
        self._built.add((keep, terms))
        words = step if isinstance(step, str) else move_line(step)
        return self._builder(keep, terms, words, fresh=fresh)

    def measured(self, candidate: Candidate, name: Hashable, *, untimed: bool = False) -> Candidate:
        """Return a build with its error on the calibration samples and its speed.

        If its error is too large, what it computes in is read. If it may be delivered, it is
        fetched here as `name`. An engine that runs but cannot be timed counts as not running,
        unless `untimed`.
        """
        build = candidate.build
        if build.engine is None:
            return candidate
        found = candidate
        try:
            excess = self._excess(build)
            found = replace(found, excess=excess)
            self.bench.watcher.note(
                f"build {build.number} keeps {len(candidate.keep)}: error {number(excess)} of what "
                "is allowed"
            )
            latency = self.bench.measure.latency(build.engine)
            self.bench.watcher.note(
                f"build {build.number} takes {number(latency.median_ms)} ms a run"
            )
            found = replace(found, latency=latency)
        except ENGINE_FAULTS as failed:
            why, lost = failed.message, is_lost(failed)
            if found.excess is None or not untimed:
                self._tell(f"the engine of build {build.number} does not run", why)
                return replace(candidate, failure=why, lost=lost)
            self._tell(f"the engine of build {build.number} runs but cannot be timed", why)
            found = replace(found, untimed=why, lost=lost)
        try:
            self._bring(found, name)
        except ENGINE_FAULTS as failed:  # it runs, and may still exist
            self._tell(f"the engine of build {build.number} is not fetched", failed.message)
            found = replace(found, lost=is_lost(failed))
        if found.passed or (build.config.low is None and build.config.typing == "weak"):
            return found
        with suppress(*ENGINE_FAULTS):  # there is less to tell then, but the error stands
            planner, terms = self.planner, found.terms
            asked = {} if terms.int8 else found.asked(planner)
            found = replace(found, proof=self.bench.proof(build, terms.of(planner), asked))
        return found

    def model_of(self, plan: Plan) -> Path:
        """Return the ONNX file that a plan is built from; OSError if it cannot be written."""
        keep, planner, files = plan[0], plan[1].of(self.planner), self.bench.files
        if self.bench.builds.typing == "strong":
            return files.mixed(planner, keep)
        apart = planner.case.repairs or isinstance(planner, Int8Planner)
        return files.unmixed(planner, keep) if apart else self.bench.fp32

    def again(self, candidate: Candidate) -> Candidate:
        """Return a candidate with its error on the present calibration samples."""
        if candidate.excess is None:
            return candidate
        try:
            excess = again_if_lost(lambda: self._excess(candidate.build))
        except ENGINE_FAULTS as failed:
            lost = is_lost(failed)
            return replace(candidate, excess=None, failure=failed.message, lost=lost)
        return replace(candidate, excess=excess)

    def marked(self, plan: Plan, names: Sequence[TensorName]) -> BuildOutcome:
        """Build a plan with further outputs."""
        step = f"{count(len(names), 'tensor')} marked, to see where the engine departs"
        return self._builder(*plan, step, outputs=names)()

    def _tell(self, what: str, why: str) -> None:
        """Report what happened and why; a reason is given in full only once."""
        note = f"{what}, as before" if why in self._reasons else f"{what}: {why}"
        self._reasons.add(why)
        self.bench.notes.append(note)
        self.bench.watcher.note(note)

    def _bring(self, candidate: Candidate, name: Hashable) -> None:
        """Fetch an engine that may be delivered, or that is a row of the table.

        Only the fastest engine of a plan is delivered; the others stay with the worker.
        """
        assert candidate.build.engine is not None
        milliseconds = candidate.milliseconds
        wanted = candidate.passed or not candidate.keep
        if not wanted or (name in self._fastest and milliseconds >= self._fastest[name]):
            return
        self.bench.watcher.note(f"the engine of build {candidate.build.number} is fetched")
        self.bench.fetched.keep(name, candidate.build.engine)
        self._fastest[name] = milliseconds

    def _excess(self, build: BuildOutcome) -> float:
        assert build.engine is not None
        trials = self.planner.trials
        return trials.excess_of(self.bench.measure.outputs(build.engine, trials.samples))

    def _builder(
        self,
        keep: Assignment,
        terms: Terms,
        step: str,
        *,
        outputs: Sequence[TensorName] = (),
        fresh: bool = False,
    ) -> Callable[[], BuildOutcome]:
        build = partial(
            self.bench.builds.build,
            purpose=step,
            tf32=self.bench.builds.settings.tf32 or terms.types_of(self.planner, keep).tf32,
            level=terms.level,
            outputs=outputs,
            fresh=fresh,
        )
        try:
            path = self.model_of((keep, terms))
        except OSError as error:
            failed = self.bench.builds.without_model(error, step)
            self._tell(f"build {failed.number} did not start", failed.message)
            return lambda: failed
        if self.bench.builds.typing == "strong":
            return partial(build, path)
        return partial(
            build,
            path,
            low=low_format(self.planner.settings.fmt),
            keep=self._constraints(keep, terms),
        )

    def fp32(self, plan: Plan) -> Assignment:
        """Return the nodes of a plan that are FP32 through a constraint or Cast."""
        if self.bench.builds.typing == "strong":
            return plan[1].of(self.planner).resolve(plan[0])
        return frozenset(self._constraints(*plan))

    def _constraints(self, keep: Assignment, terms: Terms) -> tuple[NodeName, ...]:
        """Return the nodes to constrain to FP32: those that the emulation has in FP32.

        None if only data movement between FP32 inputs and outputs is kept: that is plain low
        precision, and its rounding is up to the builder.
        """
        if terms.free:
            return ()
        planner = terms.of(self.planner)
        if isinstance(planner, Int8Planner):  # INT8 nodes take no constraint
            return self._constraints(planner.fp32, replace(terms, int8=False))
        network, roles = planner.case.network, planner.roles
        pinned = frozenset(name for name, role in roles.items() if role.role is Role.PINNED)
        if not (keep or pinned or planner.forced.kept):
            return ()
        fp32 = planner.resolve(keep) | pinned
        return terms.constrained(network, roles, fp32)


def causes(
    candidates: Sequence[Candidate],
    rounds: Sequence[EngineRound],
    *,
    passed: bool,
    relative: bool = True,
    refusals: Sequence[Refusal] = (),
) -> tuple[Cause, ...]:
    """Return what the engines in the low format show, most severe first.

    Args:
        candidates: All builds of all plans.
        rounds: What the emulation predicts of each build, with fusion and without.
        passed: Whether an engine passed in the end: then only what was seen on the way needs an
            explanation.
        relative: Whether errors are shares of what is allowed. The fall of a metric is not, and
            does not show that a kernel is at fault.
        refusals: What the builder refused.
    """
    predicted = {
        r.build: max(r.predicted or 0.0, r.predicted_fused or 0.0)
        for r in rounds
        if (r.predicted, r.predicted_fused) != (None, None)
    }
    ran = [c for c in candidates if c.excess is not None]
    if not ran and not passed and candidates:
        told = [c for c in candidates if not c.untold]
        built = any(c.build.engine is not None for c in told)
        kind: CauseKind = "not-run" if built else "no-engine"
        if not told:
            told, kind = list(candidates), "lost"
        return (Cause(kind=kind, builds=tuple(c.build.number for c in told)),)
    off = [c for c in ran if not c.passed]
    nearest = min(off, key=lambda c: c.excess or 0.0, default=None)
    awaited = [c for c in candidates if predicted.get(c.build.number, inf) <= 1]
    found = [] if passed else [*_refused(awaited, refusals)]
    if relative and nearest is not None:
        known = {"excess": nearest.excess, "band": nearest.band}
        found = [cause.model_copy(update=known) for cause in found]
    found += _ignored(off)
    if relative:
        kept = {r.build: r.keep for r in rounds}
        found += _kernels(off, ran, kept)
    if nearest is not None and not found and not passed:
        cause = Cause(kind=_left(nearest, awaited), builds=(nearest.build.number,))
        if relative:
            other = predicted.get(nearest.build.number)
            known = {"excess": nearest.excess, "other": other, "band": nearest.band}
            cause = cause.model_copy(update=known)
        found = [cause]
    return tuple(found)


def _refused(awaited: Sequence[Candidate], refusals: Sequence[Refusal]) -> Iterator[Cause]:
    """Yield that every plan predicted to pass was refused, and where, if in one place."""
    told = {r.build: r.nodes for r in refusals}
    builds = tuple(c.build.number for c in awaited)
    if builds and all(number in told for number in builds):
        places = {told[number] for number in builds}
        nodes = places.pop() if len(places) == 1 else ()
        yield Cause(kind="refused", builds=builds, nodes=nodes)


def _left(nearest: Candidate, awaited: Sequence[Candidate]) -> CauseKind:
    """Return the cause if none is shown, of the engine with the smallest error.

    It is not precision if a plan predicted to pass has no engine that runs.
    """
    band, excess = nearest.band, nearest.excess or 0.0
    shown = not awaited or any(c.excess is not None for c in awaited)
    return "precision" if shown and band is not None and band.explains(excess) else "unknown"


def _ignored(off: Sequence[Candidate]) -> Iterator[Cause]:
    nodes = tuple(dict.fromkeys(n for c in off for n in c.ignored))
    if nodes:
        shown = tuple(c.build.number for c in off if c.ignored)
        yield Cause(kind="ignored", builds=shown, nodes=nodes)


def _kernels(
    off: Sequence[Candidate], ran: Sequence[Candidate], kept: Mapping[int, Sequence[NodeName]]
) -> Iterator[Cause]:
    """Yield the smallest set of nodes that an engine needs in FP32 to pass, if one shows it.

    What low precision explains need not be a fault, and a constraint not honoured shows nothing.
    """
    right = [c for c in ran if c.passed or (c.band and c.band.explains(c.excess or 0.0))]
    pairs = [
        (wrong, other)
        for wrong in off
        if wrong.band and not wrong.band.explains(wrong.excess or 0.0) and wrong.honoured
        for other in right
        if other.keep > wrong.keep and other.terms == wrong.terms
    ]
    if pairs:
        wrong, other = min(pairs, key=lambda pair: len(pair[1].keep - pair[0].keep))
        yield Cause(
            kind="kernel",
            builds=(wrong.build.number, other.build.number),
            nodes=tuple(n for n in kept[other.build.number] if n not in wrong.keep),
            excess=wrong.excess,
            band=wrong.band,
        )
