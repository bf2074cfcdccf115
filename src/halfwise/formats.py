"""Binary floating-point formats: range, spacing and rounding.

Values follow IEEE 754-2019 (binary32, binary16) and, for bfloat16, the first 16 bits of binary32.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

CHUNK = 1 << 16
"""Elements handled at a time: a few float64 temporaries of this length fit into a core's L2 cache.
"""
ROUNDINGS = 1e-6
"""Relative difference that a few FP32 roundings explain: each is up to 6e-8, and a few combine."""
ROUNDINGS_OF_MODEL = 1e-5
"""Relative difference that another order of FP32 sums explains in a whole model."""


class Format(Struct, frozen=True):
    """A binary floating-point format.

    Attributes:
        name: Short name used in options and records.
        precision: Significand bits, including the implicit one.
        max: Largest finite value.
        smallest_normal: Smallest positive value with full precision.
        smallest_subnormal: Smallest positive value.
    """

    name: str
    precision: int
    max: float
    smallest_normal: float
    smallest_subnormal: float

    @property
    def low(self) -> Literal["fp16", "bf16"]:
        """Its name in records, where it is the low format."""
        return "bf16" if self.name == "bf16" else "fp16"

    @property
    def dtype(self) -> np.dtype:
        """NumPy dtype that stores the format (ml_dtypes for bfloat16)."""
        if self.name == "bf16":
            import ml_dtypes  # noqa: PLC0415 (reports need the numbers alone)

            bfloat16: np.dtype = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype({"fp32": np.float32, "fp16": np.float16}[self.name])

    @property
    def overflow_threshold(self) -> float:
        """Smallest magnitude that rounds to infinity: halfway from `max` to the next binade.

        65520 for FP16 (IEEE 754-2019, 4.3.1, roundTiesToEven).
        """
        ulp_at_max = 2.0 ** (np.frexp(self.max)[1] - self.precision)
        return float(self.max + ulp_at_max / 2)

    @property
    def flush_threshold(self) -> float:
        """Largest magnitude that rounds to zero: half the smallest subnormal; a tie is even."""
        return self.smallest_subnormal / 2

    @property
    def has_range_of_fp32(self) -> bool:
        """Whether it has binary32's exponents: true for BF16, whose range no value leaves.

        Magnitudes above `overflow_threshold`, 3.396e38 in BF16, are within 0.2 % of the end of
        FP32's own range: mask constants, which saturate, and nothing that a model computes.
        """
        return self.smallest_normal == 2.0**-126

    @property
    def largest_exact_integer(self) -> int:
        """Largest n such that every integer up to n is exact: 2048 for FP16, 256 for BF16."""
        return int(2**self.precision)

    def ulp(self, magnitude: float) -> float:
        """Return the spacing of the format around `magnitude` (finite, ≥ 0)."""
        return float(self.ulps(np.asarray(magnitude, np.float64)))

    def ulps(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distance from each magnitude (finite, ≥ 0) to the next number."""
        normal = np.exp2(np.frexp(magnitudes)[1].astype(np.float64) - self.precision)
        return np.where(magnitudes < self.smallest_normal, self.smallest_subnormal, normal)

    def round(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return `array` rounded to this format and widened to float32 again.

        Args:
            array: f32[*shape]; NaN and infinities stay.

        Returns:
            f32[*shape]: rounded to nearest, ties to even; overflow becomes ±inf; subnormals kept;
            the sign of zero and of NaN kept.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(self.dtype).astype(np.float32)

    def vanishes(self, array: NDArray[np.generic]) -> bool:
        """Return whether `array` is a single non-zero number that rounds to zero."""
        return array.size == 1 and 0 < abs(float(array.reshape(()))) <= self.flush_threshold

    def saturate(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return `store_constant(array)` widened to float32 again."""
        return self.store_constant(array).astype(np.float32)

    def store_constant(self, array: NDArray[np.float32]) -> NDArray[np.generic]:
        """Return a whole constant as it is stored, in `dtype`.

        Finite values stay finite, see `store`. A single non-zero number stays non-zero: an eps that
        would become zero becomes ±`smallest_subnormal`, which still keeps a quotient from 0/0
        (docs/decisions/0010-vanishing-eps.md). Elements of larger arrays do become zero: there the
        nearest number is zero.
        """
        if self.vanishes(array):
            return np.copysign(np.float32(self.smallest_subnormal), array).astype(self.dtype)
        return self.store(array)

    def store(self, array: NDArray[np.float32]) -> NDArray[np.generic]:
        """Return elements of a constant as they are stored, in `dtype`.

        Rounded as `round` does, but finite values beyond the range become ±`max`. Infinities stay
        infinite, NaN stays NaN. This is what TensorRT does with weights ("converted them to the
        closest finite FP16 value").
        """
        if not (array.max(initial=0) <= self.max and array.min(initial=0) >= -self.max):
            array = np.where(np.isinf(array), array, np.clip(array, -self.max, self.max))
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(self.dtype)


FP32 = Format("fp32", 24, 2.0**127 * (2 - 2.0**-23), 2.0**-126, 2.0**-149)
FP16 = Format("fp16", 11, 65504.0, 2.0**-14, 2.0**-24)
BF16 = Format("bf16", 8, 2.0**127 * (2 - 2.0**-7), 2.0**-126, 2.0**-133)
LOW_FORMATS = {fmt.name: fmt for fmt in (FP16, BF16)}
"""Formats that nodes may be lowered to, by their names in options."""


ALIKE_IN_FP32 = 4.0
"""Factor up to which two errors of rounding are alike: both flip a few choices each, and counts as
small as these vary. Our choice."""


def nudged(
    sample: Mapping[str, NDArray[np.generic]], draw: "np.random.Generator"
) -> dict[str, NDArray[np.generic]]:
    """Return inputs whose floats are moved by their last bit, up or down by chance.

    Outputs then move as far as FP32's own rounding may take them: it is drawn again at every node.

    Args:
        sample: The inputs by name; those that are no floats stay.
        draw: Source of the directions.
    """
    ends = np.array((-np.inf, np.inf), np.float32)
    return {
        name: np.nextafter(array, draw.choice(ends, array.shape).astype(array.dtype))
        if array.dtype.kind == "f"
        else array
        for name, array in sample.items()
    }
