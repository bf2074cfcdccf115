"""Facts of every kind to put in words: one section of `words.txt` for each table of words.

A section yields a text for each kind, with one and with more where a number changes the words, and
without what need not be known. "" stands for nothing to tell.
"""

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from halfwise.reporting.parts import WORDS
from halfwise.wording import filled
from tests.unit.reporting import facts_judged as judged
from tests.unit.reporting import facts_planned as planned


def variants(template: str) -> Iterator[str]:
    """Yield a template filled for each of its choices, with two of all and, if told, with one."""
    choices = [part.split("|") for part in re.findall(r"\[(.+?)\]", template)]
    bare = re.sub(r"\[(.+?)\]", "", template)
    told = dict[str, None]()
    for choice in range(max((len(each) + _is_optional(each) for each in choices), default=1)):
        taken = (
            each[min(choice, len(each) - 1)]
            for each in choices
            if choice < len(each) or not _is_optional(each)
        )
        text = "".join((bare, *taken))
        for some in (2.0, 1.0) if _NOUN.search(text) else (2.0,):
            told[filled(template, dict(_facts(text, some)))] = None
    yield from told


_NOUN = re.compile(r":(?!d}|dB}|itself})[A-Za-z]")


def _is_optional(parts: list[str]) -> bool:
    return not parts[0][0].isalnum() and parts[0][0] != "{"


def _facts(text: str, some: float) -> Iterator[tuple[str, str | float]]:
    forms: dict[str, str] = {}
    for _, field, form, _ in string.Formatter().parse(text):
        # `{x=}` only asks whether x is known.
        if name := (field or "").removesuffix("="):
            forms[name] = form or forms.get(name, "")
    for name, form in forms.items():
        if form in ("%", "itself"):
            yield name, 0.25
        elif form:
            yield name, some
        else:
            yield name, "fp16" if name == "low" else f"<{name}>"


def templates(table: Mapping[Any, object]) -> Callable[[], Iterator[str]]:
    """Return what yields all variants of a table of templates, each under its kind."""

    def told() -> Iterator[str]:
        for kind, template in table.items():
            if isinstance(template, str):
                yield from (f"{kind}: {text}" for text in variants(template))

    return told


SECTIONS: Mapping[str, Callable[[], Iterable[str]]] = {
    "why verdicts fail": templates(WORDS["failure"]),
    "where": planned.failures,
    "remarks on a plan": templates(WORDS["remark"]),
    "what ended a search": planned.ended,
    "what was cut": planned.cut,
    "kinds of suspicions": templates(WORDS["suspicion"]),
    "suspicions": templates(WORDS["guard"]),
    "what errors come from": planned.errors,
    "why a node is kept": planned.reasons,
    "left out of INT8": planned.without_int8,
    "a plan in figures": planned.planned,
    "outputs that pass with everything low": planned.within,
    "cautions": planned.cautions,
    "plans to choose from": planned.chosen,
    "repairs": planned.repairs,
    "where a quantised model's error comes from": templates(WORDS["blame"]),
    "rungs that were tried": judged.tried_rungs,
    "what is delivered": judged.delivered,
    "what engines show": judged.blamed,
    "beside the ladder": judged.ladder,
    "where engines were built": judged.built,
    "titles": judged.titles,
    "what a plan is worth": judged.worth,
    "what is allowed": judged.acceptable,
    "bounds": judged.bounds,
    "what is not judged": judged.unjudged,
    "sizes, scales and files": judged.sizes,
    "what is not finite": judged.not_finite,
    "against a baseline": judged.compared,
    "notes": judged.notes,
    "steps without more": templates(WORDS["step"]),
    "steps": judged.next_steps,
    "what a diagnosis tests": templates(WORDS["tested"]),
    "faults of engines": judged.faults,
    "what is told of a node": judged.of_node,
}
