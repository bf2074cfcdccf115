"""What an engine was seen to be: its precision, its speed, its errors, and how it was found."""

from typing import Literal

from halfwise.records.band import Band
from halfwise.records.built import BuildOutcome, EngineFile, Profile, Typing, WorkerInfo
from halfwise.records.cause import Cause
from halfwise.records.judged import Verdict
from halfwise.records.ladder import FULL_RUNGS, EngineRung
from halfwise.records.record import NodeName, Record, TensorName
from halfwise.records.refusal import Move, Refusal
from halfwise.records.timed import Latency, ProvenEngine, Spared, TimeRatio

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "mixed", "other", "unknown"]
"""How a node computes in an engine. "other": it computes on integers or Booleans, or moves data;
"unknown": it is inside a fused block that tells nothing about its parts."""

Prefer = Literal["speed", "memory", "exact"]
"""What decides between engines whose times differ by less than their noise: the smaller median, the
smaller device memory, the smaller error."""
RungEnd = Literal[
    "delivered",
    "slower",
    "not-preferred",
    "no-part",
    "held-out",
    "unsteady",
    "tolerance",
    "not-run",
    "unbuildable",
    "refused",
    "unfetched",
    "elsewhere",
    "lost",
]
"""What became of a rung, by the engine of it that came furthest: the run delivers it; it passed and
is slower, or equally fast and not preferred; it passed, with the outputs of an FP32 or TF32 engine;
it passed the search and failed on held-out data or at other shapes; it passed in half of the builds
of its plan or less; it is off; it does not run to the end; no build gave an engine; it is off, and
the builder refused every plan that the emulation predicts to pass; it passed and could not be
fetched; it passed, and its plan fails on another device of the run; the connection was lost in all
of its builds and runs, which tells nothing of it."""


