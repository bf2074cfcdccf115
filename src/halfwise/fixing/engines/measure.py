"""Measure an engine on real samples: outputs, verdicts, speed, and the types it computes in.

To find the faster one, engines take turns: what slows the GPU down slows all of them.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

from halfwise.case import Case, EngineSettings, Sample, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.errors import HalfwiseError
from halfwise.fixing.bench import Tolerance
from halfwise.graph.model import Network
from halfwise.graph.roles import Roles
from halfwise.judging.batching import Batches, find_batching, plan_batches
from halfwise.judging.judge import Judged, judge_outputs
from halfwise.metrics import Outputs
from halfwise.records import (
    BuildOutcome,
    Criterion,
    EngineFile,
    Latency,
    NodeName,
    Precision,
    PrecisionProof,
    ShapeVerdict,
    TensorName,
    Verdict,
)
from halfwise.reporting.remarks import under, with_failures
from halfwise.tensorrt.answers import input_ports
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import ENGINE_FAULTS, WORKER_GONE, EngineFailed
from halfwise.tensorrt.layers import engine_layers
from halfwise.tensorrt.ports import fit_inputs, fit_outputs, model_ports, profile_of
from halfwise.tensorrt.prove import prove

_Key = TypeVar("_Key", bound=Hashable)
_Engine = TypeVar("_Engine")

QUICK_SECONDS = 0.5
"""Time spent timing an engine alone."""
WARM_SECONDS = 0.3
"""Warm-up before: a GPU takes that long to raise its clock."""
TIMED_RUNS = 100
"""Minimum number of timed runs: fewer have no 99th percentile."""
ROUND_SECONDS = 0.2
"""Time of one turn when engines take turns, after a quarter of that to warm up."""
ROUNDS = 7
"""Rounds in which all take turns; an engine's time is the median of its rounds. The median of the
ratios of two lies between the least and the largest with 98.4 % (1 - 2 / 2⁷)."""
NEAR = 1.05
"""Engines timed alone whose times differ by less may be equally fast. Our choice."""


@dataclass
class Measure:
    """Runs engines of one case on one worker.

    Attributes:
        worker: The worker that holds the engines.
        case: Samples, criterion, metric.
        settings: Settings of the FP32 model's session, and the margin of the search.
        engine_settings: Time-outs, and the optimization profiles of the engines; none for fixed
            shapes.
    """

    worker: Worker
    case: Case
    settings: Settings
    engine_settings: EngineSettings
    _batches: dict[tuple[str, ...], tuple[Batches, ...]] = field(default_factory=dict)

    @cached_property
    def session(self) -> Session:
        """A session of the FP32 model."""
        return Session(self.case.network.model, runtime=self.settings.runtime)

    def check_inputs(self, engine: EngineFile, samples: Samples) -> None:
        """Raise CaseError if an engine cannot take a sample: its names, shapes or values."""
        ports = input_ports(self.worker.describe(engine, self.engine_settings.run_timeout))
        for identifier, sample in zip(samples.ids, samples, strict=True):
            fit_inputs(sample, ports, identifier)

    def references(self, samples: Samples) -> list[Outputs]:
        """Return the FP32 model's outputs."""
        return [self.session.run(sample) for sample in samples]

    def outputs(
        self, engine: EngineFile, samples: Samples, profile: int | None = None
    ) -> list[Outputs]:
        """Return the engine's outputs for each sample, in the model's types.

        Args:
            engine: The engine.
            samples: Samples to run.
            profile: Index of the profile; None for the first that holds the sample.

        Raises:
            HalfwiseError: the engine cannot be read or run.
        """
        ports = model_ports(self.case.network.graph.outputs)
        return [
            fit_outputs(self.run(engine, sample, profile), ports, identifier)
            for identifier, sample in zip(samples.ids, samples, strict=True)
        ]

    def excess(self, engine: EngineFile, samples: Samples, references: Sequence[Outputs]) -> float:
        """Return the error of its outputs, ≥ 0, relative to what the search may use."""
        tolerance = Tolerance(self.case.criterion, self.case.metric, self.settings.margin)
        return tolerance.excess(self.outputs(engine, samples), samples, references)

    def run(self, engine: EngineFile, sample: Sample, profile: int | None = None) -> Outputs:
        """Return all outputs of the engine for one sample, in the engine's types."""
        chosen = self._profile(sample) if profile is None else profile
        return self.worker.run(engine, chosen, sample, self.engine_settings.run_timeout)

    def judge(
        self,
        engine: EngineFile,
        samples: Samples,
        references: Sequence[Outputs],
        criterion: Criterion | None = None,
        *,
        unseen: bool = True,
    ) -> Judged:
        """Return the verdict on an engine; `criterion` None means the user's, metric included."""
        return judge_outputs(
            self.outputs(engine, samples),
            samples,
            references,
            criterion or self.case.criterion,
            self.case.metric if criterion is None else None,
            level="engine",
            unseen=unseen,
        )

    def at_shapes(self, engine: EngineFile, samples: Samples) -> tuple[ShapeVerdict, ...]:
        """Return verdicts at min, opt and max shapes of every profile."""
        return tuple(self._at(engine, batches) for batches in self._plan(samples))

    def latency(self, engine: EngineFile) -> Latency:
        """Return the speed of an engine, at the first profile's opt shapes if data have them.

        All engines of a case are timed on the same sample.
        """
        timing = partial(self.worker.time, engine, *self._typical, iterations=TIMED_RUNS)
        return timing(seconds=QUICK_SECONDS, warmup=WARM_SECONDS)

    def lap(self, engine: EngineFile) -> float | None:
        """Return the median time, ms, of an engine that takes turns; None if it fails."""
        timing = partial(self.worker.time, engine, *self._typical, iterations=10)
        timing = partial(timing, seconds=ROUND_SECONDS, warmup=ROUND_SECONDS / 4)
        try:
            return timing().median_ms
        except ENGINE_FAULTS:
            return None

    def proof(
        self,
        build: BuildOutcome,
        network: Network,
        roles: Roles,
        requested: Mapping[NodeName, Precision],
        *,
        as_fp32: bool = False,
    ) -> PrecisionProof:
        """Return the types an engine computes in, by the nodes of `network`; see `prove`."""
        assert build.engine is not None
        text = self.worker.inspect(build.engine, *self._typical)
        layers = engine_layers(text, network, tf32=build.config.tf32)
        return prove(layers, network, roles, requested, build.config, as_fp32=as_fp32)

    def _profile(self, sample: Sample) -> int:
        return profile_of(self.engine_settings.profiles, sample) or 0

    @cached_property
    def _typical(self) -> tuple[int, Sample, float | None]:
        """A profile, a sample at its opt shapes (else the first sample), and the time-out."""
        samples, timeout = self.case.calibration, self.engine_settings.run_timeout
        for batches in self._plan(samples):
            if batches.at == "opt" and batches.samples is not None:
                return batches.profile, batches.samples[0], timeout
        return self._profile(samples[0]), samples[0], timeout

    def _plan(self, samples: Samples) -> tuple[Batches, ...]:
        if not self.engine_settings.profiles:
            return ()
        if samples.ids not in self._batches:
            batching = find_batching(self.case.network, self.session, samples)
            planned = plan_batches(batching, self.engine_settings.profiles, samples)
            self._batches[samples.ids] = planned
        return self._batches[samples.ids]

    def _at(self, engine: EngineFile, batches: Batches) -> ShapeVerdict:
        is_only = len(self.engine_settings.profiles) == 1
        at = batches.at if is_only else f"{batches.at} of {batches.profile + 1}"
        shapes: dict[TensorName, tuple[int, ...]] = dict(batches.shapes)
        if batches.samples is None or batches.judged is None:
            return ShapeVerdict(shapes=shapes, at=at, verdict=None, reason=batches.reason)
        results = self.outputs(engine, batches.samples, batches.profile)
        judged = judge_outputs(
            batches.take_apart(results),
            batches.judged,
            batches.take_apart(self.references(batches.samples)),
            self.case.criterion.of_each,
            self.case.metric,
            level="engine",
        )
        return ShapeVerdict(shapes=shapes, at=at, verdict=judged.verdict, reason=batches.note)


