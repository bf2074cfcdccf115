"""On which targets a file is right, where errors begin; what is worse than in an earlier run."""

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from halfwise.case import Built, Case, FileRunner, Sample, Samples, Settings
from halfwise.declarations import Inputs
from halfwise.declarations.option import share
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
from halfwise.records import (
    CHANCE,
    Baseline,
    Change,
    Failure,
    FigureKind,
    FileRun,
    Held,
    NodeName,
    Run,
    ShapeVerdict,
    Verdict,
    replace,
)
from halfwise.reporting.remarks import with_failures
from halfwise.reporting.view import worsened
from halfwise.store import MODEL_FILE, folder_of, read_run
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tools.compare.command import arithmetic_of
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.reduce import Search
from halfwise.tools.transplants import OFF, Kind, Transplants, is_off, localise
from halfwise.tools.verify.candidate import demand_version
from halfwise.wording import command, count

LOCATING_SECONDS = 45.0
"""How long the nodes at fault on a target are looked for: the verdict waits for them."""
GATE = "gate"
"""The command of a run that verified what another had held out."""


_OF_THE_RUN = frozenset[str]().union(
    *(k.__annotations__ for k in (Heldout, Labels, Data, Acceptance, Unjudged, Running))
)
"""Options of a run with the same meaning when it is verified again."""


class Again(Struct, frozen=True):
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


class Gate(Struct, frozen=True):
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
            samples, engine = self.case.calibration, maker.built("fp32")
            fp32 = maker.measure.judge(engine, samples, self.references).verdict
            right = with_shapes(fp32, maker.measure.at_shapes(engine, samples)).passed
        except (BuildFailed, EngineFailed):
            return replace(held, outcome="fp32")
        if right:
            self._demand_version()
        if (verdict if right else fp32).passed:
            return _at(held, right, ())
        wrong = self.candidate if right else self.case.network
        at, ids = (verdict if right else fp32).worst_sample, samples.ids
        worst = samples.select([ids.index(at) if at in ids else 0])
        kind: Kind = "file" if right else "fp32"
        parts = Transplants(maker, wrong, kind, OFF)
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
        aside = self.case.aside
        if aside is not None and aside.foreign and not fails(wrong, sample):
            return _at(held, right, aside.foreign)
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
    return replace(held, outcome="fragile" if right else "fp32", first=tuple(first))


_MEASURED: frozenset[FigureKind] = frozenset(("measured", "time"))
"""Figures a run may lack: they depend on where a candidate is judged."""
_Figures = dict[tuple[FigureKind, str], float]


class Earlier(Struct, frozen=True):
    """A baseline, and how much each figure may worsen.

    Attributes:
        folder: The run folder, as given.
        run: The run.
        allowed: A share of the baseline's figure.
        again: Whether it is the run that is verified again, which may be on another level.
    """

    folder: Path
    run: Run
    allowed: float = CHANCE
    again: bool = False


def earlier(
    folder: str | Path | None, may_worsen: str | None, again: Again | None = None
) -> Earlier | None:
    """Return the baseline; None if none is given.

    Args:
        folder: A run folder.
        again: The run that is verified again, if one is.
        may_worsen: How much worse each figure may be: a number ≥ 0, or a percentage; None for 5 %.

    Raises:
        UsageError: `may_worsen` is malformed, or given without a baseline.
        RecordMismatch: the folder holds no run, or a run without a verdict.
    """
    allowed = CHANCE if may_worsen is None else share(may_worsen)
    if allowed is None:
        raise UsageError(
            f"--may-worsen is {may_worsen!r}; expected a number or a percentage.",
            "For example: --may-worsen 10%.",
        )
    if folder is not None:
        run = read_run(Path(folder))
        if not _figures(run):
            raise RecordMismatch(
                f"{folder} is not a baseline: its verdict has no figures to compare with.",
                "Make one with: verify MODEL CANDIDATE --inputs DATA -o RUN.",
            )
        same = again is not None and again.folder == Path(folder)
        return Earlier(Path(folder), run, allowed, same)
    if may_worsen is not None:
        raise UsageError("--may-worsen does not apply without --baseline.", "Give --baseline too.")
    return None


