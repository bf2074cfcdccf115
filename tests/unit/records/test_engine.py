"""Nodes in engines."""

import msgspec
import pytest

from halfwise.records import NodePrecision


@pytest.mark.parametrize(
    ("asked", "enough"),
    [
        ("fp32", {"fp32"}),
        ("tf32", {"fp32", "tf32"}),
        ("bf16", {"fp32", "tf32", "bf16"}),
        (None, {"fp32", "tf32", "bf16", "fp16"}),
    ],
)
def test_a_kept_node_may_be_wider_than_asked_but_not_narrower(asked, enough):
    types = ("fp32", "tf32", "bf16", "fp16")
    given = [
        msgspec.convert({"node": "a", "precision": p, "asked": asked}, NodePrecision) for p in types
    ]
    assert {n.precision for n in given if n.suffices} == enough
