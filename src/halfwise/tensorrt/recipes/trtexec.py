"""A recipe as one `trtexec` command.

What the options take was read in `samples/common/sampleOptions.cpp` of NVIDIA/TensorRT, 8.5 to 11:
values of `--layerPrecisions` and of shapes are split at commas, then at the last colon; single
quotes go around a name, and no character can be escaped.
"""

from collections.abc import Iterable, Sequence

from halfwise.errors import CaseError
from halfwise.records import Profile, Recipe, ShapeRange
from halfwise.tensorrt.recipes.shell import facts, shell_script
from halfwise.tensorrt.versions import FIRST_WILD, FIRST_WITHOUT_WEAK
from halfwise.wording import shorten

MOST_ARGUMENT_BYTES = 131072
"""The longest argument that Linux passes, its end included (MAX_ARG_STRLEN, 32 pages)."""
TACTIC_SOURCES = (
    *("CUBLAS", "CUBLAS_LT", "CUDNN"),
    *("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"),
)
_OTHER_KIND = "Take --as python instead: it compares whole names."


def render(recipe: Recipe) -> dict[str, str]:
    """Return a shell script of one command.

    Raises:
        CaseError: trtexec of that version cannot be told something of it.
    """
    words = arguments(recipe)
    for word in words:
        if (size := len(word.encode("utf-8", "surrogateescape"))) >= MOST_ARGUMENT_BYTES:
            raise CaseError(
                f"{word.partition('=')[0]} would take {size} bytes; Linux passes at "
                f"most {MOST_ARGUMENT_BYTES - 1} in one argument, and trtexec reads it from no "
                "file.",
                "Take --as python, cpp or polygraphy instead.",
            )
    comments = (*facts(recipe), *_about(recipe))
    return {"build_engine.sh": shell_script(comments, [["trtexec"], *([word] for word in words)])}


def arguments(recipe: Recipe) -> list[str]:
    """Return the arguments of trtexec, unquoted (same errors)."""
    words = [f"--onnx={recipe.model}", f"--saveEngine={recipe.engine}"]
    words += _typing(recipe)
    words += [] if recipe.tf32 else ["--noTF32"]
    words += _profiles(recipe)
    if recipe.workspace_bytes is not None:
        # In MiB: 8.5 knows no units.
        words.append(f"--memPoolSize=workspace:{recipe.workspace_bytes / 2**20:.12g}")
    if recipe.optimization_level is not None:
        words.append(f"--builderOptimizationLevel={recipe.optimization_level}")
    if recipe.tactic_sources is not None:
        words.append(f"--tacticSources={_tactic_sources(recipe)}")
    plugins = "--staticPlugins" if recipe.version >= (8, 6) else "--plugins"
    words += [f"{plugins}={path}" for path in recipe.plugins]
    if recipe.timing_cache is not None:
        words.append(f"--timingCacheFile={recipe.timing_cache}")
    words.append("--profilingVerbosity=detailed")
    words.append("--skipInference" if recipe.version >= (8, 6) else "--buildOnly")
    return words


def _about(recipe: Recipe) -> list[str]:
    lines = []
    if recipe.timing_cache is not None:
        lines.append("trtexec also writes to the timing cache.")
    if recipe.constraints:
        lines.append(
            "trtexec ignores names that no layer has, without a word: look for them with --verbose."
        )
    if recipe.constraints and not any(c.layers for c in recipe.constraints):
        lines.append(
            "A node that the parser turns into several layers is constrained at the layer of its "
            "own name only; --as python constrains them all."
        )
    return lines


def _typing(recipe: Recipe) -> list[str]:
    if recipe.typing == "strong":
        # From 11 on every network is, and the option does nothing.
        return ["--stronglyTyped"] if recipe.version < FIRST_WITHOUT_WEAK else []
    words = [f"--{recipe.low}"] if recipe.low else []
    if not recipe.constraints:
        return words
    precisions, types = [], []
    for constraint in recipe.constraints:
        for name in constraint.layers or (constraint.node,):
            key = _key(name, recipe)
            precisions.append(f"{key}:fp32")
            # One type stands for all outputs, and integer ones must not become FP32.
            if all(constraint.outputs):
                types.append(f"{key}:fp32")
    words += ["--precisionConstraints=obey", f"--layerPrecisions={','.join(precisions)}"]
    return [*words, f"--layerOutputTypes={','.join(types)}"] if types else words


def _key(name: str, recipe: Recipe) -> str:
    """Return a layer's name as trtexec reads it back."""
    wild = "*" in name if recipe.version >= FIRST_WILD else name == "*"
    if wild:
        raise CaseError(
            f"trtexec {recipe.tensorrt} takes the * in the layer name {shorten(name)!r} for a "
            "pattern.",
            _OTHER_KIND,
        )
    return _quoted(name, "layer")


def _quoted(name: str, what: str) -> str:
    for character, meaning in ((",", "splits there"), ("'", "takes it for a quotation mark")):
        if character in name:
            raise CaseError(
                f"trtexec cannot be told of the {what} {shorten(name)!r}: it holds a {character}, "
                f"and trtexec {meaning}.",
                _OTHER_KIND,
            )
    return f"'{name}'" if ":" in name else name


def _profiles(recipe: Recipe) -> list[str]:
    if len(recipe.profiles) > 1 and recipe.version < (10, 0):
        raise CaseError(
            f"trtexec {recipe.tensorrt} takes one optimization profile; this engine has "
            f"{len(recipe.profiles)}.",
            "Take --as python or cpp instead.",
        )
    if len(recipe.profiles) == 1:
        return shape_options(recipe.profiles[0])
    return [
        word
        for number, profile in enumerate(recipe.profiles)
        for word in (f"--profile={number}", *shape_options(profile))
    ]


def shape_options(profile: Profile) -> list[str]:
    """Return `--minShapes` and the like of one profile, unquoted; none where it holds nothing.

    Raises:
        CaseError: the name of an input holds what trtexec cannot be told.
    """
    ranges = {**profile.shapes, **profile.values}
    return [
        f"--{end}Shapes={','.join(_limits(ranges.items(), end))}"
        for end in ("min", "opt", "max")
        if ranges
    ]


def _limits(ranges: Iterable[tuple[str, ShapeRange]], end: str) -> list[str]:
    shapes: list[tuple[str, Sequence[int]]] = [(n, getattr(limits, end)) for n, limits in ranges]
    return [f"{_quoted(name, 'input')}:{'x'.join(map(str, shape))}" for name, shape in shapes]


def _tactic_sources(recipe: Recipe) -> str:
    wanted = recipe.tactic_sources or ()
    known = TACTIC_SOURCES if recipe.version >= (8, 6) else TACTIC_SOURCES[:-1]
    if unknown := [name for name in wanted if name not in known]:
        raise CaseError(
            f"trtexec {recipe.tensorrt} knows no tactic source {', '.join(unknown)}.",
            "Take --as python or cpp instead.",
        )
    return ",".join(f"{'+' if name in wanted else '-'}{name}" for name in known)
