"""What an engine turned out to be: its precision, speed and errors, and how it was found."""

from math import inf
from typing import Literal

from halfwise.records.built import (
    FULL_RUNGS,
    BuildOutcome,
    Cause,
    EngineFile,
    EngineRung,
    Latency,
    Profile,
    ShapeRange,
    SparedKind,
    Typing,
    WorkerInfo,
)
from halfwise.records.judged import Verdict
from halfwise.records.record import LogFinding, NodeName, Record, TensorName

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "mixed", "other", "unknown"]
"""How a node computes in an engine. "other": on integers or Booleans, or it moves data; "unknown":
inside a fused block that reveals nothing about its parts."""

RungEnd = Literal[
    "delivered",
    "slower",
    "held-out",
    "unsteady",
    "tolerance",
    "not-run",
    "unbuildable",
    "unfetched",
    "elsewhere",
    "lost",
]
"""How a rung ended, judged by the engine on it that came furthest:

- "delivered": the run delivers it;
- "slower": it passed, but is slower;
- "held-out": it passed the search but failed on held-out data or at other shapes;
- "unsteady": it passed in half of its plan's builds or fewer;
- "tolerance": it is out of tolerance;
- "not-run": it does not run to the end;
- "unbuildable": no build gave an engine;
- "unfetched": it passed but could not be fetched;
- "elsewhere": no plan passed on all devices of the run, but one on some;
- "lost": the connection was lost in all its builds and runs, which says nothing about it.
"""


