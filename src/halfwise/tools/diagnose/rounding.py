"""Rung 2: is the framework's error no larger than what FP32 rounding does to this model?

Where a choice (TopK, ArgMax) is between nearly equal values, or nearly equal values are subtracted,
two right FP32 computations differ by more than other kernels usually explain. FP64 shows that: both
are then about as far from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from halfwise.emulation.double import DoubleSession
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.errors import CaseError, RunFailed
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.relative import relative_rms
from halfwise.tools.diagnose.subject import Subject

ALIKE = 4.0
"""How many times as far from FP64 as ONNX Runtime's FP32 another FP32 computation may be: both
flip a few choices each, and counts as small as these vary."""
_SAMPLES = 32
"""FP64 takes 5 to 70 times as long as FP32 (`bench/proof.py`)."""


@dataclass(frozen=True)
class Blurred:
    """An output that FP32 rounding explains.

    Attributes:
        output: Its name.
        runtime: Distance of ONNX Runtime's FP32 from FP64: relative RMS, or the share of elements
            that differ.
        framework: That of the framework.
    """

    output: str
    runtime: float
    framework: float


def blurred(subject: Subject) -> tuple[Blurred, ...]:
    """Return the outputs in doubt, if rounding in FP32 explains all of the framework's error.

    Empty too if a metric decides, or if FP64 cannot be computed.
    """
    if subject.case.metric is not None or not subject.given:
        return ()
    chosen = range(min(len(subject.samples), _SAMPLES))
    try:
        double = DoubleSession(subject.case.network.model)
        exact = [double.run(subject.samples[i]) for i in chosen]
    except (CaseError, RunFailed):
        return ()
    found = []
    for name in subject.given[0]:
        given, ours, true = (
            [side[i][name] for i in chosen] for side in (subject.given, subject.references, exact)
        )
        pairs = (given, true), (ours, true), (given, ours)
        framework, runtime, apart = (_distance(*pair) for pair in pairs)
        unclear = runtime > OTHER_KERNELS
        if framework > (ALIKE * runtime if unclear else OTHER_KERNELS):
            return ()
        # Errors of rounding are independent. A common one, such as FP32's range, hides others.
        if unclear and apart < runtime / ALIKE:
            return ()
        if unclear:
            found.append(Blurred(name, runtime, framework))
    return tuple(found)


def _distance(found: Sequence[NDArray[np.generic]], exact: Sequence[NDArray[np.generic]]) -> float:
    """Return the relative RMS error, or of discrete values the share that differs."""
    if any(a.shape != b.shape for a, b in zip(found, exact, strict=True)):
        return inf
    left, right = (np.concatenate([np.ravel(a) for a in side]) for side in (found, exact))
    if is_discrete(right.dtype) or is_discrete(left.dtype):
        return float(np.mean(left != right)) if left.size else 0.0
    if not (np.isfinite(right).all() and np.isfinite(left).all()) or not right.any():
        return inf
    return relative_rms(right, left)
