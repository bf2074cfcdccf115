"""The repairs that the options allow."""

from collections.abc import Mapping
from typing import Any, get_args

from halfwise.errors import UsageError
from halfwise.records import RepairRule

RULES: tuple[RepairRule, ...] = get_args(RepairRule)
ALL = "all"
"""Names every rule."""


def left_out(given: Mapping[str, Any]) -> tuple[RepairRule, ...]:
    """Return the rules that `no_repair` excludes, given singly or separated by commas.

    Raises:
        UsageError: there is no such rule.
    """
    names = [name.strip() for word in given.get("no_repair", ()) for name in word.split(",")]
    if unknown := [name for name in names if name not in (*RULES, ALL)]:
        raise UsageError(
            f"--no-repair is {unknown[0]!r}; expected a repair rule: {', '.join(RULES)}.",
            "Separate several rules with commas. Without a rule it turns off all repairs; then it "
            "must come last or before another option.",
        )
    return RULES if ALL in names else tuple(rule for rule in RULES if rule in names)
