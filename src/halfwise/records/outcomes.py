"""What came of builds, engines and types: refusals, causes, times, and the rungs of the ladder."""

from math import inf, log10
from typing import Literal

from halfwise.records.judged import Errors
from halfwise.records.recognised import TaskScore
from halfwise.records.record import Failure, NodeName, Record, TensorName


class Band(Record):
    """Errors that low precision explains in an engine, relative to what the search allows.

    Attributes:
        least: The smallest, ≥ 0; 0 if the builder may compute everything in FP32.
        most: The largest, ≥ `least`; inf if values overflow.
        may_overflow: Whether values overflow in one of the ways in which a builder may compute, but
            not in the expected one.
    """

    least: float
    most: float
    may_overflow: bool = False

    @property
    def decibels(self) -> float:
        """Its width, 20 log10(most / least): 0 if both are equal, inf if one is 0 or inf."""
        if self.least == self.most:
            return 0.0
        return 20 * log10(self.most / self.least) if self.least and self.most < inf else inf

    def explains(self, measured: float) -> bool:
        """Return whether low precision explains an error: it is at most `most`."""
        return measured <= self.most or (self.may_overflow and measured == inf)

    def holds(self, measured: float) -> bool:
        """Return whether an error is inside the band."""
        return measured >= self.least and self.explains(measured)


RefusalKind = Literal["no-kernel", "compiler", "crash", "timeout", "unknown"]
"""How a builder refuses. "no-kernel": it finds no kernel for a block; "compiler": its compiler for
fused blocks, its kernel library or one of its checks fails; "crash": its process dies; "timeout":
it takes too long; "unknown": it gives no known reason."""
MoveKind = Literal[
    "computing",
    "border",
    "region",
    "level",
    "tf32",
    "written-out",
    "one-node",
    "half",
    "island",
    "certain",
    "none",
]
"""What is tried instead of a refused plan.

With the same kept nodes: "computing": in the region, constrain only nodes that compute, not those
that move data; "border": constrain only nodes next to something low; "level": use another
optimization level; "tf32": allow TF32; "written-out": write out GRU and LSTM; "one-node": make each
decomposed normalisation one node. With other kept nodes: "region": keep the whole region; "half":
keep half of it; "island": keep a wider island; "certain": keep only what guards are certain about;
"none": keep nothing there.
"""


class Move(Record):
    """What a plan is tried with because the builder refused another.

    Attributes:
        kind: What is changed.
        refused: Number of the refused build.
        ends: First and last layer of the region, as the builder names them; empty if it named none,
            and the whole model counts as the region.
        island: "island": what is made whole, in a few words; "" otherwise.
        level: The requested optimization level; None for that of the run.
        border: Whether what is kept there is constrained only at its border.
    """

    kind: MoveKind
    refused: int
    ends: tuple[str, ...] = ()
    island: str = ""
    level: int | None = None
    border: bool = False


