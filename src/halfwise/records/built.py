"""What was built: workers, builds, engine files, causes, times, the rungs of a ladder."""

from collections.abc import Mapping
from typing import Literal

from halfwise.records.judged import TaskScore
from halfwise.records.record import Failure, NodeName, Record, TensorName

Typing = Literal["weak", "strong"]
Quantised = Literal["int8", "fp8", "int4"]
Place = Literal["here", "worker"]


class ShapeRange(Record):
    """Shapes of one input in an optimization profile, or values of a shape tensor.

    Attributes:
        min: Smallest size of each axis.
        opt: Sizes that kernels are chosen for.
        max: Largest size of each axis.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


class Profile(Record):
    """An optimization profile.

    Attributes:
        shapes: For every input with a dynamic axis.
        values: For every input whose elements determine shapes (shape tensors).
    """

    shapes: Mapping[TensorName, ShapeRange] = {}
    values: Mapping[TensorName, ShapeRange] = {}


class BuildOptions(Record):
    """What a builder is asked for, whatever the model.

    Attributes:
        typing: "weak": the builder chooses types within flags and constraints; "strong": the types
            are those of the ONNX file.
        low: Low format that the builder may choose (weak typing only); None for none.
        tf32: Whether FP32 matrix products and convolutions may round their inputs to TF32.
        profiles: Optimization profiles; empty for a model without dynamic axes.
        workspace_bytes: Largest workspace of one layer; None for TensorRT's default.
        optimization_level: Builder optimisation level, 0 to 5; None for TensorRT's default.
        tactic_sources: Names of `TacticSource`; None for TensorRT's default.
        plugins: Paths of plugin libraries where the engine is built.
    """

    typing: Typing
    low: Literal["fp16", "bf16"] | None = None
    tf32: bool = False
    profiles: tuple[Profile, ...] = ()
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    plugins: tuple[str, ...] = ()


class BuildConfig(BuildOptions):
    """Everything that determines the engine, chance aside.

    Attributes:
        model_sha256: Hash of the ONNX file that the builder reads, including external data.
        keep: Nodes constrained to FP32 (weak typing only).
    """

    model_sha256: str
    keep: tuple[NodeName, ...] = ()


class NetworkLayer(Record):
    """A layer of the network before fusion.

    Attributes:
        name: Its name.
        type: `LayerType` by name, such as "ELEMENTWISE".
        nodes: ONNX nodes that it was made from, according to its metadata.
        constrained: Whether its precision or an output type was set.
    """

    name: str
    type: str
    nodes: tuple[NodeName, ...]
    constrained: bool = False


class EngineFile(Record):
    """A serialised engine.

    Attributes:
        sha256: Hash of its bytes.
        bytes: Number of bytes.
        side: Whether `path` is here or on the worker.
        path: Path; in a run folder, relative to it.
    """

    sha256: str
    bytes: int
    side: Place
    path: str


class BuildOutcome(Record):
    """How one build ended.

    Attributes:
        number: Its number in the run, from 1.
        purpose: Its purpose in a few words ("mixed, confirmation 2").
        status: "built"; "failed": the builder gave up; "crashed": a signal or exit ended it;
            "timeout"; "lost": the connection broke; "interrupted": Ctrl-C ended it.
        signal: Name of the signal, such as "SIGSEGV".
        message: One sentence; empty if it was built.
        said: What the builder reported, one line of its log; empty if it was built, or if the log
            contains no error.
        parsed: False if the parser rejects the model.
        log: The last lines of the log if it was not built, otherwise its warnings and errors.
        config: The request.
        seconds: Wall time of the build alone.
        engine: The engine, if there is one.
        layers: Layers of the network in order; empty if it was not parsed, or if another build of
            the same file lists them.
        unconstrained: Nodes of the configuration's `keep` without a constraint, and why.
    """

    number: int
    purpose: str
    status: Literal["built", "failed", "crashed", "timeout", "lost", "interrupted"]
    signal: str | None = None
    message: str = ""
    said: str = ""
    parsed: bool = True
    log: tuple[str, ...] = ()
    config: BuildConfig
    seconds: float
    engine: EngineFile | None = None
    layers: tuple[NetworkLayer, ...] = ()
    unconstrained: Mapping[NodeName, str] = {}


class WorkerInfo(Record):
    """The environment in which engines are built.

    Attributes:
        name: The user's name for it.
        command: The command that starts it.
        tensorrt: Version of TensorRT; None if it cannot be imported.
        product: "TensorRT" or "TensorRT for RTX", whose version it is.
        python: Version of Python.
        gpu: Name of the GPU; None if there is none.
        compute_capability: For example "9.0".
        driver: Version of the driver.
        memory_bytes: Memory of the GPU.
        free_bytes: Free memory of the GPU.
        typing: Typing regimes of this version, the default first.
        tf32_override: `NVIDIA_TF32_OVERRIDE` in the worker's environment.
        trouble: Why it cannot build, one sentence; empty if it can.
        notes: Further remarks.
    """

    name: str
    command: tuple[str, ...]
    tensorrt: str | None = None
    product: str = "TensorRT"
    python: str = ""
    gpu: str | None = None
    compute_capability: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    typing: tuple[Typing, ...] = ()
    tf32_override: str | None = None
    trouble: str = ""
    notes: tuple[str, ...] = ()

    @property
    def tf32_remark(self) -> str:
        """Effect of `tf32_override` on engines there, one sentence; empty if it is not set.

        NVIDIA documents only the value 0 (TensorRT Developer Guide, TF32); others are reserved.
        """
        if self.tf32_override is None:
            return ""
        said = f"NVIDIA_TF32_OVERRIDE={self.tf32_override} in the worker's environment"
        if self.tf32_override == "0":
            return (
                f"{said} disables TF32 in every engine built or run there: results shown as FP32 "
                "with TF32 are FP32 without it, in error and time."
            )
        return (
            f"{said} may enable TF32 in every engine there, however it was built: results shown "
            "as FP32 may be TF32."
        )


RECIPE_SCHEMA_VERSION = 1


class Constraint(Record):
    """A node that the builder must compute in FP32 (weak typing only).

    Attributes:
        node: Its name in the ONNX file.
        op: Operator type.
        outputs: Whether each output of the node is a float; those become FP32.
        layers: Names of the network layers constrained for it in the judged engine; empty if no
            engine of this very version was judged.
    """

    node: NodeName
    op: str
    outputs: tuple[bool, ...]
    layers: tuple[str, ...] = ()


class Recipe(BuildOptions):
    """Everything that determines the engine, chance aside.

    Attributes:
        schema_version: Version of this structure.
        tensorrt: The TensorRT version that it is for, such as "8.6" or "10.16.1.11".
        quantised: Types that the file's QuantizeLinear and DequantizeLinear pairs use, which the
            builder must be allowed (weak typing only).
        model: Path of the ONNX file, relative to the recipe if it is beside or below it.
        files: SHA-256 of that file and its external data, by path beside it.
        engine: Path of the engine to write, relative to the recipe.
        constraints: Nodes to compute in FP32, in graph order; empty with strong typing.
        run: The run folder that it comes from.
        versions: Versions of the software that made the run.
        notes: Further remarks, one sentence each.
    """

    schema_version: int = RECIPE_SCHEMA_VERSION
    tensorrt: str
    quantised: tuple[Quantised, ...] = ()
    model: str
    files: dict[str, str]
    engine: str
    constraints: tuple[Constraint, ...] = ()
    run: str
    versions: dict[str, str]
    notes: tuple[str, ...] = ()


CauseKind = Literal[
    "refused",
    "ignored",
    "precision",
    "unknown",
]
"""What engines show about why nothing in the low format passed:

