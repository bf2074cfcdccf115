"""Rung 2: is the framework's error no larger than what FP32 rounding does to this model?

Where a choice (TopK, ArgMax) is between nearly equal values, or nearly equal values are subtracted,
two right FP32 computations differ by more than other kernels usually explain. FP64 shows that: both
are then about as far from it.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from halfwise.emulation.double import DoubleSession
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.errors import CaseError, RunFailed
from halfwise.metrics.difference import is_discrete
from halfwise.tools.diagnose.subject import Subject
from halfwise.wording import listed, number

ALIKE = 4.0
"""How many times as far from FP64 as ONNX Runtime's FP32 another FP32 computation may be: both
flip a few choices each, and counts as small as these vary."""
_SAMPLES = 32
"""FP64 takes 5 to 70 times as long as FP32 (`bench/proof.py`)."""


def blurred(subject: Subject) -> str:
    """Return that rounding in FP32 explains the framework's error, with figures; else "".

    Nothing is said if a metric decides, or if FP64 cannot be computed.
    """
    if subject.case.metric is not None or not subject.given:
        return ""
    chosen = range(min(len(subject.samples), _SAMPLES))
    try:
        double = DoubleSession(subject.case.network.model)
        exact = [double.run(subject.samples[i]) for i in chosen]
    except (CaseError, RunFailed):
        return ""
    told = []
    for name in subject.given[0]:
        given, ours, true = (
            [side[i][name] for i in chosen] for side in (subject.given, subject.references, exact)
        )
        pairs = (given, true), (ours, true), (given, ours)
        framework, runtime, apart = (_distance(*pair) for pair in pairs)
        unclear = runtime > OTHER_KERNELS
        if framework > (ALIKE * runtime if unclear else OTHER_KERNELS):
            return ""
        # Errors of rounding are independent. A common one, such as FP32's range, hides others.
        if unclear and apart < runtime / ALIKE:
            return ""
        if unclear:
            told.append((name, runtime, framework))
    if not told:
        return ""
    name, runtime, framework = max(told, key=lambda each: each[1])
    return (
        f"FP32 rounding alone explains it: {listed([n for n, *_ in told])} of ONNX Runtime in FP32 "
        f"is as far from FP64 as the framework's ({name}: {number(runtime)} and "
        f"{number(framework)}, relative RMS or share of elements). The export is not shown to be "
        "wrong; the model needs more than FP32 here."
    )


def _distance(found: Sequence[NDArray[np.generic]], exact: Sequence[NDArray[np.generic]]) -> float:
    """Return the relative RMS error, or of discrete values the share that differs."""
    if any(a.shape != b.shape for a, b in zip(found, exact, strict=True)):
        return inf
    left, right = (np.concatenate([np.ravel(a) for a in side]) for side in (found, exact))
    if is_discrete(right.dtype) or is_discrete(left.dtype):
        return float(np.mean(left != right)) if left.size else 0.0
    wanted, actual = right.astype(np.float64), left.astype(np.float64)
    if not (np.isfinite(wanted).all() and np.isfinite(actual).all()) or not wanted.any():
        return inf
    return float(np.sqrt(np.square(actual - wanted).mean() / np.square(wanted).mean()))
