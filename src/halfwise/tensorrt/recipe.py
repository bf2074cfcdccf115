"""Make a recipe from a run.

The file, the flags, and the nodes that are kept in FP32: their layers, and attention that is partly
FP32.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.roles import bodies, is_float
from halfwise.graph.sizes import declared_axes, shape_inputs
from halfwise.records import (
    BuildConfig,
    BuildOutcome,
    Constraint,
    NodeName,
    Plan,
    Profile,
    Recipe,
    Repair,
    Run,
    Typing,
)
from halfwise.tensorrt.constrain import builder_flags, takes_type
from halfwise.tensorrt.versions import (
    DEFAULT_BUILDER,
    FIRST_WITHOUT_WEAK,
    has,
    highest_opset,
    known_version,
    since,
    version_of,
)

_FROM_SAMPLES = (
    "The profile covers the shapes of the run's samples, one at a time; for others, such as larger "
    "batches, use --engine minShapes=…, optShapes and maxShapes."
)


@dataclass(frozen=True)
class Source:
    """The ONNX file that the engine is built from.

    Attributes:
        network: Its content.
        path: Its path as shown in the recipe.
        files: SHA-256 of the file and its external data, by path relative to its folder.
    """

    network: Network
    path: str
    files: Mapping[str, str]


def choose(run: Run, version: str | None, typing: Typing | None) -> tuple[str, Typing]:
    """Return the version of TensorRT and the typing regime of a recipe for `run`.

    `version` defaults to that of the run's engines, else `DEFAULT_BUILDER`. `typing` defaults to
    that of the run's engines if the version is theirs, else weak up to 8.x and strong from 9 on.

    Raises:
        UsageError: `version` is no version, is unknown, or lacks that typing.
        CaseError: the run has no plan, or that version lacks its format.
    """
    if run.plan is None:
        raise CaseError(
            "The run has no plan, so there is nothing to build.",
            "Give the folder of a run of `halfwise fix` that has one.",
        )
    built = run.engines.worker.tensorrt if run.engines else None
    # Scripts quote this string, so it is parsed as they show it.
    chosen = (version or built or DEFAULT_BUILDER).strip().removeprefix("v")
    target = known_version(chosen)
    if typing is None:
        same = run.engines is not None and chosen == built
        typing = "strong" if has("strong typing", target) else "weak"
        typing = run.engines.typing if run.engines is not None and same else typing
    if typing == "strong" and not has("strong typing", target):
        raise UsageError(
            f"TensorRT {chosen} has no strong typing; {since('strong typing')} and later have it.",
            "Leave --typing out: layer constraints replace it.",
        )
    if typing == "weak" and target >= FIRST_WITHOUT_WEAK:
        raise UsageError(
            f"TensorRT {chosen} has no weak typing: it dropped layer constraints.",
            "Leave --typing out: the Casts in the ONNX file replace them.",
        )
    if run.plan.low == "bf16" and not has("bf16", target):
        raise CaseError(
            f"TensorRT {chosen} has no BF16, this run's low format.",
            f"Give --trt-version {since('bf16')} or later, or run `halfwise fix` with --to fp16.",
        )
    return chosen, typing


def make_recipe(
    run: Run,
    source: Source,
    *,
    folder: str,
    engine: str,
    version: str,
    typing: Typing,
    profiles: tuple[Profile, ...] = (),
) -> Recipe:
    """Return the recipe for a run.

    Args:
        run: A run of `fix`.
        source: For weak typing the FP32 model, repaired; for strong typing the mixed model.
        folder: The run folder as shown in the recipe.
        engine: Path of the engine to write.
        version: Version of TensorRT, from `choose`.
        typing: Typing regime, from `choose`.
        profiles: Optimization profiles that replace those of the run's engines or samples.

    Raises:
        CaseError: a kept node has bodies, or an input is dynamic and no profile is known.
        RecordMismatch: the file does not belong to this run.
    """
    assert run.plan is not None
    build = delivered(run)
    config = build.config if build else None
    if config and (typing == config.typing or nothing_low(run)):
        _check_file(config, source)
    same = run.engines is not None and run.engines.worker.tensorrt == version
    weak, read = typing == "weak", (source.network, source.path)
    layers = layers_of(build) if build and same else {}
    chosen = profiles or (config or run.engines or run).profiles
    _check_profiles(source.network, chosen)
    return Recipe(
        tensorrt=version,
        typing=typing,
        low=_low(run, config, typing),
        quantised=builder_flags(source.network) if weak else (),
        tf32=config.tf32 if config else _has_tf32(run),
        model=source.path,
        files=dict(source.files),
        engine=engine,
        constraints=constraints_of(*read, kept_nodes(run), layers) if weak else (),
        profiles=chosen,
        workspace_bytes=config.workspace_bytes if config else None,
        optimization_level=config.optimization_level if config else None,
        tactic_sources=_tactic_sources(config),
        plugins=config.plugins if config else (),
        run=folder,
        versions=run.provenance.versions,
        notes=(
            *_notes(run, config, source.network, version, typing),
            *([_FROM_SAMPLES] if chosen and chosen is run.profiles else []),
        ),
    )


def _check_file(config: BuildConfig, source: Source) -> None:
    if config.model_sha256 != source.network.sha256:
        raise RecordMismatch(
            f"{source.path} is not the file that the run's engine was built from.",
            "Make the run again.",
        )


def _low(run: Run, config: BuildConfig | None, typing: Typing) -> Literal["fp16", "bf16"] | None:
    assert run.plan is not None
    if config is not None and (config.typing == typing == "weak" or nothing_low(run)):
        return config.low
    return "bf16" if run.plan.low == "bf16" else "fp16"


def _has_tf32(run: Run) -> bool:
    """Return whether a run's plan computes kept products in TF32."""
    return run.plan is not None and any(kept.precision == "tf32" for kept in run.plan.keep)


