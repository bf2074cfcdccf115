"""Make engines of one case on one worker, as sides of a comparison, and judge them."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count as counting
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Case, EngineSettings, Sample, Samples
from halfwise.emulation.runner import OTHER_KERNELS, TOLERANCES, Arithmetic
from halfwise.errors import BuildFailed
from halfwise.fixing.engines.workbench import Workbench
from halfwise.formats import LOW_FORMATS, ROUNDINGS
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.weights import save
from halfwise.metrics import Outputs
from halfwise.metrics.difference import relative_rms
from halfwise.options.options import Request
from halfwise.progress import Watcher
from halfwise.records import BuildOutcome, Criterion, TensorName, TensorStatus, Verdict
from halfwise.scratch import scratch
from halfwise.tensorrt.client import usable
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.versions import version_of
from halfwise.tools.compare.walk import all_low, arithmetic_on
from halfwise.wording import count, number

_LABELS = {"fp32": "FP32, TF32 off", "tf32": "FP32, TF32 on"}


@dataclass
class EngineSide:
    """Builds and runs engines with extra outputs.

    Attributes:
        label: Description.
        arithmetic: Its arithmetic.
        samples: Samples to run.
        build: Builds the engine with some tensors as outputs too.
        run: Returns all outputs of an engine for a sample, in the engine's types.
        outputs: The model's own outputs.
        budget: Builds allowed.
        builds: Builds used.
        refused: Tensors that no build could mark, and why.
        absent: Marked tensors that the engine did not return.
        change: Largest relative RMS change of a final output by marking, so far.
        vanished: Whether an output wrong without marks was right with them.
        few: Whether to ask for only a few tensors, since each may end a fusion.
    """

    label: str
    arithmetic: Arithmetic
    samples: Samples
    build: Callable[[Sequence[TensorName]], BuildOutcome]
    run: Callable[[BuildOutcome, Sample], Outputs]
    outputs: frozenset[TensorName]
    budget: int
    exact: bool = False
    builds: int = 0
    refused: dict[TensorName, str] = field(default_factory=dict)
    absent: set[TensorName] = field(default_factory=set)
    change: float = 0.0
    vanished: bool = False
    few: bool = True
    _plain: tuple[BuildOutcome, list[Outputs]] | None = None

    @property
    def tolerance(self) -> float:
        """The tolerance of its arithmetic in TensorRT's kernels."""
        return max(OTHER_KERNELS, TOLERANCES[self.arithmetic])

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the tensors among `names` that the engine returns.

        With marked tensors, outputs come from the same engine, since marks may cure a fault.
        Outputs requested alone come from the engine without marks.

        Raises:
            BuildFailed: even the engine without marks cannot be built.
            EngineFailed: even that cannot run, or the connection is lost.
        """
        _, finals = self.plain()
        inner = [n for n in names if n not in self.outputs and self.lack(n) is None]
        engines = self._marked(inner) if inner else []
        for index, sample in enumerate(self.samples):
            outputs: dict[str, NDArray[np.generic]] = {}
            for engine in list(engines):
                marked, build = engine
                try:
                    one = self.run(build, sample)
                except EngineFailed as failed:
                    if failed.status == "lost":
                        raise
                    self.refused |= dict.fromkeys(marked, failed.message)
                    engines.remove(engine)
                    continue
                outputs |= one
                self.absent |= {name for name in marked if name not in one}
            changes = [
                relative_rms(finals[index][n], outputs[n]) for n in self.outputs & {*outputs}
            ]
            self.change = max([self.change, *changes])
            outputs = {**finals[index], **outputs}
            yield {name: outputs[name] for name in names if name in outputs}

    def _marked(
        self, names: Sequence[TensorName]
    ) -> list[tuple[Sequence[TensorName], BuildOutcome]]:
        """Return engines that together output `names`, each with its share.

        Tensors that cannot be marked are refused, singled out as far as the budget allows.
        """
        if self.builds >= self.budget:
            return []
        outcome = self._build(names)
        if outcome.engine is not None:
            return [(names, outcome)]
        if len(names) == 1:
            self.refused[names[0]] = outcome.message
            return []
        half = len(names) // 2
        return [*self._marked(names[:half]), *self._marked(names[half:])]

    def plain(self) -> tuple[BuildOutcome, list[Outputs]]:
        """Return the engine without marks, and its outputs for each sample; built once.

        Raises:
            BuildFailed: the build failed.
            EngineFailed: it cannot run, or the connection is lost.
        """
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
        """Return "refused" for a tensor that failed builds or runs, "fused" for one not given."""
        if name in self.refused:
            return "refused"
        return "fused" if name in self.absent else None

    def notes(self) -> tuple[str, ...]:
        """Return the effects of marking."""
        sentences = []
        if self.builds > 1:
            sentences.append(
                f"Marking tensors changed the final outputs of {self.label} by up to "
                f"{number(self.change)} (relative RMS): the inspected engine is not quite the one "
                "without marks."
                if self.change > ROUNDINGS
                else f"Marking tensors did not change the final outputs of {self.label}."
            )
        if self.vanished:
            sentences.append(
                f"Marking tensors made wrong outputs of {self.label} right: the fault is in a "
                "fusion that marking breaks up, so it cannot be seen from inside."
            )
        if self.refused:
            first, why = next(iter(self.refused.items()))
            sentences.append(
                f"No engine could be built that outputs {count(len(self.refused), 'tensor')}, "
                f"such as {first}: {why}"
            )
        return tuple(sentences)

    def _build(self, names: Sequence[TensorName]) -> BuildOutcome:
        self.builds += 1
        outcome = self.build(names)
        if outcome.status == "lost":  # that says nothing about the engine
            raise EngineFailed(outcome.message, status="lost")
        return outcome


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
    """Makes engine sides of one case on one worker.

    Attributes:
        others: Makers for other cases on the same worker.
        numbers: Counts the builds of all makers.
    """

    others: "list[EngineMaker]" = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=partial(counting, 1))

    def __post_init__(self) -> None:
        """Count builds with other makers'."""
        super().__post_init__()
        self.builds.numbers = self.numbers

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
        by = criterion if self.case.users_metric is None else None
        return self.measure.judge(build.engine, self.case.calibration, references, by).verdict

    def side(
        self,
        kind: str,
        *,
        settings: EngineSettings | None = None,
        what: str = "",
        file: Network | None = None,
    ) -> EngineSide:
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

        def build(names: Sequence[TensorName]) -> BuildOutcome:
            step = f"{what} ({label})" if what else label
            if names and not what:
                step = f"{label}, {count(len(names), 'tensor')} marked"
            return builds.build(source, step, low=low, tf32=tf32, outputs=names)

        def execute(build: BuildOutcome, sample: Sample) -> Outputs:
            assert build.engine is not None
            return self.measure.run(build.engine, sample)

        return EngineSide(
            label=f"engine ({label})",
            arithmetic=arithmetic_on(network, cast(Arithmetic, kind)),
            samples=self.case.calibration,
            build=build,
            run=execute,
            outputs=frozenset(tensor_name(v) for v in network.graph.outputs),
            budget=self.engine_settings.max_builds,
        )
