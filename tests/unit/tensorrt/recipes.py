"""Hand-made recipes, and names that are hard to write down."""

import shlex
from typing import Any

from hypothesis import strategies as st

from halfwise.records import Constraint, NodeName, Profile, Recipe, ShapeRange, TensorName

NASTY = (
    "it's",
    'a "b"',
    "a\\",
    "$(touch here)`touch here`",
    "line\nbreak\r",
    "tab\t\x01\x7f",
    "??/ trigraph ??!",
    "*/ // # __RECIPE__",
    "digits\x001",
    "größe\u2028\u202e\U0001f600",
    "%s {x} {{",
    "-rf",
    " ",
)


def names(*, without: str = "") -> st.SearchStrategy[str]:
    """Names of one to twelve characters, nasty ones among them, without some characters."""
    free = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=without), min_size=1)
    nasty = [n for n in NASTY if not set(without) & set(n)]
    return free.map(lambda text: text[:12]) | st.sampled_from(nasty)


def constraint(node: str, *outputs: bool, layers: tuple[str, ...] = ()) -> Constraint:
    """Return a constraint on a node; without `outputs` it has one, a float."""
    return Constraint(node=NodeName(node), op="Pow", outputs=outputs or (True,), layers=layers)


def profile(name: str = "images", **values: ShapeRange) -> Profile:
    """Return a profile of one input with a dynamic batch, and of shape tensors."""
    batch = ShapeRange(min=(1, 3), opt=(8, 3), max=(32, 3))
    return Profile(
        shapes={TensorName(name): batch}, values={TensorName(n): r for n, r in values.items()}
    )


def recipe(**changed: Any) -> Recipe:
    """Return a recipe with weak typing for TensorRT 8.6 and one constraint."""
    values: dict[str, Any] = {
        "tensorrt": "8.6",
        "typing": "weak",
        "low": "fp16",
        "tf32": False,
        "model": "model.fp32.onnx",
        "files": {"model.fp32.onnx": "ab" * 32},
        "engine": "model.engine",
        "constraints": (constraint("/norm/Pow"),),
        "run": "runs/demo",
        "versions": {"halfwise": "0.1.0"},
    }
    return Recipe(**values | changed)


def strong(**changed: Any) -> Recipe:
    """Return a recipe with strong typing for TensorRT 10."""
    values: dict[str, Any] = {"tensorrt": "10.16", "typing": "strong", "constraints": ()}
    return recipe(**values | changed)


def words_of(script: str) -> list[str]:
    """Return the words of the command in a shell script.

    `shlex` takes an escaped line break for a word of its own, where a shell goes on.
    """
    return shlex.split(script.split("exit 1\n", 1)[1].replace(" \\\n    ", " "))


METADATA: tuple[tuple[str, list[str]], ...] = (
    ("[ONNX Layer: conv]", ["conv"]),
    ("[ONNX Layer: a[0]]", ["a[0]"]),
    ("[ONNX Layer: a] [ONNX Layer: b[1]]", ["a", "b[1]"]),
    ("[ONNX Layer: a]\x1e[ONNX Layer: b]\x1f[ONNX Layer: c]", ["a", "b", "c"]),
    ("[ONNX Layer: f/n[0] | Local Function: f]", ["f/n[0]"]),
    ("", []),
    ("of TensorRT's own", []),
)
"""What layers say of the nodes that they come from, and these nodes; by `layer_nodes`."""
