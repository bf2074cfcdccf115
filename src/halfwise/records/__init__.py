"""Records of a run: frozen, made of numbers, names and sentences, never arrays.

`run.json` stores them, and the reports read them. JSON has no non-finite numbers, so they are
stored as the strings "Infinity", "-Infinity" and "NaN".
"""

from collections.abc import Iterable
from typing import Literal

from halfwise.records.built import (
    FP32_ENGINE,
    FULL_RUNGS,
    BuildConfig,
    BuildOutcome,
    Cause,
    CauseKind,
    Constraint,
    EngineFile,
    EngineRung,
    LadderRung,
    Latency,
    NetworkLayer,
    Profile,
    Recipe,
    RightBy,
    ShapeRange,
    SparedKind,
    Typing,
    WorkerInfo,
)
from halfwise.records.diagnosis import EngineDiagnosis, Rung, RungName, Sign, SymptomKind
from halfwise.records.engine import (
    ALIKE,
    AheadBuild,
    EngineBuild,
    EngineLayer,
    EngineResult,
    EngineRound,
    Engines,
    EngineTensor,
    GivenEngine,
    Inspection,
    NodePrecision,
    Precision,
    PrecisionProof,
    RungEnd,
    RungTried,
    ShapeVerdict,
)
from halfwise.records.judged import (
    CHANCE,
    FP32_SNR_DB,
    OF_METRIC,
    Boxes,
    Cells,
    Criterion,
    DynamicAxis,
    Evidence,
    FailedRun,
    FailureBound,
    FileRun,
    Flip,
    IntermediateNonfinite,
    JudgedBatch,
    Kind,
    MetricResult,
    NotBatched,
    OutputError,
    Recognised,
    Side,
    SliceGroup,
    TaskScore,
    Unjudged,
    UnjudgedKind,
    Verdict,
)
from halfwise.records.planned import (
    LEAST_DEARER,
    LEAST_SAVED,
    MOST,
    AdjustedConstant,
    Allowed,
    Because,
    Blame,
    Blamed,
    BudgetEnd,
    CutStage,
    Flat,
    Followed,
    Joined,
    KeptBy,
    KeptNode,
    LowFormat,
    Place,
    Plan,
    Proof,
    Remade,
    Repair,
    RepairRule,
    Search,
    Unsupported,
    Worth,
)
from halfwise.records.record import (
    SCHEMA_VERSION,
    SEVERITIES,
    UNDONE,
    UNSHOWN,
    Fact,
    Facts,
    Failure,
    FailureKind,
    Finding,
    GuardKind,
    Level,
    LintReport,
    LogFinding,
    LogNode,
    LogReport,
    MadeUp,
    NodeName,
    Note,
    NoteKind,
    Record,
    Remark,
    RemarkKind,
    Severity,
    Step,
    StepKind,
    TensorName,
    Via,
    replace,
    said,
)
from halfwise.records.tensors import (
    Comparison,
    Detail,
    Graph,
    Growth,
    Guard,
    Histogram,
    InnerKind,
    InnerObservation,
    NodeComparison,
    Observation,
    Observations,
    RunEvidence,
    SideName,
    Source,
    TensorStatus,
)

