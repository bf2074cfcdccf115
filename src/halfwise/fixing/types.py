"""Which types narrower than FP32 the kept nodes of a plan have."""

from dataclasses import dataclass

from halfwise.records import NodeName


@dataclass(frozen=True)
class Types:
    """Types of kept nodes in place of FP32.

    Attributes:
        bf16: Nodes in BF16.
        tf32: Whether all FP32 products of the plan are TF32: engines have one switch for all.
    """

    bf16: frozenset[NodeName] = frozenset()
    tf32: bool = False


FP32_ALONE = Types()
