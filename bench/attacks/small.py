"""Something small is gone: regions, lines, classes, peaks, bands, samples; and its sound twin.

A model hands out the outputs of a scene, so `verify` judges recorded ones that are wrong in one
place. The twin is rounded to FP16 and must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.attacks.attack import Attack, Command

Array = NDArray[Any]
Rng = np.random.Generator
SIDE, SAMPLES = 64, 12
PLACES = np.indices((SIDE, SIDE)).astype(np.float64)


def _disc(row: float, column: float, radius: float) -> Array:
    return np.asarray(np.hypot(PLACES[0] - row, PLACES[1] - column) < radius)


def _bell(row: float, column: float, height: float = 0.9, width: float = 1.5) -> Array:
    off = (PLACES[0] - row) ** 2 + (PLACES[1] - column) ** 2
    return np.asarray(height * np.exp(-off / (2 * width**2)))


SMALL, LINE = _disc(50, 50, 3), (PLACES[0] == 8) & (PLACES[1] > 20) & (PLACES[1] < 50)
"""A region of 0.7 % of the pixels, and a line of one pixel's width."""


def _softened(inside: Array) -> Array:
    return np.where(inside, 0.98, 0.01)


def mask(rng: Rng) -> Array:
    inside = _disc(24.0 + int(rng.integers(4)), 24, 12) | SMALL | LINE
    return _softened(inside)[None, None]


def segmentation(rng: Rng) -> Array:
    kinds = np.zeros((SIDE, SIDE), int)
    kinds[:, 30 + rng.integers(4) :] = 1
    kinds[40:, :20], kinds[SMALL], kinds[LINE] = 2, 3, 4
    logits = 4.0 * (np.arange(7)[:, None, None] == kinds) + 0.1 * rng.standard_normal(
        (7, SIDE, SIDE)
    )
    return np.asarray(logits[None])


def flow(rng: Rng) -> Array:
    field = np.stack([PLACES[1] - 32, PLACES[0] - 32]) * 0.1 + rng.normal(0, 0.01, (2, SIDE, SIDE))
    field[:, SMALL] = np.array([[4.0], [-3.0]])
    return np.asarray(field[None])


def image(rng: Rng) -> Array:
    slope = 0.2 + 0.5 * (PLACES[0] + PLACES[1]) / (2 * SIDE) + 0.02 * rng.random()
    colours = np.stack([slope, slope * 0.8, slope * 0.6])
    colours[:, SMALL], colours[:, LINE] = 0.95, 0.0
    return np.asarray(colours[None])


def heatmap(rng: Rng) -> Array:
    rows = 10 + 40 * rng.random((6, 2))
    return np.stack([_bell(*np.rint(row)) for row in rows])[None]


def objects(rng: Rng) -> Array:
    """Return [1, 24, 6]: corners within 64 × 64, scores, classes; every sixth is small."""
    corners = rng.random((24, 2)) * 36
    sides = np.where(np.arange(24)[:, None] % 6 == 5, 5, 18 + 8 * rng.random((24, 2)))
    scores = np.sort(rng.uniform(0.5, 0.99, 24))[::-1]
    kinds = np.where(np.arange(24) % 8 == 7, 9, rng.integers(0, 5, 24))
    rows = np.concatenate([corners, corners + sides, scores[:, None], kinds[:, None]], axis=1)
    return np.asarray(rows[None])


def bands(rng: Rng) -> Array:
    return np.asarray(rng.standard_normal((1, 128, 50)) * np.logspace(0, -6, 128)[:, None])


def quantities(rng: Rng) -> Array:
    return np.array(
        [[101325 + 2000 * rng.standard_normal(), 300 + rng.random(), -0.02 - 0.01 * rng.random()]]
    )


def classes(rng: Rng) -> Array:
    kind = rng.choice(10, p=[0.5, 0.3, *[0.2 / 8] * 8])
    logits = rng.standard_normal(10) + 5 * (np.arange(10) == kind)
    return np.asarray((np.exp(logits) / np.exp(logits).sum())[None])


