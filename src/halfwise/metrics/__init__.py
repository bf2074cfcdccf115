"""How far outputs are from their reference, and whether that is acceptable.

- `difference`: the error of every pair of elements, including non-finite values.
- `measures`: error measures over samples, for the verdict (`OutputMeasure`); `excess`: one number
  for the search (`Excess`).
- `slices`: the parts of one output that have their own scales.
- `relative`: relative errors of single tensors.
- `task`: built-in task metrics, for example top1; `targets`: the outputs and labels that they take;
  `built_in`: their direction, and how far they may fall by default.
- `boxes`, `box_layouts`, `detection`: boxes in outputs, how they are encoded, how well they agree.
- `kinds`: what outputs look like, and the `evidence` for and against it;
  `recognised`: the metrics of recognised outputs; `automatic`: all of them together, for
  `--metric auto`.
- `support`: how many boxes, pixels or rows a score rests on.
- `hints`: remarks where the default tolerance does not fit; `untested`: outputs and metrics that no
  sample tests, and what the samples show about all inputs.

All of it is arithmetic on arrays: nothing here reads files or runs a model.
"""

from halfwise.metrics.automatic import AUTO, has_to_see, settle, settled_metric, untested_task
from halfwise.metrics.built_in import (
    BUILT_IN,
    SHARES,
    DefaultDrop,
    check_labels,
    default_drop,
    rises,
    usual,
)
from halfwise.metrics.excess import Excess
from halfwise.metrics.hints import criterion_hints, fitting_metric, verdict_hints
from halfwise.metrics.measures import (
    DEFAULT_REL_MAX,
    Computed,
    OutputMeasure,
    Outputs,
    OutputTotals,
    effective,
    is_default,
    totals,
)
from halfwise.metrics.recognised import is_tested, recognise, support_of, task_scores
from halfwise.metrics.relative import finite_relative_rms, relative_error
from halfwise.metrics.targets import Metric
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
    "check_labels",
    "criterion_hints",
    "default_drop",
    "effective",
    "finite_relative_rms",
    "fitting_metric",
    "has_to_see",
    "is_default",
    "is_tested",
    "metric_loss",
    "recognise",
    "relative_error",
    "resolve",
    "rises",
    "scores",
    "settle",
    "settled_metric",
    "support_of",
    "takes_any_sample",
    "task_scores",
    "totals",
    "untested_outputs",
    "untested_task",
    "usual",
    "verdict_hints",
]
