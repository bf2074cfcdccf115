import math

from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.attribute.severity import Band, graded

RATIOS = st.floats(min_value=0.0, allow_nan=False)


@given(st.sampled_from(Band), RATIOS, RATIOS)
def test_bands_never_overlap_and_grow_inside(band, one, other) -> None:
    assert band <= graded(band, one) < band + 1
    assert (one <= other) <= (graded(band, one) <= graded(band, other))


def test_infinity_is_the_gravest() -> None:
    assert graded(Band.OVERFLOW, math.inf) == graded(Band.OVERFLOW, 1e9)
