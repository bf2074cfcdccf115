"""Every layout of one scene shows the same boxes."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from halfwise.metrics.boxes import cells, detect, overlaps
from halfwise.records import Boxes
from tests.unit.metrics import scenes

SHARES = scenes.CORNERS / [scenes.WIDTH, scenes.HEIGHT, scenes.WIDTH, scenes.HEIGHT]
LOGITS = np.log(scenes.probabilities() / (1 - scenes.probabilities()))
WITH_NONE = np.concatenate([scenes.probabilities(), 1 - scenes.SCORES[:, None] - 0.04], axis=1)
IMAGE = (scenes.HEIGHT, scenes.WIDTH)

LAYOUTS: list[tuple[Boxes, list[NDArray[Any]]]] = [
    (Boxes(layout="raw", image=IMAGE), [scenes.raw()]),
    (Boxes(layout="joined"), [scenes.joined()]),
    (Boxes(layout="joined"), [scenes.anchored()]),
    (Boxes(layout="transposed"), [scenes.transposed()]),
    (
        Boxes(layout="final", corners=True, columns=(0, 4, 5), suppress=False),
        [scenes.final(("box", "score", "class"))[None]],
    ),
    (
        Boxes(layout="final", corners=True, columns=(1, 6, 5), suppress=False),
        [scenes.final(("image", "box", "class", "score"))],
    ),
    (
        Boxes(layout="final", corners=True, columns=(3, 2, 1), suppress=False),
        [scenes.final(("image", "class", "score", "box"))[None, None]],
    ),
    (
        Boxes(layout="listed", corners=True, suppress=False),
        [scenes.CORNERS, scenes.SCORES, scenes.KINDS],
    ),
    (
        Boxes(layout="listed", corners=True, suppress=False),
        [scenes.CORNERS[None], scenes.SCORES[None], scenes.KINDS[None].astype(np.float32)],
    ),
    (Boxes(layout="per-class"), [scenes.centred(scenes.CORNERS), scenes.probabilities()]),
    (
        Boxes(layout="per-class", activation="sigmoid"),
        [scenes.centred(scenes.CORNERS)[None], LOGITS[None]],
    ),
    (
        Boxes(layout="per-class", activation="softmax", background=-1),
        [scenes.centred(scenes.CORNERS), np.log(WITH_NONE)],
    ),
    (
        Boxes(layout="per-class", background=0),
        [scenes.centred(scenes.CORNERS), np.roll(WITH_NONE, 1, axis=1)],
    ),
]


def outputs(arrays: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {str(i): array for i, array in enumerate(arrays)}


@pytest.mark.parametrize(("how", "arrays"), LAYOUTS)
def test_each_layout_shows_the_same(how: Boxes, arrays: list[NDArray[Any]]) -> None:
    given = outputs(arrays)
    (found,) = detect(given, list(given), how)
    assert_allclose(found.boxes, scenes.CORNERS[:3], atol=1e-4)
    assert_allclose(found.scores, scenes.SCORES[:3], atol=1e-6)
    assert found.classes.tolist() == scenes.KINDS[:3].tolist()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("how", "arrays"), LAYOUTS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_detects_nothing(
    how: Boxes, arrays: list[NDArray[Any]], value: float
) -> None:
    given = outputs([np.full(array.shape, value) for array in arrays])
    assert not any(map(len, detect(given, list(given), how)))


@pytest.mark.parametrize(("how", "arrays"), LAYOUTS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (0, 4), (1, 4, 2), (1, 2, 3)])
def test_other_shapes_detect_nothing(
    how: Boxes, arrays: list[NDArray[Any]], shape: tuple[int, ...]
) -> None:
    given = outputs([np.ones(shape) for _ in arrays])
    assert not any(map(len, detect(given, list(given), how)))


def test_images_of_a_batch_are_shown_one_by_one() -> None:
    batch = {"y": np.concatenate([scenes.joined(), 0 * scenes.joined()])}
    first, second = detect(batch, ["y"], Boxes(layout="joined"))
    assert (len(first), len(second)) == (3, 0)


def test_of_overlapping_boxes_of_a_class_the_best_stays() -> None:
    boxes = np.array([[0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 10], [30, 0, 40, 10]], float)
    given = {"b": boxes, "s": np.array([0.7, 0.9, 0.5, 0.4]), "c": np.array([1, 1, 0, 1])}
    kept, every = (
        next(iter(detect(given, "bsc", Boxes(layout="listed", corners=True, suppress=way))))
        for way in (True, False)
    )
    assert kept.scores.tolist() == [0.9, 0.5, 0.4]
    assert len(every) == 4


def test_at_most_300_boxes_are_of_one_image() -> None:
    count = 1000
    given = {"b": np.arange(4 * count).reshape(count, 4), "s": np.linspace(0.4, 1, count)}
    for suppress in (True, False):
        (found,) = detect(given, "bs", Boxes(layout="listed", corners=True, suppress=suppress))
        assert len(found) == 300
        assert found.scores.min() > 0.8


def test_boxes_overlap_as_their_areas_do() -> None:
    boxes = np.array([[0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 5, 5], [4, 4, 3, 3]], float)
    shares = overlaps(boxes, boxes)
    assert_allclose(np.diag(shares), [1, 1, 0, 0])
    assert shares[0, 1] == pytest.approx(1 / 7)
    assert not shares[0, 2:].any()


def test_cells_are_numbered_row_by_row_map_by_map() -> None:
    places, strides = cells((64, 96))
    assert len(places) == 8 * 12 + 4 * 6 + 2 * 3
    assert places[13].tolist() == [1, 1]
    assert places[-1].tolist() == [2, 1]
    assert sorted(set(strides[:, 0])) == [8, 16, 32]
