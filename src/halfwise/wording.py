"""Makes names, sentences and numbers fit to show: one line, no control characters, short.

The author of a model chooses its names. Escape sequences in them could repaint the terminal, line
breaks could fake lines of a report, and thousands of characters could drown it.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from math import isinf, isnan
from operator import itemgetter
from pathlib import PurePath
from typing import TypeVar
from unicodedata import category

WIDEST_NAME = 60
"""Columns for a name in running text. Our choice."""
LONGEST_EXCERPT = 500
"""Characters shown of what another program, a file or a user's function says. Our choice."""
FEW = 4
"""Names, places or sentences shown of a list; the rest are counted. Our choice."""
MOST_ROWS = 12
"""Most rows of a table, or lines of a log, on a terminal; the rest are grouped or counted."""

_REPLACED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,8})(?![0-9])")
_FACT = re.compile(r"{(\w+)(?:=([^}]*)})?")
_ASKED = re.compile(r"{\w+=[^}]*}")
_CHOICE = re.compile(r"\[(.+?)\]")
_UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


def clean(text: str) -> str:
    """Return `text` with every character that is not plainly visible replaced.

    These are control characters, line separators, surrogates, and invisible format characters,
    which can reverse the writing direction.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if category(c) in _REPLACED else c for c in text)


def shorten(name: str, width: int = WIDEST_NAME) -> str:
    """Return `name`, clean, cut in the middle to at most `width` (≥ 3) characters.

    The end matters most, as exporters put the node's function there. Of names joined with `;`, as
    TensorFlow does, the last remains; of others, whole parts between slashes if they fit.
    """
    if len(name) <= width:
        return clean(name)
    last = name.rstrip(";").rpartition(";")[2]
    if len(last) < len(name) and "/" in last:
        return clean(f"…;{last}") if len(last) <= width - 2 else shorten(last, width)
    head = (width - 1) // 2
    start, end = name[:head], name[head + 1 - width :]
    return clean(f"{start[: start.rfind('/') + 1] or start}…{end[max(end.find('/'), 0) :]}")


def excerpt(text: str) -> str:
    """Return the first `LONGEST_EXCERPT` characters of what another program says."""
    return text if len(text) <= LONGEST_EXCERPT else f"{text[: LONGEST_EXCERPT - 1]}…"


def sentence(text: str) -> str:
    """Return `text`, clean, with each overlong word cut in the middle."""
    pattern = rf"\S{{{WIDEST_NAME + 1},}}"
    return re.sub(pattern, lambda found: shorten(found[0]), clean(text))


def capital(clause: str, names: Sequence[str] = ()) -> str:
    """Return `clause` with a capital at the start, unless one of `names`, maybe cut, begins it."""
    named = clause.startswith(
        tuple(start for name in names if name for start in (name, shorten(name)))
    )
    return clause if named else f"{clause[:1].upper()}{clause[1:]}"


def stopped(text: str) -> str:
    """Return `text` with exactly one full stop at its end."""
    return f"{text.rstrip('.')}."


def number(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits, and all before the point up to a million.

    So 65504 appears next to 6.55e8, and 0.00012 beside 1.2e−5.
    """
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "inf" if value > 0 else "−inf"
    value += 0.0  # −0 is 0.
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    if exponent and 1 <= abs(value) < 1e6:
        return f"{value:.0f}".replace("-", "−")
    return (f"{mantissa}e{int(exponent)}" if exponent else mantissa).replace("-", "−")


def typed(value: float) -> str:
    """Return `value` as a command line takes it: 15 digits, with a hyphen for negative values."""
    return str(value) if isinstance(value, int) else number(value, 15).replace("−", "-")


def fixed(value: float, digits: int) -> str:
    """Return `value` with `digits` decimals."""
    if not abs(value) < 1e6:
        return number(value)
    # What rounds to −0 is 0.
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def ratio(value: float) -> str:
    """Return a ratio such as `2.9 ×`."""
    return f"{number(value)} ×"


def percent(share: float, digits: int = 2) -> str:
    """Return a share in percent with `digits` digits; only 0 is 0 %, and only 1 is 100 %."""
    shown = 100 * share
    if 0 < shown < 0.01:
        return "<0.01 %"
    if 99 <= shown < 100:
        return f"{min(shown, 99.99 if digits > 2 else 99.9):.{max(1, digits - 2)}f} %"
    return f"{shown:.{digits}g} %" if shown < 100 else f"{shown:.0f} %"


