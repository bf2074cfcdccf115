from typing import Any

import pytest

from halfwise.records import (
    DynamicAxis,
    FailureBound,
    IntermediateNonfinite,
    JudgedBatch,
    MetricResult,
    SliceGroup,
    TensorName,
    Verdict,
    replace,
)
from halfwise.reporting.verdict import (
    bound_part,
    doubt,
    inside,
    scale_lines,
    size_lines,
)
from halfwise.wording import MOST_ROWS
from tests.unit.reporting.runs import HELDOUT, output_error, run, verdict


def bound(judged, failing, upper):
    return FailureBound(judged=judged, failing=failing, upper=upper, confidence=0.95)


BATCH = JudgedBatch(
    size=2,
    samples=("a", "b", "c", "d"),
    whole=False,
    passed=True,
)


def axis(*sizes, symbol="n", **further):
    inputs = {TensorName("ids"): 0, TensorName("mask"): 0}
    return DynamicAxis(inputs=inputs, symbol=symbol, sizes=sizes, **further)


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


def nonfinite_in(*harmless: bool | None) -> Verdict:
    tensors = tuple(
        IntermediateNonfinite(tensor=TensorName(f"t{i}"), producer=None, elements=1, harmless=h)
        for i, h in enumerate(harmless)
    )
    return Verdict(
        passed=True,
        level="emulated",
        samples=("s",),
        unseen=True,
        outputs={},
        worst_sample=None,
        intermediate_nonfinite=tensors,
    )


@pytest.mark.parametrize(
    ("found", "share"),
    [
        *((bound(10, 0, 0.2589), "26 %"), (bound(12, 2, 0.4382), "44 %")),
        *((bound(59, 0, 0.04952), "5.0 %"), (bound(1000, 0, 0.002991), "0.30 %")),
        (bound(2, 2, 1), None),
    ],
)
def test_a_bound_is_rounded_up_and_nothing_is_bounded_where_all_samples_fail(found, share):
    shown = bound_part(run(verdict=verdict(failure_bound=found)))
    assert shown is not None
    (line,) = shown.lines
    assert ("%" in line) == (share is not None)
    assert share is None or f" {share} " in line


def test_the_first_line_says_how_little_few_samples_show():
    score = MetricResult(name="top1", reference=1, candidate=1, allowed_drop=0.01, passed=True)
    few, rows = HELDOUT[:4], replace(score, evidence=1, unit="rows")
    for told, changed in (
        (True, {"failure_bound": bound(10, 0, 0.2589)}),
        (False, {"failure_bound": bound(29, 0, 0.0982)}),
        (False, {"failure_bound": bound(10, 2, 0.5), "passed": False}),
        (False, {"samples": few}),
        (False, {"metric": score}),
        (True, {"metric": rows}),
    ):
        assert bool(doubt(verdict(**changed))) == told
    assert bound_part(run()) is None


def test_each_axis_has_a_line_whatever_sizes_are_known():
    assert [*size_lines(verdict(axes=()))] == []
    assert len([*size_lines(verdict(axes=(axis(), axis(2, 3)), batch=BATCH))]) == 2


def test_failed_groups_come_first_and_many_are_counted():
    assert scale_lines(verdict()) is None
    for passed in (BOXES,), (BOXES,) * (MOST_ROWS + 3):
        found = scale_lines(verdict(outputs={"y": output_error(groups=(*passed, group()))}))
        assert found is not None
        assert [line.startswith("y, slices 4-83 ") for line in found.lines[:2]] == [True, False]
        assert len(found.lines) == min(len(passed) + 1, MOST_ROWS + 1)


def test_only_what_is_known_to_be_harmless_is_said_to_be():
    assert inside(nonfinite_in()) is None
    for harmless, named, lines in (
        ((True, True), "t0", 2),
        ((True, None), "t1", 2),
        ((True, False), "t1", 2),
        ((False, True), "t0", 2),
        ((None, False), "t0", 1),
    ):
        told = inside(nonfinite_in(*harmless))
        assert told is not None
        assert told.lines[0].endswith(f" {named}.")
        assert len(told.lines) == lines
