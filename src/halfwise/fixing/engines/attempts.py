"""Plans as engines of one device: which model they are built from, and what they measure."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from halfwise.emulation.rounding import fp32_nodes
from halfwise.fixing.engines.device import Device
from halfwise.fixing.engines.measure import again_if_lost, is_interrupted, is_lost
from halfwise.fixing.engines.plan import Assignment, Built, EnginePlan, Step
from halfwise.fixing.space import Int8Space, LowSpace, Space
from halfwise.graph.roles import Role
from halfwise.records import BuildOutcome, NodeName, Precision, PrecisionProof
from halfwise.reporting.rungs import move_line
from halfwise.store import BUILT_FILE, MODEL_FILE
from halfwise.tensorrt.constrain import constraints, quantised_types
from halfwise.tensorrt.failures import ENGINE_FAULTS
from halfwise.wording import number


@dataclass(frozen=True)
class Spaces:
    """What engines are plans of.

    Attributes:
        low: The plans that the emulation searched.
        int8: Those with INT8; None without.
    """

    low: LowSpace
    int8: Int8Space | None = None

    def of(self, plan: EnginePlan) -> Space:
        """Return the plans of a plan's model: with INT8, without repairs, or the run's."""
        if plan.rung == "int8" and self.int8 is not None:
            return self.int8
        return self.low if plan.repaired or self.low.original is None else self.low.original

    def kept(self, plan: EnginePlan) -> Assignment:
        """Return the compute nodes that a plan has in FP32, or in BF16 or TF32 in its place."""
        return self.of(plan).plan(plan.keep).kept


class Attempts:
    """Builds and measures plans on one device.

    Attributes:
        device: The device.
        spaces: Have the models of plans, and measure errors of outputs.
    """

    def __init__(self, device: Device, spaces: Spaces) -> None:
        """Take the device, and what engines are plans of."""
        self.device, self.spaces = device, spaces
        self._bench = device.bench
        self._strong = device.bench.builds.typing == "strong"
        self._fastest: dict[EnginePlan, float] = {}
        self._reasons: set[str] = set()

    def builder(
        self,
        plan: EnginePlan,
        step: Step,
        *,
        fresh: bool = False,
    ) -> Callable[[], BuildOutcome]:
        """Return what builds a plan, in any thread; its model is written now.

        Args:
            plan: The plan.
            step: Why it is built.
            fresh: Whether it was built before: then tactics are timed again.
        """
        builds = self._bench.builds
        words = step if isinstance(step, str) else move_line(step)
        try:
            path = self.model_of(plan)
        except OSError as error:
            failed = builds.without_model(error, words)
            self.tell(f"build {failed.number} did not start", failed.message)
            return lambda: failed
        typed = self.spaces.of(plan).plan(plan.keep)
        build = partial(
            builds.build,
            path,
            words,
            tf32=builds.settings.tf32 or plan.tf32 or typed.tf32,
            level=plan.level,
            fresh=fresh,
        )
        if self._strong:
            return build
        low = self.spaces.low.variant.settings.fmt.low
        return partial(build, low=low, keep=self._constraints(plan))

    def measured(self, plan: EnginePlan, build: BuildOutcome) -> Built:
        """Return a build with its error on the calibration samples and its speed.

        If its error is too large, or nothing is kept, what it computes in is read. If it may be
        delivered, it is fetched. An engine that runs but cannot be timed counts as not running,
        unless Ctrl-C came.
        """
        found = Built(build)
        if build.engine is None:
            return found
        told = self._bench.watcher.note
        try:
            found = replace(found, excess=(excess := self._excess(build)))
            kept, error = len(plan.keep), number(excess)
            told(f"build {build.number} keeps {kept}: error {error} of what is allowed")
            latency = self._bench.measure.latency(build.engine)
            told(f"build {build.number} takes {number(latency.median_ms)} ms a run")
            found = replace(found, latency=latency)
        except ENGINE_FAULTS as failed:
            if is_interrupted(failed):
                return found
            self.tell(f"the engine of build {build.number} does not run", failed.message)
            return Built(build, failure=failed.message, lost=is_lost(failed))
        try:
            self._bring(plan, found)
        except ENGINE_FAULTS as failed:  # it runs, and may still exist
            self.tell(f"the engine of build {build.number} is not fetched", failed.message)
            found = replace(found, lost=is_lost(failed))
        if excess > 1 or not plan.keep:
            asked = {} if plan.rung == "int8" else self.asked(plan)
            with suppress(*ENGINE_FAULTS):  # there is less to tell then, but the error stands
                found = replace(found, proof=self.proof(plan, build, asked))
        return found

    def again(self, built: Built) -> Built:
        """Return a build with its error on the present calibration samples."""
        if built.excess is None:
            return built
        try:
            excess = again_if_lost(lambda: self._excess(built.build))
        except ENGINE_FAULTS as failed:
            return replace(built, excess=None, failure=failed.message, lost=is_lost(failed))
        return replace(built, excess=excess)

    def model_of(self, plan: EnginePlan) -> Path:
        """Return the ONNX file that a plan is built from; OSError if it cannot be written."""
        typed, files = self.spaces.of(plan).plan(plan.keep), self._bench.files
        of, network = typed.of, typed.of.network_of(typed)
        if self._strong:
            mixed = lambda: replace(network, model=of.write(typed)[0].model)  # noqa: E731
            return files.file(typed, MODEL_FILE, mixed)
        if plan.rung != "int8" and not of.case.repairs:
            return self._bench.fp32
        key = of, plan.keep if plan.rung == "int8" else None
        return files.file(key, BUILT_FILE, lambda: network)

    def proof(
        self,
        plan: EnginePlan,
        build: BuildOutcome,
        asked: dict[NodeName, Precision],
        *,
        as_fp32: bool = False,
    ) -> PrecisionProof:
        """Return what an engine computes in, by the nodes of the model it was built from.

        See `Measure.proof`.
        """
        typed = self.spaces.of(plan).plan(plan.keep)
        of, network = typed.of, typed.of.network_of(typed)
        roles = of.roles_in(network) if plan.rung == "int8" else of.roles
        types = asked | quantised_types(network)
        return self._bench.measure.proof(build, network, roles, types, as_fp32=as_fp32)

    def asked(self, plan: EnginePlan, *, low: bool = False) -> dict[NodeName, Precision]:
        """Return the types requested of kept nodes, and with `low` of others in strong typing.

        Weak typing leaves these to the builder.
        """
        typed = self.spaces.of(plan).plan(plan.keep)
        asked = {name: typed.precision(name) for name in typed.kept}
        if low and self._strong:
            rest = typed.of.computing - typed.kept
            asked |= dict.fromkeys(rest, typed.of.settings.fmt.low)
        return asked

    def own_fp32(self, plain: Built) -> Assignment:
        """Return the compute nodes that the engine with nothing kept has in FP32 by itself."""
        of, layers = self.spaces.low.variant, () if plain.proof is None else plain.proof.layers
        return (fp32_nodes(of.case.network, layers) & of.computing) - of.lowered

    def tell(self, what: str, why: str) -> None:
        """Report what happened and why; a reason is given in full only once."""
        note = f"{what}, as before" if why in self._reasons else f"{what}: {why}"
        self._reasons.add(why)
        self._bench.notes.append(note)
        self._bench.watcher.note(note)

    def _bring(self, plan: EnginePlan, built: Built) -> None:
        """Fetch an engine that may be delivered, or that is a row of the table.

        Only the fastest engine of a plan is delivered; the others stay with the worker.
        """
        assert built.build.engine is not None
        passed = built.excess is not None and built.excess <= 1
        before, now = self._fastest.get(plan), built.milliseconds
        if (plan.keep and not passed) or (before is not None and now >= before):
            return
        self._bench.watcher.note(f"the engine of build {built.build.number} is fetched")
        self._bench.fetched.keep(plan, built.build.engine)
        self._fastest[plan] = now

    def _excess(self, build: BuildOutcome) -> float:
        assert build.engine is not None
        bench = self.spaces.low.bench
        return bench.excess_of(self._bench.measure.outputs(build.engine, bench.samples))

    def _constraints(self, plan: EnginePlan) -> tuple[NodeName, ...]:
        """Return the nodes to constrain to FP32: those that the emulation has in FP32.

        None if only data movement between FP32 inputs and outputs is kept: that is plain low
        precision, and its rounding is up to the builder. INT8 nodes take no constraint.
        """
        if plan.free:
            return ()
        typed = self.spaces.of(plan).plan(plan.keep)
        of, kept = typed.of, typed.kept
        network, roles = of.case.network, of.roles
        pinned = frozenset(name for name, role in roles.items() if role.role is Role.PINNED)
        if not (kept or pinned or of.forced.kept):
            return ()
        return constraints(network, roles, of.resolve(kept) | pinned)
