"""How to build an engine without halfwise: everything that a recipe of any kind says."""

from typing import Literal

from halfwise.records.built import Profile, Typing
from halfwise.records.record import NodeName, Record

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