def seconds(value: float) -> str:
    """Return a time such as `0.35 s` or `300 s`."""
    return f"{value:.0f} s" if value >= 100 else f"{number(value)} s"


def size_of(nbytes: int) -> str:
    """Return a number of bytes with its unit, up to GiB; accepts any integer ≥ 0."""
    if nbytes.bit_length() > 1000:
        # At least three bits a digit.
        return f"about 10^{nbytes.bit_length() * 3 // 10} bytes"
    unit = next((unit for unit in _UNITS if nbytes >= _UNITS[unit]), "")
    return f"{number(nbytes / _UNITS[unit])} {unit}" if unit else count(nbytes, "byte")


def argument(path: PurePath | str) -> str:
    """Return a path as a word of a command; one that begins with a hyphen is not an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def command(*words: PurePath | str) -> str:
    """Return a command to paste into a shell; each word that is a path is made an `argument`."""
    return shlex.join(argument(word) if isinstance(word, PurePath) else word for word in words)


def count(quantity: int, noun: str) -> str:
    """Return a count with its noun, such as `1 node` or `3 nodes`."""
    return f"{quantity} {noun}" if quantity == 1 else f"{quantity} {noun}s"


def quoted(names: Iterable[str]) -> str:
    """Return names in quotes, separated by commas; `none` without names."""
    return ", ".join(f"'{name}'" for name in names) or "none"


def either(words: Sequence[str]) -> str:
    """Return a choice, at least one word: `a`, `a or b`, `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def meant(word: str, words: Iterable[str], otherwise: str = "") -> str:
    """Return the question whether the most similar word was meant; `otherwise` if none is."""
    close = get_close_matches(word, list(words), 1)
    return f"Did you mean {close[0]}?" if close else otherwise


_MADE_UP = re.compile(r"unk__\d+")
"""Names that ONNX's shape inference gives to sizes."""


def dimensions(sizes: Sequence[int | str | None] | None) -> str:
    """Return a shape as `1×3×height×?`; no axes as `scalar`, None as `of any rank`.

    A size of None or −1, or of a name that ONNX made up, is unknown.
    """
    if sizes is None:
        return "of any rank"
    names = ("?" if n in (None, -1) or _MADE_UP.fullmatch(str(n)) else str(n) for n in sizes)
    return "×".join(names) or "scalar"


def verb(quantity: int, one: str, more: str) -> str:
    """Return the form of a verb for a count, such as `was` or `were`."""
    return one if quantity == 1 else more


_FORMS: Mapping[str, Callable[[float], str]] = {
    "d": lambda value: str(int(value)),
    "%": percent,
    "×": ratio,
    "s": seconds,
    "dB": lambda value: f"{fixed(value, 1)} dB",
    "itself": lambda value: f"{number(value)} times themselves" if value >= 1 else percent(value),
}
"""Forms of a number in a template; others are a noun or a verb, see `filled`."""


class _Figure(float):
    """A number in a template; the text after its colon is its form."""

    def __format__(self, form: str) -> str:
        if form.isdigit() or not form:
            return number(self, int(form or 3))
        return _FORMS[form](float(self)) if form in _FORMS else _counted(int(self), form)


class _Names(tuple[str, ...]):
    """Names, or the sizes of a shape, in a template; the text after the colon is their form."""

    def __format__(self, form: str) -> str:
        if form.isdigit() or not form:
            return listed(self, int(form or FEW))
        return dimensions(self) if form == "×" else format(_Figure(len(self)), form)


def _counted(quantity: int, form: str) -> str:
    one, _, more = form.partition("/")
    return verb(quantity, one, more) if more else count(quantity, form)


class _Facts(dict[str, object]):
    """Facts by name, looked up in records and mappings; the last that has one tells it."""

    def __init__(self, sources: Sequence[object]) -> None:
        self._sources = sources

    def __missing__(self, name: str) -> object:
        fact = self.plain(name)
        if name == "low" and not isinstance(fact, float):
            return str(fact or "").upper()
        if fact is None or fact is False:
            raise KeyError(name)
        if isinstance(fact, int | float):
            return "" if fact is True else _Figure(fact)
        return _Names(fact) if isinstance(fact, tuple | list) else fact

    def plain(self, name: str) -> object:
        """Return a fact as it was given; None if it is not."""
        for source in reversed(self._sources):
            if isinstance(source, Mapping):
                if name in source:
                    return source[name]
            elif hasattr(source, name):
                return getattr(source, name)
        return None

    def tells(self, name: str, text: str) -> bool:
        """Return whether a fact is known, and has this text if one is asked for."""
        fact = self.plain(name)
        unknown = fact is None or fact is False or fact in ("", ())
        return not unknown and (not text or f"{self[name]}" == text)


def filled(template: str, *sources: object) -> str:
    """Return a template with names and numbers filled in.

    Of `[a|b]`, the first part whose facts are all known is used; none if there is none. `{x=y}`
    stands for nothing, and asks that the text of fact `x` is `y`. Numbers have three digits, or the
    form after the colon: `{x:6}` digits, `{x:d}` an integer, `{x:%}` a share, `{x:×}` a ratio,
    `{x:s}` a time, `{x:dB}`, `{x:itself}` an error relative to the value that has it, `{x:node}` a
    count of nodes, `{x:is/are}` a verb for the count. Names are listed, at most `{x:6}` of them, or
    counted: `{x:d}`, `{x:node}`, `{x:is/are}`; `{x:×}` is a shape. The low format is in capitals.

    Args:
        template: The template.
        sources: Records, whose fields and properties are facts, and mappings; the last one that
            has a fact tells it: text, a number, names or a shape. None, False, "" and () stand for
            unknown ones, True for one without words of its own.

    Raises:
        KeyError: a fact outside brackets is None, False or lacking.
    """
    facts = _Facts(sources)

    def fits(part: str) -> bool:
        return all(facts.tells(name, text) for name, text in _FACT.findall(part))

    def chosen(match: re.Match[str]) -> str:
        return next(filter(fits, match[1].split("|")), "")

    return _ASKED.sub("", _CHOICE.sub(chosen, template)).format_map(facts)


Item = TypeVar("Item")


def alike(records: Iterable[Item], key: Callable[[Item], object]) -> list[list[Item]]:
    """Return records with equal keys together, in order of first appearance."""
    groups: dict[object, list[Item]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return list(groups.values())


def everything_low(fmt: str, own: int, pinned: int, explained: int = 0) -> str:
    """Return what is low, such as `everything in FP16 except 2 nodes that must be FP32`.

    Args:
        fmt: Name of the low format.
        own: Nodes that the model's file computes in FP32 among lower ones.
        pinned: Nodes that must be FP32.
        explained: Nodes that guards or rules of the user keep.
    """
    except_for = (
        (own, "that the file has in FP32"),
        (pinned, "that must be FP32"),
        (explained, "that a guard or rule explains"),
    )
    rest = " and ".join(f"{count(number, 'node')} {why}" for number, why in except_for if number)
    return f"everything in {fmt.upper()}{f' except {rest}' if rest else ''}"


def listed(names: Sequence[str], most: int = FEW, width: int = WIDEST_NAME) -> str:
    """Return `names` as a short list, merging those that differ in one number.

    Args:
        names: What to list, such as `/b.0/Pow`, `/b.1/Pow`, `/b.2/Pow`, `/head`.
        most: Entries shown; the rest is counted.
        width: Longest entry.

    Returns:
        Such as `/b.{0–2}/Pow, /head and 12 more`.
    """
    entries = list(_merged(list(names)))
    shown = ", ".join(shorten(text, width) for text, _ in entries[:most])
    rest = sum(count for _, count in entries[most:])
    return f"{shown} and {rest} more" if rest else shown


def _merged(names: list[str]) -> Iterator[tuple[str, int]]:
    """Yield entries with the number of names that each stands for, in order of first appearance."""
    for same_text in alike(map(_NUMBER.split, names), lambda parts: tuple(parts[::2])):
        varied = [len({parts[i] for parts in same_text}) for i in range(1, len(same_text[0]), 2)]
        place = 1 + 2 * varied.index(max(varied)) if varied else 1
        others = itemgetter(*(i for i in range(len(same_text[0])) if i != place))
        for group in alike(same_text, others):
            before, after = "".join(group[0][:place]), "".join(group[0][place + 1 :])
            numbers = _numbers([int(parts[place]) for parts in group]) if varied else ""
            yield f"{before}{numbers}{after}", len(group)


def _numbers(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    ordered = enumerate(sorted(set(numbers)))
    runs = [[n for _, n in run] for _, run in groupby(ordered, lambda at: at[1] - at[0])]
    pieces = [f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    if len(pieces) > FEW:
        pieces = [*pieces[: FEW - 1], "…", pieces[-1]]
    return "{" + ", ".join(pieces) + "}"
