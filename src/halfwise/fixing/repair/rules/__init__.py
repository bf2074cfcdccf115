"""The rules of repair, in the order in which they are tried."""

from halfwise.fixing.repair.rule import Rule

RULES: tuple[Rule, ...] = ()
"""What removes nodes comes first, what scales comes last: then it sees what is left."""
