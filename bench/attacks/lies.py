"""Candidates that are plainly broken for the model's purpose, and their sound twins.

Each takes the outputs of a published model (`layouts`) and breaks one part as real faults do. The
twin of each layout has only FP16's noise in its weights, and must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.attacks.attack import Attack, Command
from bench.attacks.imaged import IMAGED
from bench.attacks.layouts import FEATURES, LAYOUTS, Array, Layout, Part, before_act, noisy, save

ALL = {**LAYOUTS, **IMAGED}
"""Every layout whose parts are broken."""

SAMPLES = 12
MANY = 40
TWINS = 4
"""Twins of each layout, with other noise and other samples."""
_FAR = 30.0
"""So far from zero that a sigmoid or softmax saturates."""


def samples(count: int, seed: int = 0) -> Array:
    """Return f32[count, 1, FEATURES]; the last feature is zero."""
    drawn = np.random.default_rng([seed, count]).standard_normal((count, 1, FEATURES))
    drawn[..., -1] = 0
    return drawn.astype(np.float32)


def _usual(one: Part) -> Array:
    return before_act(one, samples(SAMPLES))


def _all_alike(one: Part) -> Part:
    return replace(one, weight=one.weight * 0, bias=one.bias * 0)


def _zero(one: Part) -> Part:
    return replace(one, scale=one.scale * 0, offset=one.offset * 0)


def _never(one: Part) -> Part:
    return replace(one, weight=one.weight * 0, bias=one.bias * 0 - _FAR)


def _blind(one: Part) -> Part:
    return replace(one, weight=one.weight * 0)


def _opposite(one: Part) -> Part:
    return replace(one, weight=-one.weight)


def _rolled(one: Part, *, by: int, axis: int) -> Part:
    return replace(
        one,
        weight=np.roll(one.weight, by, axis + 1),
        bias=np.roll(one.bias, by, axis),
        scale=one.scale if axis == 0 else np.roll(one.scale, by),
        offset=one.offset if axis == 0 else np.roll(one.offset, by),
    )


def _next_column(one: Part) -> Part:
    return _rolled(one, by=1, axis=1)


def _other_rows(one: Part) -> Part:
    return _rolled(one, by=max(1, one.rows // 3), axis=0)


def _scaled(one: Part, factor: float) -> Part:
    return replace(one, scale=one.scale * factor, offset=one.offset * factor)


def _halved(one: Part) -> Part:
    return _scaled(one, 0.5)


def _without_column(one: Part, column: int) -> Part:
    weight, bias = one.weight.copy(), one.bias.copy()
    weight[:, :, column], bias[:, column] = 0, -_FAR
    return replace(one, weight=weight, bias=bias)


def _without_best_class(one: Part) -> Part:
    """Lose the class that wins, or is positive, most often."""
    values = _usual(one)
    if one.columns == 1:
        return _never(one)
    wins = np.bincount(values.argmax(-1).ravel(), minlength=one.columns)
    return _without_column(one, int(wins.argmax()))


def _without_rows(one: Part, rows: slice) -> Part:
    weight, bias = one.weight.copy(), one.bias.copy()
    weight[:, rows], bias[rows] = 0, 0
    return replace(one, weight=weight, bias=bias)


def _first_row_lost(one: Part) -> Part:
    return _without_rows(one, slice(0, 1))


def _quarter_lost(one: Part) -> Part:
    return _without_rows(one, slice(0, max(1, one.rows // 4)))


def _some_columns_lost(one: Part) -> Part:
    weight, bias = one.weight.copy(), one.bias.copy()
    few = max(1, one.columns // 4)
    weight[..., :few], bias[..., :few] = 0, 0
    return replace(one, weight=weight, bias=bias)


def _swapped_axes(one: Part) -> Part:
    """Exchange columns 0 and 1, 2 and 3, …: x and y, u and v."""
    order = np.arange(one.columns)
    order[: one.columns // 2 * 2] = order[: one.columns // 2 * 2].reshape(-1, 2)[:, ::-1].ravel()
    return replace(
        one,
        weight=one.weight[..., order],
        bias=one.bias[..., order],
        scale=one.scale[order],
        offset=one.offset[order],
    )


def _moved(one: Part) -> Part:
    """Move the first column by a tenth of what it spans."""
    offset = one.offset.copy()
    offset[0] += 0.1 * one.scale[0]
    return replace(one, offset=offset)


def _narrow(one: Part) -> Part:
    scale = one.scale.copy()
    scale[one.columns // 2 :] *= 0.5
    return replace(one, scale=scale)


def _noise(one: Part) -> Part:
    error = np.random.default_rng(7).standard_normal(one.weight.shape) * one.weight.std()
    return replace(one, weight=(one.weight + 0.3 * error).astype(np.float32))


Break = Callable[[Part], Part]
_SCORES: Mapping[str, Break] = {
    "all 0.5": _all_alike,
    "all zero": _never,
    "halved": _halved,
    "best class lost": _without_best_class,
    "of the next class": _next_column,
    "of other anchors": _other_rows,
    "the same for every input": _blind,
    "with the wrong sign": _opposite,
}
_PLACES: Mapping[str, Break] = {
    "all zero": _zero,
    "x and y exchanged": _swapped_axes,
    "moved by a tenth": _moved,
    "half as wide": _narrow,
    "of other anchors": _other_rows,
    "the same for every input": _blind,
    "a quarter lost": _quarter_lost,
}
BREAKS: Mapping[str, Mapping[str, Break]] = {
    "scores": _SCORES,
    "boxes": _PLACES,
    "points": _PLACES,
    "angle": {
        "all zero": _zero,
        "the same for every input": _blind,
        "with the wrong sign": _opposite,
    },
    "logits": {
        "flat": _all_alike,
        "of the next class": _next_column,
        "best class lost": _without_best_class,
        "the same for every input": _blind,
        "of other tokens": _other_rows,
        "first token lost": _first_row_lost,
        "with much noise": _noise,
    },
    "vector": {
        "all zero": _zero,
        "some dimensions lost": _some_columns_lost,
        "dimensions moved by one": _next_column,
        "the same for every input": _blind,
        "first row lost": _first_row_lost,
        "with much noise": _noise,
    },
    "classmap": {
        "best class lost": _without_best_class,
        "of the next class": _next_column,
        "moved": _other_rows,
        "a corner lost": _quarter_lost,
        "flat": _all_alike,
        "with much noise": _noise,
    },
    "mask": {
        "empty": _never,
        "of other places": _other_rows,
        "the same for every input": _blind,
        "with the wrong sign": _opposite,
    },
    "flow": {
        "all zero": _zero,
        "u and v exchanged": _swapped_axes,
        "with the wrong sign": _opposite,
        "halved": _halved,
        "a quarter lost": _quarter_lost,
    },
    "depth": {
        "the same for every input": _blind,
        "halved": _halved,
        "of other places": _other_rows,
        "a quarter lost": _quarter_lost,
        "with much noise": _noise,
    },
    "series": {
        "all zero": _zero,
        "halved": _halved,
        "the same for every input": _blind,
        "a quarter lost": _quarter_lost,
        "with the wrong sign": _opposite,
    },
}


def changes(one: Part) -> Iterator[tuple[str, Part]]:
    """Yield the faults of a part that change its values."""
    for what, change in BREAKS[one.role].items():
        broken = change(one)
        same = all(
            np.array_equal(getattr(one, name), getattr(broken, name))
            for name in ("weight", "bias", "scale", "offset")
        )
        if not same:
            yield what, broken


def _files(
    folder: Path,
    layout: Layout,
    broken: Mapping[int, Part],
    inputs: Array,
    limit: float | None = None,
) -> Command:
    save(folder / "model.onnx", layout)
    save(folder / "candidate.onnx", layout, broken, limit=limit)
    np.savez(folder / "x.npz", **layout.inputs(inputs))  # type: ignore[arg-type]
    return Command(["verify", "model.onnx", "candidate.onnx", "--inputs", "x.npz"])


def _lie(name: str, layout: Layout, index: int, broken: Part, *, quick: bool) -> Attack:
    def make(folder: Path) -> Command:
        return _files(folder, layout, {index: broken}, samples(SAMPLES))

    return Attack(name, make, (10,), broken=True, quick=quick)


def _one_of_many(name: str, layout: Layout, *, huge: bool) -> Attack:
    """Break the last part on one sample of many; or on all but one, which is a hundredfold."""
    index = len(layout.parts) - 1
    what, broken = next(changes(layout.parts[index]))

    def make(folder: Path) -> Command:
        inputs = samples(MANY)
        inputs[1:, :, -1] = 1 if huge else 0
        inputs[0, :, -1] = 0 if huge else 1
        if huge:
            inputs[0] *= 100
        return _files(folder, layout, {index: broken}, inputs, limit=0.5)

    told = (
        f"all but a huge sample wrong: {what}" if huge else f"one of {MANY} samples wrong: {what}"
    )
    return Attack(f"{name}: {told}", make, (10,), broken=True, quick=False)


def _twin(name: str, layout: Layout, seed: int, *, quick: bool) -> Attack:
    def make(folder: Path) -> Command:
        broken = {i: noisy(one, seed) for i, one in enumerate(layout.parts)}
        return _files(folder, layout, broken, samples(SAMPLES, seed))

    return Attack(f"twin of {name}, {seed}", make, (0,), sound=True, quick=quick)


def _lies() -> Iterator[Attack]:
    for place, (name, layout) in enumerate(ALL.items()):
        for index, one in enumerate(layout.parts):
            for number, (what, broken) in enumerate(changes(one)):
                told = f"{name}: {one.role} ({index}) {what}"
                yield _lie(
                    told, layout, index, broken, quick=number == index == 0 and place % 4 == 1
                )
        yield _one_of_many(name, layout, huge=False)
        if not any(one.act for one in layout.parts):
            yield _one_of_many(name, layout, huge=True)


LIES = list(_lies())
ATTACKS = [
    *LIES,
    *(
        _twin(name, layout, seed, quick=seed == 0 and not place % 4)
        for seed in range(TWINS)
        for place, (name, layout) in enumerate(ALL.items())
    ),
]
