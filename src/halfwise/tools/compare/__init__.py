"""Compare two computations of one model, tensor by tensor.

An error is *born* at a node if the node, in FP32, makes something else of the very tensors that the
candidate's node was given. If it makes the same, the error is *inherited* from inputs that are
beyond the tolerance, or *amplified* where all of them are within it. What is born needs no
comparison of magnitudes along the way: neither a small tensor nor an amplified error is taken for a
fault.

* `sides` says what is compared: tensors by name, a few at a time, and how exact they can be; and
  runs nodes on what they were given.
* `walk` goes through the graph; `divergence` looks for the first one, and reads what was found.
* `engine_maker` builds engines on a worker, each an `engine_side`.
"""

from halfwise.tools.compare.divergence import compared
from halfwise.tools.compare.sides import (
    RecordedSide,
    Side,
    tolerance_of,
)
from halfwise.tools.compare.walk import Found, Walk, comparable

__all__ = [
    "Found",
    "RecordedSide",
    "Side",
    "Walk",
    "comparable",
    "compared",
    "tolerance_of",
]
