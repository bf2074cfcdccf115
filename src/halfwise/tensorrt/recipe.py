"""Make a recipe from a run, and write it: a trtexec command, a Python script, or C++17 programs.

A recipe is the file, the flags, and the nodes that are kept in FP32 with their layers. The script
needs only TensorRT's bindings, the programs only TensorRT and CUDA: one builds the engine, one runs
it on files, at shapes that only these files determine. Names in a model are whatever its author
wrote, so everything from a recipe is escaped. The texts are the files in `templates`, whose
`$names` are filled in.
"""

import inspect
import pprint
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Literal

from msgspec import Struct

from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.graph.model import Network, bodies, is_standard, node_name
from halfwise.graph.roles import is_float
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
    ShapeRange,
    TensorName,
    Typing,
)
from halfwise.tensorrt.constrain import builder_flags, takes_type
from halfwise.tensorrt.trtexec import OTHER_KIND, quoted, shape_options
from halfwise.tensorrt.versions import (
    DEFAULT_BUILDER,
    FIRST_WITHOUT_WEAK,
    has,
    known_version,
    since,
    tactic_sources,
    version_of,
)
from halfwise.tensorrt.worker import NEVER_CONSTRAINED, layer_nodes, pin_to_fp32
from halfwise.wording import clean, count, shorten

_FROM_SAMPLES = (
    "The profile covers the shapes of the run's samples, one at a time; for others, such as larger "
    "batches, use --engine minShapes=…, optShapes and maxShapes."
)


