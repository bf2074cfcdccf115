"""Slices with scales of their own: what parts them, and what each layout's lie comes to."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from halfwise.metrics import Excess, OutputMeasure, totals
from halfwise.metrics.slices import (
    FEWEST,
    FLOOR,
    GAP,
    ROOM,
    SAMPLE_GAP,
    SHORT,
    constant_slices,
    group_errors,
    place,
)
from halfwise.records import Criterion, OutputError, SliceGroup

Array = NDArray[Any]
Arrays = list[Array]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def groups_of(arrays: Sequence[Array]) -> list[tuple[int | None, tuple[tuple[int, int], ...]]]:
    found = totals([{"y": array} for array in arrays])["y"].groups
    return [(group.axis, group.ranges()) for group in found]


def judged(
    arrays: Sequence[Array], candidates: Sequence[Array], criterion: Criterion | None = None
) -> OutputError:
    criterion = criterion or Criterion()
    total = totals([{"y": array} for array in arrays])
    one, excess = OutputMeasure(total["y"]), Excess(criterion, total)
    for index, (array, candidate) in enumerate(zip(arrays, candidates, strict=True)):
        one.update(array, candidate, f"s{index}")
        excess.update({"y": array}, {"y": candidate})
    result = one.result(criterion)
    assert (excess.final() <= 1) == result.passed
    assert excess.value <= excess.final()
    return result


def rounded(arrays: Sequence[Array]) -> Arrays:
    """Return the sound twin: every value rounded to FP16."""
    return [array.astype(np.float16).astype(np.float32) for array in arrays]


def made(count: int, one: Callable[[np.random.Generator], Array]) -> Arrays:
    return [one(rng(seed)).astype(np.float32) for seed in range(count)]


def unit(random: np.random.Generator, *shape: int) -> Array:
    return np.asarray(random.random(shape) ** 4)


def yolo8(random: np.random.Generator, classes: int = 80, count: int = 300) -> Array:
    boxes = random.uniform(2, 640, (1, 4, count))
    scores = unit(random, 1, classes, count)
    scores[:, -3:] *= 1e-4
    return np.concatenate([boxes, scores], axis=1)


def yolo5(random: np.random.Generator) -> Array:
    return yolo8(random, 81).swapaxes(1, 2)


def found_boxes(random: np.random.Generator) -> Array:
    """[N, 6] behind NMS: x1, y1, x2, y2, score, class; N is the data's."""
    count = int(random.integers(5, 30))
    columns = [random.uniform(2, 640, (count, 4)), random.uniform(0.3, 1, (count, 1))]
    return np.concatenate([*columns, random.integers(0, 80, (count, 1))], axis=1)


def pose(random: np.random.Generator) -> Array:
    points = random.uniform(2, 640, (1, 17, 3, 200))
    points[:, :, 2] = unit(random, 1, 17, 200)
    return np.concatenate([yolo8(random, 1, 200), points.reshape(1, 51, 200)], axis=1)


def depth_and_confidence(random: np.random.Generator) -> Array:
    return np.concatenate([random.uniform(1, 80, (1, 1, 16, 16)), unit(random, 1, 1, 16, 16)], 1)


def embedding(random: np.random.Generator) -> Array:
    values = np.asarray(random.standard_normal((1, 256)))
    values[:, 17] *= 300
    return values


def waveform(random: np.random.Generator) -> Array:
    return random.standard_normal((1, 400))


def flow(random: np.random.Generator) -> Array:
    return np.asarray(random.standard_normal((1, 2, 16, 16)) * np.array([[[30]], [[12]]]))


def logits(random: np.random.Generator) -> Array:
    return random.standard_normal((1, 1000)) * 4


def spectrum(random: np.random.Generator) -> Array:
    falling = np.exp(-np.arange(257) / 20).reshape(1, 257, 1)
    return np.asarray(random.standard_normal((1, 257, 20)) * falling)


