"""A recipe as a C++17 program that needs TensorRT and CUDA alone, with its CMakeLists.txt."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from halfwise.records import Profile, Recipe, ShapeRange, TensorName
from halfwise.tensorrt.recipes.shell import facts
from halfwise.tensorrt.worker.worker import NEVER_CONSTRAINED

_TEMPLATES = Path(__file__).with_name("templates")
_LINE_BYTES = 80
_SINCE = {"CAST": (8, 6), "PLUGIN_V3": (10, 0), "DYNAMIC_QUANTIZE": (10, 9)}
"""Kinds of layers that are newer than 8.5, by a version from which on all headers have them."""
_ESCAPED = {ord(c): f"\\{c}" for c in '\\"?'}


def render(recipe: Recipe) -> dict[str, str]:
    """Return the program and what builds it."""
    source = (_TEMPLATES / "build_engine.cpp.txt").read_text(encoding="utf-8")
    # A backslash at its end would make the next line a comment too.
    comments = "".join(f"// {line}".rstrip("\\ ") + "\n" for line in facts(recipe))
    source = source.replace("// __FACTS__\n", comments, 1)
    source = source.replace("    // __NEVER_CONSTRAINED__\n", _never_constrained(), 1)
    return {
        "build_engine.cpp": source.replace("// __RECIPE__\n", _data(recipe), 1),
        "CMakeLists.txt": (_TEMPLATES / "CMakeLists.txt").read_text(encoding="utf-8"),
    }


def literal(text: str) -> str:
    """Return a C++ string literal for the UTF-8 bytes of `text`, in ASCII; file names as they are.

    Octal escapes end after three digits, so that no digit that follows joins them; question marks
    are escaped because of trigraphs.
    """
    data = text.encode("utf-8", "surrogateescape")
    pieces = [_ESCAPED.get(b, chr(b)) if 32 <= b < 127 else f"\\{b:03o}" for b in data]
    lines = [pieces[i : i + _LINE_BYTES] for i in range(0, len(pieces), _LINE_BYTES)] or [[]]
    return " ".join(f'"{"".join(line)}"' for line in lines)


def _never_constrained() -> str:
    """Return the cases of a switch for kinds of layers, where the headers have them."""
    lines = []
    for kind in sorted(NEVER_CONSTRAINED):
        case = [f"    case trt::LayerType::k{kind}: return false;"]
        if kind in _SINCE:
            major, minor = _SINCE[kind]
            same = f"(NV_TENSORRT_MAJOR == {major} && NV_TENSORRT_MINOR >= {minor})"
            case = [f"#if NV_TENSORRT_MAJOR > {major} || {same}", *case, "#endif"]
        lines += case
    return "\n".join(lines) + "\n"


def _data(recipe: Recipe) -> str:
    level = -1 if recipe.optimization_level is None else recipe.optimization_level
    workspace = -1 if recipe.workspace_bytes is None else recipe.workspace_bytes
    keep = [c.node for c in recipe.constraints]
    lines = [
        f"char const* const kModel = {literal(recipe.model)};",
        f"char const* const kEngine = {literal(recipe.engine)};",
        f"char const* const kTimingCache = {literal(recipe.timing_cache or '')};",
        f"constexpr bool kStrong = {_bool(recipe.typing == 'strong')};",
        f"constexpr bool kFp16 = {_bool(recipe.low == 'fp16')};",
        f"constexpr bool kBf16 = {_bool(recipe.low == 'bf16')};",
        f"constexpr bool kTf32 = {_bool(recipe.tf32)};",
        f"constexpr std::int64_t kWorkspaceBytes = {workspace};",
        f"constexpr std::int32_t kOptimizationLevel = {level};",
        f"std::vector<std::string> const kKeep = {_list([literal(n) for n in keep])};",
        f"std::vector<std::string> const kPlugins = {_list([literal(p) for p in recipe.plugins])};",
        f"std::vector<Profile> const kProfiles = {_list(list(map(_profile, recipe.profiles)))};",
        "",
        *_tactic_sources(recipe.tactic_sources),
    ]
    return "\n".join(lines) + "\n"


def _tactic_sources(names: Sequence[str] | None) -> list[str]:
    # By name: their numbers are TensorRT's own affair.
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
