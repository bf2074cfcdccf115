"""The rules of repair, in the order in which they are tried."""

from halfwise.fixing.repair.rule import Rule
from halfwise.fixing.repair.rules.fold import Fold

RULES: tuple[Rule, ...] = (Fold(),)
"""What removes nodes comes first, what scales comes last: then it sees what is left."""
