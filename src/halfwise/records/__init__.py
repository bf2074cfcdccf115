"""The nouns of a run: frozen records that hold numbers, names and sentences, never arrays.

A record is what `run.json` stores and what the renderers read. Non-finite numbers are stored as
the strings "Infinity", "-Infinity" and "NaN", because JSON has none.
"""

from halfwise.records.built import (
    BuildConfig,
    BuildOutcome,
    EngineFile,
    NetworkLayer,
    Profile,
    ShapeRange,
    Typing,
    WorkerInfo,
)
from halfwise.records.compared import Comparison, NodeComparison, SideName, TensorStatus
from halfwise.records.diagnosis import Rung, RungName, Sign
from halfwise.records.engine import (
    EngineLayer,
    EngineResult,
    EngineRound,
    Engines,
    Latency,
    NodePrecision,
    Precision,
    PrecisionProof,
    ShapeVerdict,
)
from halfwise.records.explained import LogFinding, LogNode, LogReport
from halfwise.records.exported import Exported, ParityCheck
from halfwise.records.finding import (
    ConstraintReport,
    Finding,
    LintReport,
)
from halfwise.records.frozen import FrozenSize
from halfwise.records.judged import (
    Criterion,
    IntermediateNonfinite,
    MetricResult,
    OutputError,
    Side,
    Verdict,
)
from halfwise.records.modernized import LeftAlone, Modernized, Rewriting
from halfwise.records.observed import (
    Detail,
    Growth,
    Guard,
    Histogram,
    InnerObservation,
    Observation,
    Observations,
)
from halfwise.records.pieces import (
    EngineBuild,
    EngineTensor,
    GivenEngine,
    Inspection,
    Repeated,
    Repetition,
)
from halfwise.records.planned import AdjustedConstant, KeptNode, Plan, Search, Unsupported
from halfwise.records.preprocessing import (
    DifferenceKind,
    InputComparison,
    InputDifference,
    PreprocessingReport,
)
from halfwise.records.recipe import Constraint, Recipe, version_of
from halfwise.records.record import (
    SCHEMA_VERSION,
    SEVERITIES,
    GuardKind,
    Level,
    NodeName,
    Record,
    Severity,
    TensorName,
)
from halfwise.records.run import Cost, Provenance, Run, RunKind
from halfwise.records.sizes import DynamicAxis, JudgedBatch, NotBatched

__all__ = [
    "SCHEMA_VERSION",
    "SEVERITIES",
    "AdjustedConstant",
    "BuildConfig",
    "BuildOutcome",
    "Comparison",
    "Constraint",
    "ConstraintReport",
    "Cost",
    "Criterion",
    "Detail",
    "DifferenceKind",
    "DynamicAxis",
    "EngineBuild",
    "EngineFile",
    "EngineLayer",
    "EngineResult",
    "EngineRound",
    "EngineTensor",
    "Engines",
    "Exported",
    "Finding",
    "FrozenSize",
    "GivenEngine",
    "Growth",
    "Guard",
    "GuardKind",
    "Histogram",
    "InnerObservation",
    "InputComparison",
    "InputDifference",
    "Inspection",
    "IntermediateNonfinite",
    "JudgedBatch",
    "KeptNode",
    "Latency",
    "LeftAlone",
    "Level",
    "LintReport",
    "LogFinding",
    "LogNode",
    "LogReport",
    "MetricResult",
    "Modernized",
    "NetworkLayer",
    "NodeComparison",
    "NodeName",
    "NodePrecision",
    "NotBatched",
    "Observation",
    "Observations",
    "OutputError",
    "ParityCheck",
    "Plan",
    "Precision",
    "PrecisionProof",
    "PreprocessingReport",
    "Profile",
    "Provenance",
    "Recipe",
    "Record",
    "Repeated",
    "Repetition",
    "Rewriting",
    "Run",
    "RunKind",
    "Rung",
    "RungName",
    "Search",
    "Severity",
    "ShapeRange",
    "ShapeVerdict",
    "Side",
    "SideName",
    "Sign",
    "TensorName",
    "TensorStatus",
    "Typing",
    "Unsupported",
    "Verdict",
    "WorkerInfo",
    "version_of",
]
