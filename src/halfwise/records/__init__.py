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
from halfwise.records.explained import LogFinding, LogNode, LogReport, Severity
from halfwise.records.judged import (
    Criterion,
    IntermediateNonfinite,
    MetricResult,
    OutputError,
    Side,
    Verdict,
)
from halfwise.records.observed import (
    Detail,
    Growth,
    Guard,
    Histogram,
    InnerObservation,
    Observation,
    Observations,
)
from halfwise.records.planned import AdjustedConstant, KeptNode, Plan, Search, Unsupported
from halfwise.records.preprocessing import (
    DifferenceKind,
    InputComparison,
    InputDifference,
    PreprocessingReport,
)
from halfwise.records.record import SCHEMA_VERSION, GuardKind, Level, NodeName, Record, TensorName
from halfwise.records.run import Cost, Provenance, Run

__all__ = [
    "SCHEMA_VERSION",
    "AdjustedConstant",
    "BuildConfig",
    "BuildOutcome",
    "Cost",
    "Criterion",
    "Detail",
    "DifferenceKind",
    "EngineFile",
    "EngineLayer",
    "EngineResult",
    "EngineRound",
    "Engines",
    "Growth",
    "Guard",
    "GuardKind",
    "Histogram",
    "InnerObservation",
    "InputComparison",
    "InputDifference",
    "IntermediateNonfinite",
    "KeptNode",
    "Latency",
    "Level",
    "LogFinding",
    "LogNode",
    "LogReport",
    "MetricResult",
    "NetworkLayer",
    "NodeName",
    "NodePrecision",
    "Observation",
    "Observations",
    "OutputError",
    "Plan",
    "Precision",
    "PrecisionProof",
    "PreprocessingReport",
    "Profile",
    "Provenance",
    "Record",
    "Run",
    "Search",
    "Severity",
    "ShapeRange",
    "ShapeVerdict",
    "Side",
    "TensorName",
    "Typing",
    "Unsupported",
    "Verdict",
    "WorkerInfo",
]
