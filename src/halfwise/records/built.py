"""What is asked of an engine builder, what came of it, and how to build without halfwise."""

from typing import Literal

from pydantic import Field

from halfwise.records.record import NodeName, Record, TensorName

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

    shapes: dict[TensorName, ShapeRange] = Field(default_factory=dict)
    values: dict[TensorName, ShapeRange] = Field(default_factory=dict)


class BuildConfig(Record):
    """Everything that determines the engine, chance aside.

    Attributes:
        model_sha256: Hash of the ONNX file that the builder reads, including external data.
        typing: "weak": the builder chooses types within flags and constraints; "strong": the types
            are those of the ONNX file.
        low: Low format that the builder may choose (weak typing only); None for none.
        tf32: Whether FP32 matrix products and convolutions may round their inputs to TF32.
        keep: Nodes constrained to FP32 (weak typing only).
        profiles: Optimization profiles; empty for a model without dynamic axes.
        workspace_bytes: Largest workspace of one layer; None for TensorRT's default.
        optimization_level: Builder optimisation level, 0 to 5; None for TensorRT's default.
        tactic_sources: Names of `TacticSource`; None for TensorRT's default.
        plugins: Paths of plugin libraries on the worker.
        outputs: Additional tensors made outputs.
        debug: Additional tensors marked for debugging (10.0 and later).
        unfused: Whether all tensors that remain after fusion are marked so (10.12 and later).
        rewritten: Nodes of the model that have another form in that file: GRUs and LSTMs written
            out, decomposed normalisations as one node.
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
            "timeout"; "lost": the connection broke; "skipped": it crashed or took too long before,
            or two runs in a row got no result of it (`--resume`); "interrupted": Ctrl-C ended it.
        signal: Name of the signal, such as "SIGSEGV".
        message: One sentence; empty if it was built.
        begun: False if the worker was lost before the work itself began.
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
    """The environment in which engines are built.

    Attributes:
        name: The user's name for it.
        command: The command that starts it.
        tensorrt: Version of TensorRT; None if it cannot be imported.
        python: Version of Python.
        gpu: Name of the GPU; None if there is none.
        compute_capability: For example "9.0".
        driver: Version of the driver.
        memory_bytes: Memory of the GPU.
        free_bytes: Free memory of the GPU.
        typing: Typing regimes of this version, the default first.
        tactic_sources: Names of `TacticSource` in this version.
        tf32_override: `NVIDIA_TF32_OVERRIDE` in the worker's environment.
        trouble: Why it cannot build, one sentence; empty if it can.
        notes: Further remarks.
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


class Recipe(Record):
    """Everything that determines the engine, chance aside.

    Attributes:
        schema_version: Version of this structure.
        tensorrt: The TensorRT version that it is for, such as "8.6" or "10.16.1.11".
        typing: "weak": types by flags and constraints; "strong": by the Casts in the ONNX file.
        low: The low format; None if the builder may choose none (weak typing only).
        quantised: Types that the file's QuantizeLinear and DequantizeLinear pairs use, which the
            builder must be allowed (weak typing only).
        tf32: Whether FP32 matrix products and convolutions may round their inputs to TF32.
        model: Path of the ONNX file, relative to the recipe if it is beside or below it.
        files: SHA-256 of that file and its external data, by path beside it.
        engine: Path of the engine to write, relative to the recipe.
        constraints: Nodes to compute in FP32, in graph order; empty with strong typing.
        profiles: Optimization profiles; empty if no input is dynamic.
        workspace_bytes: Largest workspace of one layer; None for TensorRT's default.
        optimization_level: Builder optimisation level; None for TensorRT's default.
        tactic_sources: Names of `TacticSource`; None for TensorRT's default.
        plugins: Paths of plugin libraries.
        timing_cache: Path of a timing cache from this version of TensorRT; None without one.
        run: The run folder that it comes from.
        versions: Versions of the software that made the run.
        notes: Further remarks, one sentence each.
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
