"""The nouns of a run: frozen records that hold numbers, names and sentences, never arrays.

A record is what `run.json` stores and what the renderers read. Non-finite numbers are stored as
the strings "Infinity", "-Infinity" and "NaN", because JSON has none.
"""

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
from halfwise.records.record import SCHEMA_VERSION, GuardKind, Level, NodeName, Record, TensorName
from halfwise.records.run import Cost, Provenance, Run

__all__ = [
    "SCHEMA_VERSION",
    "AdjustedConstant",
    "Cost",
    "Criterion",
    "Detail",
    "Growth",
    "Guard",
    "GuardKind",
    "Histogram",
    "InnerObservation",
    "IntermediateNonfinite",
    "KeptNode",
    "Level",
    "MetricResult",
    "NodeName",
    "Observation",
    "Observations",
    "OutputError",
    "Plan",
    "Provenance",
    "Record",
    "Run",
    "Search",
    "Side",
    "TensorName",
    "Unsupported",
    "Verdict",
]
