"""A recipe as text: a trtexec command, a Python script, or C++17 programs.

The script needs only TensorRT's bindings, the programs only TensorRT and CUDA: one builds the
engine, one runs it on files, at shapes that only these files determine. Names in a model are
whatever its author wrote, so everything from a recipe is escaped. The texts are the files in
`templates`, whose `$names` are filled in.
"""

import inspect
import pprint
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from string import Template

from halfwise.errors import CaseError
from halfwise.records import Profile, Recipe, ShapeRange, TensorName
from halfwise.tensorrt.trtexec import OTHER_KIND, quoted, shape_options
from halfwise.tensorrt.versions import FIRST_WITHOUT_WEAK, has, tactic_sources, version_of
from halfwise.tensorrt.worker import NEVER_CONSTRAINED, layer_nodes, pin_to_fp32
from halfwise.wording import clean, count, shorten

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
        words.append(f"--tacticSources={_tactic_sources(recipe.tactic_sources, version)}")
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


def _tactic_sources(names: Sequence[str], version: str) -> str:
    sources = tactic_sources(version_of(version))
    if unknown := [name for name in names if name not in sources]:
        raise CaseError(
            f"trtexec {version} has no tactic source {', '.join(unknown)}.",
            "Use --as python or cpp instead.",
        )
    return ",".join(f"{'+' if name in names else '-'}{name}" for name in sources)


def python(recipe: Recipe) -> dict[str, str]:
    """Return the Python script; its data are one ASCII literal near the top."""
    values = recipe.model_dump(mode="json", exclude={"constraints", "notes", "versions"})
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
    "json": lambda recipe: {"recipe.json": recipe.model_dump_json(indent=2) + "\n"},
}
"""Functions that turn a recipe into texts by file name, by kind of recipe."""
