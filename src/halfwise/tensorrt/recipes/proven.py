"""The recipe of a single engine, before its run has a record."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Literal

from halfwise.graph.model import Network
from halfwise.records import BuildOutcome, EngineRung, Recipe
from halfwise.tensorrt.quantised import builder_flags
from halfwise.tensorrt.recipes.constraints import constraints_of, layers_of

_LOW: Mapping[EngineRung, Literal["bf16", "fp16"]] = {
    "bf16": "bf16",
    "fp16": "fp16",
    "int8": "fp16",
}
_NOTES = (
    "The engine that was judged is model.engine, beside this file; its run had not finished.",
    "Judge what you build: halfwise verify MODEL ENGINE --inputs DATA.",
)


def recipe_of(
    build: BuildOutcome,
    network: Network,
    model: str,
    files: Mapping[str, str],
    *,
    rung: EngineRung,
    tensorrt: str,
    run: str,
) -> Recipe:
    """Return the recipe that rebuilds an engine.

    Args:
        build: The engine's build.
        network: The FP32 model, whose nodes the build keeps.
        model: Name of the ONNX file that it was built from.
        files: SHA-256 of that file and its external data, by name.
        rung: The lowest type that it may compute in, which a strongly typed build does not show.
        tensorrt: The version of TensorRT.
        run: The run folder as shown in the recipe.
    """
    config = build.config
    keep, layers = frozenset(config.keep), layers_of(build)
    return Recipe(
        tensorrt=tensorrt,
        run=run,
        typing=config.typing,
        low=_LOW.get(rung),
        quantised=builder_flags(network) if config.typing == "weak" else (),
        tf32=config.tf32,
        model=model,
        files=dict(files),
        engine="rebuilt.engine",
        constraints=constraints_of(network, model, keep, layers),
        profiles=config.profiles,
        workspace_bytes=config.workspace_bytes,
        optimization_level=config.optimization_level,
        tactic_sources=config.tactic_sources,
        plugins=config.plugins,
        versions={"halfwise": version("halfwise")},
        notes=_NOTES,
    )
