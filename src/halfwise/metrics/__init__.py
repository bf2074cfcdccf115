"""How far outputs are from their reference, and whether that is acceptable.

- `difference`: the error of every pair of elements, including non-finite values; relative errors.
- `slices`: the parts of one output that have their own scales.
- `measures`: error measures over samples, for the verdict (`OutputMeasure`), and as one number for
  the search (`Excess`).
- `targets`: what task metrics take, their direction, and how far they may fall by default; those of
  vectors and signals; `task`: those of classes, tokens, masks and images.
- `boxes`: boxes read from outputs, and how well they agree; `grids`: cells of detectors that need
  their anchors to be decoded; `peaks`: where heat maps peak; `keypoints`: sets of keypoints.
- `evidence`: what is observed of an output, and how boxes are encoded; `kinds`: what it shows.
- `recognised`: the metrics of recognised outputs, and all of them together, for `--metric auto`.
- `untested`: outputs and metrics that no sample tests, what a score rests on, and what the samples
  show about all inputs.

All of it is arithmetic on arrays: nothing here reads files or runs a model.
"""

from halfwise.metrics.measures import (
    DEFAULT_REL_MAX,
    Computed,
    Excess,
    OutputMeasure,
    Outputs,
    OutputTotals,
    effective,
    is_default,
    totals,
)
from halfwise.metrics.recognised import (
    AUTO,
    by_outputs,
    by_use,
    has_to_see,
    loss_of_one,
    others_of,
    settle,
    settled_metric,
    shortfall_of_one,
    task_scores,
    untested_task,
)
from halfwise.metrics.targets import (
    BUILT_IN,
    SHARES,
    DefaultDrop,
    Metric,
    check_labels,
    default_drop,
    evidence_of,
    rises,
    usual,
)
from halfwise.metrics.task import metric_loss, resolve
from halfwise.metrics.untested import scores, takes_any_sample, untested_outputs

__all__ = [
    "AUTO",
    "BUILT_IN",
    "DEFAULT_REL_MAX",
    "SHARES",
    "Computed",
    "DefaultDrop",
    "Excess",
    "Metric",
    "OutputMeasure",
    "OutputTotals",
    "Outputs",
    "by_outputs",
    "by_use",
    "check_labels",
    "default_drop",
    "effective",
    "evidence_of",
    "has_to_see",
    "is_default",
    "loss_of_one",
    "metric_loss",
    "others_of",
    "resolve",
    "rises",
    "scores",
    "settle",
    "settled_metric",
    "shortfall_of_one",
    "takes_any_sample",
    "task_scores",
    "totals",
    "untested_outputs",
    "untested_task",
    "usual",
]
