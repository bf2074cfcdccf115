"""Heat maps: which outputs they are, and where two of them peak alike."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics import evidence_of
from halfwise.metrics.peaks import peaks
from halfwise.metrics.recognised import settle, settled_metric, untested_task
from halfwise.records import Criterion
from tests.unit.metrics.looked import DISC, PEAK, RNG, shown

SIZE = (48, 64)
PLACES = ((10, 12), (30, 50), (20, 40), (8, 55), (40, 9))
Maps = NDArray[Any]


def bell(row: float, column: float, high: float = 0.9, wide: float = 2.0) -> Maps:
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    distance = (rows - row) ** 2 + (columns - column) ** 2
    return np.asarray(high * np.exp(-distance / (2 * wide**2)))


def maps(*bells: Maps) -> Maps:
    return np.stack(bells)[None].astype(np.float32)


def logits(array: Maps) -> Maps:
    return np.log((array + 1e-4) / (1 + 1e-4 - array))


def last(array: Maps) -> Maps:
    return np.moveaxis(array, 1, -1)


POSE = maps(*(bell(*place) for place in PLACES))


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", POSE, "heatmap"),
        ("y", POSE - 0.05, "heatmap"),
        ("y", last(POSE), "heatmap"),
        ("y", np.where(np.arange(5)[:, None, None] < 1, 0.1, 1) * POSE, "heatmap"),
        ("y", POSE[:, :3], None),  # too few to be joints of something
        ("y", np.repeat(POSE[:, :1], 9, axis=1), None),  # all at one place
        ("y", maps(*(bell(*a) + bell(*b) for a in PLACES for b in PLACES[:1])), None),
        ("heatmap", maps(bell(9, 9) + bell(30, 30)), "heatmap"),
        ("hm", logits(POSE), "heatmap"),
        ("y", logits(POSE), None),
        ("center", POSE[:, :1], "heatmap"),
        ("centerness", POSE[:, :1], None),
        ("anomaly_heatmap", POSE[:, :1], None),
        ("seg_center", POSE, None),
        ("features", POSE, None),
        ("heat", DISC, None),
        ("y", PEAK, None),
        ("heatmap", RNG.random((1, 5, 48, 64)), None),
        ("heatmap", maps(bell(20, 20, wide=12)), None),  # half of the map is warm
        ("heatmap", 20 * POSE, None),
        ("heatmap", 0.2 * POSE, None),
        ("y", maps(*(np.minimum(3 * bell(*place), 0.9) for place in PLACES)), None),  # objects
    ],
)
def test_few_peaks_show_heat_maps_by_name_or_one_by_one(name: str, array: Maps, kind) -> None:
    assert shown(name, array, array) == kind


def judged(candidate: Maps, reference: Maps = POSE) -> float:
    return peaks([{"y": reference}], [{"y": candidate}], None)


def with_first(other: Maps) -> Maps:
    return np.concatenate([maps(other), POSE[:, 1:]], axis=1)


@pytest.mark.parametrize(
    ("first", "share"),
    [
        (bell(10, 13), 0.8),
        (bell(11, 13), 0.8),
        (bell(10, 14), 0.8),
        (bell(10.1, 12.2), 1),
        (bell(20, 12), 0.8),
        (bell(10, 12, 0.9 * 0.92), 1),
        (bell(10, 12, 0.9 * 0.88), 0.8),
        (bell(10, 12, 0.9 * 1.12), 0.8),
        (bell(10, 12, 0.2), 8 / 9),
        (bell(10, 12) + bell(30, 30, 0.25), 1),
        (bell(10, 12) + bell(30, 30, 0.3), 10 / 11),
        (np.full(SIZE, np.nan), 8 / 9),
        (np.full(SIZE, 0.9), None),
        (np.zeros(SIZE), 8 / 9),
    ],
)
def test_a_peak_keeps_its_place_and_height(first: Maps, share: float | None) -> None:
    if share is None:
        assert judged(with_first(first)) < 0.1
    else:
        assert judged(with_first(first)) == pytest.approx(share)


def test_it_does_not_matter_how_heights_are_written_down() -> None:
    moved = with_first(bell(10, 14))
    value = judged(moved)
    assert judged(last(moved), last(POSE)) == value
    assert judged(moved[0], POSE[0]) == value
    assert judged(logits(moved), logits(POSE)) == value
    assert judged(255 * moved, 255 * POSE) == value


def test_a_flat_top_has_no_place() -> None:
    flat = maps(np.minimum(bell(20, 20, 1.5, 4), 0.9))
    assert judged(flat - 1e-3 * RNG.random(flat.shape), flat) == 1
    assert judged(np.roll(flat, 8, axis=3), flat) < 0.9


def test_images_count_alike_and_maps_without_a_peak_not() -> None:
    none = 0.1 * POSE
    truth, lost = [{"y": y} for y in (POSE, POSE, none)], [{"y": y} for y in (POSE, none, none)]
    assert peaks(truth, truth, None) == 1
    assert peaks(truth, lost, None) == 0.5
    assert evidence_of("peaks", peaks(truth, truth, None)) == (10, "peaks")
    batch = [{"y": np.concatenate([POSE, POSE])}]
    assert peaks(batch, [{"y": np.concatenate([POSE, none])}], None) == 0.5


def test_the_worst_output_counts() -> None:
    both, one = {"a": POSE, "b": POSE}, {"a": POSE, "b": 0 * POSE}
    assert peaks([both], [one], None) == 0


@pytest.mark.parametrize("shape", [(), (3,), (1, 5, 48, 63), (0, 5, 48, 64), (5, 48, 64)])
def test_other_shapes_agree_nowhere(shape: tuple[int, ...]) -> None:
    assert judged(np.ones(shape)) == 0


def test_labels_are_the_truth() -> None:
    assert peaks([{"y": with_first(bell(10, 20))}], [{"y": POSE}], [POSE]) == 1


def test_what_has_no_peak_is_refused() -> None:
    for outputs in ({"y": 0 * POSE}, {"y": POSE[0, 0]}, {"y": POSE[..., :7]}):
        with pytest.raises(CaseError):
            peaks([outputs], [outputs], None)


def test_a_run_is_judged_by_them() -> None:
    truth = [{"y": POSE}, {"y": np.roll(POSE, 3, axis=2)}]
    criterion = settle(Criterion(metric="auto"), truth, {}, labelled=False)
    metric = settled_metric(criterion)
    assert criterion.recognised[0].metric == "peaks"
    assert metric is not None
    assert metric(truth, truth, None) == 1
    assert metric(truth, truth[::-1], None) < -1
    assert untested_task(criterion, metric, truth, None) == ()