- "refused": the builder refused every plan that the emulation predicts to pass, and the others are
  out of tolerance;
- "ignored": the inspector shows constraints that were not honoured;
- "precision": the error is at most twice what the emulation predicts;
- "unknown": none of these.
"""


class Cause(Record):
    """One thing that engines show about why nothing in the low format passed.

    Attributes:
        kind: What it is.
        builds: Numbers of the builds that show it.
        nodes: "ignored": the nodes whose constraints were not honoured.
        excess: Error of the engine that shows it relative to what the search allows, or of the
            nearest that was built; None with a metric.
        other: The error that the emulation predicts of that engine; None if unknown.
    """

    kind: CauseKind
    builds: tuple[int, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    excess: float | None = None
    other: float | None = None


SparedKind = Literal["interrupted", "no-tf32"]
"""Why engines were not built: Ctrl-C, or a GPU without TF32."""


class Latency(Record):
    """Speed of an engine by CUDA events, after warm-up.

    Attributes:
        shapes: Shapes of the inputs.
        iterations: Number of measured runs.
        median_ms: Median time of one run on the GPU, with inputs and outputs already there.
        p99_ms: 99th percentile.
        device_bytes: Device memory of engine and execution context.
        medians: Medians in ms of rounds in which it took turns with other engines; empty if timed
            alone. Their spread is the noise of its time.
    """

    shapes: dict[TensorName, tuple[int, ...]]
    iterations: int
    median_ms: float
    p99_ms: float
    device_bytes: int
    medians: tuple[float, ...] = ()


EngineRung = Literal["fp32", "tf32", "bf16", "fp16", "int8"]
"""The lowest type that a plan or an engine may compute in; the ladder, most exact first. A plan
that keeps nodes in FP32 belongs to its lowest type."""
FULL_RUNGS: tuple[EngineRung, ...] = ("fp32", "tf32")
"""Rungs of engines without a low format."""
FP32_ENGINE = "FP32, TF32 off"
"""Name of the FP32 engine in the table of engines."""


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
        scores: What its verdict has of a task metric, on held-out samples.
        cost: Predicted cost relative to everything low; None if unknown.
        latency: Speed of its engine; None without one.
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
    scores: tuple[TaskScore, ...] = ()
    cost: float | None = None
    latency: Latency | None = None
    by: RightBy | None = None
    failures: tuple[Failure, ...] = ()
    chosen: bool = False
