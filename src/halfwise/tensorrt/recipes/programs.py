"""A recipe as a program: a Python script, or C++17 programs with their CMakeLists.txt.

The script needs only TensorRT's bindings, the programs only TensorRT and CUDA: one builds the
engine, one runs it on files, at shapes that only these files determine. Names in a model are
whatever its author wrote, so everything from a recipe is escaped.
"""

import inspect
import json
import pprint
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from halfwise.records import Profile, Recipe, ShapeRange, TensorName
from halfwise.tensorrt.versions import LAYERS_SINCE
from halfwise.tensorrt.worker.worker import NEVER_CONSTRAINED, layer_nodes, pin_to_fp32
from halfwise.wording import clean, count

TEMPLATES = Path(__file__).with_name("templates")


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
    lines = [
        f"Builds {recipe.engine} from {recipe.model} with TensorRT {recipe.tensorrt}, {how}.",
        f"Written by halfwise {recipe.versions.get('halfwise', '')} from the run {recipe.run}.",
        *recipe.notes,
    ]
    return [clean(line) for line in lines]


def python(recipe: Recipe) -> dict[str, str]:
    """Return the Python script; its data are one literal near the top."""
    return {"build_engine.py": script(recipe, "build_engine.py.txt")}


def script(recipe: Recipe, template: str) -> str:
    """Fill a template with the facts, the recipe and the code that sets constraints."""
    values = json.loads(recipe.model_dump_json(exclude={"constraints", "notes", "versions"}))
    values["keep"] = [constraint.node for constraint in recipe.constraints]
    literal = pprint.pformat(_in_ascii(values), width=96, sort_dicts=False)
    # The recipe comes last, since it may contain anything, even placeholders.
    return (
        _read(template)
        .replace("# __FACTS__\n", "".join(f"# {line}\n" for line in facts(recipe)), 1)
        .replace("# __CONSTRAINTS__\n", _read("constraints.py.txt"), 1)
        .replace("# __WORKER__\n", _from_worker(), 1)
        .replace("RECIPE = __RECIPE__", f"RECIPE = {literal}", 1)
    )


def _from_worker() -> str:
    """Return the source of the worker's own code that sets constraints."""
    kinds = pprint.pformat(sorted(NEVER_CONSTRAINED), width=96, compact=True)
    functions = "\n\n".join(inspect.getsource(f) for f in (layer_nodes, pin_to_fp32))
    return (
        "# Kinds of layers that take no precision: a Cast asserts, the others compute nothing.\n"
        f"NEVER_CONSTRAINED = {kinds}\n\n\n{functions}"
    )


def _read(template: str) -> str:
    return (TEMPLATES / template).read_text(encoding="utf-8")


class _Ascii(str):
    """A string whose literal is plain ASCII, whatever encoding a reader assumes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return ascii(str(self))


def _in_ascii(value: object) -> object:
    if isinstance(value, str):
        return _Ascii(value)
    if isinstance(value, list):
        return [_in_ascii(v) for v in value]
    if isinstance(value, dict):
        return {_Ascii(k): _in_ascii(v) for k, v in value.items()}
    return value


_LINE_BYTES = 80
_ESCAPED = {ord(c): f"\\{c}" for c in '\\"?'}


def cpp(recipe: Recipe) -> dict[str, str]:
    """Return the program that builds the engine, the one that runs it, and their CMakeLists.txt."""
    runs = f"Runs {recipe.engine}, which build_engine makes with TensorRT {recipe.tensorrt}."
    never = {"    // __NEVER_CONSTRAINED__\n": _never_constrained()}
    return {
        "build_engine.cpp": _filled("build_engine.cpp.txt", facts(recipe), _data(recipe), never),
        "run_engine.cpp": _filled("run_engine.cpp.txt", [clean(runs)], _run_data(recipe)),
        "arrays.h": _read("arrays.h.txt"),
        "CMakeLists.txt": _read("CMakeLists.txt"),
    }


def _filled(
    template: str,
    lines: Sequence[str],
    data: Sequence[str],
    parts: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Fill a C++ template with comment lines, data and other parts."""
    source = _read(template)
    # A trailing backslash would make the next line a comment too.
    comments = "".join(f"// {line}".rstrip("\\ ") + "\n" for line in lines)
    places = {**parts, "// __RECIPE__\n": "\n".join(data) + "\n", "// __FACTS__\n": comments}
    # Comments come last, since they may contain anything, even placeholders.
    for place, text in places.items():
        source = source.replace(place, text, 1)
    return source


