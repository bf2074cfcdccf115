"""Makes engines of one case on one worker, as sides of a comparison, and judges them."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, cast

from halfwise.case import Case, EngineSettings, Sample, Settings
from halfwise.emulation.runner import Arithmetic
from halfwise.errors import UsageError
from halfwise.fixing.engines import EngineRun
from halfwise.fixing.engines.files import save
from halfwise.formats import LOW_FORMATS
from halfwise.graph.model import tensor_name
from halfwise.metrics import Outputs
from halfwise.metrics.relative import relative_rms
from halfwise.progress import Watcher
from halfwise.records import BuildOutcome, Criterion, TensorName, Verdict
from halfwise.tensorrt.versions import has, version_of
from halfwise.tensorrt.worker.client import Worker
from halfwise.tensorrt.worker.failures import EngineFailed
from halfwise.tools.compare.engine_side import EngineSide
from halfwise.tools.compare.sides import all_low
from halfwise.tools.compare.walk import comparable
from halfwise.wording import count


class EngineMaker:
    """Makes engine sides of one case on one worker, which has them while the `with` block runs."""

    def __init__(
        self,
        case: Case,
        settings: Settings,
        engine_settings: EngineSettings,
        worker: Worker,
        folder: Path,
        watcher: Watcher,
    ) -> None:
        """Take the case and a folder for ONNX files; errors are those of `EngineRun`."""
        self._run = EngineRun(case, settings, engine_settings, worker, folder, watcher)
        self._settings, self._folder = settings, folder
        self._others: list[EngineMaker] = []

    @property
    def case(self) -> Case:
        """Whose engines it makes."""
        return self._run.case

    @property
    def settings(self) -> EngineSettings:
        """How they are built."""
        return self._run.engine_settings

    @property
    def rounds(self) -> int:
        """Builds that may be spent on looking into one engine, the plain one aside."""
        return max(1, self.settings.max_builds - 1)

    @property
    def tensorrt(self) -> tuple[int, int] | None:
        """Major and minor version of the worker's TensorRT."""
        text = self._run.worker.info.tensorrt
        return None if text is None else version_of(text)

    @property
    def tf32_override(self) -> str | None:
        """`NVIDIA_TF32_OVERRIDE` in the worker's environment."""
        return self._run.worker.info.tf32_override

    def of(self, case: Case) -> "EngineMaker":
        """Return what makes engines of another case on the same worker, the same way."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        run, settings = self._run, replace(self.settings, profiles=())
        other = EngineMaker(case, self._settings, settings, run.worker, folder, run.watcher)
        self._others.append(other)
        return other

    def __enter__(self) -> Self:
        """Nothing is to be done."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the engines, but not on Ctrl-C: a build may keep the worker busy for minutes."""
        if error is None or isinstance(error, Exception):
            self.forget()

    def forget(self) -> None:
        """Remove all engines on the worker's side; they are gigabytes."""
        self._run.builds.forget(None)
        for other in self._others:
            other.forget()

    def judge(
        self, build: BuildOutcome, references: Sequence[Outputs], criterion: Criterion | None
    ) -> Verdict:
        """Return the verdict on an engine; `criterion` None is the user's, metric included."""
        assert build.engine is not None
        samples = self.case.calibration
        if self.case.metric is not None:
            criterion = None
        return self._run.measure.judge(build.engine, samples, references, criterion).verdict

    def override_effect(self, build: BuildOutcome) -> float:
        """Return what NVIDIA_TF32_OVERRIDE changes: set to 0 where it is not set, else unset.

        The engine runs again in a worker of that environment: the largest relative RMS difference
        of an output.

        Raises:
            HalfwiseError: no such worker comes up, or it cannot run the engine.
        """
        assert build.engine is not None
        worker = self._run.worker
        set_ = ("-u", "NVIDIA_TF32_OVERRIDE") if self.tf32_override else ("NVIDIA_TF32_OVERRIDE=0",)
        command = worker.info.command
        path = self._folder / f"{build.number}.engine"
        worker.fetch(build.engine, path)
        with Worker(worker.info.name, (*command[:-1], "env", *set_, command[-1])) as other:
            other.demand_usable()
            engine = other.upload(path)
            measure = replace(self._run.measure, worker=other)
            changes = [
                relative_rms(first[name], second[name])
                for sample in self.case.calibration
                for first in [self._run.measure.run(build.engine, sample)]
                for second in [measure.run(engine, sample)]
                for name in first
            ]
        return max(changes, default=0.0)

    def side(
        self, kind: str, *, settings: EngineSettings | None = None, fresh: bool = False
    ) -> EngineSide:
        """Return an engine: "fp32" (TF32 off), "tf32", "fp16" or "bf16", everything low.

        `settings` build it another way; `fresh` times all kernels anew.

        Raises:
            UsageError: another kind.
        """
        arithmetic, label, build = self._builder(kind, settings, fresh=fresh)
        run = self._run

        def execute(build: BuildOutcome, sample: Sample) -> Outputs:
            assert build.engine is not None
            return run.measure.run(build.engine, sample)

        return EngineSide(
            label=f"engine ({label})",
            arithmetic=arithmetic,
            samples=run.case.calibration,
            build=lambda names: build(names, False),
            run=execute,
            outputs=frozenset(tensor_name(v) for v in self.case.network.graph.outputs),
            budget=self.settings.max_builds,
        )

    def shown(self, side: EngineSide) -> EngineSide:
        """Return a side that shows its tensors without ending fusions, where TensorRT can do that.

        That costs a build; where it fails, `side` itself has to do.
        """
        run = self._run
        if not has("unfused tensors", run.worker.info.tensorrt):
            return side
        _, _, build = self._builder(side.arithmetic, None, fresh=False)
        side.builds += 1
        outcome = build((), True)
        engine = outcome.engine
        if engine is None:
            return side

        def watch(sample: Sample, names: Sequence[TensorName]) -> Outputs:
            return run.measure.run(engine, sample, watch=names)

        try:
            left = run.measure.unfused(engine, side.samples[0])
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            return side
        # What the builder named itself is nothing to compare with.
        left = left.intersection(comparable(self.case.network))
        return replace(side, shown=left, watch=watch) if left else side

    def _builder(
        self, kind: str, settings: EngineSettings | None, *, fresh: bool
    ) -> tuple[Arithmetic, str, Callable[[Sequence[TensorName], bool], BuildOutcome]]:
        """Return what an engine computes in, what it is, and what builds it.

        That takes the tensors to mark, and whether to show what fusion leaves.
        """
        if kind not in ("fp32", "tf32", "fp16", "bf16"):
            raise UsageError(
                f"There is no engine {kind!r} to compare.", "Give fp32, tf32, fp16 or bf16."
            )
        network, run = self.case.network, self._run
        low = cast(Literal["fp16", "bf16"], kind) if kind in LOW_FORMATS else None
        source = run.files.fp32(network)
        if low is not None and run.builds.typing == "strong":
            source = self._folder / f"all-{kind}.onnx"
            save(all_low(network, LOW_FORMATS[low], self._settings), source)
        builds = replace(run.builds, settings=settings) if settings else run.builds
        label = {"fp32": "FP32, TF32 off", "tf32": "FP32, TF32 on"}.get(kind, f"all {kind.upper()}")

        def build(names: Sequence[TensorName], unfused: bool) -> BuildOutcome:
            step = f"{label}, {count(len(names), 'tensor')} marked" if names else label
            return builds.build(
                source,
                f"{label}, what fusion leaves marked" if unfused else step,
                low=low,
                tf32=kind == "tf32",
                outputs=names,
                unfused=unfused,
                fresh=fresh,
            )

        return cast(Arithmetic, kind), label, build