def half(*where: Any) -> Callable[[Array], Array]:
    def lie(array: Array) -> Array:
        array = array.copy()
        array[where] = 0.5
        return array

    return lie


def outlier_alone(array: Array) -> Array:
    return np.where(np.abs(array) > 9, array, 0)


ALL = slice(None)
LAYOUTS = {
    "YOLOv8": (yolo8, 4, half(ALL, slice(4, None)), (1, ((4, 83),))),
    "YOLOv5": (yolo5, 4, half(ALL, ALL, slice(4, None)), (2, ((4, 84),))),
    "behind NMS, scores": (found_boxes, 6, half(ALL, 4), (1, ((4, 4),))),
    "behind NMS, classes": (found_boxes, 6, half(ALL, 5), (1, ((5, 5),))),
    "pose": (pose, 4, half(ALL, slice(7, None, 3)), None),
    "depth and confidence": (depth_and_confidence, 4, half(ALL, 1), (1, ((1, 1),))),
    "embedding": (embedding, 12, outlier_alone, (1, ((0, 16), (18, 255)))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lies_in_the_small_values_fail_and_their_sound_twins_pass(layout: str) -> None:
    draw, count, lie, where = LAYOUTS[layout]
    arrays = made(count, draw)
    assert judged(arrays, rounded(arrays)).passed
    result = judged(arrays, [lie(array) for array in arrays])
    assert not result.passed
    # 1 % of the largest value of all lets them pass, but for the class numbers.
    assert result.rel_max < (0.15 if layout == "behind NMS, classes" else 0.01)
    failed = [(group.axis, group.ranges) for group in result.groups if not group.passed]
    assert len(failed) == 1
    assert where is None or failed == [where]


def scales(count: int, decades: float) -> Array:
    """Return magnitudes without a gap, from 1 down."""
    return np.logspace(0, -decades, count).astype(np.float32)


def bands(draw: np.random.Generator) -> Array:
    return draw.standard_normal((128, 50)) * scales(128, 9)[:, None]


def rows_of_nms(draw: np.random.Generator) -> Array:
    """Return corners up to 300, scores, and classes up to 80."""
    parts = draw.random((20, 4)) * 300, draw.random((20, 1)), draw.integers(0, 80, (20, 1))
    return np.concatenate(parts, axis=1)


QUIET = [
    array * scale
    for array, scale in zip(made(40, lambda d: d.standard_normal(64)), scales(40, 5), strict=True)
]
FAINT: dict[str, tuple[Arrays, Arrays]] = {
    "25 of 40 samples zero": (QUIET, [a * (i < 15) for i, a in enumerate(QUIET)]),
    "96 of 128 bands zero": (
        made(8, bands),
        [array * (np.arange(128) < 32)[:, None] for array in made(8, bands)],
    ),
    "class of the next object": (
        made(4, rows_of_nms),
        [array + np.eye(6, dtype=np.float32)[5] for array in made(4, rows_of_nms)],
    ),
    "the score of one object": (
        [np.array([[10.0, 20, 290, 250, 0.9]], np.float32)] * 4,
        [np.array([[10.0, 20, 290, 250, 0.4]], np.float32)] * 4,
    ),
    "the second of three values": (
        [np.array([1013.0 + i, 0.2 + i / 20, 300 - i], np.float32) for i in range(3)],
        [np.array([1013.0 + i, 0.0, 300 - i], np.float32) for i in range(3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("snr", [False, True])
@pytest.mark.parametrize("lie", FAINT)
def test_nothing_faint_is_lost_without_a_gap_between_scales(lie: str, snr: bool) -> None:
    arrays, candidates = FAINT[lie]
    criterion = Criterion(snr_db=20) if snr else Criterion()
    assert judged(arrays, rounded(arrays), criterion).passed
    result = judged(arrays, candidates, criterion)
    assert not result.passed
    assert result.rel_max < 0.02
    assert [group.passed for group in result.groups].count(False) == 1


def test_noise_beneath_fp32_may_be_lost() -> None:
    heard = (np.arange(128) < 80)[:, None]
    arrays = made(8, bands)
    assert judged(arrays, [array * heard for array in arrays]).passed


def test_boxes_and_scores_in_two_outputs_have_two_scales_as_ever() -> None:
    both = made(4, yolo8)
    assert groups_of([array[:, :4] for array in both]) == []
    assert groups_of([array[:, 4:] for array in both]) == []


@pytest.mark.parametrize("draw", [flow, logits, waveform, spectrum])
def test_a_continuum_is_one_scale(draw: Callable[[np.random.Generator], Array]) -> None:
    assert groups_of(made(20, draw)) == []


def test_a_huge_sample_hides_none_of_the_others() -> None:
    arrays = [array * (1000 if i == 7 else 1) for i, array in enumerate(made(40, waveform))]
    assert judged(arrays, rounded(arrays)).passed
    result = judged(arrays, [a if i == 7 else -a for i, a in enumerate(arrays)])
    assert result.rel_max < 0.01
    (failed,) = [group for group in result.groups if not group.passed]
    assert (failed.axis, failed.ranges, failed.slices) == (None, ((0, 6), (8, 39)), 39)
    assert place(failed, [f"s{i}" for i in range(40)]) == "samples 0-6, 8-39 (from 0)"


def test_a_silent_sample_among_loud_ones_has_room_and_a_floor() -> None:
    arrays = [array * (1e-3 if i == 3 else 1) for i, array in enumerate(made(40, waveform))]
    quiet, loud = totals([{"y": array} for array in arrays])["y"].groups
    assert (quiet.axis, quiet.room, loud.room) == (None, ROOM, 1.0)
    assert judged(arrays, rounded(arrays)).passed
    assert not judged(arrays, [a * (0 if i == 3 else 1) for i, a in enumerate(arrays)]).passed
    arrays[3] *= 1e-4
    quiet, loud = totals([{"y": array} for array in arrays])["y"].groups
    assert quiet.scale == FLOOR * loud.scale


def quantities(count: int, faint: float, *, of: int = 3, filled: float = 1.0) -> Arrays:
    """Return [1, `of`, 60] with slices up to 5e4, and the last third of them smaller by `faint`."""
    arrays = [rng(seed).standard_normal((1, of, 60)) * 1e4 for seed in range(count)]
    for array in arrays:
        array[:, -(of // 3) :] *= faint
        array[:, -(of // 3) :, int(60 * filled) :] = 0
    return [array.astype(np.float32) for array in arrays]


def decades(*shape: int) -> Arrays:
    """Return 40 samples over four decades, all above 0."""
    draw = rng(4)
    scales = np.logspace(2, -2, 40)
    return [(x * draw.uniform(0.5, 1, shape)).astype(np.float32) for x in scales]


@pytest.mark.parametrize("shape", [(1,), (1, 2), (1, 24)])
@pytest.mark.parametrize("unit", [False, True])
def test_quiet_samples_have_a_scale_of_their_own(shape: tuple[int, ...], unit: bool) -> None:
    truth = [x / 100 if unit else x for x in decades(*shape)]
    top = max(float(x.max()) for x in truth)
    assert judged(truth, rounded(truth)).passed
    for change in (0.0, 2.0):
        lie = [change * x if x.max() < 0.004 * top else x for x in truth]
        assert not judged(truth, lie).passed


def test_a_few_numbers_near_0_are_small_by_chance() -> None:
    truth = [np.array([x], np.float32) for x in rng(2).uniform(-1, 1, 40)]
    assert judged(truth, [x + np.float32(0.004) for x in truth]).passed


@pytest.mark.parametrize("level", [1e-3, 1e-5])
def test_a_band_within_0_and_1_counts_down_to_80_db(level: float) -> None:
    draw = rng(5)
    bands = np.logspace(0, -2, 20)[:, None] * np.ones(9)
    bands[-1] = level
    truth = [(draw.uniform(0.5, 1, bands.shape) * bands).astype(np.float32) for _ in range(9)]
    lie = [x * (np.arange(20) < 19)[:, None] for x in truth]
    assert judged(truth, lie).passed == (level < FLOOR)


def test_a_probability_counts_down_to_80_db() -> None:
    truth = [np.full(1, x, np.float32) for x in np.logspace(0, -6, 40)]
    for level in (1e-3, FLOOR):
        lie = [x * (x > level) for x in truth]
        assert judged(truth, lie).passed == (level == FLOOR)


def test_no_sample_of_many_small_values_may_be_lost() -> None:
    truth = [np.full(24, x, np.float32) for x in np.logspace(0, -4.5, 40)]
    assert not judged(truth, [x * (x > FLOOR) for x in truth]).passed


def test_no_sample_of_whole_numbers_may_be_lost() -> None:
    set_ = np.arange(100) % 9 == 0
    truth, labels = [set_] * 200, [np.arange(60) % 5] * 200
    for arrays, wrong in ((truth, set_ & False), (labels, (labels[0] + 1) % 5)):
        lie = [wrong, *arrays[1:]]
        assert not judged(arrays, lie).passed
        assert judged(arrays, lie, Criterion(agreement=0.4)).passed
        few = np.where(np.arange(wrong.size) < 9, wrong, arrays[0])
        assert judged(arrays, [few, *arrays[1:]]).passed


@pytest.mark.parametrize("faint", [1e-3, 1e-5, 1e-6])
def test_a_quantity_beside_others_has_its_scale_however_small(faint: float) -> None:
    arrays = quantities(6, faint)
    small, _ = totals([{"y": array} for array in arrays])["y"].groups
    assert small.scale == max(np.abs(array[:, 2]).max() for array in arrays)
    assert judged(arrays, rounded(arrays)).passed
    result = judged(arrays, [a * np.array([[[1], [1], [0.5]]], np.float32) for a in arrays])
    assert [group.passed for group in result.groups] == [False, True]


@pytest.mark.parametrize(
    ("of", "filled", "faint"),
    [(SHORT + 1, 1, 1e-6), (3, 0.5, 1e-6), (3, 1, 1e-9)],
    ids=["frames", "zeros", "rounding"],
)
def test_frames_what_is_half_zeros_and_rounding_have_a_floor(
    of: int, filled: float, faint: float
) -> None:
    arrays = quantities(4, faint, of=of, filled=filled)
    found = totals([{"y": array} for array in arrays])["y"]
    assert found.groups[0].scale == FLOOR * found.absmax


def offset(span: float, shape: tuple[int, ...] = (1, 1, 30)) -> Arrays:
    """Return samples with values from 1000 to 1000 + span."""
    arrays = made(5, lambda random: 1000 + span * random.random(shape))
    arrays[0].flat[0], arrays[0].flat[-1] = 1000, 1000 + span
    return arrays


@pytest.mark.parametrize(("span", "share"), [(64.0, 640.0), (4.0, 200.8)])
def test_values_on_an_offset_are_held_to_what_they_span(span: float, share: float) -> None:
    arrays = offset(span)
    (whole,) = totals([{"y": array} for array in arrays])["y"].groups
    assert (whole.axis, whole.slices.size, whole.span) == (None, 5, span)
    assert whole.scale == pytest.approx(share)
    assert judged(arrays, rounded(arrays)).passed
    for error, passed in ((0.009 * share, True), (0.011 * share, False)):
        result = judged(arrays, [array + np.float32(error) for array in arrays])
        assert result.passed == passed
        assert result.rel_max < 0.01
        assert result.groups[0].span == pytest.approx(span)
    apart = [np.concatenate([a, a / 100 - 10, a - 1000], axis=1) for a in arrays]
    assert span in [group.span for group in totals([{"y": array} for array in apart])["y"].groups]


@pytest.mark.parametrize(
    "arrays",
    [
        offset(200.0),
        offset(50.0, (1,)),
        [np.array([[1000, 1010, -5]], np.float32)] * 4,
        [array / 1100 for array in offset(50.0)],
    ],
    ids=["wide", "few", "across 0", "within 0 and 1"],
)
def test_what_spans_much_is_few_or_a_score_is_on_no_offset(arrays: Arrays) -> None:
    assert groups_of(arrays) == []


def test_what_is_within_0_and_1_is_one_kind() -> None:
    scores = np.stack([unit(rng(), 100) * scale for scale in (1e-4, 1.0, 1e-3)])
    assert groups_of([scores]) == []
    assert groups_of([scores[:, :50], 1e-3 * scores[:, :50]]) == []
    assert groups_of([scores - 2e-5]) != []


def columns(*scales: float, count: int = 100, filled: float = 1.0) -> Array:
    """Return columns ±scale; of the last one only a share is not zero."""
    signs = np.where(np.arange(count) % 2, 1.0, -1.0)[:, None]
    values: Array = signs * np.array(scales)
    values[round(filled * count) :, -1] = 0
    return values.astype(np.float32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([columns(1, 4.1)], [columns(1, 3.9)]),
        ([columns(1, 1), columns(10.1, 10.1)], [columns(1, 1), columns(9.9, 9.9)]),
        ([columns(1, 100, count=8)], [columns(1, 100, count=7)]),
        ([columns(100, 1, filled=0.26)], [columns(100, 1, filled=0.24)]),
    ],
    ids=["slices", "samples", "values", "zeros"],
)
def test_there_are_groups_just_within_the_limit(one: Arrays, other: Arrays) -> None:
    assert len(groups_of(one)) == 2
    assert not groups_of(other)


@pytest.mark.parametrize(("slices", "passed"), [(12, False), (13, True)])
def test_up_to_twelve_slices_may_be_quantities_without_a_floor(slices: int, passed: bool) -> None:
    array = columns(*[1.0] * (slices - 1), 1e-6)
    assert judged([array], [array + 1e-6 * (np.arange(slices) == slices - 1)]).passed is passed


@pytest.mark.parametrize(("error", "passed"), [(0.95e-5, True), (1.05e-5, False)])
def test_a_silent_slice_among_many_has_a_floor_of_80_db_and_room(
    error: float, passed: bool
) -> None:
    array = columns(*[1.0] * 12, 1e-9)
    assert judged([array], [array + error * (np.arange(13) == 12)]).passed is passed


def test_too_few_values_are_no_scale() -> None:
    values = np.array([[5.0, 0.001, -3.0]])
    assert groups_of([values] * (FEWEST - 1)) == []
    assert groups_of([values] * FEWEST) != []


def test_what_hardly_ever_fires_joins_the_smallest_group_that_holds_it() -> None:
    values = rng().standard_normal((1, 4, 100)) * np.array([1, 1, 50, 50]).reshape(1, 4, 1)
    values[:, 1] = 0
    values[:, 1, 3] = 1e-3
    values[:, 3] = 0
    values[:, 3, 5] = 30
    assert groups_of([values]) == [(1, ((0, 1),)), (1, ((2, 3),))]


def test_channels_that_hardly_ever_fire_bridge_the_gap_between_others() -> None:
    # As behind a GELU, of which the more values are 0, the fainter the channel; two by two they
    # go up from 1e-3 to 1, and those between 0.02 and 0.2 fire on one sample of eight.
    values = np.abs(rng().standard_normal((8, 1, 22))) + 1
    values *= np.repeat(np.geomspace(1e-3, 1, 11), 2)
    bridge = slice(8, 16)
    values[1:, :, bridge] = 0
    assert groups_of(list(values)) == []
    values[:, :, bridge] = 0
    assert groups_of(list(values)) == [(1, ((0, 15),)), (1, ((16, 21),))]


@pytest.mark.parametrize(
    ("faint", "of", "rooms"),
    [(10, 100, [1, 1]), (9, 100, [10, 1]), (1, 100, [10, 1]), (1, 101, [])],
)
def test_groups_of_few_slices_have_room_and_a_hundredth_is_none(
    faint: int, of: int, rooms: list[float]
) -> None:
    values = rng().standard_normal((1, of, 20))
    values[:, :faint] *= 1e-2
    assert [group.room for group in totals([{"y": values}])["y"].groups] == rooms


def test_axes_of_several_sizes_are_not_sliced() -> None:
    one, other = (np.concatenate([100 * np.ones((n, 4)), np.ones((n, 2))], 1) for n in (9, 12))
    assert groups_of([one, other]) == [(1, ((4, 5),)), (1, ((0, 3),))]
    assert groups_of([one, other.T]) == []
    assert groups_of([one, other[None]]) == []
    assert groups_of([one, np.zeros((0, 6))]) == groups_of([one])


@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 4), st.floats(0, 0.1))
def test_one_scale_is_judged_as_a_whole_to_the_bit(
    seed: int, slices: int, samples: int, size: float
) -> None:
    random = rng(seed)
    values = random.uniform(1.01, GAP, (samples, slices, 8)) * random.choice([-1, 1], (slices, 8))
    arrays = list(values.astype(np.float32))
    noise = random.standard_normal(values.shape).astype(np.float32)
    candidates = [a + np.float32(size) * n for a, n in zip(arrays, noise, strict=True)]
    total = totals([{"y": array} for array in arrays])
    assert total["y"].groups == ()
    excess = Excess(Criterion(), total)
    for array, candidate in zip(arrays, candidates, strict=True):
        excess.update({"y": array}, {"y": candidate})
    errors = [c.astype(np.float64) - a for a, c in zip(arrays, candidates, strict=True)]
    assert excess.final() == np.abs(errors).max() / np.abs(arrays).max().astype(float) / 0.01


@st.composite
def scaled(draw: st.DrawFn) -> tuple[Arrays, Arrays]:
    """References and candidates: slices and samples of scales that are drawn."""
    random = rng(draw(st.integers(0, 2**32)))
    slices, samples = draw(st.integers(2, 5)), draw(st.integers(1, 12))
    exponents = np.array(draw(st.lists(st.integers(-3, 3), min_size=slices, max_size=slices)))
    loud = np.array(draw(st.lists(st.integers(-3, 0), min_size=samples, max_size=samples)))
    values = random.standard_normal((samples, 1, slices, 9)) * 10.0 ** exponents.reshape(-1, 1)
    values *= 10.0 ** loud.reshape(-1, 1, 1, 1)
    values += draw(st.sampled_from([0, 0, 0, 1e3, 1e5]))
    noise = random.standard_normal(values.shape) * 10.0 ** draw(st.integers(-6, -1))
    both = values.astype(np.float32), (values * (1 + noise)).astype(np.float32)
    return list(both[0]), list(both[1])


CRITERIA = st.sampled_from(
    [Criterion(), Criterion(rel_max=0.1, snr_db=20), Criterion(max_abs=1.0), Criterion(metric="m")]
)


@given(scaled(), CRITERIA)
def test_search_and_verdict_agree_and_nothing_passes_that_did_not_before(
    both: tuple[Arrays, Arrays], criterion: Criterion
) -> None:
    result = judged(*both, criterion)
    assert result.groups == () or criterion.rel_max is not None or criterion == Criterion()
    assert result.passed <= all(group.passed for group in result.groups)
    if criterion == Criterion():
        assert result.passed <= (result.rel_max <= 0.01)
        assume(abs(result.rel_max_needed - 0.01) > 1e-12)
        assert result.passed == (result.rel_max_needed <= 0.01)


@given(scaled(), st.data())
def test_permuted_slices_have_permuted_groups(
    both: tuple[Arrays, Arrays], data: st.DataObject
) -> None:
    arrays, candidates = both
    order = np.array(data.draw(st.permutations(range(arrays[0].shape[1]))))
    before = totals([{"y": a} for a in arrays])["y"].groups
    after = totals([{"y": a[:, order]} for a in arrays])["y"].groups
    assert len(before) == len(after)
    for one, other in zip(before, after, strict=True):
        assert (one.axis, one.scale, one.room) == (other.axis, other.scale, other.room)
        if one.axis == 1:
            assert sorted(order[other.slices]) == list(one.slices)
    swapped = judged([a[:, order] for a in arrays], [c[:, order] for c in candidates])
    assert swapped.passed == judged(arrays, candidates).passed


@given(scaled(), st.integers(-6, 6))
def test_a_power_of_two_changes_nothing_but_the_unit(
    both: tuple[Arrays, Arrays], exponent: int
) -> None:
    arrays, candidates = both
    # Within [0, 1] is no matter of proportion.
    assume(all((array.min(axis=(0, 2)) < 0).all() for array in arrays))
    factor = np.float32(2.0**exponent)
    result, other = (
        judged([a * by for a in arrays], [c * by for c in candidates]) for by in (1, factor)
    )
    assert result.passed == other.passed
    assert [g.ranges for g in result.groups] == [g.ranges for g in other.groups]
    assert [g.scale * factor for g in result.groups] == [g.scale for g in other.groups]


def test_a_new_sample_has_the_group_that_holds_its_values() -> None:
    arrays = [array * (0.01 if i < 10 else 1) for i, array in enumerate(made(20, waveform))]
    small, large = groups = totals([{"y": array} for array in arrays])["y"].groups
    assert large.scale > SAMPLE_GAP * small.scale
    for value, expected in ((small.scale / 9, (1, 0)), (large.scale, (0, 1)), (1e3, (0, 1))):
        fresh = np.full((1, 400), value)
        assert group_errors(groups, fresh, fresh + 1) == pytest.approx(expected)


def test_places_in_words() -> None:
    def group(axis: int | None, ranges: tuple[tuple[int, int], ...], slices: int) -> SliceGroup:
        numbers = {"scale": 1.0, "max_abs": 0.1, "allowed": 0.01}
        return SliceGroup(
            axis=axis, ranges=ranges, slices=slices, worst_sample="", passed=False, **numbers
        )

    assert place(group(1, ((4, 83),), 80), ()) == "slices 4-83 of axis 1"
    assert place(group(2, ((4, 4),), 1), ()) == "slice 4 of axis 2"
    assert place(group(0, ((0, 1), (5, 5)), 40), ()) == "slices 0-1, 5 and 37 more of axis 0"
    assert place(group(None, ((1, 1),), 1), ("a", "b")) == "sample b"


def test_an_axis_of_another_length_in_each_sample_has_no_faint_slices() -> None:
    arrays = [np.geomspace(1, 1e-4, size) for size in (72, 69)]
    assert totals([{"y": array} for array in arrays])["y"].faint == ()


@pytest.mark.parametrize(("value", "found"), [(0.0, True), (np.nan, False)])
def test_slices_are_constant_where_the_candidate_has_one_number(value: float, found: bool) -> None:
    references = [rng(i).normal(size=(4, 8, 16)).astype(np.float32) for i in range(3)]
    candidates = [reference.copy() for reference in references]
    for candidate in candidates:
        candidate[2] = value
    flat = constant_slices(references, candidates)
    assert (flat is not None) == found
    assert flat is None or (flat[0], list(flat[1])) == (0, [2])