__all__ = [
    "ALIKE", "CHANCE", "FP32_ENGINE", "FP32_SNR_DB", "FULL_RUNGS", "LEAST_DEARER", "LEAST_SAVED",
    "MOST", "OF_METRIC", "SCHEMA_VERSION", "SEVERITIES", "UNDONE", "UNSHOWN",
    "AdjustedConstant", "AheadBuild",
    "Allowed", "Baseline", "Because", "Blame", "Blamed", "Boxes", "BudgetEnd", "BuildConfig",
    "BuildOutcome", "Cause", "CauseKind", "Cells", "Change",
    "Comparison", "Constraint", "Cost", "Criterion",
    "Curve", "CutStage", "Detail", "DynamicAxis",
    "EngineBuild", "EngineDiagnosis", "EngineFile", "EngineLayer", "EngineResult",
    "EngineRound", "EngineRung", "EngineTensor", "Engines", "Evidence",
    "Fact", "Facts", "FailedRun", "Failure", "FailureBound", "FailureKind", "FigureKind", "FileRun",
    "Finding", "Flat", "Flip", "Followed", "GivenEngine", "Graph", "Growth", "Guard",
    "GuardKind", "Held", "Histogram", "InnerKind", "InnerObservation",
    "Inspection", "IntermediateNonfinite", "Joined", "JudgedBatch", "KeptBy",
    "KeptNode", "Kind", "LadderRung", "Latency", "Level", "LintReport",
    "LogFinding", "LogNode", "LogReport", "MadeUp", "MetricResult",
    "NetworkLayer", "NodeComparison", "NodeName", "NodePrecision", "NotBatched", "Note",
    "NoteKind", "Observation", "Observations", "OutputError",
    "Place", "Plan", "Point", "Precision", "PrecisionProof",
    "Profile", "Proof", "Provenance",
    "Recipe", "Recognised", "Record",
    "Remade", "Remark", "RemarkKind", "Repair", "RepairRule",
    "RightBy", "Run", "RunEvidence",
    "RunKind", "Rung", "RungEnd", "RungName", "RungTried", "Search", "Severity", "ShapeRange",
    "ShapeVerdict", "Side", "SideName", "Sign", "SliceGroup", "Source", "SparedKind",
    "Step", "StepKind", "SymptomKind", "TaskScore", "TensorName", "TensorStatus",
    "Typing", "Unjudged", "UnjudgedKind", "Unsupported", "Verdict", "Via",
    "WorkerInfo", "Worth", "replace", "said",
]  # fmt: skip


class Point(Record):
    """A plan that was evaluated.

    Attributes:
        kept: The compute nodes in FP32 as a `mask` of places in `Curve.nodes`.
        count: Their number.
        cost: Predicted cost relative to everything low; None if shapes are unknown.
        error: Error on the calibration samples relative to what is allowed: 1 just passes. With a
            metric, 1 plus the drop beyond its allowance. inf with new NaN or infinities.
        bf16: Those of `kept` in BF16 instead of FP32, likewise.
        tf32: Whether its FP32 matrix products use TF32.
    """

    kept: str
    count: int
    cost: float | None
    error: float
    bf16: str = "0"
    tf32: bool = False

    @property
    def price(self) -> float:
        """The cost, or the number of kept nodes if unknown, which orders plans too."""
        return float(self.count) if self.cost is None else self.cost


class Curve(Record):
    """The plans of a run to choose from.

    Attributes:
        nodes: The compute nodes, in graph order.
        points: Those that no other beats in both cost and error, of plans that ran on all samples,
            cheapest first; and the run's plan.
        plan: Index of the run's plan, or of what engines made of it; None if it is not among the
            points, or if the delivered engine computes nothing low.
        criterion: What errors are relative to; None for the criterion of the run.
        rung: "int8" for plans with INT8: they keep what is left out of it, and `nodes` are its
            candidates.
    """

    nodes: tuple[NodeName, ...]
    points: tuple[Point, ...]
    plan: int | None = None
    criterion: Criterion | None = None
    rung: EngineRung | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where something names a node or a point that there is not."""
        if self.plan is not None and not 0 <= self.plan < len(self.points):
            raise ValueError("a place is beyond the points")
        for kept, bf16 in ((int(p.kept, 16), int(p.bf16, 16)) for p in self.points):
            if not 0 <= kept < 1 << len(self.nodes) or bf16 & ~kept:
                raise ValueError("a plan keeps places beyond the nodes, or its BF16 is not kept")

    @property
    def shown(self) -> list[int]:
        """Indices of a few points that are far apart, both ends and the run's plan among them."""
        own = set[int]() if self.plan is None else {self.plan}
        return sorted(own.union(evenly(len(self.points), SHOWN)))

    def named(self, mask: str) -> frozenset[NodeName]:
        """Return the nodes of a mask, such as `kept` or `bf16` of a point."""
        return frozenset(self.nodes[place] for place in places(mask))

    def of_plan(self, kept: frozenset[NodeName] | None) -> "Curve":
        """Return the curve with another plan if that is one of its points; with none for None.

        Rows belong to the plan that was found, and are dropped with another.
        """
        index = None
        if kept is not None:
            written = mask(place for place, name in enumerate(self.nodes) if name in kept)
            index = next((i for i, point in enumerate(self.points) if point.kept == written), None)
        return replace(self, plan=index)