def is_lost(failed: HalfwiseError) -> bool:
    """Return whether the worker was lost, which says nothing about the engine."""
    lost = isinstance(failed, EngineFailed) and failed.status == "lost"
    return lost or isinstance(failed, WORKER_GONE)


def is_interrupted(failed: HalfwiseError) -> bool:
    """Return whether Ctrl-C ended what would have waited for the GPU."""
    return isinstance(failed, EngineFailed) and failed.status == "interrupted"


def with_shapes(verdict: Verdict, shapes: Iterable[ShapeVerdict]) -> Verdict:
    """Return a verdict that also fails if one at other shapes does."""
    for shape in shapes:
        if shape.verdict is not None and not shape.verdict.passed:
            verdict = with_failures(verdict, under("shapes", shape.at, shape.verdict.failures))
    return verdict


def race(
    engines: Mapping[_Key, _Engine], lap: Callable[[_Engine], float | None]
) -> dict[_Key, tuple[float, ...]]:
    """Return the times of engines by round, in ms; empty for one that failed meanwhile.

    Args:
        engines: The engines.
        lap: Runs one for a while and returns its time in ms; None if it fails.
    """
    times: dict[_Key, list[float | None]] = {key: [] for key in engines}
    for _ in range(ROUNDS):
        for key, engine in engines.items():
            if None not in times[key]:
                times[key].append(lap(engine))
    return {
        key: tuple(t for t in laps if t is not None) if None not in laps else ()
        for key, laps in times.items()
    }
