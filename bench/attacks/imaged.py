"""Layouts that show what they are only beside an input image: its size tells what cells are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto

from bench.attacks.layouts import Graph, Joined, Layout, Part, maps, part, rows


def _cells(count: int, *, act: str = "", seed: int = 0) -> tuple[Part, Part, Part]:
    """Return box numbers, objectness and scores of ten classes for so many boxes."""
    return (
        part("boxes", count, 4, spread=1.5, seed=seed),
        # Most are low.
        part("scores", count, 1, act=act, spread=2.0, bias=-6.0, seed=seed),
        part("scores", count, 10, act=act, spread=2.0, bias=-1.0, seed=seed),
    )


def _one_map(side: int) -> Joined:
    """One output [1, all columns, side, side]."""
    return lambda graph, names: maps(side, side)(graph, rows(graph, names))


def _maps_of_anchors(*sides: int) -> Joined:
    """An output [1, 3 · columns, side, side] of each three parts."""

    def join(graph: Graph, names: Sequence[str]) -> Sequence[str]:
        outputs = []
        for index, side in enumerate(sides):
            (table,) = rows(graph, names[3 * index : 3 * index + 3])
            table = graph.shaped(table, 1, 3, side * side, -1)
            (turned,) = graph.add("Transpose", table, perm=[0, 1, 3, 2])
            outputs.append(graph.shaped(turned, 1, -1, side, side))
        return outputs

    return join


def _by_anchor(side: int) -> Joined:
    """One output [1, 3, side, side, columns]."""

    def join(graph: Graph, names: Sequence[str]) -> Sequence[str]:
        (table,) = rows(graph, names)
        return [graph.shaped(table, 1, 3, side, side, -1)]

    return join


def _detectors() -> Mapping[str, Layout]:
    boxes, objects, _ = _cells(144, act="Sigmoid")
    return {
        "FastestDet": Layout(
            (objects, boxes, part("scores", 144, 10, act="Softmax", spread=3.0)),
            _one_map(12),
            image=(96, 96),
        ),
        "YOLOX maps": Layout(_cells(144, act="Sigmoid"), _one_map(12), image=(96, 96)),
        "YOLOv3 maps": Layout(
            (*_cells(432), *_cells(108, seed=1)), _maps_of_anchors(12, 6), image=(96, 96)
        ),
        "YOLOv5 maps": Layout(_cells(432), _by_anchor(12), image=(96, 96)),
        "YOLO rows of logits": Layout(_cells(252), rows, image=(64, 64)),
    }


def _regions(graph: Graph, names: Sequence[str]) -> Sequence[str]:
    """Each part [1, 16, columns] is an output [1, 64, 64, columns] of 4 × 4 regions."""
    outputs = []
    for name in maps(4, 4)(graph, names):
        scales = graph.constant(np.array([1, 1, 16, 16], np.float32))
        (large,) = graph.add("Resize", name, "", scales, mode="nearest")
        outputs += graph.add("Transpose", large, perm=[0, 2, 3, 1])
    return outputs


def _segmenters() -> Mapping[str, Layout]:
    return {
        "segmenter, channels last": Layout(
            (part("classmap", 16, 3, act="Softmax", spread=4.0),), _regions, image=(64, 64)
        ),
    }


def _peaks(side: int, *, last: bool = False) -> Joined:
    """Places [1, joints, 2] and heights [1, joints, 1] are one output of Gaussian peaks."""

    def join(graph: Graph, names: Sequence[str]) -> Sequence[str]:
        places, heights = names
        distances = []
        for axis, shape in enumerate(((1, 1, 1, side), (1, 1, side, 1))):
            (at,) = graph.add("Gather", places, graph.constant(np.array([axis])), axis=2)
            line = graph.constant(np.arange(side, dtype=np.float32).reshape(shape))
            (off,) = graph.add("Sub", line, graph.shaped(at, 1, -1, 1, 1))
            distances += graph.add("Mul", off, off)
        (squares,) = graph.add("Add", *distances)
        (scaled,) = graph.add("Mul", squares, graph.constant(np.array(-0.125, np.float32)))
        (bells,) = graph.add("Exp", scaled)
        (made,) = graph.add("Mul", bells, graph.shaped(heights, 1, -1, 1, 1))
        return graph.add("Transpose", made, perm=[0, 2, 3, 1]) if last else [made]

    return join


def _poses() -> Mapping[str, Layout]:
    parts = (
        part("points", 17, 2, act="Sigmoid", scale=40.0, offset=4.0, spread=1.5),
        part("scores", 17, 1, act="Sigmoid", spread=1.0, bias=1.0),
    )
    return {
        "pose heat maps": Layout(parts, _peaks(48)),
        "pose heat maps, channels last": Layout(parts, _peaks(48, last=True)),
    }


def _pictures(*, last: bool = False, coded: bool = False) -> Joined:
    """Each part [1, 36, columns] is a smooth image of 48 × 48 pixels."""

    def join(graph: Graph, names: Sequence[str]) -> Sequence[str]:
        outputs = []
        for name in maps(6, 6)(graph, names):
            scales = graph.constant(np.array([1, 1, 8, 8], np.float32))
            (made,) = graph.add("Resize", name, "", scales, mode="linear")
            if last:
                (made,) = graph.add("Transpose", made, perm=[0, 2, 3, 1])
            if coded:
                (made,) = graph.add("Mul", made, graph.constant(np.array(255, np.float32)))
                (made,) = graph.add("Round", made)
                (made,) = graph.add("Cast", made, to=TensorProto.UINT8)
            outputs.append(made)
        return outputs

    return join


def _restorers() -> Mapping[str, Layout]:
    def pixels(columns: int) -> tuple[Part, ...]:
        return (part("depth", 36, columns, act="Sigmoid", spread=1.5),)

    return {
        "restorer": Layout(pixels(3), _pictures(), image=(48, 48)),
        "restorer, 8 bits, channels last": Layout(
            pixels(3), _pictures(last=True, coded=True), image=(48, 48)
        ),
        "grey restorer": Layout(pixels(1), _pictures(), image=(48, 48), channels=1),
    }


def _found(*, turned: bool = False) -> Joined:
    """Outputs [n, 2], [n] and [n, d], or [d, n]: what has a score above 0.3."""

    def join(graph: Graph, names: Sequence[str]) -> Sequence[str]:
        zero = graph.constant(np.array([0]))
        places, scores, vectors = (graph.add("Squeeze", name, zero)[0] for name in names)
        (scores,) = graph.add("Squeeze", scores, graph.constant(np.array([1])))
        (vectors,) = graph.add("LpNormalization", vectors, axis=-1, p=2)
        (kept,) = graph.add("Greater", scores, graph.constant(np.array(0.3, np.float32)))
        found = [graph.add("Compress", one, kept, axis=0)[0] for one in (places, scores, vectors)]
        return [*found[:2], *graph.add("Transpose", found[2], perm=[1, 0])] if turned else found

    return join


def _finders() -> Mapping[str, Layout]:
    parts = (
        part("points", 60, 2, act="Sigmoid", scale=88.0, offset=4.0, spread=1.5),
        part("scores", 60, 1, act="Sigmoid", spread=1.5, bias=-1.0),
        part("vector", 60, 64),
    )
    return {
        "keypoints": Layout(parts, _found(), image=(96, 96)),
        "keypoints, descriptors in columns": Layout(parts, _found(turned=True), image=(96, 96)),
    }


IMAGED = {**_detectors(), **_segmenters(), **_poses(), **_restorers(), **_finders()}