class EngineLayer(Record):
    """A layer of the engine after fusion, as its inspector reports it.

    Attributes:
        name: Its name.
        type: Kind of layer, such as "CaskConvolution" or "kgen"; "Myelin" for a fused block.
        nodes: ONNX nodes that it computes.
        inputs: Data types of its inputs, lower case; "" if the inspector reports none.
        outputs: Data types of its outputs.
        weights: Data type of its weights; "" without weights.
        tactic: Name of the kernel; "" if the inspector reports none.
        precision: Its precision, derived from all of these.
    """

    name: str
    type: str
    nodes: tuple[NodeName, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    weights: str = ""
    tactic: str = ""
    precision: Precision


class NodePrecision(Record):
    """Precision of one ONNX node.

    Attributes:
        node: Its name.
        precision: Derived from the layers that compute it.
        asked: The precision requested for it; None if the builder was free.
        layers: Names of engine layers.
    """

    node: NodeName
    precision: Precision
    asked: Precision | None = None
    layers: tuple[str, ...] = ()

    @property
    def suffices(self) -> bool:
        """Whether a node kept in FP32, TF32 or BF16 is shown in that or a wider type.

        True for nodes that were not kept.
        """
        widest_first: tuple[Precision, ...] = ("fp32", "tf32", "bf16")
        if self.asked not in widest_first:
            return True
        return self.precision in widest_first[: widest_first.index(self.asked) + 1]


class PrecisionProof(Record):
    """What the engine actually computes in.

    Attributes:
        layers: Layers of the engine.
        nodes: Nodes of the ONNX model in graph order, including those that vanished ("other").
        node_share: Share of compute nodes by precision; sums to 1, or empty.
        findings: Differences from the request, one sentence each: a constraint that was not
            honoured, an engine all in FP32 although FP16 was requested, TF32 instead of FP32.
        remarks: Further remarks, such as how much is inside fused blocks and therefore unknown.
    """

    layers: tuple[EngineLayer, ...]
    nodes: tuple[NodePrecision, ...]
    node_share: dict[Precision, float]
    findings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class ShapeVerdict(Record):
    """A verdict at one set of shapes.

    Attributes:
        shapes: Shapes of the inputs.
        at: Place in the profile: "min", "opt", "max", or "data" for the samples' own shapes.
        verdict: The verdict; None if no real data has these shapes.
        reason: Why there is no verdict.
    """

    shapes: dict[TensorName, tuple[int, ...]]
    at: str
    verdict: Verdict | None
    reason: str = ""


class EngineResult(Record):
    """One engine of the final table.

    Attributes:
        name: "FP32, TF32 off", "FP32, TF32 on", "FP16", "mixed" …
        build: How it was built.
        verdict: On the held-out samples; None without an engine, or if it did not run.
        shapes: Verdicts at the profile's shapes.
        latency: Its speed; None likewise.
        proof: Its precision; None if not inspected.
        kept: Number of compute nodes requested in FP32.
        failure: Why it has no verdict; empty otherwise.
        rung: The lowest type that it may compute in; None in records without rungs.
        excess: Error on the calibration samples relative to what the search allows; None if there
            is none.
        untimed: Why it was not timed although it has a verdict; empty otherwise.
        lost: Whether the connection was lost while or after it was judged.
    """

    name: str
    build: BuildOutcome
    verdict: Verdict | None = None
    shapes: tuple[ShapeVerdict, ...] = ()
    latency: Latency | None = None
    proof: PrecisionProof | None = None
    kept: int = 0
    failure: str = ""
    rung: EngineRung | None = None
    excess: float | None = None
    untimed: str = ""
    lost: bool = False

    @property
    def milliseconds(self) -> float:
        """Median time, ms; inf if not timed."""
        return inf if self.latency is None else self.latency.median_ms

    @property
    def shows_nothing(self) -> bool:
        """Whether a lost connection is all that is known about it."""
        return self.excess is None and (self.lost or self.build.status == "lost")


class RungTried(Record):
    """What became of a rung of a run.

    Attributes:
        rung: The lowest type.
        end: How it ended.
    """

    rung: EngineRung
    end: RungEnd


ALIKE = 2.0
"""Builds of one plan are alike if their errors differ by at most this factor: chance in the choice
of kernels may explain it. 41 of 51 engines on an H200 that were off were alike to emulation."""


class EngineRound(Record):
    """One step of the loop between prediction and engine.

    Attributes:
        step: What was tried, one sentence.
        build: Number of the build.
        keep: Nodes requested in FP32.
        predicted: Error that the emulation predicts, relative to the tolerance.
        measured: Error of the engine on the calibration samples, relative to the tolerance; None
            without an engine.
        passed: Whether it is within the tolerance.
        median_ms: Its latency, if measured.
    """

    step: str
    build: int
    keep: tuple[NodeName, ...]
    predicted: float | None = None
    measured: float | None = None
    passed: bool
    median_ms: float | None = None


class Engines(Record):
    """What a run found in real engines.

    Attributes:
        worker: Where they were built.
        typing: The typing regime.
        profiles: The optimization profiles.
        results: The final table.
        rounds: How the plan was found.
        builds: All builds in order, including crashed ones. Only the delivered one lists its
            network layers, as builds of one file share them.
        keep: Nodes in FP32 in the delivered engine, among low ones; empty if nothing is low.
        delivered: The engine in the run folder; None if none passed, or if the one that did could
            not be fetched (the verdict says so).
        spread: Error of every confirmation build of the delivered plan, relative to the tolerance.
        confirmed: How many of them passed.
        rung: Rung of the delivered engine; None without one, and in records without rungs.
        rungs: All rungs of the run, most exact first, and how they ended.
        causes: What engines show about why nothing in the low format passed; empty if something
            did.
        spared: Why further engines were not built.
        notes: Sentences about the engines as a whole.
        verdict: The verdict on this device alone, if a run has several; None with one.
    """

    worker: WorkerInfo
    typing: Typing
    profiles: tuple[Profile, ...]
    results: tuple[EngineResult, ...]
    rounds: tuple[EngineRound, ...]
    builds: tuple[BuildOutcome, ...]
    keep: tuple[NodeName, ...]
    delivered: EngineFile | None = None
    spread: tuple[float, ...] = ()
    confirmed: int = 0
    rung: EngineRung | None = None
    rungs: tuple[RungTried, ...] = ()
    causes: tuple[Cause, ...] = ()
    spared: tuple[SparedKind, ...] = ()
    notes: tuple[str, ...] = ()
    verdict: Verdict | None = None

    @property
    def full(self) -> bool:
        """Whether nothing in the delivered engine is in the low format."""
        return self.rung in FULL_RUNGS

    @property
    def row(self) -> EngineResult | None:
        """The row of the delivered engine; None without one.

        Several builds may give the same file, even of FP32 and of a plan: then it is the one of the
        delivered rung.
        """
        delivered = None if self.delivered is None else self.delivered.sha256
        made = ((r, r.build.engine) for r in reversed(self.results))
        same = [r for r, engine in made if engine is not None and engine.sha256 == delivered]
        return next((r for r in same if r.rung == self.rung), same[0] if same else None)


class EngineTensor(Record):
    """An input or output of an engine.

    Attributes:
        name: Its name.
        is_input: Whether it is an input.
        dtype: Type, by its NumPy or ml_dtypes name.
        shape: Sizes; −1 if dynamic.
        shape_tensor: Whether its elements determine shapes.
        limits: For an input, per profile; limits of values if it is a shape tensor.
    """

    name: TensorName
    is_input: bool
    dtype: str
    shape: tuple[int, ...]
    shape_tensor: bool
    limits: tuple[ShapeRange, ...]


class Inspection(Record):
    """What an engine reveals about itself.

    Attributes:
        worker: Where it was inspected.
        engine: The file.
        tensors: Its inputs and outputs.
        layers: Number of layers after fusion.
        proof: Its precision; None if it could not be inspected.
        latency: Its speed; None likewise.
        notes: What it was inspected on, or why it was not.
    """

    worker: WorkerInfo
    engine: EngineFile
    tensors: tuple[EngineTensor, ...]
    layers: int
    proof: PrecisionProof | None
    latency: Latency | None
    notes: tuple[str, ...]


class EngineBuild(Record):
    """Result of `halfwise build`.

    Attributes:
        model: Path of the model as given.
        build: The build; its engine is the requested file.
        inspection: What the engine reveals about itself.
        findings: Meaning of the builder's warnings and errors.
    """

    model: str
    build: BuildOutcome
    inspection: Inspection
    findings: tuple[LogFinding, ...]


class AheadBuild(Record):
    """Result of `halfwise build --target rtx`: an engine of TensorRT for RTX, which nobody ran.

    Attributes:
        model: Path of the model as given.
        engine: Path of the engine.
        bytes: Its size.
        version: Of TensorRT for RTX.
        sm: The compute capability that it is for.
        kernels: Number of its kernels.
        folded: Products that the model has in FP32 and the engine computes from low operands.
        warnings: What parser and builder warned of.
    """

    model: str
    engine: str
    bytes: int
    version: str
    sm: str
    kernels: int
    folded: tuple[NodeName, ...] = ()
    warnings: tuple[str, ...] = ()


class GivenEngine(Record):
    """The user's own engine, judged.

    Attributes:
        worker: Where it ran.
        engine: The file.
        profiles: Its optimization profiles.
        shapes: Verdicts at their shapes.
        latency: Its speed.
        build: The build, for a candidate that is a model; None for a given engine.
        proof: Its precision; None likewise.
    """

    worker: WorkerInfo
    engine: EngineFile
    profiles: tuple[Profile, ...]
    shapes: tuple[ShapeVerdict, ...]
    latency: Latency
    build: BuildOutcome | None = None
    proof: PrecisionProof | None = None
