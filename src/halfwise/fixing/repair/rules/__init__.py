"""The rules of repair, in the order in which they are tried."""

from halfwise.fixing.repair.rule import Rule
from halfwise.fixing.repair.rules.epsilon import Epsilon
from halfwise.fixing.repair.rules.fold import Fold
from halfwise.fixing.repair.rules.mask import Mask
from halfwise.fixing.repair.rules.one_node import OneNode
from halfwise.fixing.repair.rules.phase import Phase
from halfwise.fixing.repair.rules.saturate import Saturate
from halfwise.fixing.repair.rules.scale import Scale
from halfwise.fixing.repair.rules.stable import Stable

RULES: tuple[Rule, ...] = (
    *(Fold(), Phase(), OneNode(), Stable(), Mask(), Scale()),
    *(Epsilon(), Saturate()),
)
"""What removes nodes comes first, what scales after: then it sees what is left. What is only
approximate comes last."""