class Source(Struct, frozen=True):
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
        CaseError: a kept node has bodies.
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
        tactic_sources=config.tactic_sources if config else None,
        plugins=config.plugins if config else (),
        run=folder,
        versions=run.provenance.versions,
        notes=(
            *_judging(run, config, version, typing),
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


def _judging(run: Run, config: BuildConfig | None, version: str, typing: Typing) -> Iterator[str]:
    """Yield how far the engine that a recipe builds was judged, unless it is the run's own."""
    verify = "Judge what you build: halfwise verify MODEL ENGINE --inputs DATA."
    if config is None or run.engines is None:
        what = "was judged" if run.engines is None else "of the run passed"
        yield f"No engine {what}: the plan was judged in emulation. {verify}"
    elif config.typing != typing:
        yield (
            f"The engine that was judged is {config.typing}ly typed, this recipe {typing}ly: the "
            f"engine it builds was not judged. {verify}"
        )
    elif run.engines.worker.tensorrt != version:
        worker = run.engines.worker
        yield f"The engine was judged with {worker.product} {worker.tensorrt}. {verify}"
    elif typing == "weak":
        yield (
            "Weakly typed builds differ from one to the next; the engine that was judged is in the "
            f"run folder. {verify}"
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


MOST_ARGUMENT_BYTES = 131072
"""Longest argument on Linux, terminator included (MAX_ARG_STRLEN, 32 pages)."""
_ESCAPED = {ord(c): f"\\{c}" for c in '\\"?'}


def _text(file: str) -> str:
    return files("halfwise.tensorrt").joinpath("templates", file).read_text("utf-8")


def _filled(file: str, **values: str) -> str:
    """Return a template with its `$names` replaced; what replaces them is not read again."""
    return Template(_text(f"{file}.txt")).substitute(values)


def facts(recipe: Recipe) -> list[str]:
    """Return what a recipe builds, from what, and its notes, as sentences of one line each."""
    low = f"{recipe.low.upper()} is allowed" if recipe.low else "all FP32"
    if recipe.quantised:
        kinds = " and ".join(kind.upper() for kind in recipe.quantised)
        low = f"{kinds} where the model is quantised, {low if recipe.low else 'else FP32'}"
    if recipe.typing == "strong" and recipe.low is None:
        how = "strongly typed: all FP32, as in the ONNX file"
    elif recipe.typing == "strong":
        how = "strongly typed: the Casts in the ONNX file set what is FP32"
    elif recipe.constraints:
        how = f"weakly typed: {low}, {count(len(recipe.constraints), 'node')} constrained to FP32"
    else:
        how = f"weakly typed: {low}"
    return [
        f"Builds {recipe.engine} from {recipe.model} with TensorRT {recipe.tensorrt}, {how}.",
        f"Written by halfwise {recipe.versions.get('halfwise', '')} from the run {recipe.run}.",
        *recipe.notes,
    ]


def _comments(lines: Iterable[str], mark: str) -> str:
    # A trailing backslash would make the next line of C++ a comment too.
    return "\n".join(f"{mark} {clean(line)}".rstrip("\\ ") for line in lines)


def trtexec(recipe: Recipe) -> dict[str, str]:
    """Return a shell script with one trtexec command; paths are relative to the script.

    Raises:
        CaseError: that version's trtexec cannot express part of the recipe.
    """
    words = arguments(recipe)
    for word in words:
        if (size := len(word.encode("utf-8", "surrogateescape"))) >= MOST_ARGUMENT_BYTES:
            raise CaseError(
                f"{word.partition('=')[0]} needs {size} bytes, but Linux allows "
                f"{MOST_ARGUMENT_BYTES - 1} in one argument, and trtexec cannot read it from a "
                "file.",
                "Use --as python or cpp instead.",
            )
    command = " \\\n    ".join(["trtexec", *map(shlex.quote, words)])
    comments = _comments((*facts(recipe), *_about(recipe)), "#")
    return {"build_engine.sh": _filled("build_engine.sh", facts=comments, command=command)}


def arguments(recipe: Recipe) -> list[str]:
    """Return trtexec's arguments, unquoted (same errors)."""
    version = recipe.tensorrt
    words = [f"--onnx={recipe.model}", f"--saveEngine={recipe.engine}"]
    words += _typing(recipe)
    words += [] if recipe.tf32 else ["--noTF32"]
    words += _profiles(recipe)
    if recipe.workspace_bytes is not None:
        # In MiB: 8.5 does not accept units.
        words.append(f"--memPoolSize=workspace:{recipe.workspace_bytes / 2**20:.12g}")
    if recipe.optimization_level is not None:
        words.append(f"--builderOptimizationLevel={recipe.optimization_level}")
    if recipe.tactic_sources is not None:
        words.append(f"--tacticSources={_trtexec_sources(recipe.tactic_sources, version)}")
    plugins = "--staticPlugins" if has("--staticPlugins", version) else "--plugins"
    words += [f"{plugins}={path}" for path in recipe.plugins]
    words.append("--profilingVerbosity=detailed")
    return [*words, "--skipInference" if has("--skipInference", version) else "--buildOnly"]


def _about(recipe: Recipe) -> list[str]:
    lines = []
    if recipe.constraints:
        lines.append(
            "trtexec silently ignores names that no layer has: look for them with --verbose."
        )
    if recipe.constraints and not any(c.layers for c in recipe.constraints):
        lines.append(
            "If the parser turns a node into several layers, only the layer with the node's name "
            "is constrained; --as python constrains them all."
        )
    return lines


def _typing(recipe: Recipe) -> list[str]:
    if recipe.typing == "strong":
        # From 11 on every network is strongly typed, and the option has no effect.
        return ["--stronglyTyped"] if version_of(recipe.tensorrt) < FIRST_WITHOUT_WEAK else []
    words = [f"--{kind}" for kind in (*recipe.quantised, recipe.low) if kind]
    if not recipe.constraints:
        return words
    precisions, types = [], []
    for constraint in recipe.constraints:
        for name in constraint.layers or (constraint.node,):
            item = f"{_layer(name, recipe.tensorrt)}:fp32"
            precisions.append(item)
            # One type applies to all outputs, and integer ones must not become FP32.
            types += [item] if all(constraint.outputs) else []
    words += ["--precisionConstraints=obey", f"--layerPrecisions={','.join(precisions)}"]
    return [*words, f"--layerOutputTypes={','.join(types)}"] if types else words


def _layer(name: str, version: str) -> str:
    """Return a layer's name as trtexec reads it back."""
    wild = "*" in name if has("* in names", version) else name == "*"
    if wild:
        raise CaseError(
            f"trtexec {version} reads the * in the layer name {shorten(name)!r} as a wildcard.",
            OTHER_KIND,
        )
    return quoted(name, "layer")


def _profiles(recipe: Recipe) -> list[str]:
    if len(recipe.profiles) > 1 and not has("several profiles", recipe.tensorrt):
        raise CaseError(
            f"trtexec {recipe.tensorrt} supports one optimization profile; this engine has "
            f"{len(recipe.profiles)}.",
            "Use --as python or cpp instead.",
        )
    several = len(recipe.profiles) > 1
    return [
        word
        for number, profile in enumerate(recipe.profiles)
        for word in ([f"--profile={number}"] * several + shape_options(profile))
    ]


def _trtexec_sources(names: Sequence[str], version: str) -> str:
    sources = tactic_sources(version_of(version))
    if unknown := [name for name in names if name not in sources]:
        raise CaseError(
            f"trtexec {version} has no tactic source {', '.join(unknown)}.",
            "Use --as python or cpp instead.",
        )
    return ",".join(f"{'+' if name in names else '-'}{name}" for name in sources)


def python(recipe: Recipe) -> dict[str, str]:
    """Return the Python script; its data are one ASCII literal near the top."""
    told = ("constraints", "notes", "versions")
    values = {name: value for name, value in recipe.to_dict().items() if name not in told}
    values["keep"] = [constraint.node for constraint in recipe.constraints]
    literal = "".join(f"    {name!a}: {value!a},\n" for name, value in values.items())
    kinds = pprint.pformat(sorted(NEVER_CONSTRAINED), width=96, compact=True)
    script = _filled(
        "build_engine.py",
        facts=_comments(facts(recipe), "#"),
        recipe=f"{{\n{literal}}}",
        never_constrained=kinds,
        worker="\n\n".join(inspect.getsource(f) for f in (layer_nodes, pin_to_fp32)).rstrip(),
    )
    return {"build_engine.py": script}


def cpp(recipe: Recipe) -> dict[str, str]:
    """Return the program that builds the engine, the one that runs it, and their CMakeLists.txt."""
    runs = f"Runs {recipe.engine}, which build_engine makes with TensorRT {recipe.tensorrt}."
    both = {"engine": literal(recipe.engine), "plugins": _listed(map(literal, recipe.plugins))}
    level, workspace = recipe.optimization_level, recipe.workspace_bytes
    flags = {
        "strong": recipe.typing == "strong",
        "fp16": recipe.low == "fp16",
        "bf16": recipe.low == "bf16",
        "int8": "int8" in recipe.quantised,
        "fp8": "fp8" in recipe.quantised,
        "tf32": recipe.tf32,
    }
    builds = _filled(
        "build_engine.cpp",
        facts=_comments(facts(recipe), "//"),
        model=literal(recipe.model),
        workspace_bytes=str(-1 if workspace is None else workspace),
        optimization_level=str(-1 if level is None else level),
        keep=_listed(literal(constraint.node) for constraint in recipe.constraints),
        profiles=_listed(map(_profile, recipe.profiles)),
        tactic_sources=_set_tactic_sources(recipe.tactic_sources),
        **{name: str(value).lower() for name, value in flags.items()},
        **both,
    )
    return {
        "build_engine.cpp": builds,
        "run_engine.cpp": _filled("run_engine.cpp", facts=_comments([runs], "//"), **both),
        "arrays.h": _text("arrays.h.txt"),
        "CMakeLists.txt": _text("CMakeLists.txt"),
    }


def literal(text: str) -> str:
    """Return an ASCII C++ literal for the UTF-8 bytes of `text`; file names keep their bytes.

    Octal escapes end after three digits, so a following digit cannot join them; question marks
    are escaped because of trigraphs.
    """
    data = text.encode("utf-8", "surrogateescape")
    pieces = (_ESCAPED.get(b, chr(b)) if 32 <= b < 127 else f"\\{b:03o}" for b in data)
    return f'"{"".join(pieces)}"'


def _listed(items: Iterable[str]) -> str:
    return "{" + "".join(f"\n    {item}," for item in items) + "}"


def _profile(profile: Profile) -> str:
    return f"Profile{{{{{_limits(profile.shapes)}}}, {{{_limits(profile.values)}}}}}"


def _limits(ranges: Mapping[TensorName, ShapeRange]) -> str:
    return ", ".join(
        f"Limits{{{literal(name)}, {_sizes(r.min)}, {_sizes(r.opt)}, {_sizes(r.max)}}}"
        for name, r in ranges.items()
    )


def _sizes(sizes: Iterable[int]) -> str:
    return "{" + ", ".join(map(str, sizes)) + "}"


def _set_tactic_sources(names: Iterable[str] | None) -> str:
    # By name, since the numbers are internal to TensorRT.
    bits = [
        f"(1U << static_cast<std::uint32_t>(nvinfer1::TacticSource::k{name}))"
        for name in names or ()
    ]
    return "" if names is None else f"config.setTacticSources({' | '.join(bits) or '0U'});"


KINDS: Mapping[str, Callable[[Recipe], dict[str, str]]] = {
    "trtexec": trtexec,
    "python": python,
    "cpp": cpp,
    "json": lambda recipe: {"recipe.json": recipe.to_json(indent=2) + "\n"},
}
"""Functions that turn a recipe into texts by file name, by kind of recipe."""
