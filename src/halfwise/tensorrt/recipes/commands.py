"""A recipe as one command: `trtexec`, or `polygraphy convert` with a script next to it.

The syntax of trtexec's options is from `samples/common/sampleOptions.cpp` of NVIDIA/TensorRT, 8.5
to 11: values of `--layerPrecisions` and of shapes are split at commas, then at the last colon;
single quotes go around a name, and no character can be escaped.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from halfwise.errors import CaseError
from halfwise.records import Profile, Recipe, ShapeRange
from halfwise.tensorrt.recipes.programs import cpp, facts, python, script
from halfwise.tensorrt.trtexec import OTHER_KIND, format_shapes, quoted
from halfwise.tensorrt.versions import FIRST_WITHOUT_WEAK, has, tactic_sources, version_of
from halfwise.wording import argument, shorten

MOST_ARGUMENT_BYTES = 131072
"""Longest argument on Linux, terminator included (MAX_ARG_STRLEN, 32 pages)."""


def trtexec(recipe: Recipe) -> dict[str, str]:
    """Return a shell script with one trtexec command.

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
                "Use --as python, cpp or polygraphy instead.",
            )
    comments = (*facts(recipe), *_about(recipe))
    return {"build_engine.sh": shell_script(comments, [["trtexec"], *([word] for word in words)])}


def arguments(recipe: Recipe, *, run: bool = False) -> list[str]:
    """Return trtexec's arguments, unquoted (same errors); with `run` it also runs the engine."""
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
        words.append(f"--tacticSources={_tactic_sources(recipe)}")
    plugins = "--staticPlugins" if has("--staticPlugins", recipe.tensorrt) else "--plugins"
    words += [f"{plugins}={path}" for path in recipe.plugins]
    if recipe.timing_cache is not None:
        words.append(f"--timingCacheFile={recipe.timing_cache}")
    words.append("--profilingVerbosity=detailed")
    skip = "--skipInference" if has("--skipInference", recipe.tensorrt) else "--buildOnly"
    return words if run else [*words, skip]


def _about(recipe: Recipe) -> list[str]:
    lines = []
    if recipe.timing_cache is not None:
        lines.append("trtexec also writes to the timing cache.")
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
            key = _key(name, recipe)
            precisions.append(f"{key}:fp32")
            # One type applies to all outputs, and integer ones must not become FP32.
            if all(constraint.outputs):
                types.append(f"{key}:fp32")
    words += ["--precisionConstraints=obey", f"--layerPrecisions={','.join(precisions)}"]
    return [*words, f"--layerOutputTypes={','.join(types)}"] if types else words


def _key(name: str, recipe: Recipe) -> str:
    """Return a layer's name as trtexec reads it back."""
    wild = "*" in name if has("* in names", recipe.tensorrt) else name == "*"
    if wild:
        raise CaseError(
            f"trtexec {recipe.tensorrt} reads the * in the layer name {shorten(name)!r} as a "
            "wildcard.",
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
    if len(recipe.profiles) == 1:
        return shape_options(recipe.profiles[0])
    return [
        word
        for number, profile in enumerate(recipe.profiles)
        for word in (f"--profile={number}", *shape_options(profile))
    ]


def shape_options(profile: Profile) -> list[str]:
    """Return one profile's `--minShapes` and the like, unquoted; none if the profile is empty.

    Raises:
        CaseError: the name of an input has a character that trtexec cannot express.
    """
    ranges = {**profile.shapes, **profile.values}
    return [
        f"--{end}Shapes={format_shapes({name: getattr(r, end) for name, r in ranges.items()})}"
        for end in ("min", "opt", "max")
        if ranges
    ]


def _tactic_sources(recipe: Recipe) -> str:
    wanted = recipe.tactic_sources or ()
    known = tactic_sources(version_of(recipe.tensorrt))
    if unknown := [name for name in wanted if name not in known]:
        raise CaseError(
            f"trtexec {recipe.tensorrt} has no tactic source {', '.join(unknown)}.",
            "Use --as python or cpp instead.",
        )
    return ",".join(f"{'+' if name in wanted else '-'}{name}" for name in known)


CONSTRAIN = "constrain.py"


def polygraphy(recipe: Recipe) -> dict[str, str]:
    """Return a shell script and, with constraints, the Python script that it names.

    Raises:
        CaseError: Polygraphy cannot express part of the recipe.
    """
    command = [["polygraphy", "convert", argument(recipe.model)], *polygraphy_options(recipe)]
    files = {"build_engine.sh": shell_script(facts(recipe), command)}
    if recipe.constraints:
        files[CONSTRAIN] = script(recipe, f"{CONSTRAIN}.txt")
    return files


def polygraphy_options(recipe: Recipe) -> list[list[str]]:
    """Return the options of `polygraphy convert` with their values, unquoted (same errors)."""
    words = [["--convert-to=trt"], [f"--output={recipe.engine}"]]
    types = ["strongly-typed"] if recipe.typing == "strong" else [*recipe.quantised, recipe.low]
    words += [[f"--{kind}"] for kind in types if kind]
    if recipe.constraints:
        words.append(["--precision-constraints=obey"])
        words.append([f"--trt-network-postprocess-script={CONSTRAIN}:constrain"])
    # Polygraphy turns TF32 off unless told otherwise.
    words += [["--tf32"]] if recipe.tf32 else []
    words += (
        [["--onnx-flags", "native_instancenorm"]]
        if has("native InstanceNorm", recipe.tensorrt)
        else []
    )
    for profile in recipe.profiles:
        ranges = {**profile.shapes, **profile.values}
        for end in ("min", "opt", "max") if ranges else ():
            words.append([f"--trt-{end}-shapes", *_polygraphy_limits(ranges.items(), end)])
    if recipe.workspace_bytes is not None:
        words.append(["--pool-limit", f"workspace:{recipe.workspace_bytes}"])
    if recipe.optimization_level is not None:
        words.append([f"--builder-optimization-level={recipe.optimization_level}"])
    if recipe.tactic_sources is not None:
        words.append(["--tactic-sources", *recipe.tactic_sources])
    words += [["--plugins", *recipe.plugins]] if recipe.plugins else []
    if recipe.timing_cache is not None:
        words.append([f"--load-timing-cache={recipe.timing_cache}"])
    return words


def _polygraphy_limits(ranges: Iterable[tuple[str, ShapeRange]], end: str) -> list[str]:
    words = []
    for name, limits in ranges:
        if name.startswith("-"):
            raise CaseError(
                f"Polygraphy reads the input {shorten(name)!r} as an option.",
                "Use --as python or cpp instead.",
            )
        words.append(f"{name}:[{','.join(map(str, getattr(limits, end)))}]")
    return words


def shell_script(
    comments: Sequence[str], command: Sequence[Sequence[str]], *, before: str = ""
) -> str:
    """Return a shell script of one command, its words quoted, each group on its own line.

    Paths are relative to the script, so it changes there first; then comes the line `before`.
    """
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"# {line}" for line in comments),
            'cd -- "$(dirname -- "$0")" || exit 1',
            *([before] if before else []),
            " \\\n    ".join(" ".join(map(shlex.quote, group)) for group in command),
            "",
        ]
    )


KINDS: Mapping[str, Callable[[Recipe], dict[str, str]]] = {
    "trtexec": trtexec,
    "python": python,
    "cpp": cpp,
    "polygraphy": polygraphy,
    "json": lambda recipe: {"recipe.json": recipe.model_dump_json(indent=2) + "\n"},
}
"""Functions that turn a recipe into texts by file name, by kind of recipe."""
