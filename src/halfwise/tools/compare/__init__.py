"""Compare two computations of one model, tensor by tensor.

An error is *born* at a node if the node, run in FP32 on the candidate's own inputs, gives another
result. If it gives the same, the error is *inherited* from inputs beyond the tolerance, or
*amplified* if all inputs are within it. This needs no comparison of magnitudes along the way:
neither a small tensor nor an amplified error counts as a fault.

* `sides` provides what is compared: tensors by name, a few at a time, and their tolerance; it also
runs nodes on given inputs. * `walk` goes through the graph; `divergence` finds the first error and
classifies the others. * `engine_maker` builds engines on a worker, each an `engine_side`.
"""

from halfwise.tools.compare.divergence import compared
from halfwise.tools.compare.walk import (
    Found,
    RecordedSide,
    Side,
    Walk,
    comparable,
    tolerance_of,
)

__all__ = [
    "Found",
    "RecordedSide",
    "Side",
    "Walk",
    "comparable",
    "compared",
    "tolerance_of",
]
