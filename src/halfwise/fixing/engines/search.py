"""The search for a plan in real engines: the emulation proposes, the engine decides.

After each build all moves are listed anew, from what is known, and the first is made that was not:
those that may save most for their odds come first. A plan that passes is confirmed, as builds of
weak typing differ by chance, before slower ways to gain are tried.

In strong typing the core of an attention is FP32 as a whole or not at all. A fused attention kernel
needs both products and everything between them in one type; with only Softmax in FP32, TensorRT
does not fuse, which took 4.3 times as long (Stability-AI/stable-audio-3#79). From 11.3 on, a core
in FP32 whose queries, keys and values are cast up from FP16 is a fused kernel that sums in FP32
(TensorRT release notes). Constraints of weak typing are hints: there only engines decide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from halfwise.emulation.typed import TENSOR_CORE_OPS
from halfwise.fixing.engines.bench import Bench
from halfwise.fixing.engines.plan import (
    NOTHING,
    Assignment,
    EnginePlan,
    Outcome,
    Step,
    fastest,
    is_steady,
)
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.refusals import has_levels, instead, refusals
from halfwise.fixing.space import LowSpace
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.roles import Role, Roles
from halfwise.graph.written_out import attentions
from halfwise.records import ALIKE, EngineRung, Spared
from halfwise.wording import count

FUTILE = 1.07
"""If the low format with nothing kept, and TF32 allowed, takes this many times as long as an FP32
or TF32 engine that is proven, no plan is searched: keeping nodes gains no speed. Of the 15 mixed
engines on an H200 in `bench/results/gpu_*.json` one was 6 % faster than the one with nothing kept,
by chance (another build of its plan took 1.3 times as long), and no other one more than 1 %."""
NEAR = 1.05
"""Engines timed alone, at different times, that differ by less take turns before one of them counts
as slower. Our choice: builds of one plan with the same kernels differed by up to 2 % on an H200."""
SLOW = 1.1
"""A mixed engine that takes more than this many times as long as plain FP16 is tried otherwise."""
RESERVED = 2
"""Builds that shrinking a slow plan leaves for speeding it up."""


@dataclass(frozen=True)
class Try:
    """A plan worth building.

    Attributes:
        plan: The plan.
        step: Why.
        builds: How many builds of it are wanted, while all pass.
        free: Whether it uses nothing of the budget.
    """

    plan: EnginePlan
    step: Step
    builds: int = 1
    free: bool = False


def near(milliseconds: float, other: float) -> bool:
    """Return whether an engine may be faster than another, each timed alone."""
    return milliseconds < NEAR * other < inf


def split(names: Sequence[Assignment], parts: int) -> Iterator[Assignment]:
    """Yield the unions of `parts` (≥ 1) runs of nearly equal length, omitting empty ones."""
    edges = [round(i * len(names) / parts) for i in range(parts + 1)]
    for begin, end in pairwise(edges):
        if end > begin:
            yield NOTHING.union(*names[begin:end])


def cores_of(network: Network, roles: Roles, lowered: Assignment) -> tuple[Assignment, ...]:
    """Return the attention cores of a model, joined if they share nodes.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes.
        lowered: Nodes that the user wants low: a core with one of them does not count.
    """
    found: list[Assignment] = []
    for nodes in attentions(network):
        names = map(node_name, nodes)
        core = frozenset(n for n in names if roles[n].role is Role.COMPUTE and roles[n].free)
        joined = [other for other in found if other & core]
        found = [other for other in found if other not in joined]
        found.append(core.union(*joined))
    return tuple(core for core in found if core and not core & lowered)


class EngineSearch:
    """Finds the passing plan with the fewest kept nodes whose engine is no slower than necessary.

    Attributes:
        bench: Builds and judges plans.
        ruled: Nodes that the user's rules keep: every delivered plan keeps them.
        doomed: Sets that the emulations rule out, so that they were not built.
        own_fp32: Compute nodes that engines with nothing kept have in FP32 by themselves.
    """

    def __init__(
        self,
        bench: Bench,
        space: LowSpace,
        start: Assignment,
        low: EngineRung,
        *,
        prediction: Prediction | None = None,
        full: tuple[int, float] | None = None,
        unrepaired: Assignment | None = None,
        int8: Assignment | None = None,
    ) -> None:
        """Take where to start, and what is known.

        Args:
            bench: Builds and judges plans.
            space: The plans that the emulation searched.
            start: What the emulation's plan keeps.
            low: The low format.
            prediction: Predictions of the emulation; None if it says nothing about these engines.
            full: Number and time, ms, of the fastest FP32 or TF32 engine that passes; None if none
                does, or if speed does not decide.
            unrepaired: What the cheapest plan known without repairs keeps; None if there is none.
            int8: What the plan with INT8 leaves out of it; None if there is none.
        """
        self.bench, self._space, self._low = bench, space, low
        self._prediction, self._full = prediction, full
        self._unrepaired, self._int8 = unrepaired, int8
        variant = space.variant
        network, roles = variant.case.network, variant.roles
        self._order = [node_name(n) for n in network.nodes()]
        self._lowered = variant.lowered
        self._free = frozenset(n for n, role in roles.items() if role.free) - self._lowered
        self.ruled = start & frozenset(variant.forced.kept)
        typings = {a.device.bench.builds.typing for a in bench.attempts.values()}
        self._strong = typings == {"strong"}
        self._cores = cores_of(network, roles, self._lowered) if "strong" in typings else ()
        self._emulated = start
        self.start, self.plain = EnginePlan(self._whole(start), low), EnginePlan(NOTHING, low)
        self.doomed: set[Assignment] = set()
        self.own_fp32 = NOTHING

    def run(self) -> None:
        """Build plans until nothing is worth a build, and no held-out sample fails."""
        while True:
            while (move := self._next()) is not None:
                outcome = self.bench.evaluate(move.plan, move.step, free=move.free)
                if move.plan == self.plain and not self.own_fp32:
                    self.own_fp32 = self._own_fp32(outcome)
            best = self.best
            if best is None or not self.bench.joins(best):
                return
            self.doomed.clear()

    @property
    def best(self) -> EnginePlan | None:
        """The smallest plan whose builds all passed, else the steadiest one; None without one."""
        tried = self.bench.tried
        plans = [p for p in tried if self._is_own(p) and p.keep >= self.ruled]
        sound = [p for p in plans if self._passes(p)]
        if sound:
            return min(sound, key=lambda p: (len(p.keep), self._time(p)))
        steady = [p for p in plans if is_steady(tried[p])]
        share = {p: sum(o.passed for o in tried[p]) / len(tried[p]) for p in steady}
        return max(steady, key=lambda p: share[p], default=None)

    @property
    def is_minimal(self) -> bool:
        """Whether no kept node of the best plan can be dropped, by builds or predictions."""
        best = self.best
        if best is None or not self._passes(best):
            return False
        less = (best.keep - part for part in self._droppable(best.keep))
        return all(self._fails(replace(best, keep=keep)) for keep in less)

    @property
    def predicted(self) -> Assignment:
        """The kept nodes of the best plan that only a prediction shows to be needed."""
        best = self.best
        if best is None:
            return NOTHING
        parts = self._droppable(best.keep)
        return NOTHING.union(*(part for part in parts if best.keep - part in self.doomed))

    @property
    def spared(self) -> Iterator[Spared]:
        """What was not built, and why."""
        freed = replace(self.plain, tf32=True)
        if self._full is not None and self._is_slower(freed):
            shown, (full, full_ms) = fastest(self.bench.tried[freed]), self._full
            built = self.bench.tried.get(self._unrepaired_plan)
            yield Spared(
                kind="slower",
                build=shown.number,
                median_ms=shown.milliseconds,
                full=full,
                full_ms=full_ms,
                beside=built[0].number if built else None,
            )
        if self.bench.is_over:
            yield Spared(kind="interrupted")

    def _next(self) -> Try | None:
        """Return the first move that was not made; None if there is none, and after Ctrl-C."""
        for move in self._moves() if not self.bench.is_over else ():
            tried = self.bench.tried.get(move.plan, ())
            if not tried and (move.free or self.bench.left > 0):
                return move
            if 0 < len(tried) < move.builds and all(o.passed for o in tried):
                step = f"build {len(tried) + 1} of {move.builds} of the same plan"
                return replace(move, step=step)
        return None

    def _moves(self) -> Iterator[Try]:
        """Yield what is worth a build, by what it may save times its odds; much was built."""
        yield from self._searched()
        yield from self._beside()

    def _searched(self) -> Iterator[Try]:
        plain = Try(self.plain, "plain low precision", free=True)
        is_enough = not self.ruled and self._is_enough(NOTHING)
        if is_enough:
            yield plain
        if not (is_enough and self._passes(self.plain)):
            yield Try(self.start, "the plan of the emulation")
        yield plain
        if self._is_slower(self.plain) and self._is_slower(self.start):
            freed = replace(self.plain, tf32=True)
            yield Try(freed, "plain low precision with TF32", free=True)
            if self._is_slower(freed):
                return
            yield Try(replace(self.start, tf32=True), "the same plan with TF32", free=True)
        best = self.best
        if best is None:
            yield from self._repairs()
        elif self._passes(best):
            yield from self._smaller(best)
            yield Try(best, "", builds=self.bench.builds)
            yield from self._faster(best)

    def _repairs(self) -> Iterator[Try]:
        """Yield what may mend plans that fail; an engine says more than a build that gave none.

        The nearest engine, of those alike the one that keeps least, gets what guards suspect, then
        each half of its low nodes, each quarter …
        """
        failed = [group[-1] for plan, group in self.bench.tried.items() if self._is_own(plan)]
        failed = [o for o in failed if not o.passed and o.plan.keep >= self._emulated]
        if all(o.worst.untold for o in failed):
            return
        ran = [o for o in failed if o.excess is not None]
        low = self._space.choices & self._free
        least = ALIKE * min((o.error for o in ran), default=inf)
        ran = sorted(ran, key=lambda o: (o.error > least, len(o.plan.keep), o.error))
        for outcome in ran:
            keep = outcome.plan.keep
            suspected = self._space.evidence.suspected
            yield from self._tried(outcome.plan, suspected, "everything that guards suspect")
            for rest in self._subsets(low - keep):
                more = low - keep - rest
                step = f"whether {count(len(more), 'more node')} in FP32 mend it"
                yield from self._tried(outcome.plan, more, step)
        for outcome in failed:
            if outcome.excess is None:
                yield from self._instead(outcome)

    def _instead(self, failed: Outcome) -> Iterator[Try]:
        """Yield other forms of a plan that gave no engine."""
        name, variant = failed.at, self._space.variant
        if name not in self.bench.attempts:
            return
        bench = self.bench.attempts[name].device.bench
        own = refusals([failed.worst.build], variant.case.network, variant.roles)
        refused, computing = next(iter(own), None), variant.computing
        args = failed.plan, refused, failed.number, computing
        for move, plan in instead(*args, level=has_levels(bench)):
            # Then nothing is known about a missing kernel.
            step = "instead of a plan that was lost" if failed.worst.untold else move
            yield from self._tried(plan, NOTHING, step)

    def _tried(self, plan: EnginePlan, more: Assignment, step: Step) -> Iterator[Try]:
        """Yield a plan that keeps more, and whole cores, if the user's rules allow it."""
        keep = self._whole((plan.keep | more) & self._free)
        if self.ruled <= keep:
            yield Try(replace(plan, keep=keep), step)

    def _smaller(self, best: EnginePlan) -> Iterator[Try]:
        """Yield plans that keep less: what fusion needs, then all but halves, quarters, one node.

        Sets that both emulations rule out are not built.
        """
        if self.bench.left <= (RESERVED if self._is_slow(best) else 0):
            return
        if self._prediction is not None:
            keep = best.keep
            while less := next(filter(self._is_enough, self._subsets(keep)), None):
                keep = less
            if keep != best.keep:
                step = "what is enough by the emulation with fusion"
                yield Try(replace(best, keep=keep), step)
        # What the emulation's plan keeps is needed in the emulation.
        known, added = best.keep & self.start.keep, best.keep - self.start.keep
        for keep in (*(known | rest for rest in self._subsets(added)), *self._subsets(best.keep)):
            plan, dropped = replace(best, keep=keep), len(best.keep - keep)
            if keep and not self._fails(plan):
                verb = "is" if dropped == 1 else "are"
                yield Try(plan, f"whether {count(dropped, 'kept node')} {verb} needed")

    def _faster(self, best: EnginePlan) -> Iterator[Try]:
        """Yield a slow plan with TF32, and its confirmation if it is faster.

        What is kept for its range has that range in TF32 too, and a kept convolution or product is
        several times as fast.
        """
        if self._is_slow(best) and not best.tf32 and self._gains_from_tf32(best.keep):
            yield Try(replace(best, tf32=True), "the same plan with TF32")

    @property
    def _unrepaired_plan(self) -> EnginePlan:
        return EnginePlan(self._unrepaired or NOTHING, self._low, repaired=False)

    def _beside(self) -> Iterator[Try]:
        """Yield plans that are rows of the table, and use nothing of the budget.

        The plan known without repairs: only engines show whether a repaired model is faster. The
        plan with INT8; if it fails, constraints keep nodes in FP32 and no rule does, also without
        them, since TensorRT 8.6 refuses some networks with constraints in addition to INT8
        (docs/int8.md).
        """
        if self._unrepaired is not None:
            plan, best = self._unrepaired_plan, self.best
            limits = [] if best is None else [self._time(best)]
            limits += [] if self._full is None else [self._full[1]]
            is_fast = all(near(self._time(plan), ms) for ms in limits)
            step = "the plan that is known without repairs"
            yield Try(plan, step, self.bench.builds if is_fast else 1, free=True)
        if self._int8 is not None:
            plan, builds = EnginePlan(self._int8, "int8"), self.bench.builds
            yield Try(plan, "the plan with INT8", builds, free=True)
            built, ruled = self.bench.tried.get(plan), self._space.variant.forced.kept
            if built and not built[-1].passed and built[-1].worst.build.config.keep and not ruled:
                step = "the plan with INT8, nothing constrained"
                yield Try(replace(plan, free=True), step, builds, free=True)

    def _subsets(self, keep: Assignment) -> Iterator[Assignment]:
        """Yield a set without each half of it, each quarter …, each single node or whole core."""
        parts, many = self._droppable(keep), 2
        while parts:
            yield from (keep - part for part in split(parts, min(many, len(parts))))
            if many >= len(parts):
                return
            many *= 2

    def _droppable(self, keep: Assignment) -> list[Assignment]:
        """Return what may be dropped alone, in graph order: whole cores, single nodes."""
        parts = {n: frozenset((n,)) for n in self._order if n in keep}
        for core in self._cores:
            if core <= keep:
                parts |= dict.fromkeys(core, core)
        return [p for p in dict.fromkeys(parts.values()) if not p & self.ruled]

    def _fails(self, plan: EnginePlan) -> bool:
        """Return whether a plan was seen to fail, or is ruled out by both emulations.

        What fails in FP32 fails in TF32 too.
        """
        known = [p for p in (plan, replace(plan, tf32=False)) if p in self.bench.tried]
        if known:
            return not all(self._passes(p) for p in known)
        prediction, keep = self._prediction, plan.keep
        if prediction is None or not prediction.is_beyond(keep, self.own_fp32):
            return False
        self.doomed.add(keep)
        return True

    def _is_enough(self, keep: Assignment) -> bool:
        prediction = self._prediction
        return prediction is not None and prediction.is_enough(keep, self.own_fp32)

    def _own_fp32(self, plain: Outcome) -> Assignment:
        """Return the compute nodes that each device's engine has in FP32 by itself."""
        attempts = self.bench.attempts
        here = {n: part for n, part in plain.parts.items() if n in attempts}
        return frozenset.intersection(*(attempts[n].own_fp32(p) for n, p in here.items()))

    def _whole(self, keep: Assignment) -> Assignment:
        """Return `keep` extended to all of every core that it touches."""
        return keep.union(*(core for core in self._cores if core & keep))

    def _is_own(self, plan: EnginePlan) -> bool:
        """Return whether it is a plan of the low format, with the run's repairs."""
        return plan.rung == self._low and plan.repaired

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
        return self._time(plan) >= FUTILE * self._full[1]

    def _gains_from_tf32(self, keep: Assignment) -> bool:
        """Return whether TF32 is still forbidden, and would make a kept node faster."""
        devices = [a.device.bench for a in self.bench.attempts.values()]
        nodes = self._space.variant.case.network.nodes()
        products = (n for n in nodes if is_standard(n, *TENSOR_CORE_OPS))
        return any(not bench.builds.settings.tf32 for bench in devices) and any(
            node_name(n) in keep for n in products
        )
