"""Make engines of one case on one worker, and judge them."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count as counting
from pathlib import Path
from typing import Literal, cast

from halfwise.case import Case, EngineSettings, Sample, Samples
from halfwise.emulation.runner import Arithmetic
from halfwise.errors import BuildFailed
from halfwise.fixing.engines.device import Workbench
from halfwise.formats import LOW_FORMATS
from halfwise.graph.model import Network
from halfwise.graph.weights import save
from halfwise.metrics import Outputs
from halfwise.options.options import Request
from halfwise.progress import Watcher
from halfwise.records import BuildOutcome, Criterion, Verdict
from halfwise.scratch import scratch
from halfwise.tensorrt.client import usable
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tools.compare.walk import RecordedSide, all_low, arithmetic_on

_LABELS = {"fp32": "FP32, TF32 off", "tf32": "FP32, TF32 on"}


@dataclass(frozen=True)
class Engine:
    """An engine to build and run.

    Attributes:
        label: Description.
        arithmetic: Its arithmetic.
        samples: Samples to run.
        build: Builds the engine.
        run: Returns all outputs of an engine for a sample, in the engine's types.
    """

    label: str
    arithmetic: Arithmetic
    samples: Samples
    build: Callable[[], BuildOutcome]
    run: Callable[[BuildOutcome, Sample], Outputs]

    def built(self) -> BuildOutcome:
        """Return the build, which has an engine.

        Raises:
            BuildFailed: the build failed.
            EngineFailed: the connection is lost, which says nothing about the engine.
        """
        outcome = self.build()
        if outcome.status == "lost":
            raise EngineFailed(outcome.message, status="lost")
        if outcome.engine is None:
            raise BuildFailed(
                f"TensorRT builds no engine ({self.label}): {outcome.message}",
                "`halfwise explain-log` explains the builder's log.",
            )
        return outcome

    def side(self) -> RecordedSide:
        """Return its outputs as a side; it shows no tensor inside: to mark one would end a fusion.

        Raises:
            BuildFailed: the build failed.
            EngineFailed: it cannot run, or the connection is lost.
        """
        build = self.built()
        outputs = [self.run(build, sample) for sample in self.samples]
        return RecordedSide(outputs, self.label, self.arithmetic, absent="fused")


@contextmanager
def engine_maker(case: Case, request: Request, watcher: Watcher) -> "Iterator[EngineMaker | None]":
    """Give the engine maker of a case on a request's target; None without a target.

    The worker keeps the engines while the block runs.
    """
    if request.target is None:
        yield None
        return
    settings = request.target.profiled(case)
    with (
        usable(request.target.worker, watcher) as worker,
        scratch() as folder,
        EngineMaker(case, request.settings, settings, worker, folder, watcher).lasting() as maker,
    ):
        yield maker


@dataclass
class EngineMaker(Workbench):
    """Makes engines of one case on one worker.

    Attributes:
        numbers: Counts the builds of all makers.
    """

    numbers: Iterator[int] = field(default_factory=partial(counting, 1))

    def __post_init__(self) -> None:
        """Count builds with other makers'."""
        super().__post_init__()
        self.builds.numbers = self.numbers

    def of(self, case: Case) -> "EngineMaker":
        """Return the maker for another case on the same worker, with the same settings.

        Its engines are for its caller to forget.
        """
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        how = replace(self.engine_settings, profiles=())
        return replace(self, case=case, engine_settings=how, folder=folder)

    @contextmanager
    def lasting(self) -> "Iterator[EngineMaker]":
        """Remove the engines after the block, but not on Ctrl-C: a build may run on for minutes."""
        try:
            yield self
        except Exception:
            self.forget()
            raise
        self.forget()

    def forget(self) -> None:
        """Remove all engines from the worker; they take gigabytes."""
        self.builds.forget(None)

    def judge(
        self, build: BuildOutcome, references: Sequence[Outputs], criterion: Criterion
    ) -> Verdict:
        """Return the verdict on an engine, by `criterion` or the user's metric."""
        assert build.engine is not None
        by = criterion if self.case.users_metric is None else None
        return self.measure.judge(build.engine, self.case.calibration, references, by).verdict

    def engine(
        self,
        kind: str,
        *,
        settings: EngineSettings | None = None,
        what: str = "",
        file: Network | None = None,
    ) -> Engine:
        """Return an engine: "fp32" (TF32 off), "tf32", or entirely "fp16" or "bf16".

        `settings` override how it is built; `what` describes the build in progress messages. Of
        another `file`, `kind` is the lowest type that weak typing may use.
        """
        network, source = self.case.network, self.fp32
        low = cast(Literal["fp16", "bf16"], kind) if kind in LOW_FORMATS else None
        tf32 = kind == "tf32"
        if file is not None:
            source = self.file(file.model, "candidate.onnx", lambda: file)
            tf32 = self.engine_settings.tf32
        elif low is not None and self.builds.typing == "strong":
            source = self.folder / f"all-{kind}.onnx"
            save(all_low(network, LOW_FORMATS[low], self.settings), source)
        builds = replace(self.builds, settings=settings) if settings else self.builds
        label = _LABELS.get(kind, f"all {kind.upper()}") if file is None else "the candidate"

        def build() -> BuildOutcome:
            step = f"{what} ({label})" if what else label
            return builds.build(source, step, low=low, tf32=tf32)

        def execute(build: BuildOutcome, sample: Sample) -> Outputs:
            assert build.engine is not None
            return self.measure.run(build.engine, sample)

        return Engine(
            label=f"engine ({label})",
            arithmetic=arithmetic_on(network, cast(Arithmetic, kind)),
            samples=self.case.calibration,
            build=build,
            run=execute,
        )
