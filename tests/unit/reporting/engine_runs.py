"""Hand-made engines: what a run on an H200 finds for a transformer whose LayerNorms overflow."""

from typing import Any

from halfwise.records import (
    BuildConfig,
    BuildOutcome,
    EngineFile,
    EngineResult,
    EngineRound,
    Engines,
    Latency,
    NodeName,
    PrecisionProof,
    ShapeVerdict,
    TensorName,
    WorkerInfo,
)
from tests.unit.reporting.runs import BROKEN, NORMS, verdict

SHAPES: dict[TensorName, tuple[int, ...]] = {TensorName("image"): (32, 1, 28, 28)}
KEEP = tuple(NodeName(f"{norm}/Pow") for norm in NORMS)


def build(number: int, purpose: str, **changed: Any) -> BuildOutcome:
    """Return a build that gave an engine of 10 MiB."""
    engine = EngineFile(sha256="ab" * 32, bytes=10 * 2**20, side="worker", path="/cache/ab")
    values: dict[str, Any] = {
        "status": "built",
        "config": BuildConfig(model_sha256="cd" * 32, typing="weak", low="fp16"),
        "seconds": 12.3,
        "engine": engine,
    }
    return BuildOutcome(number=number, purpose=purpose, **values | changed)


def failed(number: int, **changed: Any) -> BuildOutcome:
    """Return a build that a segmentation fault ended."""
    values: dict[str, Any] = {
        "status": "crashed",
        "signal": "SIGSEGV",
        "message": "The builder crashed.",
        "log": ("[V] Tactic 1", "[V] Tactic: 0x3e8", ""),
        "engine": None,
    }
    return build(number, "whether 3 kept nodes are needed", **values | changed)


def latency(median: float) -> Latency:
    """Return a latency, in ms."""
    return Latency(
        shapes=SHAPES,
        iterations=400,
        median_ms=median,
        p99_ms=median * 1.1,
        device_bytes=50 * 2**20,
    )


def proof(**changed: Any) -> PrecisionProof:
    """Return the proof of an engine that is mostly FP16."""
    values: dict[str, Any] = {
        "layers": (),
        "nodes": (),
        "node_share": {"fp16": 0.9, "fp32": 0.1},
    }
    return PrecisionProof(**values | changed)


def result(name: str, number: int, median: float, **changed: Any) -> EngineResult:
    """Return a row of the table that passed."""
    values: dict[str, Any] = {
        "build": build(number, name),
        "verdict": verdict(level="engine"),
        "latency": latency(median),
        "proof": proof(),
    }
    return EngineResult(name=name, **values | changed)


def measured(built: BuildOutcome, excess: float | None = None, **more: Any) -> EngineResult:
    """Return a row as the search has it, before the final table."""
    return EngineResult(name="", build=built, excess=excess, **more)


def engine_round(number: int, **changed: Any) -> EngineRound:
    """Return a round that failed, though the emulation predicted that it passes."""
    values: dict[str, Any] = {
        "step": "the plan of the emulation",
        "keep": KEEP,
        "predicted": 0.8,
        "measured": 1.6,
        "passed": False,
        "median_ms": 1.1,
    }
    return EngineRound(build=number, **values | changed)


def engines(**changed: Any) -> Engines:
    """Return engines of which the mixed one is delivered."""
    worker = WorkerInfo(
        name="local",
        command=("python3",),
        tensorrt="8.6.0",
        gpu="NVIDIA H200",
        compute_capability="9.0",
        driver="580.95",
        typing=("weak",),
    )
    shapes = (
        ShapeVerdict(shapes=SHAPES, at="opt", verdict=verdict(level="engine")),
        ShapeVerdict(shapes=SHAPES, at="max", verdict=None, reason="64 samples are too few."),
    )
    plain = verdict(level="engine", passed=False, outputs={"logits": BROKEN})
    values: dict[str, Any] = {
        "worker": worker,
        "typing": "weak",
        "profiles": (),
        "results": (
            result("FP32, TF32 off", 1, 4.0),
            result("FP32, TF32 on", 5, 2.0),
            result("FP16", 4, 1.0, verdict=plain),
            result("mixed", 3, 1.05, kept=13, shapes=shapes),
        ),
        "rounds": (engine_round(2), engine_round(3, measured=0.5, passed=True)),
        "builds": (build(1, "FP32, TF32 off"), failed(2), build(3, "mixed")),
        "keep": KEEP,
        "delivered": EngineFile(
            sha256="ab" * 32, bytes=10 * 2**20, side="here", path="model.engine"
        ),
        "spread": (0.41, 0.52, 0.5),
        "confirmed": 3,
        "notes": ("keeping 9 nodes passed in only 2 of 3 builds",),
    }
    return Engines(**values | changed)
