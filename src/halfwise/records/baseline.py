"""Comparison of a run with an earlier one, its baseline."""

from typing import Literal

from halfwise.records.record import Record

FigureKind = Literal[
    "rel-max", "mean-abs", "unequal", "non-finite", "metric", "cost", "measured", "time"
]
"""A figure that can get worse; smaller is better for all of them.

"rel-max", "mean-abs": as in `OutputError`; "unequal": the share of elements that differ from the
reference's, in an output that is not floating point; "metric": how far the candidate's value
is below the reference's; "cost", "measured": as in `Worth`; "time": median milliseconds of one run
of an engine.
"""


class Change(Record):
    """A figure of the baseline, and its current value.

    Attributes:
        kind: What it is.
        of: The output, the metric, or the GPU and version of TensorRT; "" for costs.
        before: Value in the baseline.
        now: Value in the run; None if it has none.
        limit: Largest value that passes.
        passed: Whether it is within the limit. Without the figure, False for what is judged
            (outputs and metrics) and True for times and measured costs, which were not measured,
            or elsewhere. True for a predicted cost if the baseline is of another command, and for
            whatever the user accepts as missing; then `limit` is inf.
    """

    kind: FigureKind
    of: str = ""
    before: float
    now: float | None
    limit: float
    passed: bool


class Baseline(Record):
    """An earlier run, and all its figures that can get worse.

    Attributes:
        run: Its folder, as given.
        date: Its date; UTC, ISO 8601.
        same_samples: Whether both runs judged the same samples, by their hash; False if only their
            names are the same.
        same_model: Whether both runs are of the same FP32 model, by its hash.
        changes: Its figures.
    """

    run: str
    date: str
    same_samples: bool
    same_model: bool = True
    changes: tuple[Change, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing got worse than allowed."""
        return all(change.passed for change in self.changes)
