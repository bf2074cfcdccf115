"""What is asked of an engine builder, what came of it, and how to build without halfwise."""

from typing import Literal

from pydantic import Field

from halfwise.records.record import NodeName, Record, TensorName

Typing = Literal["weak", "strong"]
Quantised = Literal["int8", "fp8", "int4"]
Place = Literal["here", "worker"]


class ShapeRange(Record):
    """Shapes of one input in an optimization profile; for shape tensors, their values.

    Attributes:
        min: Smallest size of every axis.
        opt: The sizes that kernels are chosen for.
        max: Largest size of every axis.
    """

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


class Profile(Record):
    """An optimization profile.

    Attributes:
        shapes: Of every input that has a dynamic axis.
        values: Of every input whose elements decide about shapes (shape tensors).
    """

    shapes: dict[TensorName, ShapeRange] = Field(default_factory=dict)
    values: dict[TensorName, ShapeRange] = Field(default_factory=dict)


class BuildConfig(Record):
    """Everything that decides which engine comes out, but for chance.

    Attributes:
        model_sha256: Hash of the ONNX file that the builder reads, its external data included.
        typing: "weak": the builder chooses types within flags and constraints; "strong": the types
            are those of the ONNX file.
        low: Low format that the builder may choose (weak typing only); None for none.
        tf32: Whether FP32 matrix products and convolutions may round their inputs to TF32.
        keep: Nodes that are constrained to FP32 (weak typing only).
        profiles: Optimization profiles; none for a model without dynamic axes.
        workspace_bytes: Largest workspace of one layer; None for TensorRT's default.
        optimization_level: Builder optimisation level, 0 to 5; None for TensorRT's default.
        tactic_sources: Names of `TacticSource`; None for TensorRT's default.
        plugins: Paths of plugin libraries on the worker's side.
        outputs: Further tensors that are made outputs.
        debug: Further tensors that are marked for debugging (10.0 and later).
        unfused: Whether all tensors that fusion leaves are marked so (10.12 and later).
        rewritten: Nodes of the model that are in that file in another form: GRUs and LSTMs written
            out, normalisations that were written out as one node.
    """

    model_sha256: str
    typing: Typing
    low: Literal["fp16", "bf16"] | None = None
    tf32: bool = False
    keep: tuple[NodeName, ...] = ()
    profiles: tuple[Profile, ...] = ()
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    plugins: tuple[str, ...] = ()
    outputs: tuple[TensorName, ...] = ()
    debug: tuple[TensorName, ...] = ()
    unfused: bool = False
    rewritten: tuple[NodeName, ...] = ()


class NetworkLayer(Record):
    """A layer of the network before fusion.

    Attributes:
        name: Its name.
        type: `LayerType` by name, such as "ELEMENTWISE".
        nodes: ONNX nodes that it was made from, by its metadata.
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
        bytes: Their number.
        side: Whether `path` is here or on the worker's side.
        path: Where it lies; in a run folder, relative to it.
    """

    sha256: str
    bytes: int
    side: Place
    path: str


class BuildOutcome(Record):
    """How one build ended.

    Attributes:
        number: Its number in the run, from 1.
        purpose: What it was for, in a few words ("mixed, confirmation 2").
        status: "built"; "failed": the builder gave up; "crashed": a signal or exit ended it;
            "timeout"; "lost": the connection broke; "skipped": it crashed or took too long before,
            or two runs in a row had no result of it (`--resume`); "interrupted": Ctrl-C ended it.
        signal: Name of the signal, such as "SIGSEGV".
        message: One sentence; empty where it was built.
        begun: False where the worker was lost before the work itself began.
        parsed: False where the parser does not take the model.
        log: The last lines of the log where it was not built, else its warnings and errors.
        config: What was asked.
        seconds: Wall time of the build alone.
        engine: The engine, where there is one.
        layers: Layers of the network, in its order; empty where it was not parsed, or where
            another build of the same file tells them.
        unconstrained: Nodes of the configuration's `keep` that no constraint reached, and why.
    """

    number: int
    purpose: str
    status: Literal["built", "failed", "crashed", "timeout", "lost", "skipped", "interrupted"]
    signal: str | None = None
    message: str = ""
    begun: bool = True
    parsed: bool = True
    log: tuple[str, ...] = ()
    config: BuildConfig
    seconds: float
    engine: EngineFile | None = None
    layers: tuple[NetworkLayer, ...] = ()
    unconstrained: dict[NodeName, str] = Field(default_factory=dict)


