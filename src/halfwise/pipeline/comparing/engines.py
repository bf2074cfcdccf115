"""An engine as a side of a comparison: its tensors are marked as outputs, a few at a time.

A tensor that is made an output ends a fusion there, so the engine that is looked at is another one.
How far that changed the final outputs is measured and told.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from halfwise.backends.tensorrt.client import Worker
from halfwise.case import Case, EngineSettings, Sample, Samples, Settings
from halfwise.errors import BuildFailed, UsageError
from halfwise.formats import LOW_FORMATS
from halfwise.graph.model import tensor_name
from halfwise.metrics import Outputs
from halfwise.metrics.relative import relative_rms
from halfwise.pipeline.comparing.sources import all_low
from halfwise.pipeline.engines import EngineRun
from halfwise.pipeline.engines.files import save
from halfwise.progress import Watcher
from halfwise.records import BuildOutcome, Criterion, TensorName, TensorStatus, Verdict
from halfwise.render.wording import count, number
from halfwise.stages.compare import OTHER_KERNELS, TOLERANCES, Arithmetic

_SAME = 1e-6
"""Relative RMS difference of final outputs below which marking changed nothing that matters: what
FP32 sums in another order differ by."""


@dataclass
class EngineSide:
    """Builds engines with further outputs, and runs them.

    Attributes:
        label: What it is.
        arithmetic: What it computes in.
        samples: What to run.
        build: Builds the engine with further outputs.
        run: Returns all that an engine gives for a sample, in the engine's types.
        outputs: The model's own outputs.
        budget: Builds that it may use.
        builds: Builds used.
        refused: Tensors that no engine could be built with, and why.
        absent: Tensors that were marked, and that the engine did not give.
        change: Largest relative RMS change of a final output by marking, so far.
    """

    label: str
    arithmetic: Arithmetic
    samples: Samples
    build: Callable[[Sequence[TensorName]], BuildOutcome]
    run: Callable[[BuildOutcome, Sample], Outputs]
    outputs: frozenset[TensorName]
    budget: int
    exact: bool = False
    few: bool = True
    builds: int = 0
    refused: dict[TensorName, str] = field(default_factory=dict)
    absent: set[TensorName] = field(default_factory=set)
    change: float = 0.0
    _plain: tuple[BuildOutcome, list[Outputs]] | None = None

    @property
    def tolerance(self) -> float:
        """That of its arithmetic in TensorRT's kernels."""
        return max(OTHER_KERNELS, TOLERANCES[self.arithmetic])

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, those of `names` that the engine gives.

        Raises:
            BuildFailed: not even the engine without marks can be built.
        """
        plain, finals = self.plain()
        inner = [n for n in names if n not in self.outputs and self.lack(n) is None]
        engines = self._marked(inner) if inner else [plain]
        for index, sample in enumerate(self.samples):
            found: dict[str, NDArray[np.generic]] = {}
            for engine in engines:
                found |= self.run(engine, sample)
            if engines and engines[0] is not plain:
                own = [n for n in self.outputs if n in found]
                changes = [relative_rms(finals[index][n], found[n]) for n in own]
                self.change = max([self.change, *changes])
            found |= finals[index]
            if engines:
                self.absent |= {n for n in inner if n not in found and n not in self.refused}
            yield {name: found[name] for name in names if name in found}

    def plain(self) -> tuple[BuildOutcome, list[Outputs]]:
        """Return the engine without marks, and its outputs of each sample; built once."""
        if self._plain is None:
            outcome = self._build(())
            if outcome.engine is None:
                raise BuildFailed(
                    f"TensorRT builds no engine ({self.label}): {outcome.message}",
                    "`halfwise explain-log` explains the builder's log.",
                )
            self._plain = outcome, [self.run(outcome, sample) for sample in self.samples]
        return self._plain

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return "refused", or "fused" for what the engine did not give when it was asked."""
        if name in self.refused:
            return "refused"
        return "fused" if name in self.absent else None

    def notes(self) -> tuple[str, ...]:
        """Return what marking did."""
        told = []
        if self.builds > 1:
            told.append(
                f"Marking tensors changed the final outputs of {self.label} by up to "
                f"{number(self.change)} (relative RMS): what was looked at is not quite the engine "
                "without marks."
                if self.change > _SAME
                else f"Marking tensors did not change the final outputs of {self.label}."
            )
        if self.refused:
            first, why = next(iter(self.refused.items()))
            told.append(
                f"No engine could be built that gives out {count(len(self.refused), 'tensor')}, "
                f"such as {first}: {why}"
            )
        return tuple(told)

    def _marked(self, names: Sequence[TensorName]) -> list[BuildOutcome]:
        """Return engines that give out `names` together; those that are refused are told apart."""
        if self.builds >= self.budget:
            return []
        outcome = self._build(names)
        if outcome.engine is not None:
            return [outcome]
        if len(names) == 1:
            self.refused[names[0]] = outcome.message
            return []
        half = len(names) // 2
        return [*self._marked(names[:half]), *self._marked(names[half:])]

    def _build(self, names: Sequence[TensorName]) -> BuildOutcome:
        self.builds += 1
        return self.build(names)


class EngineMaker:
    """Makes engine sides of one case on one worker."""

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
        self._settings, self._budget = settings, engine_settings.max_builds
        self._folder = folder

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
    def tf32_override(self) -> str | None:
        """`NVIDIA_TF32_OVERRIDE` in the worker's environment."""
        return self._run.worker.info.tf32_override

    def of(self, case: Case) -> "EngineMaker":
        """Return what makes engines of another case on the same worker, the same way."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        run, settings = self._run, replace(self.settings, profiles=())
        return EngineMaker(case, self._settings, settings, run.worker, folder, run.watcher)

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
        if kind not in ("fp32", "tf32", "fp16", "bf16"):
            raise UsageError(
                f"There is no engine {kind!r} to compare.", "Give fp32, tf32, fp16 or bf16."
            )
        arithmetic = cast(Arithmetic, kind)
        network, run = self._run.case.network, self._run
        low = cast(Literal["fp16", "bf16"], kind) if kind in LOW_FORMATS else None
        source = run.files.fp32(network)
        if low is not None and run.builds.typing == "strong":
            source = self._folder / f"all-{kind}.onnx"
            save(all_low(network, LOW_FORMATS[low], self._settings), source)
        builds = replace(run.builds, settings=settings) if settings else run.builds
        label = {"fp32": "FP32, TF32 off", "tf32": "FP32, TF32 on"}.get(kind, f"all {kind.upper()}")

        def build(names: Sequence[TensorName]) -> BuildOutcome:
            step = f"{label}, {count(len(names), 'tensor')} marked" if names else label
            return builds.build(
                source, step, low=low, tf32=kind == "tf32", outputs=names, fresh=fresh
            )

        def execute(build: BuildOutcome, sample: Sample) -> Outputs:
            assert build.engine is not None
            return run.measure.run(build.engine, sample)

        return EngineSide(
            label=f"engine ({label})",
            arithmetic=arithmetic,
            samples=run.case.calibration,
            build=build,
            run=execute,
            outputs=frozenset(tensor_name(v) for v in network.graph.outputs),
            budget=self._budget,
        )
