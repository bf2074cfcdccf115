"""On which targets a file is right; where it is not, whether FP32 is, and where errors begin."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from halfwise.case import Built, Case, FileRunner, Sample, Samples, Settings
from halfwise.declarations import Inputs
from halfwise.declarations.options import Acceptance, Data, Heldout, Labels, Running, Unjudged
from halfwise.emulation.runner import ModelRunner
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import BuildFailed, CaseError, RecordMismatch, RunFailed, UsageError
from halfwise.fixing.again import case_of, from_folder, recorded
from halfwise.fixing.engines.measure import with_shapes
from halfwise.fixing.filed import fp32_on
from halfwise.graph.model import Network, node_name
from halfwise.judging.judge import Judged, fed
from halfwise.metrics import Outputs
from halfwise.options.engines import TENSORRT
from halfwise.options.options import Model, Request
from halfwise.progress import Watcher
from halfwise.records import FileRun, Held, NodeName, Run, ShapeVerdict, Verdict
from halfwise.store import MODEL_FILE, folder_of, read_run
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tools.compare.command import arithmetic_of
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.reduce import Search
from halfwise.tools.transplants import OFF, Kind, Transplants, is_off, localise
from halfwise.tools.verify.candidate import demand_version

LOCATING_SECONDS = 45.0
"""How long the nodes at fault on a target are looked for: the verdict waits for them."""
GATE = "gate"
"""The command of a run that verified what another had held out."""


_OF_THE_RUN = frozenset[str]().union(
    *(k.__annotations__ for k in (Heldout, Labels, Data, Acceptance, Unjudged, Running))
)
"""Options of a run with the same meaning when it is verified again."""


@dataclass(frozen=True)
class Again:
    """A run that is verified again, where something else runs its file.

    Attributes:
        folder: Its folder.
        run: The run.
        inputs: Other inputs than those of the run; None for those.
    """

    folder: Path
    run: Run
    inputs: Inputs | None = None

    @property
    def split(self) -> bool:
        """Whether the run judged what it held out."""
        return self.run.kind == "fix" or self.run.provenance.command == GATE

    @property
    def candidate(self) -> Path:
        """The file that the run judged.

        Raises:
            RecordMismatch: it judged none, or that is missing.
        """
        fixed, named = self.run.kind == "fix", self.run.provenance.candidate
        path = folder_of(self.folder) / MODEL_FILE if fixed else from_folder(self.run, named)
        if not (fixed or named) or not path.is_file():
            raise RecordMismatch(
                f"The file that the run {self.folder} judged is missing: {path}.",
                "Give the model and the file: verify MODEL CANDIDATE --inputs DATA.",
            )
        return path

    def options(self, given: Mapping[str, Any]) -> tuple[Inputs, dict[str, Any]]:
        """Return the inputs, and the run's options with the given ones in place of its own.

        Raises:
            RecordMismatch, UsageError: see `recorded`.
        """
        inputs, own = recorded(self.run, _OF_THE_RUN, self.inputs, given)
        # What a target does is no reason to emulate something else than the run did.
        sums = {} if TENSORRT in given.get("target", ()) else {"accumulate": self.run.accumulate}
        return inputs, {**sums, **own, **given}

    def case(self, request: Request, watcher: Watcher) -> Case:
        """Return the case with the samples that the run judged for calibration.

        Raises:
            RecordMismatch: model or inputs are gone, or not those of the run.
        """
        other = self.inputs is not None
        split = self.split and not other
        case = case_of(self.run, None, request, watcher, other_inputs=other, split=split)
        judged = case.heldout if len(case.heldout) else case.calibration
        return replace(case, calibration=judged, heldout=judged.select(()))


def again_of(model: Model, inputs: Inputs | None) -> Again:
    """Return the run that stands in the place of model and candidate.

    Raises:
        UsageError: it is a model.
        RecordMismatch: it is no run folder.
    """
    if not isinstance(model, str | Path) or Path(model).suffix == ".onnx":
        raise UsageError(
            "There is no candidate to judge.",
            "Give it: verify MODEL CANDIDATE --inputs DATA; or a run: verify RUN --target webgpu.",
        )
    return Again(Path(model), read_run(Path(model)), inputs)


@dataclass(frozen=True)
class Gate:
    """A candidate before targets.

    Attributes:
        case: The FP32 model and the judged samples, its calibration samples.
        candidate: The file, with the outputs of the case.
        references: FP32 outputs of each sample.
        settings: The targets, and where the reference runs.
        watcher: Receives progress.
    """

    case: Case
    candidate: Network
    references: Sequence[Outputs]
    settings: Settings
    watcher: Watcher

    def files(self, judged: Judged) -> tuple[Held, ...]:
        """Return what became of the file on each target but TensorRT.

        Args:
            judged: The verdict with what each target made of the file.
        """
        pairs = zip(self.settings.targets, judged.verdict.as_file[1:], strict=True)
        return tuple(self._held(runner, ran, judged.failing) for runner, ran in pairs)

    def engine(self, maker: EngineMaker, verdict: Verdict, shapes: Sequence[ShapeVerdict]) -> Held:
        """Return what became of the file as an engine.

        Args:
            maker: Builds engines of the case.
            verdict: On the engine of the candidate.
            shapes: The same at the shapes of its profiles; where only these fail, no node is named.
        """
        worker = maker.worker.info
        version = f"{worker.tensorrt} on {worker.gpu}"
        held = Held(target=worker.product, version=version, outcome="same")
        if with_shapes(verdict, shapes).passed:
            return held
        try:
            build = maker.engine("fp32").built()
            assert build.engine is not None
            samples = self.case.calibration
            fp32 = maker.measure.judge(build.engine, samples, self.references).verdict
            right = with_shapes(fp32, maker.measure.at_shapes(build.engine, samples)).passed
        except (BuildFailed, EngineFailed):
            return held.model_copy(update={"outcome": "fp32"})
        if right:
            self._demand_version()
        if (verdict if right else fp32).passed:
            return _at(held, right, ())
        wrong = self.candidate if right else self.case.network
        at, ids = (verdict if right else fp32).worst_sample, samples.ids
        worst = samples.select([ids.index(at) if at in ids else 0])
        kind: Kind = "file" if right else "fp32"
        parts = Transplants(maker, wrong, kind, OFF, build.seconds)
        region = localise(parts, fed(wrong.model, worst)[0]).region
        return _at(held, right, self._known(region))

    def _held(self, runner: FileRunner, ran: FileRun, failing: Sequence[int]) -> Held:
        outcome: Literal["same", "built"] = "same" if runner.runs else "built"
        held = Held(target=ran.runner, version=ran.version, outcome=outcome)
        if ran.passed is not False:
            return held
        right, of_fp32 = fp32_on(runner, self.case, self.case.calibration, self.references)
        wrong, of_file = self.case.network, of_fp32
        if right:
            self._demand_version()
            wrong, of_file = self.candidate, None if ran.not_run else failing
        if not runner.runs:
            return _at(held, right, ran.folded)
        index = next(iter(of_file or ()), 0)
        sample = fed(wrong.model, self.case.calibration.select([index]))[0]
        fails = partial(self._fails_on, runner, not_run=of_file is None)
        ends = time.monotonic() + LOCATING_SECONDS
        self.watcher.stage("compare")
        # Past the time, parts count as right: the region stays as small as it has become.
        check = lambda *part: time.monotonic() < ends and fails(*part)  # noqa: E731
        region = Search(wrong, sample, check, progress=self.watcher.step).smallest()
        return _at(held, right, self._known(map(node_name, region)))

    def _demand_version(self) -> None:
        """Check that a file that is wrong where FP32 is right is the model in other types.

        Raises:
            CaseError: it is another network.
        """
        demand_version(self.case, self.candidate, self.references, self.settings.runtime)

    def _known(self, region: Iterable[NodeName]) -> tuple[NodeName, ...]:
        """Return the nodes of the FP32 model in a region."""
        known = set(map(node_name, self.case.network.nodes()))
        return tuple(name for name in region if name in known)

    def _fails_on(
        self, runner: FileRunner, part: Network, sample: Sample, *, not_run: bool
    ) -> bool:
        """Return whether a target does not run a part of a file, or else has it wrong."""
        samples, runtime = Samples(("part",), lambda _: sample), self.settings.runtime
        try:
            results = runner.run(part.model, samples)
        except (CaseError, RunFailed):
            return not_run
        if not_run or isinstance(results, Built):
            return False
        model = emulate_typed(part.model)
        right = next(ModelRunner(model, fed(model, samples), runtime=runtime).get())
        return is_off(part, sample, results[0], right, arithmetic_of(part), runtime)[0]


def _at(held: Held, right: bool, first: Sequence[NodeName]) -> Held:
    """Return what is wrong: the file, if FP32 is right there, else FP32."""
    outcome = "fragile" if right else "fp32"
    return held.model_copy(update={"outcome": outcome, "first": tuple(first)})
