"""Find known faults in a model without running it: one file per family of rules."""

from collections.abc import Collection

from halfwise.graph.loading import Unchecked
from halfwise.linting import numbers, quantisation, structure, tensorrt
from halfwise.linting.rule import Rule, Subject
from halfwise.progress import Silent, Watcher
from halfwise.records import SEVERITIES, Finding
from halfwise.tensorrt.versions import Version

__all__ = ["FAMILIES", "RULES", "Rule", "Version", "lint"]

FAMILIES = (numbers, quantisation, structure, tensorrt)
"""The modules of rules, in display order."""
RULES = tuple(
    each for module in FAMILIES for each in vars(module).values() if isinstance(each, Rule)
)
"""Every rule, by family and then as defined."""

_MISSHAPEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError)
"""What rules may raise on a graph that the checker refuses, for example with too few operands or
attributes of the wrong type."""


def lint(
    model: Unchecked,
    tensorrt: Version | None = None,
    ignored: Collection[str] = (),
    watcher: Watcher | None = None,
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the findings, and what could not be checked.

    Args:
        model: The model, as far as it can be read.
        tensorrt: Version whose parser will read the model.
        ignored: Ids of rules to leave out.
        watcher: Receives the number of rules done.

    Returns:
        Findings: errors first, then warnings, then infos, each sorted by rule. And one sentence for
        everything that could not be checked, because the graph cannot be read, or because ONNX's
        checker refuses it and a rule fails on it.
    """
    subject = Subject(model, tensorrt)
    findings: list[Finding] = []
    blind = []
    for done, rule in enumerate(RULES):
        (watcher or Silent()).step(done, len(RULES), "rules")
        if rule.id in ignored:
            continue
        if rule.reads_graph and model.network is None:
            blind.append(rule.id)
            continue
        try:
            findings += rule.findings(subject)
        except _MISSHAPEN:
            if not (model.refusal or model.unread):
                raise
            blind.append(rule.id)
    skipped = list(model.unread)
    if blind:
        skipped.append(f"not checked because of that: {', '.join(blind)}")
    return tuple(sorted(findings, key=lambda f: SEVERITIES.index(f.severity))), tuple(skipped)
