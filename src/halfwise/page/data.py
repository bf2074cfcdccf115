"""Values as JSON embedded in a page: nothing in it can end the tag that holds it."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite, isnan
from typing import TypeAlias

from markupsafe import Markup

Data: TypeAlias = "Mapping[str, Data] | Sequence[Data] | str | float | bool | None"

_ESCAPED = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&"})
_DIGITS = 7
"""Significant digits of a number: FP32's precision. `run.json` has all digits."""


def script_json(value: Data) -> Markup:
    """Return `value` as JSON for a `<script type="application/json">`.

    The result is ASCII without `<`, `>` and `&`, so no text can end the tag or begin a comment in
    it (HTML, "script data state"). NaN and infinite numbers are the strings that JavaScript's
    `Number` takes: "NaN", "Infinity" and "-Infinity".

    Args:
        value: Mappings with strings as keys, sequences, strings, numbers, booleans and None.
    """
    text = json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)
    # The escaped characters occur only in strings: the rest of JSON has none.
    return Markup(text.translate(_ESCAPED))  # noqa: S704


def _plain(value: Data) -> Data:
    if isinstance(value, float):
        return _number(value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value]


def _number(value: float) -> float | str:
    if isfinite(value):
        short = float(f"{value:.{_DIGITS}g}")
        return int(short) if short == int(short) and abs(short) < 1e15 else short
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
