"""Try a plan in an engine: build it, and measure it on the calibration samples."""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from halfwise.fixing.engines.builds import Builds
from halfwise.fixing.engines.candidates import Assignment, Candidate
from halfwise.fixing.engines.fetched import Fetched
from halfwise.fixing.engines.files import ModelFiles
from halfwise.fixing.engines.measure import Measure, again_if_lost, is_lost
from halfwise.fixing.engines.regime import low_format
from halfwise.fixing.planner import Planner
from halfwise.graph.roles import Role
from halfwise.progress import Watcher
from halfwise.records import BuildOutcome, NodeName, Precision, TensorName
from halfwise.tensorrt.constrain import constraints
from halfwise.tensorrt.worker.failures import ENGINE_FAULTS
from halfwise.wording import count


@dataclass
class Attempts:
    """Builds and measures plans.

    Attributes:
        planner: Knows the model of every plan, and how far outputs are off.
        builds: Builds engines.
        measure: Runs them.
        files: Writes what they are built from.
        fetched: Has those here that may be delivered.
        fp32: The FP32 model's file.
        watcher: Told about progress.
        notes: Takes what to know.
    """

    planner: Planner
    builds: Builds
    measure: Measure
    files: ModelFiles
    fetched: Fetched
    fp32: Path
    watcher: Watcher
    notes: list[str]
    _built: set[tuple[Assignment, bool]] = field(default_factory=set)
    _fastest: dict[Hashable, float] = field(default_factory=dict)
    _reasons: set[str] = field(default_factory=set)

    def attempt(self, keep: Assignment, step: str, tf32: bool = False) -> Candidate:
        """Build the plan that keeps `keep`, and measure its engine.

        Args:
            keep: Compute nodes to be FP32.
            step: Why it is tried.
            tf32: Whether to allow TF32 although the settings do not ask for it.
        """
        fresh = (keep, tf32) in self._built
        self._built.add((keep, tf32))
        candidate = self._once(keep, step, tf32=tf32, fresh=fresh)
        if candidate.lost:  # that tells of the connection, not yet of the plan
            candidate = self._once(keep, step, tf32=tf32, fresh=fresh)
        return candidate

    def _once(self, keep: Assignment, step: str, *, tf32: bool, fresh: bool) -> Candidate:
        build = self._build(keep, step, tf32=tf32, fresh=fresh)
        return self.measured(Candidate(keep, step, build, tf32=tf32), (keep, tf32))

    def measured(self, candidate: Candidate, name: Hashable, *, untimed: bool = False) -> Candidate:
        """Return what was built with its error on the calibration samples and its speed.

        What it computes in is looked at where it is off. It is brought here as `name` where it may
        be delivered. One that runs and cannot be timed counts as one that does not run, unless
        `untimed`.
        """
        build = candidate.build
        if build.engine is None:
            return candidate
        found = candidate
        try:
            found = replace(found, excess=self._excess(build))
            self.watcher.note(
                f"build {build.number} keeps {len(candidate.keep)}: error {found.excess:.3g} of "
                "what is allowed"
            )
            latency = self.measure.latency(build.engine)
            self.watcher.note(f"build {build.number} takes {latency.median_ms:.3g} ms a run")
            found = replace(found, latency=latency)
        except ENGINE_FAULTS as failed:
            why, lost = failed.message, is_lost(failed)
            if found.excess is None or not untimed:
                self._tell(f"the engine of build {build.number} does not run", why)
                return replace(candidate, failure=why, lost=lost)
            self._tell(f"the engine of build {build.number} runs, and cannot be timed", why)
            found = replace(found, untimed=why, lost=lost)
        try:
            self._bring(found, name)
        except ENGINE_FAULTS as failed:  # it runs, and may still be there
            self._tell(f"the engine of build {build.number} is not fetched", failed.message)
            found = replace(found, lost=is_lost(failed))
        if found.passed or (build.config.low is None and build.config.typing == "weak"):
            return found
        with suppress(*ENGINE_FAULTS):  # it tells less then, and is off all the same
            asked: dict[NodeName, Precision] = dict.fromkeys(candidate.keep, "fp32")
            found = replace(found, proof=self.measure.proof(build, self.planner.roles, asked))
        return found

    def again(self, candidate: Candidate) -> Candidate:
        """Return a candidate with its error on the calibration samples that there are now."""
        if candidate.excess is None:
            return candidate
        try:
            excess = again_if_lost(lambda: self._excess(candidate.build))
        except ENGINE_FAULTS as failed:
            lost = is_lost(failed)
            return replace(candidate, excess=None, failure=failed.message, lost=lost)
        return replace(candidate, excess=excess)

    def marked(self, keep: Assignment, names: Sequence[TensorName]) -> BuildOutcome:
        """Build a plan with further outputs; without any, one that shows what fusion leaves."""
        which = count(len(names), "tensor") if names else "what fusion leaves"
        step = f"{which} marked, to see where the engine departs"
        return self._build(keep, step, outputs=names, unfused=not names)

    def _tell(self, what: str, why: str) -> None:
        """Tell what happened and why; a reason in full only once."""
        note = f"{what}, as before" if why in self._reasons else f"{what}: {why}"
        self._reasons.add(why)
        self.notes.append(note)
        self.watcher.note(note)

    def _bring(self, candidate: Candidate, name: Hashable) -> None:
        """Bring an engine here that may be delivered, or that is a row of the table.

        Of a plan's engines the fastest is delivered; the others stay on the worker's side.
        """
        assert candidate.build.engine is not None
        milliseconds = inf if candidate.latency is None else candidate.latency.median_ms
        wanted = candidate.passed or not candidate.keep
        if not wanted or (name in self._fastest and milliseconds >= self._fastest[name]):
            return
        self.watcher.note(f"the engine of build {candidate.build.number} is fetched")
        self.fetched.keep(name, candidate.build.engine)
        self._fastest[name] = milliseconds

    def _excess(self, build: BuildOutcome) -> float:
        assert build.engine is not None
        trials = self.planner.trials
        return trials.excess_of(self.measure.outputs(build.engine, trials.samples))

    def _build(
        self,
        keep: Assignment,
        step: str,
        *,
        outputs: Sequence[TensorName] = (),
        unfused: bool = False,
        tf32: bool = False,
        fresh: bool = False,
    ) -> BuildOutcome:
        tf32 = tf32 or self.builds.settings.tf32
        if self.builds.typing == "strong":
            try:
                mixed = self.files.mixed(self.planner, keep)
            except OSError as error:
                failed = self.builds.without_model(error, step)
                self._tell(f"build {failed.number} was not begun", failed.message)
                return failed
            return self.builds.build(
                mixed, step, tf32=tf32, outputs=outputs, unfused=unfused, fresh=fresh
            )
        return self.builds.build(
            self.fp32,
            step,
            low=low_format(self.planner.settings.fmt),
            tf32=tf32,
            keep=self._constraints(keep),
            outputs=outputs,
            unfused=unfused,
            fresh=fresh,
        )

    def _constraints(self, keep: Assignment) -> tuple[NodeName, ...]:
        """Return what to constrain to FP32, which is what the emulation has in FP32.

        None where nothing is kept but what moves data between FP32 inputs and outputs: that is
        plain low precision, and rounding on such a way is up to the builder.
        """
        roles = self.planner.roles
        pinned = frozenset(name for name, role in roles.items() if role.role is Role.PINNED)
        if not (keep or pinned or self.planner.forced.kept):
            return ()
        return constraints(self.planner.case.network, roles, self.planner.resolve(keep) | pinned)
