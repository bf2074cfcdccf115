"""Comparison of what a run decides with what it decided before.

The rules, for one entry:

- **Exit code, verdict, type of the delivered engine**: equal. Where the first two differ, nothing
  else is compared.
- **Cost**: at most `DEARER` times the golden one, as nearer costs count as the same.
- **Kept nodes, and nodes left out of INT8**: at most as many where the costs tie (within that 1 %,
  or where neither is known). A plan that is cheaper may keep more.
- **Kinds of causes**, those that guards name for kept nodes and those that repairs resolve: equal
  node by node, and as sets, where kept nodes and repairs are the same. Another plan that is no
  dearer need not have all of the kinds: what it does not keep or repair has no cause. But each of
  its kinds is one that the golden run names, or suspects, in this model, and the same one where
  both name one for a node; and it has some if the golden plan has. In either case **no more kept
  nodes are without a cause**, so that none is lost unseen. Nodes that a rule or the file keeps, or
  that only save a Cast, need no cause.
- **Format of sums**, where it is frozen: equal; another plan may pass with FP16 where the golden
  one does not.
- **Evaluations and builds**: at most `SLOWER` times as many, rounded up. Work is only summed.
- A run that the clock has cut short is no run to compare.

Which of these can processors turn by their last digits? **Exact** are exit code, verdict, kinds
and type of the engine: they follow from values well away from their limits. Predicted costs come
from shapes alone, so that of one plan is exact, too. **Not exact** is which nodes are kept, and in
how many evaluations: a single trial beside its limit turns it. For this, cost has its 1 % and
evaluations their 1.3, and names are not compared. `compare --moved SEED` shows what turns where
every input is moved by its last bit.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.golden.facts import Facts

DEARER = 1.01
"""Highest cost over the golden one."""
SLOWER = 1.3
"""Highest number of evaluations, or builds, over the golden one."""


@dataclass(frozen=True)
class Difference:
    """A fact that is not as the comparison asks.

    Attributes:
        entry: Name of the entry.
        fact: Name of the fact.
        before: Golden value.
        now: Found value.
    """

    entry: str
    fact: str
    before: Any
    now: Any

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.entry}: {self.fact}: {self.before} before, {self.now} now"


def differences(entry: str, before: Facts, now: Facts) -> list[Difference]:
    """Return what is not as the rules above ask; empty where all is."""
    first = [*_equal("code", before, now), *_equal("passed", before, now)]
    found = first or [*_equal("rung", before, now), *_plan(before, now), *_effort(before, now)]
    return [Difference(entry, *each) for each in found]


def other_plan(before: Facts, now: Facts) -> bool:
    """Return whether kept nodes, their types, repairs or INT8 nodes are others."""
    names = ("types", "repairs", "int8")
    return _kept(before) != _kept(now) or any(before.get(n) != now.get(n) for n in names)


_Found = Iterator[tuple[str, Any, Any]]


def _equal(name: str, before: Facts, now: Facts) -> _Found:
    if before.get(name) != now.get(name):
        yield name, before.get(name), now.get(name)


def _plan(before: Facts, now: Facts) -> _Found:
    costs = before.get("cost"), now.get("cost")
    known = [cost for cost in costs if cost is not None]
    if len(known) == 1 or (known and known[1] > DEARER * known[0]):
        yield "cost", *costs
    if not known or known[-1] * DEARER >= known[0]:
        for name in ("kept", "left_out"):
            counts = len(before.get(name, ())), len(now.get(name, ()))
            if counts[1] > counts[0]:
                yield name, *counts
    yield from _causes(before, now)
    yield from _sums(before, now)


def _sums(before: Facts, now: Facts) -> _Found:
    frozen = "sums" in before
    if frozen and (now.get("sums") == "fp32" or not other_plan(before, now)):
        yield from _equal("sums", before, now)


def _causes(before: Facts, now: Facts) -> _Found:
    other = other_plan(before, now)
    for node, kind in _named(before).items():
        named = _named(now).get(node)
        if named != kind and not (other and None in (named, kind)):
            yield f"cause of {node}", kind, named
    kinds, found = _kinds(before), _kinds(now)
    if other:
        strange = not found <= kinds | set(before.get("suspected", ()))
        none = bool(kinds) and not found and bool(_kept(now) or now.get("repairs"))
        differs = strange or none
    else:
        differs = kinds != found
    if differs:
        yield "causes", sorted(kinds), sorted(found)
    causeless, lost = _without_cause(before), _without_cause(now)
    if len(lost) > len(causeless):
        yield "without a cause", sorted(causeless), sorted(lost)


def _effort(before: Facts, now: Facts) -> _Found:
    if now.get("hurried"):
        yield "hurried", before.get("hurried", []), now["hurried"]
    for name in ("evaluations", "builds"):
        counts = before.get(name, 0), now.get(name, 0)
        if counts[1] > math.ceil(SLOWER * counts[0]):
            yield name, *counts


def _kept(facts: Facts) -> set[tuple[str, str]]:
    return {(name, node) for name in ("kept", "left_out") for node in facts.get(name, ())}


def _named(facts: Facts) -> Mapping[str, str | None]:
    return {**facts.get("left_out", {}), **facts.get("kept", {})}


def _kinds(facts: Facts) -> set[str]:
    return {kind for kind in _named(facts).values() if kind} | set(facts.get("repaired", ()))


def _without_cause(facts: Facts) -> set[str]:
    needless = {*facts.get("spare", ()), *facts.get("ruled", ())}
    return {node for node, kind in _named(facts).items() if kind is None} - needless