def beside(run: Run, before: Earlier | None) -> Run:
    """Return the run with its baseline; its verdict fails if more got worse than allowed.

    Raises:
        RecordMismatch: the two are not comparable: one is emulated, or they judged other samples.
    """
    if before is None:
        return run
    versions = _versions(before.run)
    held = (replace(h, before=versions.get(h.target, "")) for h in run.held)
    run = replace(run, held=tuple(held))
    same_level = run.verdict.level == before.run.verdict.level
    if before.again and not same_level:
        return run
    figures, optional = _figures(run), _optional(run, before.run)
    changes = [
        _change(kind, of, value, figures.get((kind, of)), before.allowed, optional)
        for (kind, of), value in _figures(before.run).items()
    ]
    if not same_level:
        raise RecordMismatch(
            f"{before.folder} is not a baseline for this: its verdict is "
            f"{before.run.verdict.level}, this one {run.verdict.level}.",
            "Make a baseline that is judged the same way: verify MODEL CANDIDATE --inputs DATA -o "
            "RUN.",
        )
    baseline = Baseline(
        run=str(before.folder),
        date=before.run.provenance.date,
        same_samples=_on_same(run.verdict.samples, run.provenance.inputs_sha256, before),
        same_model=run.provenance.model_sha256 == before.run.provenance.model_sha256,
        changes=tuple(changes),
    )
    verdict = run.verdict
    if not baseline.passed:
        worse = (Failure(kind="worse", text=worsened(c)) for c in changes if not c.passed)
        verdict = with_failures(verdict, worse)
    return replace(run, compared=baseline, verdict=verdict)


def _versions(run: Run) -> dict[str, str]:
    """Return the versions of what ran or built a run's file, by target."""
    workers = [engines.worker for engines in run.devices]
    workers += [run.given_engine.worker] if run.given_engine else []
    engines = [(w.product, f"{w.tensorrt} on {w.gpu}") for w in workers[:1]]
    return dict([*((file.runner, file.version) for file in run.verdict.as_file), *engines])


def _figures(run: Run) -> _Figures:
    """Return the figures that can worsen; a metric decides alone, without output errors."""
    verdict, metric = run.verdict, run.verdict.metric
    figures: _Figures = {}
    for name, error in verdict.outputs.items():
        figures["non-finite", name] = error.nonfinite
        if metric is None and error.agreement is not None:
            figures["unequal", name] = 1 - error.agreement
        elif metric is None:
            figures |= {("rel-max", name): error.rel_max, ("mean-abs", name): error.mean_abs}
    if metric is not None:
        figures["metric", metric.name] = metric.reference - metric.candidate
    if run.worth is not None:
        figures["cost", ""] = run.worth.cost
        figures |= {} if run.worth.measured is None else {("measured", ""): run.worth.measured}
    engine = run.given_engine
    timed = [] if engine is None else [(engine.worker, engine.latency)]
    timed += [(e.worker, e.row.latency) for e in run.devices if e.row and e.row.latency]
    for worker, latency in timed:
        figures["time", f"{worker.gpu}, {worker.product} {worker.tensorrt}"] = latency.median_ms
    return figures


def _optional(run: Run, before: Run) -> frozenset[FigureKind]:
    """Return the figures a run may lack.

    If the baseline comes from the same command and has a predicted cost, a run without one has
    nothing low or is another model: that is worse.
    """
    return _MEASURED if run.kind == before.kind else _MEASURED | {"cost"}


def _change(
    kind: FigureKind,
    of: str,
    before: float,
    now: float | None,
    allowed: float,
    optional: frozenset[FigureKind],
) -> Change:
    # More non-finite values are never accepted; without the output there are none to count.
    by = 0.0 if kind == "non-finite" and now is not None else allowed
    # A candidate that beat the reference was lucky: matching the reference is no loss.
    limit = (max(before, 0.0) if kind == "metric" else before) * (1 + by)
    passed = kind in optional if now is None else now <= limit or isnan(before)
    return Change(kind=kind, of=of, before=before, now=now, limit=limit, passed=passed)


def demand_comparable(case: Case, before: Earlier | None) -> None:
    """Check that a baseline judged a case's samples, before anything runs on them.

    Raises:
        RecordMismatch: it judged others.
    """
    if before is not None:
        _on_same(case.calibration.ids, case.data_sha256, before)


def _on_same(samples: Sequence[str], sha256: str, before: Earlier) -> bool:
    """Return whether the baseline judged the same values; False if only the names are known."""
    other, fixed = before.run.verdict.samples, before.run.kind == "fix"
    if before.run.provenance.inputs_sha256 == sha256 and len(samples) == len(other):
        return True
    # For `fix`, the hash covers more than what it judged.
    if tuple(samples) == tuple(other) and fixed:
        return False
    on = count(len(other), "other sample")
    if fixed and set(other) < set(samples):
        on = f"{len(other)} of these {len(samples)} samples"
    candidate = command(before.folder / MODEL_FILE) if fixed else "CANDIDATE"
    later = "; or let fix judge all of DATA: fix MODEL --inputs OTHERS --heldout DATA" * fixed
    raise RecordMismatch(
        f"{before.folder} is not a baseline for this: its verdict is on {on}.",
        f"Make a baseline on these samples: verify MODEL {candidate} --inputs DATA -o RUN{later}.",
    )