def delivered(run: Run) -> BuildOutcome | None:
    """Return the build of the engine that the run delivers; None if there is none."""
    if run.engines is None or run.engines.delivered is None:
        return None
    sha256 = run.engines.delivered.sha256
    return next((b for b in run.engines.builds if b.engine and b.engine.sha256 == sha256), None)


def nothing_low(run: Run) -> bool:
    """Return whether the run delivers an FP32 or TF32 engine, which does not follow its plan."""
    return run.engines is not None and run.engines.full


def planned_repairs(run: Run) -> tuple[Repair, ...]:
    """Return the repairs of the model that a run delivers; none if nothing in it is low."""
    return () if run.plan is None or nothing_low(run) else run.plan.repairs


def is_built_apart(run: Run) -> bool:
    """Return whether weak typing builds a run's plan from a file other than the FP32 model."""
    int8 = run.plan is not None and bool(run.plan.int8) and not nothing_low(run)
    return int8 or bool(planned_repairs(run))


def kept_nodes(run: Run) -> frozenset[NodeName]:
    """Return the FP32 nodes of the judged engine or, without one, of the emulated model.

    They include nodes that only move data between kept nodes, and nodes without a low form.
    """
    build = delivered(run)
    if build is not None and (build.config.typing == "weak" or nothing_low(run)):
        return frozenset(build.config.keep)
    assert run.plan is not None
    return planned_nodes(run.plan)


def planned_nodes(plan: Plan) -> frozenset[NodeName]:
    """Return the FP32 nodes of the emulated model; see `kept_nodes`."""
    unsupported = [u.node for u in plan.unsupported]
    return frozenset((*(k.node for k in plan.keep), *plan.data_movement, *unsupported))


def _check_profiles(network: Network, profiles: tuple[Profile, ...]) -> None:
    shape_tensors = shape_inputs(network)
    for value in network.graph.inputs:
        fixed = all(isinstance(axis, int) for axis in declared_axes(value))
        needs = value.name in shape_tensors or not fixed
        if needs and not any(value.name in {*p.shapes, *p.values} for p in profiles):
            raise CaseError(
                f"Input {value.name!r} has dynamic axes or decides shapes, but no profile gives "
                "their range.",
                "Give --engine minShapes=NAME:1x3x224x224, optShapes and maxShapes.",
            )


