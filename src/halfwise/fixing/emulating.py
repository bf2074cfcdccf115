"""Runs plans in an emulation: each value rounded as the plan's types round it."""

from collections.abc import Mapping
from functools import lru_cache, partial

from halfwise.case import Sample
from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SwitchedRunner, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import RunFailed
from halfwise.fixing.evidence import Observed
from halfwise.fixing.plan.plan import NONE, Nodes, Plan, Quantisation, Variant
from halfwise.metrics import Outputs
from halfwise.records import TensorName

LOADED = 2
"""Sessions held at once: of the network without repairs, and of one with some."""

_Subject = tuple[Variant, Quantisation | None, Nodes]
"""What one session emulates all plans of: with INT8, those with the same kept nodes."""


class Emulation:
    """A judge that needs no device: ONNX Runtime with explicit rounding.

    Plans that differ in which nodes are low or INT8 are runs of one session; those with BF16 or
    TF32 are emulated as they are written.
    """

    def __init__(self, observed: Observed) -> None:
        """Take the evidence for each network; one that was not observed has no headroom."""
        self._observed = observed
        self._runners: dict[_Subject, tuple[Mapping[TensorName, float], SwitchedRunner]] = {}
        self._typed: tuple[Plan, Session] | None = None
        self._assignment = lru_cache(maxsize=LOADED)(lambda plan: plan.of.assignment(plan))

    def prepare(self, plan: Plan, /) -> None:
        """Load the session of a plan; raises as `Session` does."""
        if plan.is_typed:
            self._session(plan)
        else:
            self._typed = None
            self._runner(plan).prepare(self._assignment(plan))

    def run(self, sample: Sample, plan: Plan, /) -> Outputs:
        """Return the outputs of a plan.

        Raises:
            RunFailed: it fails on the sample, also in the form in which it is written.
        """
        if plan.is_typed:
            return self._session(plan).run(sample)
        try:
            return self._runner(plan).run(sample, self._assignment(plan))
        except RunFailed as failure:
            if failure.late:
                raise
        return self._session(plan).run(sample)  # without branches, as the plan is written

    def release(self) -> None:
        """Free all sessions; the next run loads its own again."""
        self._typed = None
        self._runners.clear()

    def _session(self, plan: Plan) -> Session:
        if self._typed is None or self._typed[0] != plan:
            self._typed = None  # two sessions at once would need more memory
            model, settings = plan.of.write(plan)[0].model, plan.of.settings
            typed = emulate_typed(model, accumulate=settings.accumulate)
            self._typed = plan, Session(typed, runtime=settings.runtime)
        return self._typed[1]

    def _runner(self, plan: Plan) -> SwitchedRunner:
        subject = plan.of, plan.quantisation, plan.kept if plan.quantisation else frozenset()
        evidence = self._observed.get(plan.of)
        limits = {} if evidence is None else evidence.limits
        entry = self._runners.pop(subject, None)
        if entry is None or entry[0] != limits:
            entry = None
            while len(self._runners) >= LOADED:
                del self._runners[next(iter(self._runners))]
            entry = limits, self._new_runner(plan, limits)
        self._runners[subject] = entry
        return entry[1]

    def _new_runner(self, plan: Plan, limits: Mapping[TensorName, float]) -> SwitchedRunner:
        of, quantisation = plan.of, plan.quantisation
        network, settings, evidence = of.case.network, of.settings, self._observed.get(of)
        slots = {}
        if quantisation is not None:
            slots = {n: s for n, s in quantisation.slots.items() if n not in plan.kept}
        switched = partial(
            emulate_switched,
            *(network, of.roles, settings.fmt),
            accumulate=settings.accumulate,
            limits=limits,
            apart=NONE if evidence is None else evidence.suspected,
            low_io=of.low_io,
            weights=of.weights,
            quantised=slots,
        )
        made = partial(switched, alike=True), switched
        return SwitchedRunner(*made, runtime=settings.runtime)