class EngineLayer(Record):
    """A layer of the engine, after fusion, as its inspector tells.

    Attributes:
        name: Its name.
        type: Kind of layer, such as "CaskConvolution" or "kgen"; "Myelin" for a fused block.
        nodes: ONNX nodes that it computes.
        inputs: Data types of its inputs, lower case; "" where the inspector does not tell.
        outputs: Data types of its outputs.
        weights: Data type of its weights; "" without.
        tactic: Name of the kernel; "" where the inspector does not tell.
        precision: What it computes in, by all of these.
        milliseconds: Mean time of one run; None where it was not timed.
    """

    name: str
    type: str
    nodes: tuple[NodeName, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    weights: str = ""
    tactic: str = ""
    precision: Precision
    milliseconds: float | None = None


class NodePrecision(Record):
    """What one ONNX node computes in.

    Attributes:
        node: Its name.
        precision: By the layers that compute it.
        asked: What was asked for it; None where the builder was free.
        layers: Names of engine layers.
    """

    node: NodeName
    precision: Precision
    asked: Precision | None = None
    layers: tuple[str, ...] = ()


class PrecisionProof(Record):
    """What the engine really computes in.

    Attributes:
        layers: Layers of the engine.
        nodes: Nodes of the ONNX model, in graph order, those that vanished included ("other").
        node_share: Share of the compute nodes by precision; sums to 1, or empty.
        time_share: Share of the measured layer time by precision; empty where it was not timed.
        findings: What is not as asked, one sentence each: a constraint that was not honoured, an
            engine all in FP32 although FP16 was asked for, TF32 where FP32 was meant.
        remarks: What else to know, such as how much is inside fused blocks and so unknown.
    """

    layers: tuple[EngineLayer, ...]
    nodes: tuple[NodePrecision, ...]
    node_share: dict[Precision, float]
    time_share: dict[Precision, float]
    findings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


class ShapeVerdict(Record):
    """A verdict at one set of shapes.

    Attributes:
        shapes: Shapes of the inputs.
        at: Where in the profile: "min", "opt", "max", or "data" for the samples' own shapes.
        verdict: The verdict; None where no real data have these shapes.
        reason: Why there is none.
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
        verdict: On the held-out samples; None where there is no engine or it did not run.
        shapes: Verdicts at the profile's shapes.
        latency: Its speed; None likewise.
        proof: Its precision; None where it was not inspected.
        kept: Number of compute nodes that were to be FP32.
        failure: Why it has no verdict; empty otherwise.
        rung: The lowest type that it may compute in; None in records that know no rungs.
        excess: Its error on the calibration samples over what the search may use; None without.
        untimed: Why it has no times although it has a verdict; empty otherwise.
        lost: Whether the connection was lost since it was judged, or while it was.
        ratio: The time of the delivered engine over its own; None where they did not take turns.
        band: The errors that low precision explains in it, told before; None where unknown.
        shows: The rung of the FP32 or TF32 engine whose outputs it gives although the low format
            was allowed; None where it gives others, or none was.
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
    ratio: TimeRatio | None = None
    band: Band | None = None
    shows: EngineRung | None = None


class RungTried(Record):
    """What a run tried of one rung, and what became of it.

    Attributes:
        rung: The lowest type.
        end: What became of it.
        plans: Sets of kept nodes that were tried.
        builds: Builds of them.
        built: Those that gave an engine.
        ran: Those whose engine ran on the calibration samples.
        excess: Smallest error over what the search may use (1 is the limit); None where none ran,
            and with a metric.
        kept: Number of nodes kept in FP32 by the plan of that engine.
        median_ms: Its latency; None likewise.
        band: The errors that low precision explains in it; None where that cannot be told.
    """

    rung: EngineRung
    end: RungEnd
    plans: int
    builds: int
    built: int
    ran: int
    excess: float | None = None
    kept: int = 0
    median_ms: float | None = None
    band: Band | None = None


CoreForm = Literal["whole", "upcast", "split"]
"""How a plan keeps an attention's core: all of it is FP32; that, and what it reads is cast up from
the low format, with which TensorRT 11.3 and later fuse it and sum in FP32; a part, which was faster
than the whole of it."""


class AttentionCore(Record):
    """The core of an attention that a strongly typed engine has in FP32.

    Attributes:
        nodes: Both products and what computes between them, in graph order.
        asked: Those of them that the plan of the emulation keeps.
        form: How it is kept.
    """

    nodes: tuple[NodeName, ...]
    asked: tuple[NodeName, ...]
    form: CoreForm


class EngineRound(Record):
    """One step of the loop between prediction and engine.

    Attributes:
        step: What was tried, one sentence; empty where `move` tells it.
        move: What was tried since the builder had refused another plan; None where none was.
        build: Number of the build.
        keep: Nodes to be FP32.
        predicted: Excess over the tolerance that the emulation predicts (1 is the tolerance).
        predicted_fused: The same by the emulation with fusion.
        measured: Excess that the engine shows on the calibration samples; None without an engine.
        passed: Whether it is within the tolerance.
        median_ms: Its latency, where it was measured.
        ignored: Kept nodes that the inspector shows in a lower type.
        band: The errors that low precision explains, told before it was built; None where that
            cannot be told.
    """

    step: str
    move: Move | None = None
    build: int
    keep: tuple[NodeName, ...]
    predicted: float | None = None
    predicted_fused: float | None = None
    measured: float | None = None
    passed: bool
    median_ms: float | None = None
    ignored: tuple[NodeName, ...] = ()
    band: Band | None = None


class Engines(Record):
    """What a run found in real engines.

    Attributes:
        worker: Where they were built.
        typing: The typing regime.
        profiles: The optimization profiles.
        results: The final table.
        rounds: How the plan was found.
        builds: Every build, in order, crashed ones included; layers of the network are told for
            the delivered one alone, since builds of one file have the same.
        keep: Nodes that are FP32 in the delivered engine, beside what is low; empty where nothing
            is low.
        needed_as_predicted: Those of them that no build, but emulation with fusion and without,
            shows to be needed.
        emulated: What the emulation says of the plan that it proposed, on the held-out samples;
            None where the run ended before.
        delivered: The engine in the run folder; None where none passed, or where the one that did
            could not be fetched (the verdict says so).
        cores: Attention cores that the delivered engine has in FP32, in strong typing.
        spread: Excess over the tolerance of every confirmation build of the delivered plan.
        confirmed: How many of them passed.
        rung: That of the delivered engine; None without, and in records that know no rungs.
        prefer: What decided between engines whose times differ by less than their noise.
        rungs: Every rung that the run had, most exact first, and what became of it.
        causes: What engines show about why nothing of the low format passed; empty where it did.
        proven: Engines that were told to be proven while the run went on, in order.
        spared: What was not built, and why.
        refusals: Builds that were refused, in order.
        timing_cache: Timing cache in the run folder, relative to it; None without.
        notes: Sentences about the engines as a whole.
        verdict: That on this device alone, where a run has several; None with one.
        lost: Why the device was lost before its engine was judged; empty where it was not.
        shares: The worker of the same kind that measured what all of them built; empty for that
            one, and without others.
    """

    worker: WorkerInfo
    typing: Typing
    profiles: tuple[Profile, ...]
    results: tuple[EngineResult, ...]
    rounds: tuple[EngineRound, ...]
    builds: tuple[BuildOutcome, ...]
    keep: tuple[NodeName, ...]
    needed_as_predicted: tuple[NodeName, ...] = ()
    emulated: Verdict | None = None
    delivered: EngineFile | None = None
    cores: tuple[AttentionCore, ...] = ()
    spread: tuple[float, ...] = ()
    confirmed: int = 0
    rung: EngineRung | None = None
    prefer: Prefer = "speed"
    rungs: tuple[RungTried, ...] = ()
    causes: tuple[Cause, ...] = ()
    proven: tuple[ProvenEngine, ...] = ()
    spared: tuple[Spared, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    timing_cache: str | None = None
    notes: tuple[str, ...] = ()
    verdict: Verdict | None = None
    lost: str = ""
    shares: str = ""

    @property
    def full(self) -> bool:
        """Whether the delivered engine computes nothing in the low format."""
        return self.rung in FULL_RUNGS

    @property
    def row(self) -> EngineResult | None:
        """The row of the delivered engine; None without one."""
        for result in reversed(self.results):
            built = result.build.engine
            if built is not None and self.delivered and built.sha256 == self.delivered.sha256:
                return result
        return None
