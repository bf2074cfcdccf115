"""One scene of boxes, written down in each layout that models have."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.boxes import STRIDES, cells

HEIGHT, WIDTH, CLASSES = 64, 128, 3
INPUTS = {"image": (1, 3, HEIGHT, WIDTH)}
CORNERS = np.array([[10, 12, 34, 40], [60, 8, 92, 50], [70, 20, 120, 60], [4, 4, 16, 30]], float)
SCORES = np.array([0.9, 0.8, 0.6, 0.1])
KINDS = np.array([0, 2, 1, 1])
PLACES, CELL_STRIDES = cells((HEIGHT, WIDTH))


def centred(corners: NDArray[Any]) -> NDArray[np.float64]:
    """Return centre, width and height of corners [n, 4]."""
    return np.concatenate(
        [(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], axis=1
    )


def probabilities() -> NDArray[np.float64]:
    """Return a row of three classes for each box, mostly one of them."""
    return np.where(np.arange(CLASSES) == KINDS[:, None], SCORES[:, None], 0.02)


def dense(kept: int = 3) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return centre and size, objectness and class scores of every cell; a few have an object."""
    rng = np.random.default_rng(3)
    boxes = np.concatenate([(PLACES + 0.5) * CELL_STRIDES, 0.5 * CELL_STRIDES.repeat(2, 1)], axis=1)
    objects = 0.01 * rng.random((len(boxes), 1))
    classes = rng.random((len(boxes), CLASSES))
    for box, score, kind in list(zip(centred(CORNERS), SCORES, KINDS, strict=True))[:kept]:
        nearest = np.abs((PLACES + 0.5) * CELL_STRIDES - box[:2]).sum(axis=1).argmin()
        boxes[nearest], objects[nearest] = box, score
        classes[nearest] = np.arange(CLASSES) == kind
    return boxes, objects, classes


def raw() -> NDArray[np.float32]:
    """Return the scene as YOLOX's head has it."""
    boxes, objects, classes = dense()
    places = boxes[:, :2] / CELL_STRIDES - PLACES
    sizes = np.log(boxes[:, 2:] / CELL_STRIDES)
    return np.concatenate([places, sizes, objects, classes], axis=1)[None].astype(np.float32)


def joined() -> NDArray[np.float32]:
    """Return the scene decoded, with objectness."""
    return np.concatenate(dense(), axis=1)[None].astype(np.float32)


def anchored() -> NDArray[np.float32]:
    """Return the scene with three boxes for each cell, map after map."""
    rows, parts, start = joined()[0], [], 0
    for stride in STRIDES:
        count = (HEIGHT // stride) * (WIDTH // stride)
        part = rows[start : start + count]
        other = part.copy()
        other[:, 4] = 0.01
        parts += [part, other, other]
        start += count
    return np.concatenate(parts)[None]


def transposed() -> NDArray[np.float32]:
    """Return the scene decoded, without objectness, rows last."""
    boxes, objects, classes = dense()
    return np.concatenate([boxes, objects * classes], axis=1).T[None].astype(np.float32)


def heads(bins: int = 8) -> list[NDArray[np.float32]]:
    """Return scores, and distributions of distances to four sides, of each map in turn."""
    boxes, objects, classes = dense()
    middle = (PLACES + 0.5) * CELL_STRIDES
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    sides = np.concatenate([middle - low, high - middle], axis=1) / CELL_STRIDES
    near = np.clip(1 - np.abs(sides[..., None] - np.arange(bins)), 1e-12, None)
    parts, start = list[NDArray[np.float32]](), 0
    for stride in STRIDES:
        each = slice(start, start := start + (HEIGHT // stride) * (WIDTH // stride))
        shares = np.log(near[each]).reshape(-1, 4 * bins)
        parts += [part[None].astype(np.float32) for part in ((objects * classes)[each], shares)]
    return parts


def final(order: tuple[str, ...]) -> NDArray[np.float32]:
    """Return rows of the named columns: image, box, score, class."""
    columns = {
        "image": np.zeros((4, 1)),
        "box": CORNERS,
        "score": SCORES[:, None],
        "class": KINDS[:, None],
    }
    return np.concatenate([columns[name] for name in order], axis=1).astype(np.float32)