def quiet(rng: Rng) -> Array:
    return np.asarray(rng.standard_normal((1, 200)) * 10.0 ** -(5 * rng.random()))


Scene = Callable[[Rng], Array]
Lie = Callable[[Array], Array]
"""Breaks the outputs of all samples, [samples, *shape]."""


def _where(place: Array, value: float | Array) -> Lie:
    return lambda y: np.where(place, value, y)


def _rows(change: Callable[[Array], Array]) -> Lie:
    """Change a copy of the rows of all samples."""
    return lambda y: change(y.copy())


def _only(chosen: Callable[[Array], Array], change: Callable[[Array], Array]) -> Lie:
    def lie(y: Array) -> Array:
        y = y.copy()
        some = chosen(y)
        y[some] = change(y[some])
        return y

    return lie


def _first(lie: Lie) -> Lie:
    """Break the first sample alone."""
    return lambda y: np.concatenate([lie(y)[:1], y[1:]])


def _first_map(lie: Lie) -> Lie:
    """Break the first channel alone."""
    return lambda y: np.concatenate([lie(y[:, :, :1]), y[:, :, 1:]], axis=2)


def _rolled(by: int, axis: int) -> Lie:
    return lambda y: np.roll(y, by, axis)


def _small(rows: Array) -> Array:
    return np.asarray(rows[..., 2] - rows[..., 0] < 8)


def _rare(rows: Array) -> Array:
    return np.asarray(rows[..., 5] == 9)


def _moved(rows: Array) -> Array:
    rows[:, :4] += 6
    return rows


def _unseen(rows: Array) -> Array:
    rows[:, 4] = 0.01
    return rows


def _next(rows: Array) -> Array:
    rows[:, 5] += 1
    return rows


def _unlike(rows: Array) -> Array:
    rows[:, 4] -= 0.3
    return rows


def _loudness(y: Array) -> Array:
    return np.asarray(np.abs(y).max((1, 2), keepdims=True))


def _rare_lost(y: Array) -> Array:
    kinds = y.argmax(-1)
    return np.where(np.isin(kinds, [2, 3, 4])[..., None], np.roll(y, 3, -1), y)


_OTHER = np.where(np.arange(7)[:, None, None] == 0, 4.0, 0.0)
SCENES: Mapping[str, tuple[Scene, int, Mapping[str, Lie]]] = {
    "mask": (mask, SAMPLES, {
        "a small region lost": _where(SMALL, 0.01),
        "a small region lost on one sample": _first(_where(SMALL, 0.01)),
        "a line lost": _where(LINE, 0.01),
        "a small region too many": _where(_disc(10, 55, 3), 0.98),
        "unsure in a small region": _where(SMALL, 0.55),
    }),
    "segmentation": (segmentation, SAMPLES, {
        "a small class lost": _where(SMALL, _OTHER),
        "a small class lost on one sample": _first(_where(SMALL, _OTHER)),
        "a line lost": _where(LINE, _OTHER),
        "a small region of another class": _where(_disc(10, 55, 3), _OTHER[::-1]),
    }),
    "flow": (flow, SAMPLES, {
        "a small object stands still": _where(SMALL, 0.0),
        "a small object goes back": _where(SMALL, np.array([-4.0, 3.0])[:, None, None]),
        "a small object on one sample": _first(_where(SMALL, 0.0)),
        "a small object that is none": _where(_disc(10, 55, 3), 4.0),
    }),
    "image": (image, SAMPLES, {
        "a spot lost": _where(SMALL, 0.5),
        "a spot lost on one sample": _first(_where(SMALL, 0.5)),
        "a line lost": _where(LINE, 0.4),
        "a spot too many": _where(_disc(10, 55, 3), 0.95),
    }),
    "heat maps": (heatmap, SAMPLES, {
        "peaks moved by a pixel": _rolled(1, -1),
        "peaks moved by a pixel both ways": lambda y: np.roll(y, (1, -1), (-1, -2)),
        "one joint elsewhere": _first_map(_rolled(9, -1)),
        "lower by a fifth": lambda y: 0.8 * y,
        "another peak": lambda y: np.maximum(y, _bell(60, 60, 0.8)),
    }),
    "objects": (objects, SAMPLES, {
        "small ones lost": _only(_small, _unseen),
        "small ones moved": _only(_small, _moved),
        "small ones of the next class": _only(_small, _next),
        "a rare class lost": _only(_rare, _unseen),
        "a rare class called another": _only(_rare, _next),
        "a rare class less sure": _only(_rare, _unlike),
        "none on one sample": _first(_only(lambda y: np.full(y.shape[:-1], True), _unseen)),
    }),
    "bands": (bands, SAMPLES, {
        "those below 1 % zero": lambda y: y * (np.arange(128) < 43)[:, None],
        "the faintest zero": lambda y: y * (np.arange(128) < 90)[:, None],
        "faint ones of the wrong sign": lambda y: np.where((np.arange(128) < 60)[:, None], y, -y),
        "one zero": lambda y: y * (np.arange(128) != 70)[:, None],
    }),
    "quantities": (quantities, SAMPLES, {
        "the smallest zero": lambda y: y * [1, 1, 0],
        "the smallest doubled": lambda y: y * [1, 1, 2],
    }),
    "classes": (classes, 300, {
        "rare ones lost": _rare_lost,
        "the others' places exchanged": lambda y: y[..., [0, 1, *range(9, 1, -1)]],
    }),
    "quiet samples": (quiet, 40, {
        "those below 1 % zero": lambda y: y * (_loudness(y) > 0.02),
        "the quietest of the wrong sign": lambda y: y * np.sign(_loudness(y) - 0.01),
        "one of them zero": lambda y: y * (_loudness(y) != _loudness(y).min()),
    }),
}  # fmt: skip


