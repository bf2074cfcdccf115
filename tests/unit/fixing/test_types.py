"""What kept nodes have instead of FP32."""

from halfwise.fixing.types import FP32_ALONE, Types
from halfwise.records import NodeName


def test_nothing_narrower_is_fp32_alone():
    some = frozenset((NodeName("a"),))
    assert Types() == FP32_ALONE
    assert FP32_ALONE not in (Types(some), Types(tf32=True))
    # A plan's types are part of the key that what is known of it is stored under.
    assert len({Types(some), Types(some, tf32=True), FP32_ALONE}) == 3
