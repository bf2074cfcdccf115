"""Words on a calibration cache against the tensors' ranges."""

from collections import Counter

from halfwise.records import CalibrationCheck
from halfwise.reporting.parts import MOST_ROWS, Column, Lines, Table
from halfwise.wording import count, listed, number, percent, shorten

_FAULTS = {
    "saturated": "saturates",
    "outlier": "is set by a few outliers",
    "wide": "is too wide",
    "unset": "has no scale",
}


def cache_parts(check: CalibrationCheck) -> tuple[Lines | Table, ...]:
    """Return how well a cache's ranges fit, and those that do not, worst first."""
    faults = Counter(one.fault for one in check.tensors if one.fault is not None)
    fit = len(check.tensors) - faults.total()
    told = [f"{often} × {_FAULTS[fault]}" for fault, often in faults.most_common()]
    lines = [
        f"{shorten(check.source)}, by {check.calibrator} of TensorRT {check.tensorrt}: of "
        f"{count(len(check.tensors), 'range')}, {fit} fit {count(check.samples, 'sample')}"
        f"{', ' * bool(told)}{', '.join(told)}."
    ]
    if check.uncalibrated:
        lines.append(f"Without a scale: {listed(check.uncalibrated)}.")
    if check.unknown:
        lines.append(f"Not in the model: {listed(check.unknown)}.")
    wrong = [one for one in check.tensors if one.fault is not None]
    wrong.sort(key=lambda one: (one.beyond, one.limit / (one.usual or 1.0)), reverse=True)
    rows = [
        (
            shorten(one.tensor, 40),
            f"±{number(one.limit)}",
            number(one.reach),
            number(one.usual),
            percent(one.beyond) if one.beyond else "",
            _FAULTS[one.fault] if one.fault else "",
        )
        for one in wrong
    ]
    heads = ("cache", "largest", "nearly all below", "beyond")
    columns = (Column("tensor"), *(Column(head, "right") for head in heads), Column("its range"))
    table = Table("Ranges that do not fit", columns, tuple(rows), most=MOST_ROWS)
    return (Lines("Calibration cache", tuple(lines)), *([table] if rows else []))
