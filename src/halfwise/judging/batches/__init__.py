"""Real samples put together so that they have the shapes of an optimization profile.

* `find_batching` finds the batch axis and confirms it on the FP32 model; `Batching` joins samples
  along it and takes results apart.
* `plan_batches` says what to run at min, opt and max shapes. What comes out is taken apart again,
  so errors, metrics and labels are those of single samples. For any other axis only samples count
  that really have the size. Shapes without real data are not judged, and the reason is said.
"""

from halfwise.judging.batches.axes import (
    Apart,
    Batching,
    batch_axes,
    dynamic_inputs,
    find_batching,
    try_batching,
)
from halfwise.judging.batches.plan import Batches, plan_batches

__all__ = [
    "Apart",
    "Batches",
    "Batching",
    "batch_axes",
    "dynamic_inputs",
    "find_batching",
    "plan_batches",
    "try_batching",
]
