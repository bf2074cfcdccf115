"""A recipe as one `polygraphy convert` command, with a script for what its options cannot say."""

from collections.abc import Iterable

from halfwise.errors import CaseError
from halfwise.records import Recipe, ShapeRange
from halfwise.tensorrt.recipes.python import script
from halfwise.tensorrt.recipes.shell import facts, shell_script
from halfwise.wording import shorten

CONSTRAIN = "constrain.py"


def render(recipe: Recipe) -> dict[str, str]:
    """Return a shell script and, with constraints, the Python script that it names.

    Raises:
        CaseError: Polygraphy cannot be told something of it.
    """
    command = [["polygraphy", "convert", recipe.model], *options(recipe)]
    files = {"build_engine.sh": shell_script(facts(recipe), command)}
    if recipe.constraints:
        files[CONSTRAIN] = script(recipe, f"{CONSTRAIN}.txt")
    return files


def options(recipe: Recipe) -> list[list[str]]:
    """Return the options of `polygraphy convert` with their values, unquoted (same errors)."""
    words = [["--convert-to=trt"], [f"--output={recipe.engine}"]]
    types = "strongly-typed" if recipe.typing == "strong" else recipe.low
    words += [[f"--{types}"]] if types else []
    if recipe.constraints:
        words.append(["--precision-constraints=obey"])
        words.append([f"--trt-network-postprocess-script={CONSTRAIN}:constrain"])
    # Polygraphy turns TF32 off unless told otherwise.
    words += [["--tf32"]] if recipe.tf32 else []
    words += [["--onnx-flags", "native_instancenorm"]] if recipe.version >= (8, 6) else []
    for profile in recipe.profiles:
        ranges = {**profile.shapes, **profile.values}
        for end in ("min", "opt", "max") if ranges else ():
            words.append([f"--trt-{end}-shapes", *_limits(ranges.items(), end)])
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


def _limits(ranges: Iterable[tuple[str, ShapeRange]], end: str) -> list[str]:
    words = []
    for name, limits in ranges:
        if name.startswith("-"):
            raise CaseError(
                f"Polygraphy takes the input {shorten(name)!r} for an option.",
                "Take --as python or cpp instead.",
            )
        words.append(f"{name}:[{','.join(map(str, getattr(limits, end)))}]")
    return words
