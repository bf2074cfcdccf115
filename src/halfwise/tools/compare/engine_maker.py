"""Make engines of one case on one worker, as sides of a comparison, and judge them."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count as counting
from pathlib import Path
from typing import Literal, Protocol, cast

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
from halfwise.tensorrt.versions import has, version_of
from halfwise.tools.compare.walk import all_low, arithmetic_on, comparable
from halfwise.wording import number

_LABELS = {"fp32": "FP32, TF32 off", "tf32": "FP32, TF32 on"}


class Build(Protocol):
    """Builds an engine, which marks what fusion leaves if asked to."""

    def __call__(self, *, unfused: bool = False) -> BuildOutcome:
        """Return the build."""


@dataclass
class EngineSide:
    """Builds and runs an engine, or one that shows what fusion leaves.

    Attributes:
        label: Description.
        arithmetic: Its arithmetic.
        samples: Samples to run.
        build: Builds the engine.
        run: Returns all outputs of an engine for a sample, in the engine's types.
        outputs: The model's own outputs.
        builds: Builds used.
        change: Largest relative RMS change of a final output by showing tensors, so far.
        vanished: Whether an output that is wrong otherwise was right while tensors were shown.
        shown: The tensors left by fusion, if an engine shows them.
        watch: Returns that engine's outputs and some of these tensors for a sample.
    """

    label: str
    arithmetic: Arithmetic
    samples: Samples
    build: Build
    run: Callable[[BuildOutcome, Sample], Outputs]
    outputs: frozenset[TensorName]
    exact: bool = False
    builds: int = 0
    change: float = 0.0
    vanished: bool = False
    shown: frozenset[TensorName] = frozenset()
    watch: Callable[[Sample, Sequence[TensorName]], Outputs] = lambda _sample, _names: {}
    _plain: tuple[BuildOutcome, list[Outputs]] | None = None

    @property
    def tolerance(self) -> float:
        """The tolerance of its arithmetic in TensorRT's kernels."""
        return max(OTHER_KERNELS, TOLERANCES[self.arithmetic])

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the tensors among `names` that the engine returns or shows.

        Outputs come from the engine that shows tensors, if any are asked for, since that may cure
        a fault.

        Raises:
            BuildFailed: the engine cannot be built.
            EngineFailed: it cannot run, or the connection is lost.
        """
        _, finals = self.plain()
        inner = [name for name in names if name in self.shown and name not in self.outputs]
        for sample, final in zip(self.samples, finals, strict=True):
            outputs = {**final, **self.watch(sample, inner)} if inner else final
            changes = [relative_rms(final[name], outputs[name]) for name in self.outputs & {*final}]
            self.change = max([self.change, *changes])
            yield {name: outputs[name] for name in names if name in outputs}

    def plain(self) -> tuple[BuildOutcome, list[Outputs]]:
        """Return the engine that shows nothing, and its outputs for each sample; built once.

        Raises:
            BuildFailed: the build failed.
            EngineFailed: it cannot run, or the connection is lost.
        """
        if self._plain is None:
            self.builds += 1
            outcome = self.build()
            if outcome.status == "lost":  # that says nothing about the engine
                raise EngineFailed(outcome.message, status="lost")
            if outcome.engine is None:
                raise BuildFailed(
                    f"TensorRT builds no engine ({self.label}): {outcome.message}",
                    "`halfwise explain-log` explains the builder's log.",
                )
            self._plain = outcome, [self.run(outcome, sample) for sample in self.samples]
        return self._plain

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return "fused" for a tensor that is neither an output nor shown."""
        return None if name in self.shown or name in self.outputs else "fused"

    def notes(self) -> tuple[str, ...]:
        """Return the effects of showing tensors."""
        if not self.shown:
            return (
                f"{self.label} shows no tensor inside: `halfwise diagnose --target tensorrt` finds "
                "the nodes that are wrong, in engines of parts.",
            )
        told = (
            f"Showing tensors changed the final outputs of {self.label} by up to "
            f"{number(self.change)} (relative RMS): the inspected engine is not quite the other."
            if self.change > ROUNDINGS
            else f"Showing tensors did not change the final outputs of {self.label}.",
        )
        if not self.vanished:
            return told
        return (
            *told,
            f"Showing tensors made wrong outputs of {self.label} right: the fault is in a fusion "
            "that this breaks up, so it cannot be seen from inside.",
        )


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
        numbers: Counts the builds of all makers.
    """

    numbers: Iterator[int] = field(default_factory=partial(counting, 1))

    def __post_init__(self) -> None:
        """Count builds with other makers'."""
        super().__post_init__()
        self.builds.numbers = self.numbers

    @property
    def tensorrt(self) -> tuple[int, int] | None:
        """Major and minor version of the worker's TensorRT."""
        text = self.worker.info.tensorrt
        return None if text is None else version_of(text)

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

        def build(*, unfused: bool = False) -> BuildOutcome:
            step = f"{what} ({label})" if what else label
            step += ", what fusion leaves marked" * unfused
            return builds.build(source, step, low=low, tf32=tf32, unfused=unfused)

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
        )

    def shown(self, side: EngineSide) -> EngineSide:
        """Return a side that shows its tensors without ending fusions, if TensorRT can do that.

        Costs a build; if that fails, returns `side` itself.
        """
        if not has("unfused tensors", self.worker.info.tensorrt):
            return side
        side.builds += 1
        engine = side.build(unfused=True).engine
        if engine is None:
            return side
        try:
            unfused = self.measure.unfused(engine, side.samples[0])
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            return side
        # Tensors that the builder named have no counterpart.
        unfused = unfused.intersection(comparable(self.case.network))
        if not unfused:
            return side

        def watch(sample: Sample, names: Sequence[TensorName]) -> Outputs:
            return self.measure.run(engine, sample, watch=names)

        return replace(side, shown=unfused, watch=watch)
