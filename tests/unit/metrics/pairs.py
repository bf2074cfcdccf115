"""Random reference and candidate pairs, and random criteria."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from halfwise.records import Criterion

Pairs = list[tuple[NDArray[Any], NDArray[Any]]]

SIZES = st.floats(-1e3, 1e3, width=32)
SPECIAL = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0])


@st.composite
def float_pairs(draw: st.DrawFn, *, special: bool = False) -> Pairs:
    """One to five samples of an output; candidates are the reference plus noise of one size."""
    elements = SIZES | SPECIAL if special else SIZES
    pairs = []
    amplitude = draw(st.sampled_from([0.0, 1e-4, 1e-2, 1.0, 1e3]))
    for _ in range(draw(st.integers(1, 5))):
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        reference = draw(hnp.arrays(np.float32, shape, elements=elements))
        noise = draw(hnp.arrays(np.float32, shape, elements=st.floats(-1, 1, width=32)))
        candidate = reference + np.float32(amplitude) * noise
        if special and draw(st.booleans()):
            candidate = draw(hnp.arrays(np.float32, shape, elements=elements))
        pairs.append((reference, np.asarray(candidate, dtype=np.float32)))
    return pairs


@st.composite
def integer_pairs(draw: st.DrawFn) -> Pairs:
    pairs = []
    dtype = draw(st.sampled_from([np.int64, np.uint8, np.bool_]))
    for _ in range(draw(st.integers(1, 5))):
        shape = draw(hnp.array_shapes(max_dims=2, max_side=8))
        reference = draw(hnp.arrays(dtype, shape))
        flips = draw(hnp.arrays(np.bool_, shape, elements=st.integers(0, 9).map(lambda n: n == 0)))
        candidate = np.where(flips, draw(hnp.arrays(dtype, shape)), reference)
        pairs.append((reference, candidate))
    return pairs


def optional(values: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | values


criteria = st.builds(
    Criterion,
    max_abs=optional(st.floats(0, 100)),
    rel_max=optional(st.floats(0, 1)),
    snr_db=optional(st.floats(-20, 120)),
    cosine=optional(st.floats(-1, 1) | st.floats(0.99, 1)),
    agreement=st.floats(0.5, 1) | st.sampled_from([0.9, 0.99, 1.0]),
    metric=st.none() | st.just("top1"),
)
