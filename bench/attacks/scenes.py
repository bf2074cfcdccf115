"""What a scene is: outputs that are drawn, lies about them, and the model that hands them out.

A model gathers the outputs of the sample whose number is the first pixel of its image; truth and
lie differ in its constants alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bench.attacks.layouts import Graph

Array = NDArray[Any]
Arrays = dict[str, Array]
Rng = np.random.Generator
Number = float | np.integer[Any]
Lie = Callable[[Arrays], Arrays]
"""Changes what is drawn for all samples: name → [samples, *shape]."""
Encode = Callable[[Arrays], Arrays]
"""Makes the outputs of one sample of what is drawn for it: name → [*shape]."""
IMAGE, SAMPLES = 96, 12
KEEP = "keep"
"""Name of a bool[rows] that tells which rows of the outputs the model hands out."""


@dataclass(frozen=True)
class Scene:
    """Outputs, and lies about them.

    Attributes:
        draw: Returns what is drawn for one sample.
        lies: By name.
        told: What the first screen must call the outputs.
        samples: How many.
        encode: See `Encode`.
    """

    draw: Callable[[Rng], Arrays]
    lies: Mapping[str, Lie]
    told: str
    samples: int = SAMPLES
    encode: Encode = dict

    def outputs(self, lie: Lie = dict) -> Arrays:
        """Return the outputs of all samples, name → [samples, *shape], as a lie has them."""
        each = [self.draw(np.random.default_rng([3, seed])) for seed in range(self.samples)]
        drawn = lie(_stacked(each))
        parts = ({n: array[i] for n, array in drawn.items()} for i in range(self.samples))
        return _stacked([self.encode(part) for part in parts])


def _stacked(each: Sequence[Arrays]) -> Arrays:
    return {name: np.stack([one[name] for one in each]) for name in each[0]}


def of(change: Callable[[Array], Array], name: str = "y") -> Lie:
    """Return a lie that changes a copy of one output, [samples, *shape]."""
    return lambda y: {**y, name: change(y[name].copy())}


def where(place: Array, value: Any, name: str = "y") -> Lie:
    """Return a lie that sets a place, a mask that broadcasts, of an output."""
    return of(lambda y: np.where(place, value, y), name)


def at(place: Any, value: Any, name: str = "y") -> Lie:
    """Return a lie that sets an index of an output, or changes by a function what is there."""

    def change(y: Array) -> Array:
        y[place] = value(y[place]) if callable(value) else value
        return y

    return of(change, name)


def first(lie: Lie) -> Lie:
    """Return a lie about the first sample alone."""

    def changed(y: Arrays) -> Arrays:
        wrong = lie(y)
        return {name: np.concatenate([wrong[name][:1], y[name][1:]]) for name in y}

    return changed


def half(outputs: Arrays) -> Arrays:
    """Return outputs rounded to FP16."""
    return {
        name: array.astype(np.float16).astype(np.float32) if array.dtype.kind == "f" else array
        for name, array in outputs.items()
    }


def save(path: Path, outputs: Arrays) -> None:
    """Write the model that hands out outputs, [samples, *shape] each."""
    graph = Graph()
    flat = graph.shaped("image", -1)
    number = graph.add("Gather", flat, graph.constant(np.array(0)))[0]
    number = graph.shaped(graph.add("Cast", number, to=TensorProto.INT64)[0])

    def gathered(array: Array) -> str:
        wide = array.astype(np.float32) if array.dtype == np.float64 else array
        return graph.add("Gather", graph.constant(wide), number)[0]

    keep = gathered(outputs[KEEP]) if KEEP in outputs else ""
    infos = []
    for name, array in outputs.items():
        if name == KEEP:
            continue
        tensor, shape = gathered(array), list(array.shape[1:])
        if keep:
            tensor, shape[0] = graph.add("Compress", tensor, keep, axis=0)[0], "n"
        graph.nodes.append(helper.make_node("Identity", [tensor], [name], name=f"as {name}"))
        kind = array.dtype if array.dtype != np.float64 else np.dtype(np.float32)
        infos.append(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), shape)
        )
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, IMAGE, IMAGE])
    made = helper.make_graph(graph.nodes, "scene", [image], infos, graph.constants)
    onnx.save(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )


def images(samples: int) -> Array:
    """Return f32[samples, 1, 3, IMAGE, IMAGE] of waves; the first pixel of each is its number."""
    lengths = np.linspace(3, 9, 3 * samples).reshape(samples, 1, 3, 1, 1)
    made = np.sin(np.arange(IMAGE)[:, None] / lengths) * np.ones(IMAGE)
    made[:, 0, 0, 0, 0] = np.arange(samples)
    return made.astype(np.float32)
