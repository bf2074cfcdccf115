"""What rules go by."""

from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics.boxes import STRIDES, cells, detect
from halfwise.metrics.evidence import (
    Inputs,
    Seen,
    begins,
    image_sizes,
    is_against,
    is_weights,
    sums_to_one,
)
from halfwise.metrics.kinds import recognise
from halfwise.metrics.layouts import Places, _cellwise
from halfwise.metrics.targets import without_trailing_ones
from halfwise.records import Boxes, Kind, replace
from tests.unit.metrics import scenes
from tests.unit.metrics.looked import IMAGE, ROW, normal, softmax
from tests.unit.metrics.test_boxes import LAYOUTS


def test_images_are_told_by_their_channels_in_either_order() -> None:
    inputs = {"a": (1, 3, 32, 64), "b": (1, 48, 40, 1), "c": (1, 16, 8, 8), "d": (4, 9)}
    assert image_sizes(inputs) == [(32, 64), (48, 40)]


@pytest.mark.parametrize(
    ("shape", "cut"), [((1, 5, 1, 1), (1, 5)), ((1, 1), (1, 1)), ((2, 3, 4), (2, 3, 4)), ((), ())]
)
def test_trailing_axes_of_one_are_cut_beyond_two(shape, cut) -> None:
    assert without_trailing_ones(np.zeros(shape)).shape == cut


def test_rows_sum_to_one_within_what_rounding_does() -> None:
    assert sums_to_one(np.array([[0.5, 0.503]]), 1)
    assert not sums_to_one(np.array([[0.5, 0.505]]), 1)
    assert not sums_to_one(np.array([[1.5, -0.5]]), 1)
    assert not sums_to_one(np.array([[np.nan, 1.0]]), 1)


@pytest.mark.parametrize(
    ("name", "shape", "state"),
    [("Conv_Cache", (1, 4), True), ("conv_cache", (1, 5), False), ("y", (1, 4), False)],
)
def test_a_state_is_named_so_and_goes_into_the_next_call(name, shape, state) -> None:
    seen = Seen(name, [np.zeros(shape)], discrete=False, inputs={"x": (1, 4)}, beside={})
    assert seen.is_state is state


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("mel_spec", True),
        ("logSpectrum", True),
        ("STFT_spec0", True),
        ("SPEC", True),
        ("perspective", False),
        ("inspection.out", False),
    ],
)
def test_a_name_is_looked_at_word_by_word(name, called) -> None:
    seen = Seen(name, [np.zeros(2)], discrete=False, inputs={}, beside={})
    assert seen.called("spec") is called
    assert seen.mentions("spec")


@pytest.mark.parametrize(
    ("kind", "name", "against"),
    [
        ("class-scores", "facelandmarks", True),  # long words are found anywhere
        ("class-scores", "composed", False),  # short ones begin a word
        ("class-scores", "kpsOut", True),
        ("class-scores", "landmark_probs", False),
        ("class-scores", "scores", False),
        ("embedding", "scores", True),
        ("embedding", "joint_embedding", False),
        ("boxes", "bbox_regression", True),
        ("boxes", "box_coordinates", False),
        ("mask", "probability_map", False),
        ("flow", "flower", True),
    ],
)
def test_a_name_speaks_against_a_kind(kind: Kind, name: str, against: bool) -> None:
    assert is_against(kind, name) is against


@pytest.mark.parametrize("kind", get_args(Kind))
def test_no_kind_is_spoken_against_by_its_own_name(kind: Kind) -> None:
    assert not is_against(kind, kind)
    assert not is_against(kind, "output")


def test_weights_and_words() -> None:
    assert is_weights("crossAttention.1")
    assert not is_weights("output")
    assert begins("pred_boxes", "box")
    assert not begins("inbox", "box")


RNG = np.random.default_rng(2)


def read(
    outputs: dict[str, NDArray[Any]], inputs: Inputs = scenes.INPUTS
) -> tuple[tuple[str, ...], Boxes | None] | None:
    found = [one for one in recognise([outputs, outputs], inputs) if one.boxes is not None]
    return (found[0].outputs, found[0].boxes) if found else None