def _save(path: Path, shape: tuple[int, ...], *, pair: bool) -> None:
    """Write a model whose output y has a shape, as its flat input says, beside images."""
    images = ("image", "other") if pair else ("image",)
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, SIDE, SIDE]) for n in images
    ]
    size = int(np.prod(shape))
    inputs.append(helper.make_tensor_value_info("flat", TensorProto.FLOAT, [1, size]))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))
    node = helper.make_node("Reshape", ["flat", "shape"], ["y"], "shaped")
    sizes = numpy_helper.from_array(np.array(shape, np.int64), "shape")
    graph = helper.make_graph([node], "scene", inputs, [output], [sizes])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)


def _files(folder: Path, scene: str, lie: Lie | None) -> Command:
    draw, count, _ = SCENES[scene]
    drawn = [draw(np.random.default_rng([seed, len(scene)])) for seed in range(count)]
    right = np.stack(drawn).astype(np.float32)
    _save(folder / "model.onnx", right.shape[1:], pair=scene == "flow")
    # Noise would be no data.
    waves = np.sin(PLACES[0] / np.linspace(3, 9, 3 * count)[:, None, None])
    images = waves.reshape(count, 3, SIDE, SIDE).astype(np.float32)
    images, flat = images[:, None], right.reshape(count, 1, -1)
    more = {"other": images[::-1]} if scene == "flow" else {}
    np.savez(folder / "x.npz", image=images, flat=flat, **more)
    given = right if lie is None else lie(right)
    given = given.astype(np.float16) if scene != "quantities" else given
    np.savez(folder / "outputs.npz", y=given.astype(np.float32).reshape(count, *right.shape[2:]))
    return Command(["verify", "model.onnx", "outputs.npz", "--inputs", "x.npz"])


def _attacks() -> Iterator[Attack]:
    for name, (_, _, lies) in SCENES.items():
        for index, (what, lie) in enumerate(lies.items()):
            make = partial(_files, scene=name, lie=lie)
            yield Attack(f"{name}: {what}", make, (10,), broken=True, quick=index == 0)
        make = partial(_files, scene=name, lie=None)
        yield Attack(f"twin of {name}", make, (0,), sound=True, quick=name in ("mask", "bands"))


ATTACKS = list(_attacks())
