"""The rules of repair, in the order in which they are tried."""

from halfwise.fixing.repair.rule import Rule
from halfwise.fixing.repair.rules.fold import Fold
from halfwise.fixing.repair.rules.mask import Mask
from halfwise.fixing.repair.rules.one_node import OneNode
from halfwise.fixing.repair.rules.phase import Phase
from halfwise.fixing.repair.rules.scale import Scale
from halfwise.fixing.repair.rules.stable import Stable

RULES: tuple[Rule, ...] = (Phase(), Mask(), Scale(), Stable(), Fold(), OneNode())
"""Exact rules, with powers of two, come before those that round differently. One node for a norm is
the last of these: TensorRT 8.6.0 runs a LayerNormalization in FP32, and a ViT-B with 25 of them
took 1.09 times as long as one whose stream was scaled (docs/tensorrt-measured.md, "Repaired
models")."""
