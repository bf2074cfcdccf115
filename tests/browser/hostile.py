"""Records whose every free string is one that a model, a file or a log may hold to do harm."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, get_type_hints
from zlib import crc32

import msgspec
from msgspec import ValidationError, convert

from halfwise.records import Record
from tests.browser.network import network

R = TypeVar("R", bound=Record)

TEXTS = (
    "</script><script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "'-alert(1)-'",
    "{{7*7}}{% raw %}",
    "${7*7}`",
    "</style></template></textarea><svg onload=alert(1)>",
    "<!--<script>",
    "]]>\\u003c/script>&lt;b&gt;",
    "javascript:alert(1)//\\",
    "<base href=//127.0.0.1:9/><link rel=stylesheet href=//127.0.0.1:9/a.css>",
    "a\nb\r\nc\td",
    "\u202egnp.exe\u2066\u200f",
    "\u2028\u2029\x00\x07\x1b[31mred\x1b]0;title\x07",
    "😀👩‍👩‍👧‍👦 ẞ",
    "%s%n%00../../etc/passwd",
    "=cmd|'/C calc'!A0,\";\"",
)
FORMULAS = ("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1+1", "\r=1+1")
"""How a cell begins that a spreadsheet computes."""
OBJECT = ("__proto__", "constructor", "hasOwnProperty", "toString", "length", "0")
"""Names that mean something to objects of JavaScript."""
_NAMED = dict(zip((node.name for node in network(60)[1:]), OBJECT, strict=False))
LONG = "x" * 10_000
MARK = "alert(1)"
FIXED = frozenset(
    (
        *("Point.kept", "Point.bf16", "Row.kept", "Row.name"),
        *("EngineFile.sha256", "BuildConfig.model_sha256", "Provenance.date"),
        *(
            "Provenance.model_sha256",
            "Provenance.inputs_sha256",
            "Graph.shapes",
            "Graph.types",
        ),
    )
)
"""What halfwise itself writes, in a form that it reads."""


def spoilt(text: str) -> str:
    """Return a harmful string for a harmless one, always the same, and another for another.

    What is empty stays so: that it is means something.
    """
    if not text or text in _NAMED:
        return _NAMED.get(text, text)
    number = crc32(text.encode("utf-8", "replace"))
    if number % 101 == 0:
        return f"{text}{LONG}"
    if number % 7 == 0:
        return f"{FORMULAS[number % len(FORMULAS)]}{text}"
    return f"{text}{TEXTS[number % len(TEXTS)]}"


def poisoned(record: R, spoil: Callable[[str], str] = spoilt) -> R:
    """Return a record with all strings spoilt that may be anything, keys of mappings included."""
    found = {}
    for name in record.__struct_fields__:
        value = _inside(getattr(record, name), spoil)
        fixed = f"{type(record).__name__}.{name}" in FIXED
        found[name] = value if fixed else _strings(type(record), name, value, spoil)
    return msgspec.convert(found, type(record), strict=False)


def _inside(value: Any, spoil: Callable[[str], str]) -> Any:
    if isinstance(value, Record):
        return poisoned(value, spoil)
    if isinstance(value, tuple):
        return tuple(_inside(entry, spoil) for entry in value)
    if isinstance(value, dict):
        return {key: _inside(entry, spoil) for key, entry in value.items()}
    return value


def _strings(kind: type[Record], name: str, value: Any, spoil: Callable[[str], str]) -> Any:
    """Return a field with strings spoilt, in values and keys, in values alone, or as it was."""
    if name == "numbers":
        return value
    annotation = _annotations(kind)[name]
    for keys in (True, False) if name not in ("facts", "names", "under") else (False,):
        changed = _spoilt(value, spoil, keys=keys)
        try:
            convert(changed, annotation)
        except ValidationError:
            continue
        return changed
    return value


@cache
def _annotations(kind: type[Record]) -> dict[str, Any]:
    return get_type_hints(kind)


def _spoilt(value: Any, spoil: Callable[[str], str], *, keys: bool) -> Any:
    if isinstance(value, str):
        return spoil(value)
    if isinstance(value, tuple):
        return tuple(_spoilt(entry, spoil, keys=keys) for entry in value)
    if isinstance(value, dict):
        return {
            spoil(key) if keys and isinstance(key, str) else key: _spoilt(entry, spoil, keys=keys)
            for key, entry in value.items()
        }
    return value
