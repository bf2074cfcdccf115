"""What recipes of several kinds share: the sentences at their head, and a command for a shell."""

import shlex
from collections.abc import Sequence

from halfwise.records import Recipe
from halfwise.wording import clean, count


def facts(recipe: Recipe) -> list[str]:
    """Return what a recipe builds, from what, and what to know: sentences of one line each."""
    low = f"{recipe.low.upper()} is allowed" if recipe.low else "all FP32"
    if recipe.typing == "strong":
        how = "strongly typed: the Casts in the ONNX file say what is FP32"
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


def shell_script(comments: Sequence[str], command: Sequence[Sequence[str]]) -> str:
    """Return a shell script of one command, its words quoted, each group on a line of its own.

    Paths are relative to the script, so it goes there first.
    """
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"# {line}" for line in comments),
            'cd -- "$(dirname -- "$0")" || exit 1',
            " \\\n    ".join(" ".join(map(shlex.quote, group)) for group in command),
            "",
        ]
    )