def _tactic_sources(config: BuildConfig | None) -> tuple[str, ...] | None:
    if config is None or config.tactic_sources is None:
        return None
    for name in config.tactic_sources:
        if not (name.isascii() and name.isidentifier()):
            raise RecordMismatch(f"The run names a tactic source {name!r}.", "Make the run again.")
    return config.tactic_sources


def _notes(
    run: Run, config: BuildConfig | None, network: Network, version: str, typing: Typing
) -> tuple[str, ...]:
    return tuple(
        note
        for note in (
            _note_on_proof(run, config, version, typing),
            _note_on_opset(network, version),
            _note_on_custom(network),
        )
        if note
    )


def _note_on_proof(run: Run, config: BuildConfig | None, version: str, typing: Typing) -> str:
    verify = "Judge what you build: halfwise verify MODEL ENGINE --inputs DATA."
    if config is None or run.engines is None:
        what = "was judged" if run.engines is None else "of the run passed"
        return f"No engine {what}: the plan was judged in emulation. {verify}"
    if config.typing != typing:
        return (
            f"The engine that was judged is {config.typing}ly typed, this recipe {typing}ly: the "
            f"engine it builds was not judged. {verify}"
        )
    if run.engines.worker.tensorrt != version:
        return f"The engine was judged with TensorRT {run.engines.worker.tensorrt}. {verify}"
    if typing == "weak":
        return (
            "Weakly typed builds differ from one to the next; the engine that was judged is in the "
            f"run folder. {verify}"
        )
    return ""


def _note_on_opset(network: Network, version: str) -> str:
    newest = highest_opset(version_of(version))
    if network.opset <= newest:
        return ""
    return (
        f"The model has opset {network.opset}; TensorRT {version} is only known to read up to "
        f"opset {newest}."
    )


def _note_on_custom(network: Network) -> str:
    custom = sorted({n.domain for n in network.model.graph.all_nodes() if not is_standard(n)})
    if not custom:
        return ""
    return (
        f"Operators of the domains {', '.join(custom)} need plugins, which choose their own types."
    )


def layers_of(build: BuildOutcome) -> dict[NodeName, tuple[str, ...]]:
    """Return the network layers that a build constrained for each node."""
    layers: dict[NodeName, tuple[str, ...]] = {}
    for layer in build.layers:
        for node in layer.nodes if layer.constrained else ():
            layers[node] = (*layers.get(node, ()), layer.name)
    return layers


def constraints_of(
    network: Network,
    path: str,
    keep: frozenset[NodeName],
    layers: Mapping[NodeName, tuple[str, ...]],
) -> tuple[Constraint, ...]:
    """Return the constraints that keep nodes in FP32, in graph order.

    Args:
        network: The FP32 model.
        path: Its path, for messages.
        keep: The nodes.
        layers: The result of `layers_of` for the judged engine.

    Raises:
        RecordMismatch: the file lacks a node.
        CaseError: a node has bodies.
    """
    nodes = {node_name(n): n for n in network.model.graph.all_nodes()}
    if missing := sorted(keep - nodes.keys()):
        raise RecordMismatch(
            f"{path} has no node {missing[0]!r}, which the run keeps in FP32.",
            "Give the model that the run was made from.",
        )
    kept = [(name, node) for name, node in nodes.items() if name in keep]
    for name, node in kept:
        if bodies(node):
            raise CaseError(
                f"Node {name!r} ({node.op_type}) is kept in FP32, but constraints cannot reach "
                "layers in its bodies.",
                "Use strong typing (--trt-version 9 or later), where Casts in the bodies set what "
                "is FP32.",
            )
    return tuple(
        Constraint(
            node=name,
            op=node.op_type,
            outputs=tuple(is_float(value) for value in node.outputs if value.name),
            layers=layers.get(name, ()),
        )
        for name, node in kept
        if takes_type(node) and is_standard(node)
    )