class WorkerInfo(Record):
    """Where engines are built.

    Attributes:
        name: As the user calls it.
        command: The command that starts it.
        tensorrt: Version of TensorRT; None where it cannot be imported.
        python: Version of Python.
        gpu: Name of the GPU; None where there is none.
        compute_capability: Such as "9.0".
        driver: Version of the driver.
        memory_bytes: Memory of the GPU.
        free_bytes: What of it is free.
        typing: Typing regimes that this version has, its default first.
        tactic_sources: Names of `TacticSource` that this version has.
        tf32_override: `NVIDIA_TF32_OVERRIDE` in the worker's environment.
        trouble: What keeps it from building, one sentence; empty where nothing does.
        notes: What else to know.
    """

    name: str
    command: tuple[str, ...]
    tensorrt: str | None = None
    python: str = ""
    gpu: str | None = None
    compute_capability: str | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    typing: tuple[Typing, ...] = ()
    tactic_sources: tuple[str, ...] = ()
    tf32_override: str | None = None
    trouble: str = ""
    notes: tuple[str, ...] = ()

    @property
    def tf32_remark(self) -> str:
        """What `tf32_override` means for engines there, a sentence; empty where it is not set.

        NVIDIA documents the value 0 alone (TensorRT Developer Guide, TF32); others are reserved.
        """
        if self.tf32_override is None:
            return ""
        said = f"NVIDIA_TF32_OVERRIDE={self.tf32_override} in the worker's environment"
        if self.tf32_override == "0":
            return (
                f"{said} takes TF32 from every engine that is built or run there: what is called "
                "FP32 with TF32 is FP32 without it, in error and in time."
            )
        return (
            f"{said} may put TF32 into every engine there, whatever it was built for: what is "
            "called FP32 may be TF32."
        )


RECIPE_SCHEMA_VERSION = 1


class Constraint(Record):
    """A node that the builder has to compute in FP32 (weak typing only).

    Attributes:
        node: Its name in the ONNX file.
        op: Operator type.
        outputs: Whether each output that the node has is a float; those become FP32.
        layers: Names of the network layers that were constrained for it in the engine that was
            judged; empty where no engine of this very version was.
    """

    node: NodeName
    op: str
    outputs: tuple[bool, ...]
    layers: tuple[str, ...] = ()


class Recipe(Record):
    """All that decides which engine is built, but for chance.

    Attributes:
        schema_version: Version of this structure.
        tensorrt: The version of TensorRT that it is for, such as "8.6" or "10.16.1.11".
        typing: "weak": types by flags and constraints; "strong": by the Casts in the ONNX file.
        low: The low format; None where the builder may choose none (weak typing only).
        quantised: What the file's pairs of QuantizeLinear and DequantizeLinear quantise to, which
            the builder has to be allowed (weak typing only).
        tf32: Whether FP32 matrix products and convolutions may round their inputs to TF32.
        model: Path of the ONNX file: relative to the recipe where it lies beside or below it.
        files: SHA-256 of that file and of its external data, by path beside it.
        engine: Path of the engine to write, beside the recipe.
        constraints: Nodes to compute in FP32, in graph order; none with strong typing.
        profiles: Optimization profiles; none where no input is dynamic.
        workspace_bytes: Largest workspace of one layer; None for TensorRT's default.
        optimization_level: Builder optimisation level; None for TensorRT's default.
        tactic_sources: Names of `TacticSource`; None for TensorRT's default.
        plugins: Paths of plugin libraries.
        timing_cache: Path of a timing cache that this version of TensorRT wrote; None without.
        run: The run folder that it comes from.
        versions: Versions of what made the run.
        notes: What else to know, one sentence each.
    """

    schema_version: int = RECIPE_SCHEMA_VERSION
    tensorrt: str
    typing: Typing
    low: Literal["fp16", "bf16"] | None
    quantised: tuple[Quantised, ...] = ()
    tf32: bool
    model: str
    files: dict[str, str]
    engine: str
    constraints: tuple[Constraint, ...] = ()
    profiles: tuple[Profile, ...] = ()
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    plugins: tuple[str, ...] = ()
    timing_cache: str | None = None
    run: str
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
