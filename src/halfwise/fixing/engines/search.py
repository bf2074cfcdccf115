"""The search for a plan in real engines: the emulation proposes, the engine decides.

After each build all moves are listed anew, from what is known, and the first is made that was not:
those that may save most for their odds come first. A plan that passes is confirmed, as builds of
weak typing differ by chance, before slower ways to gain are tried.

In strong typing the core of an attention is FP32 as a whole or not at all. A fused attention kernel
needs both products and everything between them in one type; with only Softmax in FP32, TensorRT
does not fuse, which took 4.3 times as long (Stability-AI/stable-audio-3#79). From 11.3 on, a core
in FP32 whose queries, keys and values are cast up from FP16 is a fused kernel that sums in FP32
(TensorRT release notes). Constraints of weak typing are hints: there only engines decide.

What the builder refused had kernels in the all-FP32 engine, and usually in the all-low one: the
plan's form is what has none. So the same plan is tried at other optimization levels, then with more
nodes in FP32, like one that is off.

An engine that passes on the calibration samples is judged on held-out ones at once: shrinking and
confirming a plan first would lose those builds if it fails there. Every engine in the final table
is judged, timed and inspected the same way. The fastest that passes is delivered. Times are noisy,
so engines take turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from math import inf
from statistics import fmean, median

from msgspec import Struct

from halfwise.fixing.depths import HeldOut
from halfwise.fixing.engines.device import Asked, Device
from halfwise.fixing.engines.measure import NEAR, race
from halfwise.fixing.engines.plan import EnginePlan, Outcome, fastest, is_steady
from halfwise.fixing.plan.plan import NONE, Nodes, Plan
from halfwise.fixing.space import Space
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles
from halfwise.graph.written_out import attentions
from halfwise.judging.judge import Judged
from halfwise.progress import interruption
from halfwise.records import ALIKE, FULL_RUNGS, EngineResult, EngineRung, Spared, replace
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.tensorrt.versions import has
from halfwise.wording import count


class Bench:
    """Builds and judges plans, and remembers what they gave.

    Attributes:
        devices: Build and measure plans, by name.
        space: The plans of the emulation, on the samples that measure engines too.
        heldout: The samples that judge; failing ones join the calibration.
        builds: Builds of a plan before it counts as confirmed.
        budget: Builds that may still be made of new plans.
        tried: All builds of each plan.
    """

    def __init__(
        self,
        devices: Mapping[str, Device],
        space: Space,
        heldout: HeldOut,
        *,
        builds: int,
        budget: int,
    ) -> None:
        """Take the devices, at least one, the plans, builds per plan, and the budget."""
        self.devices, self.space, self.heldout = devices, space, heldout
        self.builds, self.budget = builds, budget
        self.tried: dict[EnginePlan, list[Outcome]] = {}

    @property
    def is_over(self) -> bool:
        """Whether Ctrl-C came: nothing more is built."""
        return interruption().asked

    @property
    def is_lost(self) -> bool:
        """Whether a worker was lost, twice with one plan: nothing more is built either."""
        return any(group[-1].worst.shows_nothing for group in self.tried.values())

    def evaluate(self, plan: EnginePlan, step: str, *, extra: bool = False) -> Outcome:
        """Build a plan once more on every device, and judge its engines.

        Args:
            plan: The plan.
            step: Why it is built.
            extra: Whether it uses nothing of the budget, as confirmations do.
        """
        earlier = self.tried.get(plan, [])
        self.budget -= not (extra or earlier)
        rows: dict[str, EngineResult] = {}
        for name, device in self.devices.items():
            for fresh in (bool(earlier), True):
                build = device.build(plan, step, fresh=fresh)
                rows[name] = device.measured(plan, build, self._asked)
                if not rows[name].lost:  # that concerns the connection, not yet the plan
                    break
        outcome = Outcome(plan, step, rows)
        if any(part.build.status == "interrupted" for part in rows.values()):
            return outcome  # nothing is known about it
        self.tried[plan] = [*earlier, outcome]
        passed = sum(o.passed for group in self.tried.values() for o in group)
        if outcome.passed and passed == 1 and self.heldout.unseen:
            self.joins(plan)
        return self.tried[plan][-1]

    def joins(self, plan: EnginePlan) -> bool:
        """Judge a plan's fastest engine on held-out samples; return whether any joined the search.

        They are added to the calibration of every later plan, and known builds are measured anew.
        """
        if self.is_over:
            return False
        heldout, verdicts, joined = self.heldout, list[Judged](), self.heldout.joined
        judging = heldout.samples, heldout.references
        for name, row in fastest(self.tried[plan]).rows.items():
            measure = self.devices[name].measure
            with suppress(*ENGINE_FAULTS):  # the table reports it
                assert row.build.engine is not None
                verdicts.append(measure.judge(row.build.engine, *judging, unseen=heldout.unseen))
        for judged in verdicts:
            heldout.join(judged, self.space, " in the engine")
        if heldout.joined == joined:
            return False
        self.tried = {p: [self._again(o) for o in group] for p, group in self.tried.items()}
        return True

    def _again(self, outcome: Outcome) -> Outcome:
        """Return a build with its error on the present calibration samples."""
        rows = {n: self.devices[n].again(row, self._asked) for n, row in outcome.rows.items()}
        return replace(outcome, rows=rows)

    @property
    def _asked(self) -> Asked:
        return self.space.bench.samples, self.space.bench.references


def choose(offers: Sequence[Outcome]) -> Outcome | None:
    """Return the offer to deliver, the fastest that passes; None if none does.

    An engine that failed while others took turns comes after these, an untimed one last; ties are
    broken by the order of `offers`.
    """
    passed = [offer for offer in offers if offer.deliverable]
    return min(passed, key=lambda o: (not o.took_turns, o.milliseconds), default=None)


def full_offers(bench: Bench) -> list[Outcome]:
    """Return the FP32 engines of each device, at least one, as they were judged."""
    offers, devices = list[Outcome](), bench.devices
    for rung in FULL_RUNGS:
        rows = {name: device.full[rung] for name, device in devices.items() if rung in device.full}
        if len(rows) == len(devices):
            plan = EnginePlan(Plan(bench.space.variant), rung, tf32=rung == "tf32")
            purpose = next(iter(rows.values())).build.purpose
            # No search chose them: they have to be within the tolerance itself.
            offers.append(Outcome(plan, purpose, rows, 1 / bench.space.bench.tolerance.factor))
    return offers


def offer_of(
    bench: Bench, outcome: Outcome, offers: Sequence[Outcome], *, allowed: bool = True
) -> Outcome:
    """Return engines in the low format or with INT8, judged; `offers` are those before."""
    plan, rows, heldout = outcome.plan, dict[str, EngineResult](), bench.heldout
    judging = heldout.samples, heldout.references, heldout.unseen
    for device, measured in outcome.rows.items():
        name = "mixed" if plan.keep and plan.rung != "int8" else plan.rung.upper()
        if plan.types.of is not bench.space.variant:
            name = f"{name}, without repairs"
        if name in {o.rows[device].name for o in offers}:
            name = f"{name}, build {measured.build.number}"
        row = replace(measured, name=name, proof=None)
        rows[device] = bench.devices[device].judged(plan, row, judging)
    return replace(outcome, rows=rows, allowed=allowed)


def raced(bench: Bench, offers: list[Outcome]) -> list[Outcome]:
    """Return the offers with the times of rounds in which engines that passed take turns.

    A single passing engine has nothing to be compared with. See `race`.
    """
    for name, device in bench.devices.items():
        rows = {i: o.rows[name] for i, o in enumerate(offers) if o.deliverable}
        engines = {i: r.build.engine for i, r in rows.items() if r.latency and r.build.engine}
        if len(engines) < 2:
            continue
        times = race(engines, device.measure.lap)
        offers = [
            replace(o, rows={**o.rows, name: _timed(o.rows[name], times.get(i, ()))})
            for i, o in enumerate(offers)
        ]
    return offers


def _timed(row: EngineResult, medians: tuple[float, ...]) -> EngineResult:
    """Return a row with its time by the rounds; one without rounds stays as it was."""
    if row.latency is None or not medians:
        return row
    return replace(row, latency=replace(row.latency, medians=medians, median_ms=median(medians)))


FUTILE = 1.07
"""If the low format with nothing kept, and TF32 allowed, takes this many times as long as an FP32
or TF32 engine that is proven, no plan is searched: keeping nodes gains no speed. Of the 15 mixed
engines on an H200 in `bench/results/gpu_*.json` one was 6 % faster than the one with nothing kept,
by chance (another build of its plan took 1.3 times as long), and no other one more than 1 %."""
SLOW = 1.1
"""A mixed engine that takes more than this many times as long as plain FP16 is tried otherwise."""
LEVELS = (5, 1)
"""Optimization levels to try: at 5 the builder tries every kernel that it has or can generate, at 1
it generates none and uses its compiler least (TensorRT's developer guide, "Builder optimization
level"; the default is 3). After a crash or a time-out, the lower one comes first."""


class Try(Struct, frozen=True):
    """A plan worth building.

    Attributes:
        plan: The plan.
        step: Why.
        builds: How many builds of it are wanted, while all pass.
        extra: Whether it uses nothing of the budget.
    """

    plan: EnginePlan
    step: str
    builds: int = 1
    extra: bool = False


def near(milliseconds: float, other: float) -> bool:
    """Return whether an engine may be faster than another, each timed alone."""
    return milliseconds < NEAR * other < inf


def split(names: Sequence[Nodes], parts: int) -> Iterator[Nodes]:
    """Yield the unions of `parts` (≥ 1) runs of nearly equal length, omitting empty ones."""
    edges = [round(i * len(names) / parts) for i in range(parts + 1)]
    for begin, end in pairwise(edges):
        if end > begin:
            yield NONE.union(*names[begin:end])


def cores_of(network: Network, roles: Roles, lowered: Nodes) -> tuple[Nodes, ...]:
    """Return the attention cores of a model, joined if they share nodes.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes.
        lowered: Nodes that the user wants low: a core with one of them does not count.
    """
    cores: list[Nodes] = []
    for nodes in attentions(network):
        names = map(node_name, nodes)
        core = frozenset(n for n in names if roles[n].role is Role.COMPUTE and roles[n].free)
        touching = [other for other in cores if other & core]
        cores = [other for other in cores if other not in touching]
        cores.append(core.union(*touching))
    return tuple(core for core in cores if core and not core & lowered)


class EngineSearch:
    """Finds the passing plan with the fewest kept nodes whose engine is no slower than necessary.

    Attributes:
        bench: Builds and judges plans.
        ruled: Nodes that the user's rules keep: every delivered plan keeps them.
    """

    def __init__(
        self,
        bench: Bench,
        start: Plan,
        low: EngineRung,
        *,
        needed: Nodes = NONE,
        full: Outcome | None = None,
        unrepaired: Plan | None = None,
        int8: Plan | None = None,
    ) -> None:
        """Take where to start, and what is known.

        Args:
            bench: Builds and judges plans.
            start: The emulation's plan.
            low: The low format.
            needed: Nodes that the emulation needs in FP32: lowering any was seen to fail there.
            full: The fastest FP32 or TF32 engine that passes; None if none does, or if speed does
                not decide.
            unrepaired: The cheapest plan known without repairs; None if there is none.
            int8: The plan with INT8; None if there is none.
        """
        self.bench, self._low, self._variant = bench, low, start.of
        self._needed, self._full = needed, full
        self._unrepaired = None if unrepaired is None else EnginePlan(unrepaired, low)
        self._int8 = None if int8 is None else EnginePlan(int8, "int8")
        variant = self._variant
        network, roles = variant.case.network, variant.roles
        self._lowered = variant.lowered
        self._free = frozenset(n for n, role in roles.items() if role.free) - self._lowered
        self.ruled = start.kept & frozenset(variant.forced.kept)
        typings = [device.is_strong for device in bench.devices.values()]
        self._strong = all(typings)
        # What is kept or dropped together, in graph order: single nodes, whole cores.
        parts = {name: frozenset((name,)) for name in map(node_name, network.all_nodes())}
        for core in cores_of(network, roles, self._lowered) if any(typings) else ():
            parts |= dict.fromkeys(core, core)
        self._units = tuple(dict.fromkeys(parts.values()))
        self._emulated, self.plain = start.kept, EnginePlan(Plan(variant), low)
        self.start = EnginePlan(start, low).keeping(self._whole(start.kept))

    def run(self) -> None:
        """Build plans until nothing is worth a build, and no held-out sample fails."""
        while True:
            while (move := self._next()) is not None:
                self.bench.evaluate(move.plan, move.step, extra=move.extra)
            best = self.best
            if best is None or not self.bench.joins(best):
                return

    @property
    def best(self) -> EnginePlan | None:
        """The plan that passed in the largest share of its builds, of those alike the smallest.

        None if none is steady.
        """
        plans = {p: group for p, group in self.bench.tried.items() if self._is_low(p)}
        steady = [p for p, group in plans.items() if is_steady(group) and p.keep >= self.ruled]
        share = {p: fmean(o.passed for o in plans[p]) for p in steady}
        order = lambda p: (-share[p], len(p.keep), self._time(p))  # noqa: E731
        return min(steady, key=order, default=None)

    @property
    def is_minimal(self) -> bool:
        """Whether no kept node of the best plan can be dropped, by builds or by the emulation."""
        best = self.best
        if best is None or not self._passes(best):
            return False
        return all(map(self._failed, self._less(best, best.keep - self._needed)))

    @property
    def predicted(self) -> Nodes:
        """The kept nodes of the best plan that only the emulation shows to be needed."""
        best = self.best
        if best is None:
            return NONE
        less = self._less(best, self._whole(best.keep & self._needed))
        return NONE.union(*(best.keep - plan.keep for plan in less if not self._failed(plan)))

    @property
    def spared(self) -> Iterator[Spared]:
        """What was not built, and why."""
        freed, tried = replace(self.plain, tf32=True), self.bench.tried
        if self._full is not None and self._is_slower(freed):
            shown, full = fastest(tried[freed]), self._full
            built = None if self._unrepaired is None else tried.get(self._unrepaired)
            numbers = {"build": shown.number, "median_ms": shown.milliseconds}
            numbers |= {"full": full.number, "full_ms": full.milliseconds}
            numbers |= {"beside": built[0].number} if built else {}
            yield Spared(kind="slower", numbers=numbers)
        if self.bench.is_over:
            yield Spared(kind="interrupted")

    def _next(self) -> Try | None:
        """Return the first move that was not made; None if there is none, or nothing is built."""
        if self.bench.is_over or self.bench.is_lost:
            return None
        # By what it may save times its odds; much was built.
        for move in chain(self._searched(), self._beside()):
            tried = self.bench.tried.get(move.plan, ())
            if not tried and (move.extra or self.bench.budget > 0):
                return move
            if 0 < len(tried) < move.builds and all(o.passed for o in tried):
                step = f"build {len(tried) + 1} of {move.builds} of the same plan"
                return replace(move, step=step)
        return None

    def _searched(self) -> Iterator[Try]:
        """Yield plans that are searched for.

        A slow plan is tried with TF32: what is kept for its range has that range in TF32 too, and a
        kept convolution or product is several times as fast.
        """
        yield Try(self.plain, "plain low precision", extra=True)
        if self.ruled or not self._passes(self.plain):
            yield Try(self.start, "the plan of the emulation")
        if self._is_slower(self.plain) and self._is_slower(self.start):
            freed = replace(self.plain, tf32=True)
            yield Try(freed, "plain low precision with TF32", extra=True)
            if self._is_slower(freed):
                return
            yield Try(replace(self.start, tf32=True), "the same plan with TF32", extra=True)
        best = self.best
        if best is None:
            yield from self._repairs()
        elif self._passes(best):
            if self._is_slow(best) and not best.tf32 and self._gains_from_tf32(best.keep):
                yield Try(replace(best, tf32=True), "the same plan with TF32")
            yield from self._smaller(best)
            yield Try(best, "", builds=self.bench.builds)

    def _repairs(self) -> Iterator[Try]:
        """Yield what may mend plans that fail; an engine says more than a build that gave none.

        The nearest engine, of those alike the one that keeps least, gets each half of its low nodes
        in FP32, each quarter …
        """
        failed = [group[-1] for plan, group in self.bench.tried.items() if self._is_low(plan)]
        failed = [o for o in failed if not o.passed and o.plan.keep >= self._emulated]
        low = self._variant.computing & self._free
        least = ALIKE * min((o.error for o in failed), default=inf)
        for outcome in sorted(failed, key=lambda o: (o.error > least, len(o.plan.keep), o.error)):
            plan, lowest = outcome.plan, low - outcome.plan.keep
            if outcome.excess is None:
                yield from self._at_levels(outcome)
            for remaining in self._subsets(lowest):
                keep = self._whole((plan.keep | lowest - remaining) & self._free)
                if self.ruled <= keep:
                    more = count(len(lowest - remaining), "more node")
                    yield Try(plan.keeping(keep), f"whether {more} in FP32 mend it")

    def _at_levels(self, failed: Outcome) -> Iterator[Try]:
        """Yield a plan that gave no engine at other optimization levels, if these are free."""
        device, plan = self.bench.devices[failed.at], failed.plan
        chosen = {device.builds.settings.optimization_level, plan.level}
        if chosen != {None} or not has("optimization levels", device.worker.info.tensorrt):
            return
        crashed = failed.worst.build.status in ("crashed", "timeout")
        for level in LEVELS[::-1] if crashed else LEVELS:
            step = f"optimization level {level} instead of build {failed.number}"
            yield Try(replace(plan, level=level), step)

    def _smaller(self, best: EnginePlan) -> Iterator[Try]:
        """Yield plans without halves, quarters … of what the emulation does not need."""
        added = best.keep - self._needed
        for remaining in self._subsets(added):
            keep, dropped = best.keep & self._needed | remaining, len(added - remaining)
            plan = best.keeping(keep)
            if keep and not self._failed(plan):
                verb = "is" if dropped == 1 else "are"
                yield Try(plan, f"whether {count(dropped, 'kept node')} {verb} needed")

    def _beside(self) -> Iterator[Try]:
        """Yield plans that are rows of the table, and use nothing of the budget.

        The plan known without repairs: only engines show whether a repaired model is faster. The
        plan with INT8; if it fails, constraints keep nodes in FP32 and no rule does, also without
        them, since TensorRT 8.6 refuses some networks with constraints in addition to INT8
        (docs/int8.md).
        """
        builds = self.bench.builds
        if (plan := self._unrepaired) is not None:
            best = self.best
            limits = [] if best is None else [self._time(best)]
            limits += [] if self._full is None else [self._full.milliseconds]
            is_fast = all(near(self._time(plan), ms) for ms in limits)
            step = "the plan that is known without repairs"
            yield Try(plan, step, builds if is_fast else 1, extra=True)
        if (plan := self._int8) is not None:
            yield Try(plan, "the plan with INT8", builds, extra=True)
            built, ruled = self.bench.tried.get(plan), self._variant.forced.kept
            if built and not built[-1].passed and built[-1].worst.build.config.keep and not ruled:
                step = "the plan with INT8, nothing constrained"
                yield Try(replace(plan, unconstrained=True), step, builds, extra=True)

    def _subsets(self, keep: Nodes) -> Iterator[Nodes]:
        """Yield a set without each half of it, each quarter …, each single node or whole core."""
        parts, many = self._droppable(keep), 2
        while parts:
            yield from (keep - part for part in split(parts, min(many, len(parts))))
            if many >= len(parts):
                return
            many *= 2

    def _droppable(self, keep: Nodes) -> list[Nodes]:
        """Return what may be dropped alone, in graph order."""
        return [unit for unit in self._units if unit <= keep and not unit & self.ruled]

    def _less(self, plan: EnginePlan, some: Nodes) -> list[EnginePlan]:
        """Return the plans without one of some kept nodes, or one of their whole cores."""
        return [plan.keeping(plan.keep - part) for part in self._droppable(some)]

    def _failed(self, plan: EnginePlan) -> bool:
        """Return whether a plan was seen to fail in engines; in FP32 it then fails in TF32 too."""
        built = [p for p in (plan, replace(plan, tf32=False)) if p in self.bench.tried]
        return not all(map(self._passes, built))

    def _whole(self, keep: Nodes) -> Nodes:
        """Return `keep` extended to all of every core that it touches."""
        return keep.union(*(unit for unit in self._units if unit & keep))

    def _is_low(self, plan: EnginePlan) -> bool:
        """Return whether it is a plan of the low format, with the run's repairs."""
        return plan.rung == self._low and plan.types.of is self._variant

    def _passes(self, plan: EnginePlan) -> bool:
        """Return whether a plan was built, and all of its builds passed."""
        return all(o.passed for o in self.bench.tried.get(plan, ())) and plan in self.bench.tried

    def _time(self, plan: EnginePlan) -> float:
        """Return the time of its fastest build, ms; inf if unknown."""
        return min((o.milliseconds for o in self.bench.tried.get(plan, ())), default=inf)

    def _is_slow(self, plan: EnginePlan) -> bool:
        """Return whether a plan's kept nodes make its engine slow."""
        return bool(plan.keep) and SLOW * self._time(self.plain) < self._time(plan) < inf

    def _is_slower(self, plan: EnginePlan) -> bool:
        """Return whether a plan was built, and is slower than a proven engine with nothing low.

        Nothing is predicted in strong typing: kept nodes may have faster kernels there.
        """
        if self._full is None or self._strong or plan not in self.bench.tried:
            return False
        return self._time(plan) >= FUTILE * self._full.milliseconds

    def _gains_from_tf32(self, keep: Nodes) -> bool:
        """Return whether TF32 is still forbidden, and would make a kept node faster."""
        settings = [device.builds.settings for device in self.bench.devices.values()]
        return bool(keep & self._variant.products) and not all(one.tf32 for one in settings)