def literal(text: str) -> str:
    """Return an ASCII C++ literal for the UTF-8 bytes of `text`; file names keep their bytes.

    Octal escapes end after three digits, so a following digit cannot join them; question marks
    are escaped because of trigraphs.
    """
    data = text.encode("utf-8", "surrogateescape")
    pieces = [_ESCAPED.get(b, chr(b)) if 32 <= b < 127 else f"\\{b:03o}" for b in data]
    lines = [pieces[i : i + _LINE_BYTES] for i in range(0, len(pieces), _LINE_BYTES)] or [[]]
    return " ".join(f'"{"".join(line)}"' for line in lines)


def _never_constrained() -> str:
    """Return switch cases for the kinds of layers, guarded by the version that introduced them."""
    lines = []
    for kind in sorted(NEVER_CONSTRAINED):
        case = [f"    case trt::LayerType::k{kind}: return false;"]
        if kind in LAYERS_SINCE:
            major, minor = LAYERS_SINCE[kind]
            same = f"(NV_TENSORRT_MAJOR == {major} && NV_TENSORRT_MINOR >= {minor})"
            case = [f"#if NV_TENSORRT_MAJOR > {major} || {same}", *case, "#endif"]
        lines += case
    return "\n".join(lines) + "\n"


def _run_data(recipe: Recipe) -> list[str]:
    return [
        f"char const* const kEngine = {literal(recipe.engine)};",
        f"std::vector<std::string> const kPlugins = {_list([literal(p) for p in recipe.plugins])};",
    ]


def _data(recipe: Recipe) -> list[str]:
    level = -1 if recipe.optimization_level is None else recipe.optimization_level
    workspace = -1 if recipe.workspace_bytes is None else recipe.workspace_bytes
    keep = [c.node for c in recipe.constraints]
    return [
        f"char const* const kModel = {literal(recipe.model)};",
        *_run_data(recipe),
        f"char const* const kTimingCache = {literal(recipe.timing_cache or '')};",
        f"constexpr bool kStrong = {_bool(recipe.typing == 'strong')};",
        f"constexpr bool kFp16 = {_bool(recipe.low == 'fp16')};",
        f"constexpr bool kBf16 = {_bool(recipe.low == 'bf16')};",
        f"constexpr bool kInt8 = {_bool('int8' in recipe.quantised)};",
        f"constexpr bool kFp8 = {_bool('fp8' in recipe.quantised)};",
        f"constexpr bool kTf32 = {_bool(recipe.tf32)};",
        f"constexpr std::int64_t kWorkspaceBytes = {workspace};",
        f"constexpr std::int32_t kOptimizationLevel = {level};",
        f"std::vector<std::string> const kKeep = {_list([literal(n) for n in keep])};",
        f"std::vector<Profile> const kProfiles = {_list(list(map(_profile, recipe.profiles)))};",
        "",
        *_tactic_sources(recipe.tactic_sources),
    ]


def _tactic_sources(names: Sequence[str] | None) -> list[str]:
    # By name, since the numbers are internal to TensorRT.
    if names is None:
        return ["inline void setTacticSources(nvinfer1::IBuilderConfig&) {}"]
    bits = [f"1U << static_cast<std::uint32_t>(nvinfer1::TacticSource::k{name})" for name in names]
    return [
        "inline void setTacticSources(nvinfer1::IBuilderConfig& config)",
        "{",
        f"    config.setTacticSources({' | '.join(f'({bit})' for bit in bits) or '0U'});",
        "}",
    ]


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _list(items: Sequence[str]) -> str:
    return "{" + "".join(f"\n    {item}," for item in items) + ("\n}" if items else "}")


def _profile(profile: Profile) -> str:
    return f"Profile{{{{{_limits(profile.shapes)}}}, {{{_limits(profile.values)}}}}}"


def _limits(ranges: Mapping[TensorName, ShapeRange]) -> str:
    return ", ".join(
        f"Limits{{{literal(name)}, {_sizes(r.min)}, {_sizes(r.opt)}, {_sizes(r.max)}}}"
        for name, r in ranges.items()
    )


def _sizes(sizes: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, sizes)) + "}"
