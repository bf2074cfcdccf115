"""Photos, and what pipelines make of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

Photo = NDArray[np.uint8]


@pytest.fixture(scope="session")
def photos() -> list[Photo]:
    """Three photos, u8[h, w, 3], of different sizes."""
    first, second = load_sample_images()["images"]
    return [first[100:300, 200:500], second[60:320, 180:420], first[150:420, 0:300]]


@pytest.fixture(scope="session")
def planes(photos: list[Photo]) -> list[NDArray[np.float64]]:
    """The photos as f64[3, 96, 96], resized by Pillow."""
    return [planar(resized(photo, 96)) for photo in photos]


def resized(photo: Photo, side: int, how: Image.Resampling = Image.Resampling.BILINEAR) -> Photo:
    return np.asarray(Image.fromarray(photo).resize((side, side), how))


def planar(photo: NDArray[Any]) -> NDArray[np.float64]:
    return photo.transpose(2, 0, 1).astype(np.float64)


Pipeline = Callable[[Photo], NDArray[Any]]
