"""A detector's cells: which outputs they are, and when two tables of them agree."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.errors import UsageError
from halfwise.metrics.evidence import Inputs
from halfwise.metrics.grids import agreement
from halfwise.metrics.kinds import recognise
from halfwise.metrics.recognised import settle, untested_task
from halfwise.records import Cells, Criterion
from tests.unit.metrics.looked import settled

IMAGE: Inputs = {"image": (1, 3, 128, 128)}
CLASSES = 4
SIDE = 16
RNG = np.random.default_rng(4)
Table = NDArray[Any]


def table(cells: int = SIDE * SIDE, *, found: int = 5) -> Table:
    """Return logits [cells, 5 + C]: offsets and logarithms of sizes, objectness, classes."""
    rows = RNG.standard_normal((cells, 5 + CLASSES))
    rows[:, 4:] -= 6
    rows[:found, 4], rows[np.arange(found), 5 + np.arange(found) % CLASSES] = 2, 3
    return rows


def sigmoid(rows: Table) -> Table:
    """Return a table with the scores as probabilities."""
    return np.concatenate([rows[..., :4], 1 / (1 + np.exp(-rows[..., 4:]))], axis=-1)


def first(rows: Table) -> Table:
    """Return a table with objectness first, as FastestDet has it."""
    return rows[..., [4, 0, 1, 2, 3, *range(5, 5 + CLASSES)]]


def as_map(rows: Table, side: int = SIDE) -> Table:
    return rows.T.reshape(1, -1, side, side).astype(np.float32)


def of_anchors(side: int) -> Table:
    return np.concatenate([as_map(table(side * side), side) for _ in range(3)], axis=1)


ROWS = 16 * 16 + 8 * 8 + 4 * 4
LAYOUTS: list[tuple[Cells, list[Table]]] = [
    (Cells(layout="maps"), [as_map(sigmoid(table()))]),
    (Cells(layout="maps", objectness=0), [as_map(first(sigmoid(table())))]),
    (Cells(layout="maps", anchors=3, logits=True), [of_anchors(16), of_anchors(8)]),
    (
        Cells(layout="maps", anchors=3),
        [np.concatenate([as_map(sigmoid(table())) for _ in range(3)], axis=1)],
    ),
    (Cells(layout="rows", logits=True), [table(3 * SIDE * SIDE).reshape(1, 3, SIDE, SIDE, -1)]),
    (Cells(layout="rows"), [sigmoid(table(3 * SIDE * SIDE)).reshape(1, 3, SIDE, SIDE, -1)]),
    (Cells(layout="rows", logits=True), [table(ROWS)[None]]),
    (Cells(layout="rows", logits=True), [table(3 * ROWS)[None]]),
]


def read(*arrays: Table, inputs: Inputs = IMAGE, name: str = "out") -> list[Cells | None]:
    outputs = {f"{name}{i}": array for i, array in enumerate(arrays)}
    found = [one for one in recognise([outputs], inputs) if one.kind == "cells"]
    assert all(set(one.outputs) == set(outputs) for one in found)
    return [one.cells for one in found]


@pytest.mark.parametrize(("how", "arrays"), LAYOUTS)
def test_each_layout_is_told_beside_an_image(how: Cells, arrays: list[Table]) -> None:
    assert read(*arrays) == [how]
    assert read(*arrays, inputs={"image": (1, 128, 128, 3)}) == [how]
    assert read(*arrays, inputs={}) == []
    assert read(*arrays, inputs={"image": (1, 3, 99, 128)}) == []
    assert read(*arrays, name="offsets") == []


def of_no_object(rows: Table) -> Table:
    return np.where(np.arange(rows.shape[-1]) == 4, -6, rows)


FIRST_CLASS = table()
FIRST_CLASS[:5, 5:] = -6
BUSY = table()
BUSY[:40, 4] = 2
PIXELS = table()
PIXELS[:, :4] = 60 + 10 * PIXELS[:, :4]


@pytest.mark.parametrize(
    "arrays",
    [
        [as_map(sigmoid(FIRST_CLASS))],  # what stands there is a class, and the others are low
        [as_map(sigmoid(BUSY))],
        [as_map(sigmoid(PIXELS))],
        [as_map(sigmoid(of_no_object(table())))],
        [as_map(1 / (1 + np.exp(-table())))],  # box numbers within [0, 1] stand out by nothing
        [as_map(table())],  # logits of one box per cell: like features
        [of_anchors(16)],
        [RNG.standard_normal((1, 27, 16, 16)), RNG.standard_normal((1, 27, 8, 8))],
        [np.maximum(RNG.standard_normal((1, 27, 16, 16)), 0)],
        [RNG.standard_normal((1, 3, 16, 16, 9))],
        [np.where(RNG.random((1, 27, 16, 16)) < 0.05, 2, -4.0), 0 * of_anchors(8)],
        [as_map(sigmoid(table()))[..., :15]],
        [as_map(sigmoid(table()[:4]), 2)],  # too few cells
        [table(ROWS)[None] * np.nan],
    ],
)
def test_what_is_not_surely_a_detectors_is_not_taken_for_it(arrays: list[Table]) -> None:
    assert read(*arrays) == []


HOW = Cells(layout="rows", logits=True)
ONE = table(ROWS)[None]
MOST = np.abs(ONE[..., :2]).max()


def judged(candidate: Table, reference: Table = ONE, how: Cells = HOW) -> float:
    return agreement([{"y": reference}], [{"y": candidate}], ("y",), how)


def changed(place: tuple[int, int], value: float) -> Table:
    other = ONE.copy()
    other[0][place] = value
    return other


@pytest.mark.parametrize(("how", "arrays"), LAYOUTS)
def test_the_same_cells_agree_and_lost_ones_do_not(how: Cells, arrays: list[Table]) -> None:
    outputs = {str(i): array for i, array in enumerate(arrays)}
    lost = {name: np.where(array > 0, 0, array) for name, array in outputs.items()}
    assert agreement([outputs], [outputs], tuple(outputs), how) == 1
    assert agreement([outputs], [lost], tuple(outputs), how) == 0


@pytest.mark.parametrize(
    ("place", "value", "agreeing"),
    [
        ((9, 0), 99.0, 5),  # no one sees this cell
        ((9, 4), -1.0, 5),
        ((9, 4), -0.8, 5 / 6),
        ((9, 4), np.nan, 5 / 6),
        ((0, 4), 1.35, 5),
        ((0, 4), 1.2, 4),
        ((0, 5), 2.0, 5),
        ((0, 5), 1.6, 4),
        ((0, 6), 0.0, 4),
        ((0, 0), ONE[0, 0, 0] + 0.009 * MOST, 5),
        ((0, 0), ONE[0, 0, 0] + 0.011 * MOST, 4),
        ((0, 3), np.inf, 4),
        ((0, 3), np.nan, 4),
    ],
)
def test_a_visible_cell_keeps_its_scores_and_numbers(
    place: tuple[int, int], value: float, agreeing: float
) -> None:
    share = agreeing if agreeing < 1 else agreeing / 5
    assert judged(changed(place, value)) == pytest.approx(share)


def test_width_and_height_have_a_scale_of_their_own() -> None:
    reference = ONE * np.where(np.arange(ONE.shape[-1]) < 2, 100, 1)
    assert judged(np.where(np.arange(ONE.shape[-1]) == 0, reference + 2, reference), reference) == 1
    assert judged(np.where(np.arange(ONE.shape[-1]) == 2, reference + 2, reference), reference) == 0


@pytest.mark.parametrize("shape", [(), (0,), (3,), (1, 4), (1, 5, 6), (1, 2, 3), (1, 3, 2, 2, 7)])
@pytest.mark.parametrize(("how", "arrays"), LAYOUTS)
def test_other_shapes_agree_nowhere(how: Cells, arrays: list[Table], shape) -> None:
    assert judged(np.ones(shape), arrays[0], how) == 0


def test_images_count_alike_and_empty_ones_not() -> None:
    few, none = table(ROWS, found=1)[None], of_no_object(table(ROWS))[None]
    truth, lost = [{"y": y} for y in (ONE, few, none)], [{"y": y} for y in (ONE, none, none)]
    assert agreement(truth, lost, ("y",), HOW) == 0.5
    assert agreement(truth[2:], truth[2:], ("y",), HOW) == 1
    assert agreement(truth[2:], truth[:1], ("y",), HOW) == 0


def test_a_run_is_judged_by_them() -> None:
    truth = [{"y": ONE.astype(np.float32)}]
    for asked in ("cells", "auto"):
        criterion, metric = settled(asked, truth, IMAGE)
        assert criterion.recognised[0].metric == "cells"
        assert metric(truth, truth, None) == 1
        assert metric(truth, [{"y": 0 * truth[0]["y"]}], None) < 0.9
        assert untested_task(criterion, metric, truth, None) == ()
        none = [{"y": of_no_object(truth[0]["y"])}]
        (absent,) = untested_task(criterion, metric, none, None)
        assert (absent.kind, absent.name) == ("absent", "cells")
    with pytest.raises(UsageError):
        settle(Criterion(metric="detection-f1"), truth, IMAGE, labelled=False)
    with pytest.raises(UsageError):
        settle(Criterion(metric="auto"), truth, IMAGE, labelled=True)
