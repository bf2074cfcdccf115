import numpy as np
import pytest

from halfwise.tools.preprocessing.framing import frame_differences, frames, sides

SHAPE = (96, 96)


def letterboxed(planes, at="centre", value=114.0, rows=60):
    framed = []
    for image in planes:
        frame = np.full((3, 96, 96), value)
        top = {"start": 0, "centre": (96 - rows) // 2, "end": 96 - rows}[at]
        frame[:, top : top + rows] = image[:, :rows]
        framed.append(frame)
    return framed


def differences(a, b):
    return frame_differences(frames(a, b), a[0].shape[1:], b[0].shape[1:])


def test_the_same_frames(planes):
    assert differences(letterboxed(planes), letterboxed(planes)) == []
    assert differences(planes, planes) == []


def test_values_of_padding(planes):
    found = frames(letterboxed(planes), letterboxed(planes, value=0.0))
    assert (found.value_a, found.value_b) == ((114,) * 3, (0,) * 3)


@pytest.mark.parametrize(("place", "words"), [("start", "at the top"), ("end", "at the bottom")])
def test_another_side(planes, place, words):
    (found,) = differences(letterboxed(planes), letterboxed(planes, place))
    assert found.kind == "padding-side"
    assert found.b.startswith(words)
    assert found.a == "centred"


def test_letterboxed_or_not(planes):
    (found,) = differences(letterboxed(planes), planes)
    assert (found.kind, found.a[:11]) == ("fit", "letterboxed")
    (found,) = differences(letterboxed(planes), letterboxed(planes, rows=80))
    assert found.kind == "fit"


def test_only_one_is_padded(planes):
    shown = [image[:, :60] for image in planes]
    (found,) = differences(letterboxed(planes), shown)
    assert (found.kind, found.b) == ("fit", "not padded: stretched or cropped")


def test_sides(planes):
    assert sides(frames(letterboxed(planes), planes).a, SHAPE) == ("centre", "centre")
    assert sides(frames(letterboxed(planes, "end"), planes).a, SHAPE) == ("end", "centre")
