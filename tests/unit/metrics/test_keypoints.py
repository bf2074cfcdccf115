"""Keypoints with descriptors: which outputs they are, and when two sets of them are alike."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.errors import UsageError
from halfwise.metrics import evidence_of
from halfwise.metrics.evidence import Inputs
from halfwise.metrics.keypoints import similarity
from halfwise.metrics.kinds import recognise
from halfwise.metrics.recognised import settle, untested_task
from halfwise.records import Criterion
from tests.unit.metrics.looked import IMAGE, RNG, settled, unit_rows

NAMES = ("kpts", "conf", "desc")
Sample = dict[str, NDArray[Any]]


def sample(count: int, seed: int = 0) -> Sample:
    """Return so many keypoints, at least 4 pixels apart."""
    cells = np.random.default_rng(seed).permutation(225)[:count]
    places = 3 + 4 * np.stack(np.divmod(cells, 15), axis=1)
    return {
        "kpts": places.astype(np.float32),
        "conf": RNG.uniform(0.2, 0.9, count).astype(np.float32),
        "desc": unit_rows(count, 32),
    }


SOME = [sample(20), sample(31, 1)]


def batched(one: Sample) -> Sample:
    return {name: array[None] for name, array in one.items()}


def turned(one: Sample) -> Sample:
    return {**one, "desc": one["desc"].swapaxes(-1, -2)}


def whole(one: Sample) -> Sample:
    return {**one, "kpts": one["kpts"].astype(np.int64)}


def read(samples: list[Sample], inputs: Inputs = IMAGE) -> list[tuple[str, ...]]:
    found = recognise(samples, inputs)
    return [one.outputs for one in found if one.kind == "keypoints"]


@pytest.mark.parametrize("change", [dict, batched, turned, whole, lambda s: turned(batched(s))])
def test_places_scores_and_descriptors_are_told_together(change) -> None:
    samples = [change(one) for one in SOME]
    assert read(samples) == [NAMES]
    assert read([dict(reversed(one.items())) for one in samples]) == [NAMES]
    assert read(samples[:1]) == [NAMES]
    assert read(samples, {}) == []
    assert len(recognise(samples, IMAGE)) == 1


def test_scores_of_another_number_in_each_sample_are_of_no_classes() -> None:
    for name in ("y", "logits"):
        assert recognise([{name: one["conf"][None]} for one in SOME], IMAGE) == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"kpts": SOME[0]["kpts"] / 64},
        {"kpts": 3 * SOME[0]["kpts"]},
        {"kpts": -SOME[0]["kpts"]},
        {"kpts": SOME[0]["kpts"] % 8},  # many at one place
        {"conf": -SOME[0]["conf"]},
        {"conf": np.ones(20)},
        {"conf": np.ones((20, 1))},
        {"desc": 2 * SOME[0]["desc"]},
        {"desc": unit_rows(20, 8)},
        {"desc": unit_rows(19, 32)},
    ],
)
def test_what_is_not_surely_a_set_of_keypoints_is_not_taken_for_it(changed: Sample) -> None:
    assert read([{**SOME[0], **changed}]) == []


def test_offsets_are_no_places_and_joints_have_no_descriptors() -> None:
    other = {"offsets" if n == "kpts" else n: array for n, array in SOME[0].items()}
    assert read([other]) == []
    plain = [{n: array for n, array in one.items() if n != "desc"} for one in SOME]
    assert read(plain[:1]) == []
    assert read(plain) == [NAMES[:2]]  # joints are always of one number


def test_without_descriptors_places_and_scores_count() -> None:
    plain = {n: array for n, array in ONE.items() if n != "desc"}
    for name, by, fits in (("kpts", 1.0, True), ("kpts", 3.0, False), ("conf", 0.2, False)):
        other = {**plain, name: plain[name] + np.float32(by)}
        assert (similarity([plain], [other], NAMES[:2]) == 1.0) is fits


ONE = {**sample(20), "conf": np.full(20, 0.5, np.float32)}


def judged(candidate: Sample, reference: Sample = ONE) -> float:
    return similarity([reference], [candidate], NAMES)


def with_first(name: str, value: Any) -> Sample:
    array = ONE[name].copy()
    array[0] = value
    return {**ONE, name: array}


DESCRIPTOR = ONE["desc"][0]
ACROSS = np.roll(DESCRIPTOR, 1) - (np.roll(DESCRIPTOR, 1) @ DESCRIPTOR) * DESCRIPTOR
ACROSS /= np.linalg.norm(ACROSS)


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("kpts", ONE["kpts"][0] + [1.3, 1.4], True),
        ("kpts", ONE["kpts"][0] + [1.5, 1.5], False),
        ("conf", 0.46, True),
        ("conf", 0.44, False),
        ("conf", 0.57, False),
        ("desc", 0.99 * DESCRIPTOR + 0.141 * ACROSS, True),
        ("desc", 0.97 * DESCRIPTOR + 0.243 * ACROSS, False),
        ("desc", 0.5 * DESCRIPTOR, False),
        ("desc", 0 * DESCRIPTOR, False),
    ],
)
def test_a_pair_is_near_and_alike(name: str, value: Any, fits: bool) -> None:
    score = float(value) if name == "conf" else 0.5
    share = 1 if fits else (19 * 0.5 + 19 * 0.5) / (20 * 0.5 + 19 * 0.5 + score)
    assert judged(with_first(name, value)) == pytest.approx(share, abs=1e-6)


def test_order_does_not_matter_and_number_does() -> None:
    order = RNG.permutation(20)
    assert judged({name: array[order] for name, array in ONE.items()}) == 1
    fewer = {name: array[1:] for name, array in ONE.items()}
    assert judged(fewer) == judged(ONE, fewer) == pytest.approx(38 / 39)
    assert judged({name: array[:0] for name, array in ONE.items()}) == 0
    twice = {name: np.concatenate([array, array]) for name, array in ONE.items()}
    assert judged(twice) == pytest.approx(2 / 3)


def test_points_count_by_their_score() -> None:
    scores = np.where(np.arange(20) < 1, 0.01, 0.5)
    fewer = {name: array[1:] for name, array in ONE.items()}
    assert judged(fewer, {**ONE, "conf": scores}) > 0.999


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_has_no_pair(name: str, value: float) -> None:
    assert judged(with_first(name, value)) == 0


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (20, 3), (1, 20, 2), (2, 20, 2)])
@pytest.mark.parametrize("name", NAMES)
def test_other_shapes_have_no_pair(name: str, shape: tuple[int, ...]) -> None:
    assert judged({**ONE, name: np.ones(shape)}) == 0
    assert judged({**batched(ONE), name: np.ones(shape)}, batched(ONE)) == 0


def test_descriptors_in_columns_are_read_also_where_there_are_as_many_as_numbers() -> None:
    samples = [turned(ONE), turned(sample(32))]
    assert similarity(samples, samples, NAMES) == 1
    other = turned(samples[1])
    assert similarity(samples, [samples[0], {**samples[1], "desc": other["desc"]}], NAMES) < 0.6


def test_images_count_alike_and_empty_ones_not() -> None:
    none = {name: array[:0] for name, array in ONE.items()}
    assert similarity([ONE, ONE, none], [ONE, none, none], NAMES) == 0.5
    assert similarity([none], [none], NAMES) == 1
    assert evidence_of("keypoints", similarity([ONE, none], [ONE, none], NAMES)) == (
        20,
        "keypoints",
    )
    assert evidence_of("keypoints", similarity([batched(SOME[1])], [none], NAMES)) == (
        31,
        "keypoints",
    )


def test_a_run_is_judged_by_them() -> None:
    for asked in ("keypoints", "auto"):
        criterion, metric = settled(asked, SOME)
        assert criterion.recognised[0].metric == "keypoints"
        assert metric(SOME, SOME, None) == 1
        assert metric(SOME, SOME[::-1], None) < 0.1
        assert untested_task(criterion, metric, SOME, None) == ()
        none = [{name: array[:0] for name, array in ONE.items()}]
        (absent,) = untested_task(criterion, metric, none, None)
        assert (absent.kind, absent.name) == ("absent", "keypoints")
    with pytest.raises(UsageError):
        settle(Criterion(metric="keypoints"), [{"y": SOME[0]["kpts"]}], IMAGE, labelled=False)
