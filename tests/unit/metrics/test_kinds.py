"""What shows that an output is of a kind, and what looks like it and is none."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics.kinds import Inputs, looks

RNG = np.random.default_rng(11)
IMAGE: Inputs = {"image": (1, 3, 64, 64)}
PAIR: Inputs = {"left": (1, 3, 64, 64), "right": (1, 3, 64, 64)}
DISC = (np.hypot(*np.mgrid[-32:32, -32:32]) < 20).astype(np.float32)[None, None]
PEAK = np.exp(-(np.hypot(*np.mgrid[-32:32, -32:32]) ** 2) / 30).astype(np.float32)[None, None]


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(values: NDArray[Any], axis: int = -1) -> NDArray[np.float32]:
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True), np.float32)


def shown(name: str, *samples: NDArray[Any], inputs: Inputs = IMAGE) -> str | None:
    found = looks([{name: array} for array in samples], inputs)
    return found[0].kind if found and found[0].shown else None


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", softmax(normal(2, 5)), "class-scores"),
        ("y", np.log(softmax(normal(2, 5))), None),  # too few to be told from anything
        ("y", np.log(softmax(normal(2, 50))), "class-scores"),
        ("logits", normal(2, 37), "class-scores"),
        ("y", normal(2, 1000), "class-scores"),
        ("y", normal(1, 136), None),  # 68 landmarks
        ("scores", RNG.random((1, 37)), None),  # several may hold at once
        ("y", normal(1, 512), None),
        ("gate_weights", softmax(normal(2, 5)), None),
        ("y", DISC, "mask"),
        ("y", 0.98 * DISC + 0.01, "mask"),
        ("alpha", DISC, None),
        ("y", PEAK, None),
        ("y", RNG.random((1, 1, 64, 64)), None),
        ("flow", 8 * normal(1, 2, 16, 16), "flow"),
        ("y", 8 * normal(1, 2, 16, 16), None),
        ("flow", 8 * normal(1, 16, 16, 2), None),
    ],
)
def test_what_shows_a_kind(name: str, array: NDArray[Any], kind: str | None) -> None:
    assert shown(name, array, array) == kind


def test_two_images_of_one_size_show_a_flow() -> None:
    assert shown("y", 8 * normal(1, 2, 16, 16), inputs=PAIR) == "flow"


def test_two_values_of_the_inputs_own_shape_may_be_a_page() -> None:
    assert shown("y", DISC, inputs={"page": DISC.shape}) is None


def test_one_sample_is_enough_against() -> None:
    assert shown("y", DISC, 2 + DISC) is None