SHOWN = 8
"""Plans to choose from that are shown: as many as a reader can compare at a glance. Our choice."""


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` > 1 of `count` places, evenly spread, both ends among them."""
    few = min(count, most)
    return [round(i * (count - 1) / max(1, few - 1)) for i in range(few)]


def mask(places: Iterable[int]) -> str:
    """Return places ≥ 0 as hexadecimal digits: a bit each, the first place last."""
    return f"{sum(1 << place for place in places):x}"


def places(text: str) -> list[int]:
    """Return the places that `mask` wrote."""
    bits = int(text, 16)
    return [place for place in range(bits.bit_length()) if bits >> place & 1]


FigureKind = Literal[
    "rel-max", "mean-abs", "unequal", "non-finite", "metric", "cost", "measured", "time"
]
"""A figure that can get worse; smaller is better for all of them.

"rel-max", "mean-abs": as in `OutputError`; "unequal": the share of elements that differ from the
reference's, in an output that is not floating point; "metric": how far the candidate's value
is below the reference's; "cost", "measured": as in `Worth`; "time": median milliseconds of one run
of an engine.
"""


class Change(Record):
    """A figure of the baseline, and its current value.

    Attributes:
        kind: What it is.
        of: The output, the metric, or the GPU and version of TensorRT; "" for costs.
        before: Value in the baseline.
        now: Value in the run; None if it has none.
        limit: Largest value that passes.
        passed: Whether it is within the limit. Without the figure, False for what is judged
            (outputs and metrics) and True for times and measured costs, which were not measured,
            or elsewhere. True for a predicted cost if the baseline is of another command.
    """

    kind: FigureKind
    of: str = ""
    before: float
    now: float | None
    limit: float
    passed: bool


class Baseline(Record):
    """An earlier run, and all its figures that can get worse.

    Attributes:
        run: Its folder, as given.
        date: Its date; UTC, ISO 8601.
        same_samples: Whether both runs judged the same samples, by their hash; False if only their
            names are the same.
        same_model: Whether both runs are of the same FP32 model, by its hash.
        changes: Its figures.
    """

    run: str
    date: str
    same_samples: bool
    same_model: bool = True
    changes: tuple[Change, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing got worse than allowed."""
        return all(change.passed for change in self.changes)


class Held(Record):
    """Whether a file is right on a target; if not, whether its FP32 model is.

    Attributes:
        target: Name of the runner; "TensorRT" for an engine.
        version: Its version, of an engine with the GPU.
        before: That of the baseline; "" without one, or if that did not ask the target.
        outcome: "same": right; "built": built, typed as asked, and not run; "fragile": wrong where
            FP32 is right; "fp32": FP32 itself is wrong, or cannot be run or built.
        first: The nodes among which the first error arises, in graph order, or that are built
            otherwise than asked; empty if the file is right, or if none was found.
    """

    target: str
    version: str
    before: str = ""
    outcome: Literal["same", "built", "fragile", "fp32"]
    first: tuple[NodeName, ...] = ()


RunKind = Literal["fix", "verify", "diagnose"]


class Cost(Record):
    """Resources that the run used.

    Attributes:
        peak_rss_bytes: Peak memory of the process; None if the system does not tell.
    """

    evaluations: int
    seconds: float
    stage_seconds: dict[str, float]
    peak_rss_bytes: int | None


class Provenance(Record):
    """Everything needed to repeat the run.

    Attributes:
        versions: Package name to version, including halfwise and Python.
        platform: Operating system and processor.
        device: Execution provider that ran the model.
        model: Path of the model as given.
        candidate: Path of what `verify` judges, as given; "" of others.
        folder: The working directory that `model` is relative to; "" if it no
            longer existed.
        model_sha256: Hash of the model file and its external data.
        data: Source of the inputs, as given; None if they were in memory.
        notes: Remarks on model and inputs.
        inputs_sha256: Hash of all samples.
        command: The command, if it is not the kind of its run: `ladder` and `choose` make runs of
            kind "fix".
        options: The options of the command.
        date: UTC, ISO 8601.
    """

    versions: dict[str, str]
    platform: str
    device: str
    model: str
    candidate: str = ""
    folder: str = ""
    model_sha256: str
    data: str | None = None
    notes: tuple[Note, ...] = ()
    inputs_sha256: str
    command: str = ""
    options: dict[str, str]
    date: str


class Run(Record):
    """Everything that one run found; the content of `run.json`.

    Attributes:
        schema_version: Version of this structure.
        kind: The command that made it.
        criterion: What is acceptable.
        accumulate: Format of running sums inside ops.
        io: Type of float graph inputs and outputs of the rewritten model. With "fp32", those that
            the file stores in the low format keep it.
        headroom: Factor on observed ranges below which overflow counts.
        baseline: Verdict on the model with everything low except what its file computes in FP32.
        all_int8: The same with INT8 wherever possible, besides what the plan keeps in FP32; None
            without INT8.
        without_int8: Nodes that could be INT8, if none is; empty if one is, or if it was not tried.
        guards: Suspected causes, most severe first.
        growth: Growth of the error through the model with only `followed.kept` in FP32. If there
            was nothing to follow, through the user's model with everything low, at nodes spread
            over it. None without a run folder, and if time ran out.
        followed: What that and trials show about the source of the error; None if guards and rules
            explain all kept nodes.
        plan: The plan.
        search: How the plan was found.
        verdict: The verdict on the rewritten model.
        original_names: Names in the user's file by halfwise's names, if they differ.
        warnings: Remarks on inputs and model.
        engines: What real engines showed; None if none was requested. Of several devices, the first
            named that was not lost.
        further: The other devices.
        diagnosis: Rungs of `diagnose`, up to the first that failed.
        given_engine: The user's own engine that was judged; None otherwise.
        profiles: The optimization profile that covers all samples; empty if no shape varies, and
            for `fix` with engines, which record their own.
        held: For `verify`, what became of the candidate on each target.
        worth: What the plan, or the mixed candidate, is worth; None if unknown.
        blame: Which parts of a quantised candidate its error comes from; None if it passed, and for
            others.
        remade: Result of repeating the repairs that a judged candidate names; None if it names
            none.
        curve: Evaluated plans to choose from; None without a search.
        rungs: Result of each type, most exact first; empty if only one was requested.
        compared: What got better or worse since an earlier run; None if none was named.
        next_step: What to do next.
        cost: Time and memory.
        provenance: Versions and hashes.
    """

    schema_version: int = SCHEMA_VERSION
    kind: RunKind
    criterion: Criterion
    accumulate: Literal["fp32", "fp16"]
    io: Literal["fp32", "fp16", "bf16"]
    headroom: float
    baseline: Verdict | None
    all_int8: Verdict | None = None
    without_int8: tuple[KeptNode, ...] = ()
    guards: tuple[Guard, ...]
    growth: tuple[Growth, ...]
    followed: Followed | None = None
    plan: Plan | None
    search: Search | None
    verdict: Verdict
    original_names: dict[NodeName, str]
    warnings: tuple[str, ...]
    engines: Engines | None = None
    further: tuple[Engines, ...] = ()
    diagnosis: tuple[Rung, ...] = ()
    given_engine: GivenEngine | None = None
    profiles: tuple[Profile, ...] = ()
    held: tuple[Held, ...] = ()
    worth: Worth | None = None
    blame: Blame | None = None
    remade: Remade | None = None
    curve: Curve | None = None
    rungs: tuple[LadderRung, ...] = ()
    compared: Baseline | None = None
    next_step: tuple[Step, ...]
    cost: Cost
    provenance: Provenance

    @property
    def devices(self) -> tuple[Engines, ...]:
        """Results of the engines on each device; empty without engines."""
        return () if self.engines is None else (self.engines, *self.further)

    @property
    def low(self) -> LowFormat | None:
        """The low format of its plan or candidate; None if it has none."""
        plan = self.plan or self.worth
        return None if plan is None else plan.low

    def on(self, name: str) -> "Run":
        """Return the run as if the named device had been the only one.

        Raises:
            KeyError: it has none of that name.
        """
        for engines in self.devices:
            if engines.worker.name == name:
                verdict = engines.verdict or self.verdict
                return replace(self, engines=engines, further=(), verdict=verdict)
        raise KeyError(name)