@pytest.mark.parametrize(("how", "arrays"), LAYOUTS[:4])
def test_rows_of_a_yolo_are_told_by_the_size_of_the_image(
    how: Boxes, arrays: list[NDArray[Any]]
) -> None:
    assert read({"y": arrays[0]}) == (("y",), how)
    assert (read({"y": arrays[0]}, {"image": (1, 3, 64, 96)}) or (0, None))[1] is None
    assert (read({"y": arrays[0]}, {}) or (0, None))[1] is None
    channels_last = {"image": (1, scenes.HEIGHT, scenes.WIDTH, 3)}
    assert read({"y": arrays[0]}, channels_last) == (("y",), how)


@pytest.mark.parametrize(("width", "told"), [(64, True), (56, False)])
def test_rows_for_an_image_of_64_pixels_tell_that_they_are_of_a_yolo(
    width: int, told: bool
) -> None:
    size = 64, width
    centres = np.concatenate([cells(size, [stride])[0] * stride for stride in STRIDES])
    rows = np.concatenate([centres, RNG.random((len(centres), 6))], axis=1)
    assert (_cellwise([rows[None]], {"image": (1, 3, *size)}) is not None) is told


@pytest.mark.parametrize(("how", "arrays"), LAYOUTS[4:7])
def test_rows_with_one_class_each_are_told_by_whole_numbers(
    how: Boxes, arrays: list[NDArray[Any]]
) -> None:
    assert read({"y": arrays[0]}) == (("y",), how)
    broken = arrays[0].copy()
    broken[..., how.columns[2] if how.columns else 0] += 0.5
    assert (read({"y": broken}) or (0, None))[1] is None


def test_heads_of_a_detector_are_told_by_the_cells_of_the_image() -> None:
    arrays = scenes.heads()
    names = [f"{kind}{i}" for i in range(3) for kind in ("scores", "sides")]
    given = dict(zip(names, arrays, strict=True))
    how = Boxes(layout="heads", image=scenes.INPUTS["image"][2:])
    assert read(dict(sorted(given.items()))) == (tuple(names), how)
    assert read(given, {}) is None
    assert read({n: a for n, a in given.items() if n.endswith("0")}) is None
    few = {n: a[..., :12] if n.startswith("sides") else a for n, a in given.items()}
    assert read(few) is None
    assert read(given | {"sides1": np.abs(arrays[3]) / np.abs(arrays[3]).max()}) is None
    embedded = {n: a if n.startswith("scores") else np.tanh(a) for n, a in given.items()}
    assert read(embedded) is None


@pytest.mark.parametrize(("how", "arrays"), LAYOUTS[7:9])
def test_boxes_with_one_score_each_find_their_classes(
    how: Boxes, arrays: list[NDArray[Any]]
) -> None:
    names = ("boxes", "scores", "labels")
    given = dict(zip(names, arrays, strict=True))
    assert read(dict(reversed(given.items()))) == (names, how)
    del given["labels"]
    assert read(given) == (names[:2], how)


def many(layout: int) -> list[NDArray[Any]]:
    """Return a layout of per-class scores with rows of background, as set predictions have."""
    boxes, scores = (array.reshape(-1, array.shape[-1]) for array in LAYOUTS[layout][1])
    none = {9: [0.01] * 3, 10: [-6.0] * 3, 11: [-6.0, -6, -6, 2], 12: [0.97, 0.01, 0.01, 0.01]}
    centres = np.tile([0.5, 0.5, 0.2, 0.1], (20, 1))
    boxes = np.concatenate([boxes / 128, centres])
    return [boxes[None], np.concatenate([scores, np.tile(none[layout], (20, 1))])[None]]


@pytest.mark.parametrize("layout", [9, 10, 11, 12])
def test_scores_of_each_class_tell_what_makes_probabilities_of_them(layout: int) -> None:
    boxes, scores = many(layout)
    scores = scores.clip(0) / scores.clip(0).sum(-1, keepdims=True) if layout == 12 else scores
    how = replace(LAYOUTS[layout][0], suppress=False)
    for each in boxes, boxes[:, :, None]:
        assert read({"pred_boxes": each, "logits": scores}) == (("pred_boxes", "logits"), how)
    assert (read({"y": boxes, "logits": scores}) or (0, None))[1] is None


