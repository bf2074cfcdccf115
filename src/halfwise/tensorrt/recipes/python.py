"""A recipe as a Python script that needs TensorRT's bindings and nothing else."""

import inspect
import json
import pprint
from pathlib import Path

from halfwise.records import Recipe
from halfwise.tensorrt.recipes.shell import facts
from halfwise.tensorrt.worker.worker import NEVER_CONSTRAINED, layer_nodes, pin_to_fp32

TEMPLATES = Path(__file__).with_name("templates")


def render(recipe: Recipe) -> dict[str, str]:
    """Return the script; its data are one literal near its top."""
    return {"build_engine.py": script(recipe, "build_engine.py.txt")}


def script(recipe: Recipe, template: str) -> str:
    """Return a template with facts, the recipe and what sets constraints in their places."""
    values = json.loads(recipe.model_dump_json(exclude={"constraints", "notes", "versions"}))
    values["keep"] = [constraint.node for constraint in recipe.constraints]
    literal = pprint.pformat(_in_ascii(values), width=96, sort_dicts=False)
    # The recipe comes last, for it may hold anything, placeholders included.
    return (
        _read(template)
        .replace("# __FACTS__\n", "".join(f"# {line}\n" for line in facts(recipe)), 1)
        .replace("# __CONSTRAINTS__\n", _read("constraints.py.txt"), 1)
        .replace("# __WORKER__\n", _from_worker(), 1)
        .replace("RECIPE = __RECIPE__", f"RECIPE = {literal}", 1)
    )


def _from_worker() -> str:
    """Return what the worker itself sets constraints with, as source."""
    kinds = pprint.pformat(sorted(NEVER_CONSTRAINED), width=96, compact=True)
    functions = "\n\n".join(inspect.getsource(f) for f in (layer_nodes, pin_to_fp32))
    return (
        "# Kinds of layers that take no precision: a Cast asserts, the others compute nothing.\n"
        f"NEVER_CONSTRAINED = {kinds}\n\n\n{functions}"
    )


def _read(template: str) -> str:
    return (TEMPLATES / template).read_text(encoding="utf-8")


class _Ascii(str):
    """A string whose literal is plain ASCII, whatever encoding the file is taken for."""

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
