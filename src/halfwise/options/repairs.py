"""Which repairs may be made, as the options say."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from halfwise.errors import UsageError
from halfwise.records import APPROXIMATE, Allowed, RepairRule

RULES: tuple[RepairRule, ...] = get_args(RepairRule)
ALL = "all"
"""Stands for every rule."""

_ALLOWED: tuple[Allowed, ...] = get_args(Allowed)
_APPROXIMATE: Allowed = "approximate"
_BF16: Allowed = "bf16"
_TF32: Allowed = "tf32"


def left_out(given: Mapping[str, Any]) -> tuple[RepairRule, ...]:
    """Return the rules that `no_repair` leaves out: each alone or several with commas between.

    Raises:
        UsageError: there is no such rule.
    """
    asked = _names(given.get("no_repair", ()))
    for name in asked:
        if name not in (*RULES, ALL):
            raise UsageError(
                f"--no-repair is {name!r}; expected a rule of repair: {', '.join(RULES)}.",
                "Several stand with a comma between them. Without a rule it leaves out all: then "
                "another option follows, or nothing.",
            )
    return RULES if ALL in asked else tuple(rule for rule in RULES if rule in asked)


def allowed(given: Mapping[str, Any]) -> frozenset[Allowed]:
    """Return what `allow` allows: names, each alone or several with commas between.

    Raises:
        UsageError: there is nothing of that name.
    """
    names = _names(given.get("allow", ()))
    found = frozenset(each for each in _ALLOWED if each in names)
    for name in names:
        if name not in found:
            raise UsageError(
                f"--allow is {name!r}; expected {' or '.join(_ALLOWED)}.",
                "Several stand with a comma between them: --allow bf16,approximate.",
            )
    return found


def _names(words: Sequence[str]) -> list[str]:
    return [name.strip() for word in words for name in word.split(",")]


def refused_repairs(given: Mapping[str, Any]) -> Iterator[tuple[bool, str, str]]:
    """Yield what contradicts itself: whether it does, the message, the hint."""
    without = frozenset(left_out(given))
    allow = allowed(given)
    yield (
        _APPROXIMATE in allow and without >= APPROXIMATE,
        f"--allow {_APPROXIMATE} allows the repairs {', '.join(sorted(APPROXIMATE))}, and "
        "--no-repair leaves them out.",
        "Give one of the two.",
    )
    unasked = sorted(without & APPROXIMATE) if without < frozenset(RULES) else []
    yield (
        bool(unasked) and _APPROXIMATE not in allow,
        f"--no-repair {', '.join(unasked)} does not apply without --allow {_APPROXIMATE}: such a "
        "repair is not made by itself.",
        "Leave it out.",
    )
    yield (
        "keep_above" in given and bool(allow),
        "--keep-above searches nothing and repairs nothing, so --allow does not apply beside it.",
        "Give one of the two.",
    )
    yield (
        _BF16 in allow and given.get("to") == _BF16,
        "--allow bf16 gives BF16 to nodes beside FP16, and with --to bf16 all have it.",
        "Give one of the two.",
    )
