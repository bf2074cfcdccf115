"""Maps with their channels last are what they are with their channels first."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics import evidence_of
from halfwise.metrics.evidence import Inputs
from halfwise.metrics.recognised import settle, settled_metric, untested_task
from halfwise.metrics.targets import class_axis
from halfwise.metrics.task import mean_iou, places, psnr, worst_block
from halfwise.records import Criterion
from tests.unit.metrics.looked import (
    DISC,
    IMAGE,
    PEAK,
    PICTURE,
    REGIONS,
    RNG,
    normal,
    shown,
    softmax,
)


def last(array: NDArray[Any]) -> NDArray[Any]:
    return np.moveaxis(array, 1, -1)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1, 21, 65, 65), 1),
        ((1, 65, 65, 21), 3),
        ((1, 150, 128, 128), 1),
        ((1, 128, 128, 150), 1),
        ((1, 64, 64, 32), 1),
        ((1, 64, 64, 31), 3),
        ((1, 2, 1, 1), 1),
    ],
)
def test_the_axis_of_the_classes_is_told_by_the_sides(shape, axis) -> None:
    assert class_axis(shape) == axis


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", softmax(6 * REGIONS, axis=1), "segmentation"),
        ("y", 6 * REGIONS, "segmentation"),
        ("y", 6 * REGIONS[..., ::2, ::2], None),
        ("segmentation", 6 * REGIONS[..., ::2, ::2], "segmentation"),
        ("y", 0.1 * REGIONS, None),
        ("y", normal(1, 7, 64, 64), None),
        ("y", REGIONS.argmax(axis=1)[:, None], "segmentation"),
        ("y", RNG.integers(0, 7, (1, 1, 64, 64)), None),
        ("y", DISC, "mask"),
    ],
)
def test_a_kind_is_told_either_way(name: str, array: NDArray[Any], kind: str | None) -> None:
    assert shown(name, array, array) == kind
    assert shown(name, last(array), last(array)) == kind


def test_overlaps_are_the_same_either_way() -> None:
    truth = softmax(6 * REGIONS, axis=1)
    guess = np.roll(truth, 3, axis=2)
    first = mean_iou([{"y": truth}], [{"y": guess}], None)
    assert mean_iou([{"y": last(truth)}], [{"y": last(guess)}], None) == first < 1
    labels = [REGIONS.argmax(axis=1)]
    assert mean_iou([{"y": last(truth)}], [{"y": last(truth)}], labels) == 1
    assert mean_iou([{"y": last(truth)}], [{"y": last(guess)}], labels) == first
    assert mean_iou([{"y": last(truth)}], [{"y": truth}], None) == 0
    assert evidence_of("mean-iou", mean_iou([{"y": last(truth)}], [{"y": last(truth)}], None)) == (
        64 * 64,
        "pixels",
    )


GREY: Inputs = {"image": (1, 1, 64, 64)}


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (PICTURE, "image"),
        (255 * PICTURE, "image"),
        ((255 * PICTURE).astype(np.uint8), "image"),
        ((255 * np.kron(PICTURE, np.ones((1, 1, 2, 2)))).astype(np.uint8), "image"),
        ((255 * PICTURE).astype(np.int64), None),
        ((99 * PICTURE).astype(np.uint8), None),
        (RNG.integers(0, 256, (1, 3, 64, 64)).astype(np.uint8), None),
        (PICTURE[:, :1], None),
        ((255 * PICTURE[:, :1]).astype(np.uint8), None),  # or the class of each pixel
    ],
)
def test_an_image_of_three_channels_may_be_of_8_bits(array: NDArray[Any], kind) -> None:
    assert shown("y", array, array) == kind
    assert shown("y", last(array), last(array)) == kind


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", PICTURE[:, 2:], "image"),
        ("y", 255 * PICTURE[:, 2:], "image"),
        ("y", PICTURE[:, 2:, :32, :32], None),
        ("y", RNG.random((1, 1, 64, 64)), None),
        ("y", PEAK, None),  # mostly of one value
        ("saliency", PICTURE[:, 2:], None),
        ("depth", PICTURE[:, 2:], None),
        ("y", np.kron(DISC, np.ones((1, 1, 2, 2))), "mask"),
    ],
)
def test_what_is_made_of_a_grey_image_may_be_grey(name: str, array: NDArray[Any], kind) -> None:
    assert shown(name, array, array, inputs=GREY) == kind
    assert shown(name, last(array), last(array), inputs={"image": (1, 64, 64, 1)}) == kind


def test_a_spectrum_is_no_grey_image() -> None:
    spectrum = np.kron(PICTURE[:, 2:], np.ones((1, 1, 3, 3)))[:, :, :129, :100]
    other = spectrum[:, :, :128]
    assert shown("y", other, inputs={"x": other.shape}) == "image"
    assert shown("y", spectrum, inputs={"x": spectrum.shape}) is None


def test_no_block_of_an_image_may_be_lost() -> None:
    truth = {"y": PICTURE.astype(np.float32)}
    criterion = settle(Criterion(metric="auto"), [truth], IMAGE, labelled=False)
    metric = settled_metric(criterion)
    assert metric is not None
    assert metric([truth], [truth], None) == pytest.approx(1)
    wrong = {"y": truth["y"].copy()}
    wrong["y"][..., 16:19, 20:22] += 0.11 * np.ptp(PICTURE)
    assert psnr([truth], [wrong], None) > 40
    assert worst_block([truth], [wrong], None) == pytest.approx(29.45, abs=0.01)
    assert metric([truth], [wrong], None) < 0


def test_half_of_a_place_of_whole_numbers_may_change() -> None:
    truth, moved, lost = np.zeros((3, 1, 32, 32), np.int64)
    truth[..., 10:20], moved[..., 11:21] = 1, 1
    assert places([{"y": truth}], [{"y": moved}], None) == pytest.approx(1 - 0.3 / 5)
    assert places([{"y": truth}], [{"y": lost}], None) == pytest.approx(0.7)
    assert places([{"y": truth}], [{"y": lost[..., 1:]}], None) == 0


def test_images_of_8_bits_have_a_ratio() -> None:
    truth = (255 * PICTURE).astype(np.uint8)
    assert psnr([{"y": truth}], [{"y": truth}], None) == 100
    assert psnr([{"y": truth}], [{"y": truth ^ 1}], None) == pytest.approx(48, abs=0.5)
    assert psnr([{"y": truth}], [{"y": 255 - truth}], None) < 10
    criterion = settle(Criterion(metric="auto"), [{"y": truth}], IMAGE, labelled=False)
    metric = settled_metric(criterion)
    assert {one.metric for one in criterion.recognised} == {"psnr", "worst-psnr"}
    assert untested_task(criterion, metric, [{"y": truth}], None) == ()
    assert evidence_of("psnr", psnr([{"y": truth}], [{"y": truth}], None)) == (truth.size, "values")
    with pytest.raises(CaseError):
        psnr([{"y": truth.astype(np.int64)}], [{"y": truth}], None)
