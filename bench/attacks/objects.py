"""Objects of an image as seven kinds of detectors hand them out, and lies about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from bench.attacks.scenes import IMAGE, KEEP, Array, Arrays, Encode, Lie, Rng, Scene, first

GRID, CLASSES = IMAGE // 8, 10
OBJECTS, SPARE = 10, 10
"""Objects of an image, and places for those that a lie adds."""


def objects(rng: Rng) -> Arrays:
    """Return objects: boxes f64[20, 4] as corners, scores f64[20], kinds i64[20], cells i64[20].

    Every fourth is small; the last half has no score. One of ten is of the rare class 9.
    """
    cells = rng.permutation(GRID * GRID)[: OBJECTS + SPARE]
    centres = (np.stack([cells % GRID, cells // GRID], axis=1) + rng.random((len(cells), 2))) * 8
    small = np.arange(len(cells))[:, None] % 4 == 3
    sides = np.where(small, 6.0, 14 + 20 * rng.random((len(cells), 2)))
    kinds = rng.integers(0, 3, len(cells))
    kinds[2] = 9
    scores = np.where(np.arange(len(cells)) < OBJECTS, rng.uniform(0.5, 0.95, len(cells)), 0.0)
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], axis=1)
    return {"boxes": boxes, "scores": scores, "kinds": kinds, "cells": cells}


def _small(y: Arrays) -> Array:
    return np.asarray((y["boxes"][..., 2] - y["boxes"][..., 0] < 8) & (y["scores"] > 0))


def _rare(y: Arrays) -> Array:
    return np.asarray((y["kinds"] == 9) & (y["scores"] > 0))


def _seen(y: Arrays) -> Array:
    return np.asarray(y["scores"] > 0)


def _faintest(y: Arrays) -> Array:
    scores = np.where(y["scores"] > 0, y["scores"], 9)
    return np.asarray(scores == scores.min(axis=-1, keepdims=True))


def some(chosen: Callable[[Arrays], Array], what: str, value: Any) -> Lie:
    """Return a lie that sets, or changes by a function, what the chosen objects have."""

    def lie(y: Arrays) -> Arrays:
        mask, array = chosen(y), y[what].copy()
        array[mask] = value(array[mask]) if callable(value) else value
        return {**y, what: array}

    return lie


def _narrowed(boxes: Array) -> Array:
    boxes[:, 2] = (boxes[:, 0] + boxes[:, 2]) / 2
    return boxes


def _again(y: Arrays, *, count: int = OBJECTS, moved: float = 5.0) -> Arrays:
    """Return objects of which some appear twice."""
    y = {name: array.copy() for name, array in y.items()}
    new = slice(OBJECTS, OBJECTS + count)
    y["boxes"][:, new] = y["boxes"][:, :count] + moved
    for name in ("kinds", "scores"):
        y[name][:, new] = y[name][:, :count]
    return y


def _ghost(y: Arrays) -> Arrays:
    scores = y["scores"].copy()
    scores[:, OBJECTS] = 0.8
    return {**y, "scores": scores}


def _swapped(kinds: Array) -> Array:
    return np.where(kinds < 2, 1 - kinds, kinds)


OF_OBJECTS: Mapping[str, Lie] = {
    "small ones lost": some(_small, "scores", 0.0),
    "small ones moved by their width": some(_small, "boxes", lambda b: b + 6),
    "small ones twice as large": some(_small, "boxes", lambda b: b + np.array([-3, -3, 3, 3])),
    "a rare class lost": some(_rare, "scores", 0.0),
    "a rare class called another": some(_rare, "kinds", 1),
    "a rare class less sure": some(_rare, "scores", lambda s: s - 0.3),
    "the faintest lost": some(_faintest, "scores", 0.0),
    "two classes exchanged": some(_seen, "kinds", _swapped),
    "scores lower by a third": some(_seen, "scores", lambda s: s * 0.67),
    "moved by half": some(_seen, "boxes", lambda b: b + 8),
    "half as wide": some(_seen, "boxes", _narrowed),
    "each twice": _again,
    "one twice": partial(_again, count=1, moved=12.0),
    "one that is none": _ghost,
    "none on one sample": first(some(_seen, "scores", 0.0)),
    "moved on one sample": first(some(_seen, "boxes", lambda b: b + 12)),
}


def _shares(y: Arrays) -> Array:
    """Return class probabilities [objects, CLASSES]."""
    return np.where(np.arange(CLASSES) == y["kinds"][:, None], 0.95, 0.02)


def _grid_map(y: Arrays) -> Arrays:
    table = _cells(y, GRID * GRID)
    return {"y": table.T.reshape(1, 5 + CLASSES, GRID, GRID)}


def _cells(y: Arrays, count: int) -> Array:
    """Return a table [count, 5 + CLASSES] of offsets and logarithms of sizes in strides of 8."""
    draw = np.random.default_rng(count)
    table = draw.normal(0, 0.7, (count, 5 + CLASSES))
    table[:, 4:] = 0.01 + 0.02 * draw.random((count, 1 + CLASSES))
    at = y["cells"][y["scores"] > 0]
    some_ = {name: array[y["scores"] > 0] for name, array in y.items()}
    centres = (some_["boxes"][:, :2] + some_["boxes"][:, 2:]) / 16
    sides = (some_["boxes"][:, 2:] - some_["boxes"][:, :2]) / 8
    table[at, :2] = centres - np.stack([at % GRID, at // GRID], axis=1)
    table[at, 2:4] = np.log(sides)
    table[at, 4], table[at, 5:] = some_["scores"], _shares(some_)
    return table


def _logit(share: Array) -> Array:
    share = np.clip(share, 1e-4, 1 - 1e-4)
    return np.asarray(np.log(share / (1 - share)))


def _anchored(y: Arrays) -> Arrays:
    """Return [1, 3, 12, 12, 5 + C] of logits; all objects are of the first anchor."""
    table = np.concatenate(
        [_cells({**y, "scores": y["scores"] * i}, GRID * GRID) for i in (1, 0, 0)]
    )
    table[:, 4:] = _logit(table[:, 4:])
    table[:, :2] = np.random.default_rng(5).normal(0.6, 0.5, (len(table), 2)) + 0 * table[:, :2]
    at = y["cells"][y["scores"] > 0]
    boxes = y["boxes"][y["scores"] > 0]
    offset = (boxes[:, :2] + boxes[:, 2:]) / 16 - np.stack([at % GRID, at // GRID], axis=1)
    table[at, :2] = offset + 0.1
    return {"y": table.reshape(1, 3, GRID, GRID, -1)}


def _decoded(y: Arrays) -> Array:
    """Return rows [189, 5 + C] of centres, sizes, objectness and classes, one for each cell."""
    draw, rows = np.random.default_rng(6), []
    for stride in (8, 16, 32):
        side = IMAGE // stride
        row, column = np.divmod(np.arange(side * side), side)
        centres = (np.stack([column, row], axis=1) + draw.random((side * side, 2))) * stride
        rows.append(np.concatenate([centres, stride * (1 + draw.random((side * side, 2)))], axis=1))
    boxes = np.concatenate(rows)
    table = np.concatenate([boxes, 0.01 + 0.01 * draw.random((len(boxes), 1 + CLASSES))], axis=1)
    seen = y["scores"] > 0
    some_ = {name: array[seen] for name, array in y.items()}
    corners, at = some_["boxes"], some_["cells"]
    table[at, :2] = (corners[:, :2] + corners[:, 2:]) / 2
    table[at, 2:4] = corners[:, 2:] - corners[:, :2]
    table[at, 4], table[at, 5:] = some_["scores"], _shares(some_)
    return table


def _rows(y: Arrays) -> Arrays:
    return {"y": _decoded(y)[None]}


def _columns(y: Arrays) -> Arrays:
    table = _decoded(y)
    table[:, 5:] *= table[:, 4:5]
    return {"y": np.delete(table, 4, axis=1).T[None]}


def _ranked(y: Arrays) -> Array:
    order = np.argsort(-y["scores"], kind="stable")
    return np.concatenate(
        [y["boxes"], y["scores"][:, None], y["kinds"][:, None]], axis=1, dtype=np.float64
    )[order]


def _nms_rows(y: Arrays) -> Arrays:
    rows = _ranked(y)
    rows[rows[:, 4] <= 0] = 0
    return {"detections": rows[None]}


def _lists(y: Arrays) -> Arrays:
    rows = _ranked(y)
    labels = rows[:, 5].astype(np.int64)
    return {"boxes": rows[:, :4], "scores": rows[:, 4], "labels": labels, KEEP: rows[:, 4] > 0}


def _queries(y: Arrays) -> Arrays:
    """Return DETR's logits [1, 20, 11], the last of no object, and boxes as shares."""
    boxes, kinds = y["boxes"] / IMAGE, y["kinds"]
    boxes = (
        np.concatenate([boxes[:, :2] + boxes[:, 2:], 2 * (boxes[:, 2:] - boxes[:, :2])], axis=1) / 2
    )
    # Of a softmax: the class has the score, most of the rest is no object.
    shares = np.full((len(kinds), CLASSES + 1), 1e-3)
    shares[np.arange(len(kinds)), kinds] = np.maximum(y["scores"], 1e-3)
    shares[:, -1] = 1 - shares[:, :-1].sum(axis=1)
    shares = np.maximum(shares, 1e-3)
    more = np.zeros((20, CLASSES + 1))
    more[:, -1] = 6.0
    extra = np.full((20, 4), 0.4) + np.random.default_rng(1).random((20, 4)) * 0.1
    return {
        "pred_logits": np.concatenate([np.log(shares) + 3, more])[None],
        "pred_boxes": np.concatenate([boxes, extra])[None],
    }


DETECTORS: Mapping[str, tuple[Encode, str]] = {
    "grid map": (_grid_map, "a detector's cells"),
    "anchors' logits": (_anchored, "a detector's cells"),
    "decoded rows": (_rows, "boxes"),
    "decoded columns": (_columns, "boxes"),
    "NMS rows": (_nms_rows, "boxes"),
    "lists": (_lists, "boxes"),
    "queries": (_queries, "boxes"),
}


DETECTING = {
    name: Scene(objects, OF_OBJECTS, told, encode=encode)
    for name, (encode, told) in DETECTORS.items()
}