class Refusal(Record):
    """A refused build, and the plans that were not built because of it.

    Attributes:
        kind: How it was refused.
        build: Its number.
        ends: First and last layer of the region, as the builder names them; empty if it named none.
        nodes: Nodes of the region in graph order, taken from an engine of the model if there is
            one, otherwise from the first to the last; empty if the builder named none.
        shown: Whether an engine shows them. Only then does a plan that differs elsewhere count as
            refused too.
        avoided: Number of plans not built because they are the same there.
        said: What the builder reported, one line of its log; empty if that contains no error.
    """

    kind: RefusalKind
    build: int
    ends: tuple[str, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    shown: bool = False
    avoided: int = 0
    said: str = ""


CauseKind = Literal[
    "lost",
    "no-engine",
    "refused",
    "not-run",
    "ignored",
    "no-effect",
    "kernel",
    "precision",
    "unknown",
]
"""What engines show about why nothing in the low format passed:

- "lost": the connection was lost in every build and run, so they show nothing;
- "no-engine": no build gave an engine;
- "refused": the builder refused every plan that the emulation predicts to pass, and the others are
  out of tolerance;
- "not-run": no engine runs;
- "ignored": the inspector shows constraints that were not honoured;
- "no-effect": the kept nodes change nothing in the engine;
- "kernel": an engine is off by more than low precision explains, but one with some more nodes in
  FP32 is not;
- "precision": the errors are those that low precision explains;
- "unknown": none of these.
"""


class Cause(Record):
    """One thing that engines show about why nothing in the low format passed.

    Attributes:
        kind: What it is.
        builds: Numbers of the builds that show it.
        nodes: "refused": where all of them were, if that is one place. "ignored": the nodes whose
            constraints were not honoured. "kernel": the nodes that are FP32 in the right engine but
            not in the wrong one.
        excess: Error of the engine that shows it relative to what the search allows, or of the
            nearest that was built; None with a metric.
        other: "no-effect": the error with nothing kept. "unknown": the error that the emulation
            predicts.
        band: Errors that low precision explains in that engine; None if unknown.
    """

    kind: CauseKind
    builds: tuple[int, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    excess: float | None = None
    other: float | None = None
    band: Band | None = None


SparedKind = Literal["slower", "interrupted", "no-tf32"]
"""Why engines were not built. "slower": with nothing kept, the low format is slower than a proven
FP32 or TF32 engine; "interrupted": Ctrl-C after an engine was proven; "no-tf32": the GPU has no
TF32."""


class Latency(Record):
    """Speed of an engine by CUDA events, after warm-up.

    Attributes:
        shapes: Shapes of the inputs.
        iterations: Number of measured runs.
        median_ms: Median time of one run on the GPU, with inputs and outputs already there.
        p99_ms: 99th percentile.
        transfer_median_ms: Median including copies from and to pinned host memory.
        transfer_p99_ms: 99th percentile including copies.
        per_second: Runs per second, back to back, without transfers.
        device_bytes: Device memory of engine and execution context.
        medians: Medians in ms of rounds in which it took turns with other engines; empty if timed
            alone. Their spread is the noise of its time.
    """

    shapes: dict[TensorName, tuple[int, ...]]
    iterations: int
    median_ms: float
    p99_ms: float
    transfer_median_ms: float
    transfer_p99_ms: float
    per_second: float
    device_bytes: int
    medians: tuple[float, ...] = ()


class TimeRatio(Record):
    """Time of one engine relative to another, from rounds in which they took turns.

    Attributes:
        low: Lower end of the interval that holds the median ratio (`fixing/engines/measure.py`).
        high: Upper end.
        rounds: Number of rounds.
    """

    low: float
    high: float
    rounds: int


class ProvenEngine(Record):
    """An engine that was judged on held-out data and reported during the run.

    Attributes:
        build: Number of its build.
        seconds: Wall time since the start of the command.
        median_ms: Its latency, timed alone; None if it could not be timed.
        path: Where it was available until the end of the run; None if it was not.
    """

    build: int
    seconds: float
    median_ms: float | None = None
    path: str | None = None


class Spared(Record):
    """What was not built, and why.

    Attributes:
        kind: Why.
        build: "slower": number of the build with nothing kept; None otherwise.
        median_ms: Its latency.
        full: Number of the build of the FP32 or TF32 engine.
        full_ms: Its latency.
        beside: Number of the build of a plan without repairs, which was made nevertheless; None for
            none.
    """

    kind: SparedKind
    build: int | None = None
    median_ms: float | None = None
    full: int | None = None
    full_ms: float | None = None
    beside: int | None = None


EngineRung = Literal["fp32", "tf32", "bf16", "fp16", "int8"]
"""The lowest type that a plan or an engine may compute in; the ladder, most exact first. A plan
that keeps nodes in FP32 belongs to its lowest type."""
FULL_RUNGS: tuple[EngineRung, ...] = ("fp32", "tf32")
"""Rungs of engines without a low format."""


RightBy = Literal["labels", "expected"]
"""What FP32 was checked against: labels of the inputs, or the framework's outputs."""


class LadderRung(Record):
    """Result of one rung of a run.

    Attributes:
        rung: The lowest type.
        passed: Whether its plan, or its engine, passed on held-out samples; for FP32, whether it is
            right according to `by`. None if not judged, and if nothing is INT8.
        kept: Compute nodes in FP32 (or BF16 beside FP16).
        left_out: Nodes for which INT8 is not enough, so they use the low format.
        candidates: Number of nodes that could have the rung's type.
        error: Error on the calibration samples relative to what is allowed; with a metric, 1 plus
            the drop beyond its allowance. None if not measured.
        heldout: The same on held-out samples.
        errors: Absolute errors on held-out samples, or of its engine; None for FP32 without an
            engine.
        scores: Task metrics on held-out samples.
        cost: Predicted cost relative to everything low; None if unknown.
        low_share: Share of multiply-accumulates in the rung's type; None if unknown.
        bytes: Size of its file with weights, or of its engine; None if neither was made.
        latency: Speed of its engine; None without one.
        beside: Its time relative to the previous rung, from interleaved runs; None without one.
        evaluations: Number of plans tried for it.
        by: What FP32 was checked against; None for other rungs, and if it was not judged.
        failures: Why it did not pass; those of the run's verdict if that is about this rung.
        chosen: Whether it is the fastest that passed, by engine times, otherwise by predicted cost.
    """

    rung: EngineRung
    passed: bool | None
    kept: int = 0
    left_out: int = 0
    candidates: int = 0
    error: float | None = None
    heldout: float | None = None
    errors: Errors | None = None
    scores: tuple[TaskScore, ...] = ()
    cost: float | None = None
    low_share: float | None = None
    bytes: int | None = None
    latency: Latency | None = None
    beside: TimeRatio | None = None
    evaluations: int = 0
    by: RightBy | None = None
    failures: tuple[Failure, ...] = ()
    chosen: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing in its plan is INT8 although that was tried: it equals the plan below."""
        return self.rung == "int8" and self.passed is None and self.left_out == self.candidates
