import numpy as np
import pytest

from halfwise.tools.preprocessing.matching import TURNS, Turn, match, thumbnail


@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_every_turn_is_found(planes, turn):
    a = [thumbnail(image) for image in planes]
    b = [thumbnail(turn(image)) for image in planes]
    assert match(a, b) == (turn, (0, 1, 2))


def test_order_and_turn_together(planes):
    a = [thumbnail(image) for image in planes]
    b = [thumbnail(planes[i][:, ::-1]) for i in (2, 0, 1)]
    assert match(a, b) == (Turn(rows=True), (2, 0, 1))


def test_equal_samples_stay_where_they_are(planes):
    same = [thumbnail(planes[0])] * 3
    assert match(same, same) == (Turn(), (0, 1, 2))


def test_a_thumbnail_does_not_depend_on_scale_or_channel_order(planes):
    one = thumbnail(planes[0])
    other = thumbnail(planes[0][::-1] / np.array([51, 58, 2.0])[:, None, None] - 1)
    assert one.shape == (24, 24)
    assert float((one * other).sum()) == pytest.approx(1, abs=1e-6)


def test_a_constant_image():
    assert not thumbnail(np.ones((3, 30, 30))).any()
