"""The repairs that the options allow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from halfwise.errors import UsageError
from halfwise.records import Allowed, RepairRule
from halfwise.wording import either

RULES: tuple[RepairRule, ...] = get_args(RepairRule)
ALL = "all"
"""Names every rule."""

_ALLOWED: tuple[Allowed, ...] = get_args(Allowed)


def left_out(given: Mapping[str, Any]) -> tuple[RepairRule, ...]:
    """Return the rules that `no_repair` excludes, given singly or separated by commas.

    Raises:
        UsageError: there is no such rule.
    """
    asked = _names(
        given.get("no_repair", ()),
        (*RULES, ALL),
        f"--no-repair is {{!r}}; expected a repair rule: {', '.join(RULES)}.",
        "Separate several rules with commas. Without a rule it turns off all repairs; then it must "
        "come last or before another option.",
    )
    return RULES if ALL in asked else tuple(rule for rule in RULES if rule in asked)


def allowed(given: Mapping[str, Any]) -> frozenset[Allowed]:
    """Return what `allow` names, given singly or separated by commas.

    Raises:
        UsageError: a name is unknown.
    """
    names = _names(
        given.get("allow", ()),
        _ALLOWED,
        f"--allow is {{!r}}; expected {either(_ALLOWED)}.",
        "Separate several with commas: --allow bf16,tf32.",
    )
    return frozenset(each for each in _ALLOWED if each in names)


def _names(words: Sequence[str], known: Sequence[str], message: str, hint: str) -> list[str]:
    """Return names separated by commas; UsageError for one that is not known."""
    names = [name.strip() for word in words for name in word.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(message.format(unknown[0]), hint)
    return names


def refused_repairs(given: Mapping[str, Any]) -> Iterator[tuple[bool, str, str]]:
    """Yield possible contradictions: whether they occur, the message, the hint."""
    allow = allowed(given)
    yield (
        "keep_above" in given and bool(allow),
        "--keep-above makes no search and no repairs, so --allow does not apply.",
        "Give one of the two.",
    )
    yield (
        "bf16" in allow and given.get("to") == "bf16",
        "--allow bf16 adds BF16 to FP16 plans; with --to bf16 every node already has it.",
        "Give one of the two.",
    )
