"""How grave a suspicion is: bands by what happens, in a band by how far the limit is passed."""

import math
from enum import IntEnum

SIGNIFICANT = 1e-2
"""Relative error (for angles: radians) from which a loss is named.

The default tolerance (`Criterion`: rel_max 1e-2): a smaller error in one tensor cannot alone break
it unless something amplifies it, and what amplifies is looked for apart (see `cancellation`).
"""

_DECADES = 8.0
"""Ratios of 1e8 and more are equally grave; 65504 · 1e8 is beyond anything a model computes."""


class Band(IntEnum):
    """What happens in the low format, gravest last. From INEXACT on the loss is certain."""

    POSSIBLE = 0
    INEXACT = 1
    ZEROED = 2
    OVERFLOW = 3


def graded(band: Band, ratio: float) -> float:
    """Return a severity in [band, band + 1) that grows with the logarithm of `ratio`.

    Args:
        band: What happens.
        ratio: How many times the limit is passed (≥ 1, inf allowed; smaller counts as 1).
    """
    decades = _DECADES if math.isinf(ratio) else math.log10(max(ratio, 1.0))
    return band + 0.99 * min(decades / _DECADES, 1.0)
