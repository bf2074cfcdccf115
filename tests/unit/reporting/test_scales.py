"""Lines on slices that are held to scales of their own."""

from typing import Any

from halfwise.records import SliceGroup
from halfwise.reporting.parts import MOST_ROWS
from halfwise.reporting.scales import scale_lines
from tests.unit.reporting.runs import HELDOUT, output_error, verdict


def group(**changed: Any) -> SliceGroup:
    values: dict[str, Any] = {
        "axis": 1,
        "ranges": ((4, 83),),
        "slices": 80,
        "scale": 0.93,
        "max_abs": 0.43,
        "allowed": 0.0093,
        "worst_sample": HELDOUT[0],
        "passed": False,
    }
    return SliceGroup(**values | changed)


BOXES = group(ranges=((0, 3),), slices=4, scale=640.0, max_abs=0.5, allowed=6.4, passed=True)


def test_failed_groups_come_first():
    error = output_error(groups=(BOXES, group(room=10.0)))
    lines = scale_lines(verdict(outputs={"output0": error}))
    assert lines is not None
    assert lines.lines == (
        "output0, slices 4-83 of axis 1: up to 0.93, off by 0.43 of 0.0093 allowed, 10 times the "
        "tolerance as they are few, too much.",
        "output0, slices 0-3 of axis 1: up to 640, off by 0.5 of 6.4 allowed.",
    )


def test_values_on_an_offset_are_told_by_their_span():
    pressure = group(scale=2e4, span=2e3, max_abs=900.0, allowed=200.0)
    lines = scale_lines(verdict(outputs={"y": output_error(groups=(pressure,))}))
    assert lines is not None
    (line,) = lines.lines
    assert line.startswith("y, slices 4-83 of axis 1: spanning 2e+03 on an offset, off by 900")


def test_one_scale_says_nothing_and_many_are_counted():
    assert scale_lines(verdict()) is None
    many = output_error(groups=(BOXES,) * (MOST_ROWS + 3))
    lines = scale_lines(verdict(outputs={"y": many}))
    assert lines is not None
    assert lines.lines[-1] == "And 3 more."