NOT_SHOWN: list[dict[str, NDArray[Any]]] = [
    {"loc": RNG.standard_normal((1, 168, 4)), "conf": RNG.random((1, 168, 2))},  # needs priors
    {"y": RNG.standard_normal((1, 3, 8, 16, 85))},  # needs anchors
    {"y": RNG.random((1, 168, 9))},  # as many rows as cells, but no place goes with its cell
    {"rotation": RNG.standard_normal((1, 20, 4)), "p": RNG.random((1, 20))},
    {"kind": np.tile([0.1, 0.2, 0.3, 0.4], (1, 20, 1)), "other": RNG.random((1, 20, 7))},
    {"y": np.concatenate([scenes.joined()[..., :5], RNG.standard_normal((1, 168, 40))], -1)},
    {"y": np.where(np.arange(7) < 6, RNG.random((1, 30, 7)), 3)},
    {"boxes": np.zeros((0, 4)), "scores": np.zeros(0)},
    {"boxes": np.full((9, 4), np.nan), "scores": np.full(9, np.nan)},
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("outputs", NOT_SHOWN)
def test_what_cannot_be_decoded_without_a_guess_is_not_read(
    outputs: dict[str, NDArray[Any]],
) -> None:
    found = read(outputs)
    assert found is None or found[1] is None


def test_four_and_eighty_columns_may_be_read_two_ways() -> None:
    rows = np.concatenate([scenes.joined()[..., :4], 0.01 * RNG.random((1, 168, 80))], axis=-1)
    assert (read({"y": rows}) or (0, None))[1] is None
    assert (read({"y": rows.swapaxes(1, 2)}) or (0, None))[1] == Boxes(layout="transposed")


def ranked(scores: NDArray[np.float64], **changed: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return rows of an end-to-end model without a detection: corners, scores, classes."""
    count = len(scores)
    low = RNG.random((count, 2)) * (60, 30)
    parts = {
        "box": np.concatenate([low, low + 4 + 30 * RNG.random((count, 2))], axis=1),
        "score": scores[:, None],
        "class": RNG.integers(0, 3, (count, 1)).astype(float),
    }
    columns = {**parts, **changed}
    return np.concatenate(list(columns.values()), axis=1)[None].astype(np.float32)


FALLING = np.sort(1e-3 * RNG.random(40))[::-1]


def test_rows_in_the_order_of_their_scores_are_told_where_nothing_is_detected() -> None:
    how = Boxes(layout="final", corners=True, columns=(0, 4, 5), suppress=False)
    assert read({"y": ranked(FALLING)}) == (("y",), how)


@pytest.mark.parametrize(
    "rows",
    [
        ranked(FALLING[::-1]),
        ranked(np.full(40, 1e-3)),  # padding
        ranked(np.zeros(40)),
        ranked(FALLING[:3]),
        ranked(FALLING, box=64 * RNG.random((40, 4))),
        ranked(FALLING, **{"class": 3 * RNG.random((40, 1))}),
        ranked(FALLING - 0.5),
        ranked(FALLING, box=np.sort(5000 * RNG.random((40, 4)))),
    ],
)
def test_rows_that_are_not_ranked_boxes_are_not_read(rows: NDArray[np.float32]) -> None:
    assert (read({"y": rows}) or (0, None))[1] is None


SHARES = np.exp(LOGITS := RNG.standard_normal((9, 5, 4)))
SHARES /= SHARES.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "outputs",
    [
        {"logits": LOGITS, "probs": SHARES},
        {"a": LOGITS, "b": SHARES},
        {"a": LOGITS, "b": 1 / (1 + np.exp(-LOGITS))},
        {"class_logits": LOGITS, "objects": RNG.random((9, 5))},
    ],
)
def test_four_scores_and_their_probabilities_are_no_boxes(
    outputs: dict[str, NDArray[np.float64]],
) -> None:
    assert read(outputs) is None


SCORES = RNG.uniform(0.1, 0.9, 20)
QUANTILES = np.cumsum(RNG.random((20, 4)), axis=1)
BOUNDS = np.sort(RNG.random((20, 2, 2)), axis=1).reshape(20, 4)
CORNERS = np.sort(RNG.uniform(0, 60, (20, 2, 2)), axis=1).reshape(20, 4)
SAME_SIZE = np.tile(RNG.uniform(0, 40, (20, 2)), 2) + np.array([0, 0, 8, 8])
LINES = np.where(np.arange(4) % 2, 30 * ROW[0, :20, None], CORNERS)
FINAL = np.column_stack([QUANTILES, SCORES, np.zeros(20)])


def taken(outputs: dict[str, NDArray[Any]], inputs: Inputs = IMAGE) -> tuple[str, ...]:
    return tuple(one.kind for one in recognise([outputs, outputs], inputs))


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        ({"quantiles": QUANTILES, "confidence": SCORES}, IMAGE),
        ({"y": QUANTILES, "confidence": SCORES}, IMAGE),
        ({"y": 20 * QUANTILES, "confidence": SCORES}, IMAGE),
        ({"bounds": BOUNDS, "confidence": SCORES}, IMAGE),  # shares of anything
        ({"y": BOUNDS, "confidence": SCORES}, {"x": (20, 32)}),
        ({"y": CORNERS, "confidence": SCORES}, {"x": (20, 32)}),  # no image to lie in
        ({"y": 100 * CORNERS, "confidence": SCORES}, IMAGE),
        ({"y": SAME_SIZE, "confidence": SCORES}, IMAGE),
        ({"y": LINES, "confidence": SCORES}, IMAGE),  # no area
        ({"depth": CORNERS, "confidence": SCORES}, IMAGE),
        ({"keypoints": CORNERS, "confidence": SCORES}, IMAGE),
        ({"box_offsets": CORNERS, "confidence": SCORES}, {"x": (20, 32)}),
        ({"y": FINAL[None]}, IMAGE),
        ({"y": np.column_stack([BOUNDS, SCORES, np.zeros(20)])[None]}, {"x": (1, 32)}),
        ({"y": QUANTILES[None], "p": softmax(normal(1, 20, 5))}, {"x": (1, 20, 8)}),
        ({"poses": normal(20, 7)}, IMAGE),
        ({"trajectory": np.cumsum(RNG.random((1, 20, 6)), axis=1)}, IMAGE),
    ],
)
def test_four_numbers_in_order_are_not_enough_for_boxes(
    outputs: dict[str, NDArray[Any]], inputs: Inputs
) -> None:
    assert "boxes" not in taken(outputs, inputs)


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        ({"boxes": BOUNDS, "scores": SCORES}, {"x": (1, 32)}),
        ({"6568": CORNERS, "6572": SCORES}, IMAGE),
        ({"6568": CORNERS, "6572": SCORES}, {"image": (3, 64, 64)}),
        ({"6568": CORNERS, "6572": SCORES}, {"image": (64, 64, 3)}),
        ({"y": np.column_stack([BOUNDS, SCORES, np.arange(20) % 3])[None]}, IMAGE),
        ({"y": CORNERS[None], "p": RNG.random((1, 20, 5))}, IMAGE),
    ],
)
def test_names_and_places_in_the_image_show_boxes(
    outputs: dict[str, NDArray[Any]], inputs: Inputs
) -> None:
    assert taken(outputs, inputs)[:1] == ("boxes",)


CENTRED = scenes.centred(scenes.CORNERS)
LISTED = {"a": CENTRED, "b": scenes.SCORES}
RANKED = np.column_stack([CENTRED, scenes.SCORES])


@pytest.mark.parametrize(
    ("outputs", "layout", "columns"),
    [
        (LISTED, "listed", None),
        ({**LISTED, "c": scenes.KINDS}, "listed", None),
        ({"a": RANKED}, "final", (0, 4, None)),
        ({"a": RANKED[None], "c": scenes.KINDS[None]}, "final", (0, 4, None)),
        ({"a": np.column_stack([RANKED, scenes.KINDS])}, "final", (0, 4, 5)),
    ],
)
def test_centre_and_size_are_boxes_where_the_model_suppresses_or_names_them(
    outputs: dict[str, NDArray[Any]], layout: str, columns: tuple[int, int, int | None] | None
) -> None:
    named = {"boxes" if name == "a" else name: array for name, array in outputs.items()}
    for each, suppressed, why in ((outputs, ("a",), "suppressed"), (named, (), "by-name")):
        (one,) = recognise([each, each], {}, suppressed)
        assert (one.outputs, why in one.evidence) == (tuple(each), True)
        assert one.boxes is not None
        assert (one.boxes.layout, one.boxes.columns) == (layout, columns)
        assert not one.boxes.corners
        assert not one.boxes.suppress
        (found,) = detect(each, one.outputs, one.boxes)
        np.testing.assert_allclose(found.boxes, scenes.CORNERS[:3])
        classed = "c" in each or columns == (0, 4, 5)
        np.testing.assert_array_equal(found.classes, scenes.KINDS[:3] if classed else np.zeros(3))
    assert "boxes" not in {one.kind for one in recognise([outputs, outputs], {})}


def test_five_columns_whose_last_does_not_fall_may_be_angles() -> None:
    turned = {"rboxes": RANKED[::-1]}
    assert recognise([turned, turned], {}) == ()


def test_one_box_needs_its_name() -> None:
    one = np.array([[4.0, 9, 30, 20]])
    assert Places("boxes", {}).shown(one, fewest=8) == ("corners-in-order", "by-name")
    assert Places("detach_1", IMAGE).shown(one, fewest=8) == ()
    assert Places("y", IMAGE).shown(one, fewest=1) == ("corners-in-order", "within-image")
    assert Places("boxes", {}).shown(one[:0], fewest=1) == ()


def stretched(far: float) -> dict[str, NDArray[np.float64]]:
    """Return boxes that reach `far`, and scores."""
    return {"y": CORNERS * far / CORNERS.max(), "scores": SCORES}


def sized(spread: float) -> dict[str, NDArray[np.float64]]:
    """Return boxes of 8 pixels whose sides differ by a share, and scores."""
    more = 8 * spread * np.linspace(0, 1, 20)[:, None]
    return {
        "y": SAME_SIZE + np.concatenate([0 * SAME_SIZE[:, :2], more, more], axis=1),
        "s": SCORES,
    }


def padded(score: float) -> dict[str, NDArray[np.float64]]:
    """Return boxes, some of which are none, with a score."""
    none = CORNERS[:, ::-1]
    return {"y": np.concatenate([CORNERS, none]), "s": np.append(SCORES, np.full(20, score))}


@pytest.mark.parametrize(
    ("one", "other", "inputs"),
    [
        (stretched(90), stretched(102), IMAGE),
        (stretched(9), stretched(7), IMAGE),
        (sized(1.3e-3), sized(0.7e-3), IMAGE),
        (padded(0.04), padded(0.06), IMAGE),
    ],
)
def test_corners_are_boxes_just_within_the_limit(one, other, inputs) -> None:
    assert read(one, inputs)
    assert not read(other, inputs)


def test_an_input_with_three_axes_is_an_image_from_32_pixels_on() -> None:
    assert [bool(read(stretched(20), {"x": (3, n, n)})) for n in (33, 31)] == [True, False]


def test_raw_offsets_and_sizes_are_at_most_16() -> None:
    rows = {n: scenes.raw() for n in (15, 17)}
    for far, array in rows.items():
        array[0, 0, 0] = far
    assert [bool((read({"y": array}) or (0, None))[1]) for array in rows.values()] == [True, False]


@pytest.mark.parametrize(("count", "suppress"), [(900, False), (1100, True)])
def test_more_boxes_than_a_transformer_has_need_suppression(count: int, suppress: bool) -> None:
    boxes = np.tile(CORNERS, (-(-count // 20), 1))[None, :count]
    found = read({"boxes": boxes, "scores": RNG.random((1, count, 5))})
    assert found is not None
    assert found[1] is not None
    assert found[1].suppress is suppress
