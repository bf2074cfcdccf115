"""A run beside an earlier one, its baseline."""

from typing import Literal

from halfwise.records.record import Record

FigureKind = Literal[
    "rel-max", "mean-abs", "unequal", "non-finite", "metric", "cost", "measured", "time"
]
"""What can get worse; of all of these, less is better.

"rel-max", "mean-abs": as in `OutputError`; "unequal": the share of an output's elements that differ
from the reference's, where these are no floating-point numbers; "metric": by how much the
candidate's value is below the reference's; "cost", "measured": as in `Worth`; "time": median
milliseconds of one run of an engine.
"""


class Change(Record):
    """A figure of the baseline, and what it is now.

    Attributes:
        kind: What it is.
        of: The output, the metric, or GPU and version of TensorRT; "" of costs.
        before: In the baseline.
        now: In the run; None where it has none.
        limit: What it may be at most.
        passed: Whether it is not more. Without the figure, False of what is judged (outputs and
            metrics), True of times and measured costs: these were not measured, or elsewhere. True
            of a predicted cost where the baseline is of another command.
    """

    kind: FigureKind
    of: str = ""
    before: float
    now: float | None
    limit: float
    passed: bool


class Baseline(Record):
    """An earlier run, and all of its figures that can get worse.

    Attributes:
        run: Its folder, as given.
        date: When it was made; UTC, ISO 8601.
        same_samples: Whether both runs judged the same samples, by their hash; False where only
            their names are the same.
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
        """Whether nothing got worse than it may."""
        return all(change.passed for change in self.changes)
