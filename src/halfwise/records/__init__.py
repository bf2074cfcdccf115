"""Records of a run: frozen, made of numbers, names and sentences, never arrays.

`run.json` stores them, and the reports read them. JSON has no non-finite numbers, so they are
stored as the strings "Infinity", "-Infinity" and "NaN".
"""

from halfwise.records.built import (
    BuildConfig,
    BuildOutcome,
    Constraint,
    EngineFile,
    NetworkLayer,
    Profile,
    Recipe,
    ShapeRange,
    Typing,
    WorkerInfo,
)
from halfwise.records.coverage import (
    OF_METRIC,
    DynamicAxis,
    FrozenSize,
    JudgedBatch,
    NotBatched,
    Unjudged,
    UnjudgedKind,
)
from halfwise.records.curve import Curve, Point, Row, RowKind
from halfwise.records.diagnosis import (
    DifferenceKind,
    InputComparison,
    InputDifference,
    InputTrials,
    PreprocessingReport,
    Rung,
    RungName,
    Sign,
    TriedInputs,
)
from halfwise.records.engine import (
    AttentionCore,
    CoreForm,
    EngineLayer,
    EngineResult,
    EngineRound,
    Engines,
    NodePrecision,
    Precision,
    PrecisionProof,
    Prefer,
    RungEnd,
    RungTried,
    ShapeVerdict,
)
from halfwise.records.engine_fault import (
    EngineDiagnosis,
    SymptomKind,
)
from halfwise.records.evidence import Frame, Graph, Preview, RunEvidence, Source
from halfwise.records.finding import (
    ConstraintReport,
    Finding,
    LintReport,
    LogFinding,
    LogNode,
    LogReport,
)
from halfwise.records.followed import Channel, Decided, Followed, Origin
from halfwise.records.inspection import (
    EngineBuild,
    EngineTensor,
    GivenEngine,
    Inspection,
)
from halfwise.records.judged import (
    FP32_SNR_DB,
    Criterion,
    Errors,
    FailedRun,
    FailureBound,
    FileRun,
    Flip,
    IntermediateNonfinite,
    MetricResult,
    OutputError,
    Side,
    SliceGroup,
    Verdict,
)
from halfwise.records.outcomes import (
    FULL_RUNGS,
    Band,
    Cause,
    CauseKind,
    EngineRung,
    LadderRung,
    Latency,
    Move,
    MoveKind,
    ProvenEngine,
    Refusal,
    RefusalKind,
    RightBy,
    Spared,
    SparedKind,
    TimeRatio,
)
from halfwise.records.planned import (
    LEAST_DEARER,
    LEAST_SAVED,
    RANGE_METHODS,
    AdjustedConstant,
    Because,
    BudgetEnd,
    CutStage,
    KeptBy,
    KeptNode,
    NearPlan,
    Plan,
    RangeMethod,
    Search,
    Unsupported,
    Worth,
)
from halfwise.records.quantisation import (
    PairFault,
    PairLoss,
    QuantisationLoss,
    RangeFault,
    Right,
)
from halfwise.records.recognised import Boxes, Evidence, Kind, Recognised, TaskScore
from halfwise.records.record import (
    SCHEMA_VERSION,
    SEVERITIES,
    UNDONE,
    Fact,
    Facts,
    Failure,
    FailureKind,
    GuardKind,
    Level,
    MadeUp,
    NodeName,
    Note,
    NoteKind,
    Record,
    Remark,
    RemarkKind,
    Severity,
    TensorName,
)
from halfwise.records.repair import Allowed, Place, Proof, Remade, Repair, RepairRule
from halfwise.records.run import Baseline, Change, Cost, FigureKind, Provenance, Run, RunKind, Sizes
from halfwise.records.step import Step, StepKind, said
from halfwise.records.tensors import (
    Comparison,
    Detail,
    Growth,
    Guard,
    Histogram,
    InnerObservation,
    NodeComparison,
    Observation,
    Observations,
    SideName,
    TensorStatus,
)
from halfwise.records.written import LeftAlone, Modernized, Rewriting

__all__ = [
    "FP32_SNR_DB", "FULL_RUNGS", "LEAST_DEARER", "LEAST_SAVED", "OF_METRIC",
    "RANGE_METHODS", "SCHEMA_VERSION", "SEVERITIES", "UNDONE", "AdjustedConstant", "Allowed",
    "AttentionCore", "Band", "Baseline", "Because", "Boxes", "BudgetEnd", "BuildConfig",
    "BuildOutcome", "Cause", "CauseKind", "Change",
    "Channel", "Comparison", "Constraint", "ConstraintReport", "CoreForm", "Cost", "Criterion",
    "Curve", "CutStage", "Decided", "Detail", "DifferenceKind", "DynamicAxis",
    "EngineBuild", "EngineDiagnosis", "EngineFile", "EngineLayer", "EngineResult",
    "EngineRound", "EngineRung", "EngineTensor", "Engines", "Errors", "Evidence",
    "Fact", "Facts", "FailedRun", "Failure", "FailureBound", "FailureKind", "FigureKind", "FileRun",
    "Finding", "Flip", "Followed", "Frame", "FrozenSize", "GivenEngine", "Graph", "Growth", "Guard",
    "GuardKind", "Histogram", "InnerObservation", "InputComparison", "InputDifference",
    "InputTrials", "Inspection", "IntermediateNonfinite", "JudgedBatch", "KeptBy", "KeptNode",
    "Kind", "LadderRung", "Latency", "LeftAlone", "Level", "LintReport", "LogFinding", "LogNode",
    "LogReport", "MadeUp", "MetricResult", "Modernized", "Move", "MoveKind",
    "NearPlan", "NetworkLayer", "NodeComparison", "NodeName", "NodePrecision", "NotBatched", "Note",
    "NoteKind", "Observation", "Observations", "Origin", "OutputError", "PairFault", "PairLoss",
    "Place", "Plan", "Point", "Precision", "PrecisionProof", "Prefer",
    "PreprocessingReport", "Preview", "Profile", "Proof", "ProvenEngine", "Provenance",
    "QuantisationLoss", "RangeFault", "RangeMethod", "Recipe", "Recognised", "Record", "Refusal",
    "RefusalKind", "Remade", "Remark", "RemarkKind", "Repair", "RepairRule",
    "Rewriting", "Right", "RightBy", "Row", "RowKind", "Run", "RunEvidence",
    "RunKind", "Rung", "RungEnd", "RungName", "RungTried", "Search", "Severity", "ShapeRange",
    "ShapeVerdict", "Side", "SideName", "Sign", "Sizes", "SliceGroup", "Source", "Spared",
    "SparedKind", "Step", "StepKind", "SymptomKind", "TaskScore", "TensorName", "TensorStatus",
    "TimeRatio", "TriedInputs", "Typing", "Unjudged", "UnjudgedKind", "Unsupported", "Verdict",
    "WorkerInfo", "Worth", "said",
]  # fmt: skip
