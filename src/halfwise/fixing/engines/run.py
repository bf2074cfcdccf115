"""A run with engines, in order: FP32 engines, the search, the table, the record.

A plan is right if it is right on every device; one device is the usual case.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from halfwise.errors import HalfwiseError
from halfwise.fixing.engines.attempts import Attempts, Spaces
from halfwise.fixing.engines.bench import Bench
from halfwise.fixing.engines.device import Device, side_by_side
from halfwise.fixing.engines.plan import (
    Assignment,
    EnginePlan,
    Outcome,
    fastest,
    is_steady,
)
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.record import (
    all_of,
    engines_of,
    expected_of,
    recorded,
    rounds_of,
    seen_on,
    verdict_of,
)
from halfwise.fixing.engines.search import EngineSearch, near
from halfwise.fixing.engines.table import Offer, Table, choose
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.space import Int8Space, LowSpace
from halfwise.fixing.stages import Stages
from halfwise.graph.model import node_name
from halfwise.progress import Watcher
from halfwise.records import Engines, Failure, Spared, Verdict
from halfwise.reporting.remarks import with_failures
from halfwise.tensorrt.constrain import unmatched
from halfwise.tensorrt.failures import ENGINE_FAULTS

FURTHER = 3
"""Plans judged on held-out data in addition to the search's choice: a faster engine may have been
built on the way, or the chosen one may fail there."""


@dataclass(frozen=True)
class Proof:
    """Result of a run with engines.

    Attributes:
        engines: The record of each device, by its name.
        verdict: On the held-out samples: of the delivered engines, or the closest ones; of the FP32
            engine if that is wrong; of the emulation, failed, if no engine runs.
        plan: What is delivered; None if nothing passed.
        minimal: Whether no kept node can be dropped, by engines or predictions.
        joined: Held-out samples that joined the calibration.
        wrong: The first device whose FP32 engine is wrong; None if none is.
    """

    engines: Mapping[str, Engines]
    verdict: Verdict
    plan: EnginePlan | None = None
    minimal: bool = False
    joined: tuple[str, ...] = ()
    wrong: str | None = None


class EngineRun:
    """Builds, judges and compares the engines of one case on each device.

    Attributes:
        devices: The devices, by name, in the order of the command; a single one is named "".
        stages: The stages so far.
    """

    def __init__(self, devices: Mapping[str, Device], watcher: Watcher) -> None:
        """Take the devices, at least one."""
        self.devices, self._watcher = devices, watcher
        self.stages = Stages(watcher)

    def reference(self) -> Proof | None:
        """Build and judge the FP32 engine of each device; return the result if one is wrong.

        Raises:
            HalfwiseError: as for `Device.reference`; with several devices the message names one.
        """
        with self.stages("FP32 engine"):
            side_by_side(self.devices, {n: d.reference for n, d in self.devices.items()})
        engines, verdicts = {}, {}
        for name, device in self.devices.items():
            rows = [] if device.fp32 is None else [device.fp32]
            engines[name] = engines_of(device, rows)
            verdict = None if device.fp32 is None else device.fp32.verdict
            if verdict is not None and not verdict.passed:
                wrong = Failure(kind="fp32-wrong")
                verdicts[name] = with_failures(verdict, (wrong,), ahead=True)
        if not verdicts:
            return None
        every = all_of(verdicts, {}, several=self._several)
        return Proof(self._judged(engines, verdicts), every, wrong=next(iter(verdicts)))

    def with_tf32(self) -> None:
        """Build the FP32 engine with TF32 on each device, and report it where it passes."""
        with self.stages("TF32 engine"):
            side_by_side(self.devices, {n: d.with_tf32 for n, d in self.devices.items()})

    def prove(self, fixed: Fixed) -> Proof:
        """Search from the plan of `fixed`, judge the result on held-out samples, compare.

        The FP32 engines are judged before, so they can be delivered whatever happens to the worker.

        Raises:
            EngineFailed: the worker was lost before its FP32 engine was judged.
        """
        if any(device.fp32 is None for device in self.devices.values()):
            return self._interrupted(fixed)
        lowest, fixed = fixed, fixed.rungs[0] if fixed.rungs else fixed
        low, int8 = fixed.space, lowest.rungs[-1].space if lowest.rungs else None
        assert isinstance(low, LowSpace)
        spaces = Spaces(low, int8 if isinstance(int8, Int8Space) else None)
        benches = [d.bench for d in self.devices.values()]
        weak = [b for b in benches if b.builds.typing == "weak"]
        prediction = Prediction(low)
        settings = benches[0].engine_settings
        bench = Bench(
            {name: Attempts(device, spaces) for name, device in self.devices.items()},
            fixed.heldout.anew(self._watcher),
            builds=max((b.engine_settings.builds for b in weak), default=1),
            # A device's needs are found by its own builds, one device after another.
            most=settings.max_builds * len(benches),
        )
        with self.stages("engines"):
            full = Table(bench.attempts, bench.heldout).offers
            by_time = settings.prefer == "speed" and not self._several
            passed = [o for o in full if by_time and o.passed and o.milliseconds < inf]
            times = [(o.milliseconds, o.outcome.number) for o in passed]
            search = EngineSearch(
                bench,
                low,
                fixed.result.kept,
                low.variant.settings.fmt.low,
                # What was seen of fusion was seen in weak typing.
                prediction=prediction if len(weak) == len(benches) else None,
                full=min(times)[::-1] if times else None,
                unrepaired=known_unrepaired(fixed),
                int8=_int8(lowest),
            )
            search.run()
            if bench.is_over:
                low.budget.tell("interrupt")
        with self.stages("verdict"):
            offers = self._table(bench, search)
            delivered = choose(offers, settings.prefer)
        return self._concluded(fixed, spaces, search, prediction, offers, delivered)

    def _table(self, bench: Bench, search: EngineSearch) -> tuple[Offer, ...]:
        """Return the final table: the search's choice, and others as fast or that may pass."""
        table = Table(bench.attempts, bench.heldout)
        tried = {
            plan: [replace(o, parts={n: o.parts[n] for n in bench.attempts}) for o in group]
            for plan, group in bench.tried.items()
        }
        steady = {
            plan: fastest(group)
            for plan, group in tried.items()
            if is_steady(group) and (plan.rung == "int8" or plan.keep >= search.ruled)
        }
        low = [o for plan, o in steady.items() if plan.rung != "int8"]
        low = sorted(low, key=lambda o: o.milliseconds)
        swift = [o for o in low if near(o.milliseconds, low[0].milliseconds)][: 1 + FURTHER]
        shown = [plan for plan in (search.plain, *(o.plan for o in swift), search.best) if plan]
        if not low:
            shown += self._closest(tried)
        for plan in dict.fromkeys(plan for plan in shown if plan in tried):
            table.add(fastest(tried[plan]), allowed=plan in steady)
        if not any(o.passed for o in table.offers if not o.plan.is_full):
            for outcome in [o for o in low if o.plan not in shown][:FURTHER]:
                table.add(outcome)
        int8 = [plan for plan in tried if plan.rung == "int8"]
        for plan in [p for p in int8 if p in steady] or int8[-1:]:
            table.add(steady.get(plan, tried[plan][-1]), allowed=plan in steady)
        if not bench.is_over:
            table.race()
        return table.offers

    def _closest(self, tried: Mapping[EnginePlan, Sequence[Outcome]]) -> list[EnginePlan]:
        """Return the plan whose engine has the smallest error; none if none runs.

        Among equals (all overflow, say) it is the one that keeps most: what that one computes in
        can contradict what was requested.
        """
        ran = [fastest(group) for plan, group in tried.items() if plan.rung != "int8"]
        ran = [o for o in ran if o.excess is not None]
        ran = sorted(ran, key=lambda o: (o.excess or 0.0, -len(o.plan.keep)))
        return [o.plan for o in ran[:1]]

    def _concluded(
        self,
        fixed: Fixed,
        spaces: Spaces,
        search: EngineSearch,
        prediction: Prediction,
        offers: Sequence[Offer],
        delivered: Offer | None,
    ) -> Proof:
        """Return the result of a run whose engines are all judged."""
        bench, verdicts = search.bench, dict[str, Verdict]()
        network = spaces.low.variant.case.network
        best = delivered is not None and delivered.plan == search.best
        own, engines = search.own_fp32, dict[str, Engines]()
        order = [node_name(n) for n in network.nodes()]
        predicted = tuple(n for n in order if best and n in search.predicted)
        expected = {plan: expected_of(plan, spaces, prediction, own) for plan in bench.tried}
        for name, device in self.devices.items():
            here = offers if name in bench.attempts else ()
            seen = seen_on(name, bench.tried, here, delivered, search.ruled)
            if name in bench.gone:
                rows = [] if device.fp32 is None else [device.fp32]
                lost = engines_of(device, rows)
                found = {"lost": bench.gone[name], "rounds": rounds_of(seen, spaces, expected)}
                engines[name] = lost.model_copy(update=found | {"emulated": fixed.verdict})
                continue
            if (last := seen.last) is not None:
                told = last.rows[name].build.unconstrained
                device.bench.notes.extend(unmatched(network, told))
            spared = list(search.spared)
            spared += [Spared(kind="no-tf32")] if "tf32" not in device.full else []
            engines[name] = recorded(device, seen, spaces, expected).model_copy(
                update={
                    "emulated": fixed.verdict,
                    "proven": () if device.proven is None else (device.proven,),
                    "spared": tuple(spared),
                    "needed_as_predicted": predicted,
                }
            )
            builds = len(device.bench.builds.outcomes)
            verdicts[name] = verdict_of(seen, fixed.verdict, engines[name].causes, builds)
        return Proof(
            self._judged(engines, verdicts),
            all_of(verdicts, bench.gone, several=self._several),
            None if delivered is None else delivered.plan,
            best and search.is_minimal,
            tuple(bench.heldout.joined),
        )

    def _interrupted(self, fixed: Fixed) -> Proof:
        """Return the result if Ctrl-C came before there was any engine: the emulation's plan."""
        spared = Spared(kind="interrupted")
        engines = {
            name: engines_of(device, []).model_copy(
                update={"spared": (spared,), "emulated": fixed.verdict}
            )
            for name, device in self.devices.items()
        }
        failure = Failure(kind="no-engine", numbers={"elements": len(engines)})
        return Proof(engines, with_failures(fixed.verdict, (failure,), ahead=True))

    def brought(self, proof: Proof, paths: Mapping[str, Path]) -> Proof:
        """Return the result with its engines here, each at its path unless it was here before.

        If one cannot be fetched, the verdict fails, because the user expects the file.
        """
        engines, verdict = dict(proof.engines), proof.verdict
        for name, found in proof.engines.items():
            if found.delivered is None:
                continue
            try:
                here = self.devices[name].bench.fetched.deliver(found.delivered, paths[name])
                engines[name] = found.model_copy(update={"delivered": here})
                continue
            except (*ENGINE_FAULTS, OSError) as failed:
                why = failed.message if isinstance(failed, HalfwiseError) else f"{failed}."
            lost = Failure(kind="unfetched", names={"path": found.delivered.path, "why": why})
            rungs = tuple(
                tried.model_copy(update={"end": "unfetched"}) if tried.end == "delivered" else tried
                for tried in found.rungs
            )
            own = None if found.verdict is None else with_failures(found.verdict, (lost,))
            gone = {"delivered": None, "rungs": rungs, "verdict": own}
            engines[name] = found.model_copy(update=gone)
            verdict = with_failures(verdict, (lost,))
        return replace(proof, engines=engines, verdict=verdict)

    @property
    def _several(self) -> bool:
        return len(self.devices) > 1

    def _judged(
        self, engines: Mapping[str, Engines], verdicts: Mapping[str, Verdict]
    ) -> dict[str, Engines]:
        """Return the records, of several devices each with its own verdict, lost ones last."""
        order = sorted(engines, key=lambda name: bool(engines[name].lost))
        if not self._several:
            return dict(engines)
        return {n: engines[n].model_copy(update={"verdict": verdicts.get(n)}) for n in order}


def known_unrepaired(fixed: Fixed) -> Assignment | None:
    """Return what the cheapest plan without repairs that passed keeps; None if there is none.

    Everything in FP32 does not count.
    """
    curve = fixed.curve.unrepaired
    if curve is None or not isinstance(fixed.space, LowSpace) or fixed.space.original is None:
        return None
    some = [point for point in curve.points if point.count < len(curve.nodes)]
    passed = [point for point in some if not point.is_bound and point.error <= 1]
    best = min(passed, key=lambda point: point.price, default=None)
    return None if best is None else curve.kept(best)


def _int8(lowest: Fixed) -> Assignment | None:
    """Return what a plan with INT8 leaves out of it; None if there is none that passed."""
    low = lowest.rungs[-1] if lowest.rungs else None
    return low.result.kept if low is not None and low.plan.int8 and low.verdict.passed else None
