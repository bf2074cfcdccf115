"""Every layout of one scene shows the same boxes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from halfwise.metrics.boxes import cells, detect, f1, mean_ap, overlaps, shares
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
    (Boxes(layout="heads", image=IMAGE), [*scenes.heads()]),
    (
        Boxes(layout="per-class"),
        [scenes.centred(scenes.CORNERS)[None, :, None], scenes.probabilities()[None]],
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


HOW = Boxes(layout="listed", corners=True, suppress=False)
NAMES = ("b", "s", "c")
Sample = dict[str, NDArray[Any]]


def detected(one: Sample) -> int:
    return sum(map(len, detect(one, NAMES, HOW)))


def sample(rows: list[tuple[int, int, int, int, float, int]]) -> Sample:
    table = np.array(rows, float).reshape(-1, 6)
    corners = np.concatenate([table[:, :2], table[:, :2] + table[:, 2:4]], axis=1)
    return {"b": corners, "s": table[:, 4], "c": table[:, 5].astype(np.int64)}


ROWS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 6),
        st.integers(1, 5),
        st.integers(1, 5),
        # Many values, for among equal ones the order is a matter of convention.
        st.floats(0.31, 0.99).map(lambda x: round(x, 6)),
        st.integers(0, 1),
    ),
    max_size=6,
    unique_by=lambda row: row[4],
).map(sample)
SCENES = st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=3)


def iou(a: NDArray[Any], b: NDArray[Any]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return float(width * height / area)


def hits_of(
    truth: Sample, guess: Sample, least: float, near: float = 1.0
) -> list[tuple[float, int, bool]]:
    """Return score, class and whether it is a match, of every guess of an image."""
    taken: set[int] = set()
    hits = []
    for g in sorted(range(len(guess["s"])), key=lambda g: -guess["s"][g]):
        best, where = 0.0, -1
        for t in range(len(truth["s"])):
            share = iou(guess["b"][g], truth["b"][t])
            same = truth["c"][t] == guess["c"][g]
            same &= abs(float(truth["s"][t]) - float(guess["s"][g])) <= near
            if same and t not in taken and share >= least and share > best:
                best, where = share, t
        taken |= {where} - {-1}
        hits.append((guess["s"][g], int(guess["c"][g]), where >= 0))
    return hits


def brute_f1(scenes: list[tuple[Sample, Sample]]) -> float:
    found = sum(hit for truth, guess in scenes for _, _, hit in hits_of(truth, guess, 0.5, 0.1))
    every = sum(len(truth["s"]) + len(guess["s"]) for truth, guess in scenes)
    return 2 * found / every if every else 1.0


def brute_map(scenes: list[tuple[Sample, Sample]]) -> float:
    values = []
    for kind in {int(c) for truth, _ in scenes for c in truth["c"]}:
        total = sum(int((truth["c"] == kind).sum()) for truth, _ in scenes)
        for least in np.linspace(0.5, 0.95, 10):
            hits = [h for t, g in scenes for h in hits_of(t, g, least) if h[1] == kind]
            hits.sort(key=lambda hit: (-hit[0], hit[2]))
            curve, right = [], 0
            for rank, (_, _, hit) in enumerate(hits, 1):
                right += hit
                curve.append((right / total, right / rank))
            at = [max((p for r, p in curve if r >= x), default=0.0) for x in np.linspace(0, 1, 101)]
            values.append(np.mean(at))
    return float(np.mean(values)) if values else 1.0


def both(scenes: list[tuple[Sample, Sample]]) -> tuple[list[Sample], list[Sample]]:
    return [truth for truth, _ in scenes], [guess for _, guess in scenes]


@given(SCENES)
def test_they_are_what_their_definitions_say(scenes: list[tuple[Sample, Sample]]) -> None:
    assert f1(*both(scenes), NAMES, HOW) == pytest.approx(brute_f1(scenes))
    assert mean_ap(*both(scenes), NAMES, HOW) == pytest.approx(brute_map(scenes))


@given(SCENES, st.randoms(use_true_random=False))
def test_order_does_not_matter(scenes: list[tuple[Sample, Sample]], random: Any) -> None:
    def shuffled(given: Sample) -> Sample:
        order = list(range(len(given["s"])))
        random.shuffle(order)
        return {name: array[order] for name, array in given.items()}

    again = [(shuffled(truth), shuffled(guess)) for truth, guess in scenes]
    random.shuffle(again)
    for metric in (f1, mean_ap):
        assert metric(*both(again), NAMES, HOW) == pytest.approx(metric(*both(scenes), NAMES, HOW))


@given(SCENES)
def test_the_same_boxes_give_1_and_nan_lowers(scenes: list[tuple[Sample, Sample]]) -> None:
    truth, guess = both(scenes)
    for metric in (f1, mean_ap):
        assert metric(truth, truth, NAMES, HOW) == 1
        broken = [{**g, "s": np.full_like(g["s"], np.nan)} for g in guess]
        if any(detected(one) for one in truth):
            assert metric(truth, broken, NAMES, HOW) == 0


def test_nothing_detected_is_told() -> None:
    faint = sample([(0, 0, 5, 5, 0.2, 0)])
    assert not any(detected(one) for one in (faint, sample([])))
    assert detected(sample([(0, 0, 5, 5, 0.4, 0)])) == 1


def test_a_score_just_below_the_threshold_loses_no_average_precision() -> None:
    truth, guess = sample([(0, 0, 5, 5, 0.3, 0)]), sample([(0, 0, 5, 5, 0.299, 0)])
    assert mean_ap([truth], [guess], NAMES, HOW) == 1
    assert f1([truth], [guess], NAMES, HOW) == 0


@pytest.mark.parametrize(
    ("ours", "theirs", "worst"),
    [
        (10, 9, 1),  # one is chance
        (10, 5, 0.6),
        (10, 16, 11 / 16),  # more than there are
        (2, 0, 0.5),
        (1, 0, 0),
        (1, 2, 1),
    ],
)
def test_of_each_image_sure_boxes_count(ours: int, theirs: int, worst: float) -> None:
    boxes = [(9 * i, 9 * i, 9 * i + 6, 9 * i + 6, 0.5, i) for i in range(16)]
    unsure = (200, 200, 209, 209, 0.35, 0)
    truth, guess = sample([*boxes[:ours], unsure]), sample(boxes[:theirs])
    assert min(shares([truth], [guess], NAMES, HOW)) == pytest.approx(worst)
    assert shares([sample([unsure])], [sample([])], NAMES, HOW) == []


def test_images_that_a_candidate_lacks_show_nothing() -> None:
    truth = sample([(0, 0, 5, 5, 0.5, 0)])
    batch = {name: np.stack([array, array]) for name, array in truth.items()}
    single = {name: array[None] for name, array in truth.items()}
    assert f1([batch], [single], NAMES, HOW) == pytest.approx(2 / 3)
    assert f1([single], [batch], NAMES, HOW) == pytest.approx(2 / 3)


RAW = Boxes(layout="raw", image=(416, 416))
ANCHORS = 52 * 52 + 26 * 26 + 13 * 13


def image(*detections: tuple[int, int, float]) -> NDArray[Any]:
    """f32[1, 3549, 85] with a box of 64 × 64 pixels at each (anchor, class, score)."""
    raw = np.zeros((1, ANCHORS, 85), np.float32)
    strides = cells(RAW.image or (0, 0))[1].ravel()
    for anchor, cls, score in detections:
        raw[0, anchor, 2:4] = np.log(64 / strides[anchor])
        raw[0, anchor, 4] = 1
        raw[0, anchor, 5 + cls] = score
    return raw


def agreement(reference: NDArray[Any], candidate: NDArray[Any]) -> float:
    return f1([{"output": reference}], [{"output": candidate}], ["output"], RAW)


# 16 columns of 8 pixels apart, so the boxes do not touch.
TWO = ((52 * 10 + 10, 3, 0.9), (52 * 10 + 26, 7, 0.8))


def test_boxes_are_decoded_on_their_grid() -> None:
    raw = image((52 * 10 + 26, 7, 0.8), (52 * 52 + 26 * 3 + 5, 1, 0.5))
    raw[0, 52 * 10 + 26, :2] = 0.5
    (found,) = detect({"output": raw}, ["output"], RAW)
    first, second = found.boxes
    np.testing.assert_allclose(first, [212 - 32, 84 - 32, 212 + 32, 84 + 32], rtol=1e-6)
    np.testing.assert_allclose(second, [80 - 32, 48 - 32, 80 + 32, 48 + 32], rtol=1e-6)
    np.testing.assert_allclose(found.scores, [0.8, 0.5])
    assert found.classes.tolist() == [7, 1]


def test_identical_outputs_score_one() -> None:
    assert agreement(image(*TWO), image(*TWO)) == 1.0
    assert agreement(image(), image()) == 1.0


def test_a_missed_and_an_invented_box_cost_the_same() -> None:
    assert agreement(image(*TWO), image(TWO[0])) == pytest.approx(2 / 3)
    assert agreement(image(TWO[0]), image(*TWO)) == pytest.approx(2 / 3)
    assert agreement(image(*TWO), image()) == 0.0


def test_another_class_or_place_is_another_box() -> None:
    anchor, cls, score = TWO[0]
    assert agreement(image(TWO[0]), image((anchor, cls + 1, score))) == 0.0
    # 8 pixels on: IoU 56 / 72; 24 pixels on: IoU 40 / 88.
    assert agreement(image(TWO[0]), image((anchor + 1, cls, score))) == 1.0
    assert agreement(image(TWO[0]), image((anchor + 3, cls, score))) == 0.0


def test_a_score_below_the_threshold_is_no_detection() -> None:
    assert agreement(image(*TWO), image(TWO[0], (*TWO[1][:2], 0.29))) == pytest.approx(2 / 3)


def test_suppression_is_within_a_class() -> None:
    anchor, cls, score = TWO[0]
    same = image(TWO[0], (anchor + 1, cls, score - 0.1))
    assert agreement(image(TWO[0]), same) == 1.0
    other = image(TWO[0], (anchor + 1, cls + 1, score - 0.1))
    assert agreement(image(TWO[0]), other) == pytest.approx(2 / 3)


def test_nan_and_infinity_detect_nothing() -> None:
    assert agreement(image(*TWO), np.full((1, ANCHORS, 85), np.nan, np.float32)) == 0.0
    broken = image(*TWO)
    broken[0, TWO[0][0], 2] = np.inf
    broken[0, TWO[1][0], 9] = np.nan
    assert agreement(image(*TWO), broken) == 0.0
