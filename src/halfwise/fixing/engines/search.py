"""The search for a plan in real engines: the emulation proposes, the engine decides.

After each build all moves are listed anew, from what is known, and the first is made that was not:
those that may save most for their odds come first. A plan that passes is confirmed, as builds of
weak typing differ by chance, before further plans are tried.

In strong typing the core of an attention is FP32 as a whole or not at all. A fused attention kernel
needs both products and everything between them in one type; with only Softmax in FP32, TensorRT
does not fuse, which took 4.3 times as long (Stability-AI/stable-audio-3#79). From 11.3 on, a core
in FP32 whose queries, keys and values are cast up from FP16 is a fused kernel that sums in FP32
(TensorRT release notes). Constraints of weak typing are hints: there only engines decide.

Between a plan that fails and one that passes, or else everything in FP32, halves, quarters … of
what only the larger one keeps are left out.

What the builder refused had kernels in the all-FP32 engine, and usually in the all-low one: the
plan's form is what has none. So the emulation's plan is tried at another optimization level, then
with more nodes in FP32, like one that is off.

Every engine is judged, timed and inspected the same way, also on held-out samples: shrinking and
confirming a plan first would lose those builds if it fails there. The fastest that passes is
delivered. Times are noisy, so engines take turns.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import inf
from statistics import fmean, median

from msgspec import Struct

from halfwise.fixing.depths import HeldOut
from halfwise.fixing.engines.device import Asked, Device
from halfwise.fixing.engines.measure import race
from halfwise.fixing.engines.plan import EnginePlan, Outcome, fastest, is_right, is_steady
from halfwise.fixing.plan.plan import NONE, Nodes, Plan, union
from halfwise.fixing.space import Space
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles
from halfwise.graph.written_out import attentions
from halfwise.progress import interruption
from halfwise.records import FULL_RUNGS, EngineResult, EngineRung, replace
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
                rows[name] = device.row(plan, build, self._asked, self.heldout)
                if not rows[name].lost:  # that concerns the connection, not yet the plan
                    break
        outcome = Outcome(plan, rows)
        if any(part.build.status == "interrupted" for part in rows.values()):
            return outcome  # nothing is known about it
        self.tried[plan] = [*earlier, outcome]
        passed = sum(o.passed for group in self.tried.values() for o in group)
        if outcome.passed and passed == 1:
            self.joins(plan)
        return self.tried[plan][-1]

    def joins(self, plan: EnginePlan) -> bool:
        """Return whether held-out samples on which a plan's fastest engine fails joined the search.

        They are added to the calibration of every later plan, and known builds are judged anew.
        """
        heldout, joined = self.heldout, self.heldout.joined
        for name, row in fastest(self.tried[plan]).rows.items():
            if self.is_over or is_right(row) or row.build.engine is None:
                continue
            with suppress(*ENGINE_FAULTS):  # the table reports it
                judged = self.devices[name].measure.judge(
                    row.build.engine, heldout.samples, heldout.references, unseen=heldout.unseen
                )
                heldout.join(judged, self.space, " in the engine")
        if heldout.joined == joined:
            return False
        self.tried = {p: [self._again(o) for o in group] for p, group in self.tried.items()}
        return True

    def _again(self, outcome: Outcome) -> Outcome:
        """Return a build, judged on the present samples."""
        rows = {
            name: self.devices[name].judged(row, self._asked, self.heldout)
            for name, row in outcome.rows.items()
        }
        return replace(outcome, rows=rows)

    @property
    def _asked(self) -> Asked:
        return self.space.bench.samples, self.space.bench.references

    # --- the final table -----------------------------------------------------------------------

    def table(self, ruled: Nodes, plain: EnginePlan) -> list[Outcome]:
        """Return the fastest engine of each plan that may be delivered, FP32 first, with names.

        Beside them plain low precision, plans with INT8, and the engine that is nearest.

        Args:
            ruled: Nodes that the user's rules keep: every delivered plan with low nodes keeps them.
            plain: Plain low precision.
        """
        offers, names = self._full(), set[str]()
        built = [fastest(group) for group in self.tried.values()]
        # Of engines that fail alike (all overflow, say), what the one that keeps most computes in
        # can contradict what was requested.
        ran = [o for o in built if o.excess is not None and o.plan.rung != "int8"]
        nearest = min(ran, key=lambda o: (o.excess or 0.0, -len(o.plan.keep)), default=None)
        for offer in built:
            plan = offer.plan
            keeps_ruled = plan.rung == "int8" or plan.keep >= ruled
            allowed = is_steady(self.tried[plan]) and keeps_ruled
            if allowed or plan == plain or plan.rung == "int8" or offer is nearest:
                name = "mixed" if plan.keep and plan.rung != "int8" else plan.rung.upper()
                if plan.types.of is not self.space.variant:
                    name = f"{name}, without repairs"
                rows = {
                    device: replace(
                        row, name=f"{name}, build {row.build.number}" if name in names else name
                    )
                    for device, row in offer.rows.items()
                }
                names.add(name)
                offers.append(replace(offer, rows=rows, allowed=allowed))
        return offers if self.is_over else self._raced(offers)

    def _full(self) -> list[Outcome]:
        """Return the FP32 engines of each device, at least one, as they were judged."""
        offers, devices = list[Outcome](), self.devices
        # No search chose them: they have to be within the tolerance itself.
        limit = 1 / self.space.bench.tolerance.factor
        for rung in FULL_RUNGS:
            rows = {name: one.full[rung] for name, one in devices.items() if rung in one.full}
            if len(rows) == len(devices):
                plan = EnginePlan(Plan(self.space.variant), rung, tf32=rung == "tf32")
                offers.append(Outcome(plan, rows, limit))
        return offers

    def _raced(self, offers: list[Outcome]) -> list[Outcome]:
        """Return the offers with the times of rounds in which engines that passed take turns.

        A single passing engine has nothing to be compared with. See `race`.
        """
        for name, device in self.devices.items():
            rows = {i: o.rows[name] for i, o in enumerate(offers) if o.deliverable}
            engines = {i: r.build.engine for i, r in rows.items() if r.latency and r.build.engine}
            times = race(engines, device.measure.lap) if len(engines) > 1 else {}
            for i, medians in times.items():
                row, latency = rows[i], rows[i].latency
                if latency is not None and medians:
                    latency = replace(latency, medians=medians, median_ms=median(medians))
                    row = replace(row, latency=latency)
                elif any(times.values()):  # else the worker is gone: all keep what they have
                    why = "it failed while engines took turns"
                    row = replace(row, latency=None, untimed=why)
                offers[i] = replace(offers[i], rows={**offers[i].rows, name: row})
        return offers


def choose(offers: Sequence[Outcome]) -> Outcome | None:
    """Return the offer to deliver, the fastest that passes; None if none does.

    An untimed one comes last; ties are broken by the order of `offers`.
    """
    passed = [offer for offer in offers if offer.deliverable]
    return min(passed, key=lambda o: o.milliseconds, default=None)


SLOW = 1.1
"""A mixed engine that takes more than this many times as long as plain FP16 is tried otherwise."""


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
        plain: Plain low precision.
        ruled: Nodes that the user's rules keep: every delivered plan keeps them.
    """

    def __init__(
        self,
        bench: Bench,
        start: Plan,
        low: EngineRung,
        *,
        needed: Nodes = NONE,
        unrepaired: Plan | None = None,
        int8: Plan | None = None,
    ) -> None:
        """Take where to start, and what is known.

        Args:
            bench: Builds and judges plans.
            start: The emulation's plan.
            low: The low format.
            needed: Nodes that the emulation needs in FP32: lowering any was seen to fail there.
            unrepaired: The cheapest plan known without repairs; None if there is none.
            int8: The plan with INT8; None if there is none.
        """
        self.bench, self._low, self._needed = bench, low, needed
        self._unrepaired = None if unrepaired is None else EnginePlan(unrepaired, low)
        self._int8 = None if int8 is None else EnginePlan(int8, "int8")
        variant = self._variant = start.of
        network, roles = variant.case.network, variant.roles
        self.ruled = start.kept & frozenset(variant.forced.kept)
        # What is kept or dropped together, in graph order: single nodes, whole cores.
        units = {name: frozenset((name,)) for name in map(node_name, network.all_nodes())}
        if any(device.is_strong for device in bench.devices.values()):
            for core in cores_of(network, roles, variant.lowered):
                units |= dict.fromkeys(core, core)
        self._units = tuple(dict.fromkeys(units.values()))
        self.plain = EnginePlan(Plan(variant), low)
        kept = union(unit for unit in self._units if unit & start.kept)
        self._start = EnginePlan(start, low).keeping(kept)
        free = frozenset(n for n in variant.computing if roles[n].free) - variant.lowered
        self._everything = self._start.keeping(kept | free)

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
        share = {
            plan: fmean(outcome.passed for outcome in group)
            for plan, group in self.bench.tried.items()
            if self._is_low(plan) and is_steady(group) and plan.keep >= self.ruled
        }
        order = lambda p: (-share[p], len(p.keep), self._time(p))  # noqa: E731
        return min(share, key=order, default=None)

    @property
    def is_minimal(self) -> bool:
        """Whether no kept node of the best plan can be dropped, by builds or by the emulation."""
        best = self.best
        if best is None or not self._passes(best):
            return False
        units = self._droppable(best.keep - self._needed)
        return all(self._failed(best.keeping(best.keep - unit)) for unit in units)

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
            yield Try(self._start, "the plan of the emulation")
        best = self.best
        if best is None:
            yield from self._at_other_level()
            for plan in self._less(self._everything, self._start.keep):
                more = count(len(plan.keep - self._start.keep), "more node")
                yield Try(plan, f"whether {more} in FP32 mend it")
        elif self._passes(best):
            if self._is_slow(best) and not best.tf32 and self._gains_from_tf32(best.keep):
                yield Try(replace(best, tf32=True), "the same plan with TF32")
            for plan in self._less(best, best.keep & self._needed):
                if not self._failed(plan):
                    fewer = count(len(best.keep - plan.keep), "kept node")
                    yield Try(plan, f"whether {fewer} can be left out")
            yield Try(best, "", builds=self.bench.builds)

    def _at_other_level(self) -> Iterator[Try]:
        """Yield the emulation's plan at another optimization level, if it gave no engine.

        At 5 the builder tries every kernel that it has or can generate; at 1, which is for crashes
        and time-outs, it generates none and uses its compiler least (TensorRT's developer guide,
        "Builder optimization level"; the default is 3).
        """
        built, devices = self.bench.tried.get(self._start, ()), self.bench.devices.values()
        is_free = all(
            device.builds.settings.optimization_level is None
            and has("optimization levels", device.worker.info.tensorrt)
            for device in devices
        )
        if built and built[-1].excess is None and is_free:
            level = 1 if built[-1].worst.build.status in ("crashed", "timeout") else 5
            step = f"optimization level {level} instead of build {built[-1].number}"
            yield Try(replace(self._start, level=level), step)

    def _beside(self) -> Iterator[Try]:
        """Yield plans that are rows of the table, and use nothing of the budget.

        The plan known without repairs: only engines show whether a repaired model is faster. The
        plan with INT8; if it fails, constraints keep nodes in FP32 and no rule does, also without
        them, since TensorRT 8.6 refuses some networks with constraints in addition to INT8
        (docs/int8.md).
        """
        builds, best = self.bench.builds, self.best
        if (plan := self._unrepaired) is not None:
            is_faster = best is None or self._time(plan) <= self._time(best)
            step = "the plan that is known without repairs"
            yield Try(plan, step, builds if is_faster else 1, extra=True)
        if (plan := self._int8) is not None:
            yield Try(plan, "the plan with INT8", builds, extra=True)
            built, ruled = self.bench.tried.get(plan), self._variant.forced.kept
            if built and not built[-1].passed and built[-1].worst.build.config.keep and not ruled:
                step = "the plan with INT8, nothing constrained"
                yield Try(replace(plan, unconstrained=True), step, builds, extra=True)

    def _less(self, plan: EnginePlan, least: Nodes) -> Iterator[EnginePlan]:
        """Yield a plan without halves, quarters … single units of what it keeps beyond `least`."""
        units = self._droppable(plan.keep - least)
        size = len(units)
        while size > 0:
            size = (size + 1) // 2
            for first in range(0, len(units), size):
                yield plan.keeping(plan.keep - union(units[first : first + size]))
            if size == 1:
                return

    def _droppable(self, keep: Nodes) -> list[Nodes]:
        """Return what may be dropped alone, in graph order."""
        return [unit for unit in self._units if unit <= keep and not unit & self.ruled]

    def _failed(self, plan: EnginePlan) -> bool:
        """Return whether a plan was seen to fail in engines; in FP32 it then fails in TF32 too."""
        built = [p for p in (plan, replace(plan, tf32=False)) if p in self.bench.tried]
        return not all(map(self._passes, built))

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

    def _gains_from_tf32(self, keep: Nodes) -> bool:
        """Return whether TF32 is still forbidden, and would make a kept node faster."""
        settings = [device.builds.settings for device in self.bench.devices.values()]
        return bool(keep & self._variant.products) and not all(one.tf32 for one in settings)
