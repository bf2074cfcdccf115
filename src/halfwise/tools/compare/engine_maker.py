"""Make engines of one case on one worker, as sides of a comparison, and judge them."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count as counting
from pathlib import Path
from typing import Literal, cast

from halfwise.case import Case, EngineSettings, Sample
from halfwise.emulation.runner import Arithmetic
from halfwise.errors import UsageError
from halfwise.fixing.engines.workbench import Workbench, save
from halfwise.formats import LOW_FORMATS
from halfwise.graph.model import tensor_name
from halfwise.interruption import interruption
from halfwise.metrics import Outputs
from halfwise.metrics.difference import relative_rms
from halfwise.options.options import Request
from halfwise.progress import Watcher
from halfwise.records import BuildOutcome, Criterion, TensorName, Verdict
from halfwise.scratch import scratch
from halfwise.tensorrt.client import Worker, usable
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.versions import has, version_of
from halfwise.tools.compare.engine_side import EngineSide
from halfwise.tools.compare.sides import all_low, arithmetic_on
from halfwise.tools.compare.walk import comparable
from halfwise.wording import count


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
        usable(request.target.worker, watcher, request.target.settings.wait_timeout) as worker,
        scratch() as folder,
        EngineMaker(case, request.settings, settings, worker, folder, watcher).lasting() as maker,
    ):
        yield maker


@dataclass
class EngineMaker(Workbench):
    """Makes engine sides of one case on one worker.

    Attributes:
        others: Makers for other cases on the same worker.
        numbers: Counts the builds of all makers.
    """

    others: "list[EngineMaker]" = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=partial(counting, 1))

    def __post_init__(self) -> None:
        """Count builds with other makers', and let Ctrl-C end them where that is offered."""
        super().__post_init__()
        offer = interruption()
        self.builds.numbers, self.builds.over = self.numbers, lambda: offer.asked

    @property
    def rounds(self) -> int:
        """Builds allowed for examining one engine, besides the plain one."""
        return max(1, self.engine_settings.max_builds - 1)

    @property
    def tensorrt(self) -> tuple[int, int] | None:
        """Major and minor version of the worker's TensorRT."""
        text = self.worker.info.tensorrt
        return None if text is None else version_of(text)

    def of(self, case: Case) -> "EngineMaker":
        """Return the maker for another case on the same worker, with the same settings."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        how = replace(self.engine_settings, profiles=())
        other = replace(self, case=case, engine_settings=how, folder=folder, others=[])
        self.others.append(other)
        return other

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
        for other in self.others:
            other.forget()

    def judge(
        self, build: BuildOutcome, references: Sequence[Outputs], criterion: Criterion
    ) -> Verdict:
        """Return the verdict on an engine, by `criterion` or the user's metric."""
        assert build.engine is not None
        by = criterion if self.case.metric is None else None
        return self.measure.judge(build.engine, self.case.calibration, references, by).verdict

    def override_effect(self, build: BuildOutcome) -> float:
        """Return the effect of NVIDIA_TF32_OVERRIDE: set to 0 if it is unset, else unset.

        The engine runs again in a worker with that environment; the effect is the largest relative
        RMS difference of an output.

        Raises:
            HalfwiseError: no such worker starts, or it cannot run the engine.
        """
        assert build.engine is not None
        worker = self.worker
        unset, zero = ("-u", "NVIDIA_TF32_OVERRIDE"), ("NVIDIA_TF32_OVERRIDE=0",)
        set_ = unset if worker.info.tf32_override else zero
        command = worker.info.command
        path = self.folder / f"{build.number}.engine"
        worker.fetch(build.engine, path)
        with Worker(worker.info.name, (*command[:-1], "env", *set_, command[-1])) as other:
            other.demand_usable()
            engine = other.upload(path)
            measure = replace(self.measure, worker=other)
            changes = [
                relative_rms(first[name], second[name])
                for sample in self.case.calibration
                for first in [self.measure.run(build.engine, sample)]
                for second in [measure.run(engine, sample)]
                for name in first
            ]
        return max(changes, default=0.0)

    def side(
        self,
        kind: str,
        *,
        settings: EngineSettings | None = None,
        what: str = "",
    ) -> EngineSide:
        """Return an engine: "fp32" (TF32 off), "tf32", or entirely "fp16" or "bf16".

        `settings` override how it is built; `what` describes the build in progress messages.

        Raises:
            UsageError: unknown kind.
        """
        arithmetic, label, build = self._builder(kind, settings, what=what)

        def execute(build: BuildOutcome, sample: Sample) -> Outputs:
            assert build.engine is not None
            return self.measure.run(build.engine, sample)

        return EngineSide(
            label=f"engine ({label})",
            arithmetic=arithmetic,
            samples=self.case.calibration,
            build=lambda names: build(names, False),
            run=execute,
            outputs=frozenset(tensor_name(v) for v in self.case.network.graph.outputs),
            budget=self.engine_settings.max_builds,
        )

    def shown(self, side: EngineSide) -> EngineSide:
        """Return a side that shows its tensors without ending fusions, if TensorRT can do that.

        Costs a build; if that fails, returns `side` itself.
        """
        if not has("unfused tensors", self.worker.info.tensorrt):
            return side
        _, _, build = self._builder(side.arithmetic, None)
        side.builds += 1
        outcome = build((), True)
        engine = outcome.engine
        if engine is None:
            return side

        def watch(sample: Sample, names: Sequence[TensorName]) -> Outputs:
            return self.measure.run(engine, sample, watch=names)

        try:
            left = self.measure.unfused(engine, side.samples[0])
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            return side
        # Tensors that the builder named have no counterpart.
        left = left.intersection(comparable(self.case.network))
        return replace(side, shown=left, watch=watch) if left else side

    def _builder(
        self, kind: str, settings: EngineSettings | None, *, what: str = ""
    ) -> tuple[Arithmetic, str, Callable[[Sequence[TensorName], bool], BuildOutcome]]:
        """Return an engine's arithmetic, its label, and the function that builds it.

        That function takes the tensors to mark, and whether to show what fusion leaves.
        """
        if kind not in ("fp32", "tf32", "fp16", "bf16"):
            raise UsageError(f"Unknown engine {kind!r}.", "Give fp32, tf32, fp16 or bf16.")
        network = self.case.network
        low = cast(Literal["fp16", "bf16"], kind) if kind in LOW_FORMATS else None
        source = self.fp32
        if low is not None and self.builds.typing == "strong":
            source = self.folder / f"all-{kind}.onnx"
            save(all_low(network, LOW_FORMATS[low], self.settings), source)
        builds = replace(self.builds, settings=settings) if settings else self.builds
        label = {"fp32": "FP32, TF32 off", "tf32": "FP32, TF32 on"}.get(kind, f"all {kind.upper()}")

        def build(names: Sequence[TensorName], unfused: bool) -> BuildOutcome:
            marked = f"{label}, {count(len(names), 'tensor')} marked" if names else label
            step = f"{what} ({label})" if what else marked
            return builds.build(
                source,
                f"{label}, what fusion leaves marked" if unfused else step,
                low=low,
                tf32=kind == "tf32",
                outputs=names,
                unfused=unfused,
            )

        return arithmetic_on(network, cast(Arithmetic, kind)), label, build
