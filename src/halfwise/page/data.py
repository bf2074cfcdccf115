"""What every section of the page reads: the stored run, and data as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from markupsafe import Markup

from halfwise.formats import LOW_FORMATS, Format
from halfwise.records import Observations, Run, RunEvidence
from halfwise.reporting.parts import Report
from halfwise.reporting.view import screen

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
    rounded = json.loads(json.dumps(value), parse_float=_rounded, parse_constant=str)
    text = json.dumps(rounded, separators=(",", ":"))
    # The escaped characters occur only in strings: the rest of JSON has none.
    return Markup(text.translate(_ESCAPED))  # noqa: S704


def _rounded(digits: str) -> float:
    return float(f"{float(digits):.{_DIGITS}g}")


@dataclass(frozen=True)
class Stored:
    """A stored run.

    Attributes:
        run: The record.
        observations: Observations of its tensors; None if the command made none.
        evidence: Its graph, sources and samples; None if the folder has none.
    """

    run: Run
    observations: Observations | None = None
    evidence: RunEvidence | None = None

    @property
    def low(self) -> Format:
        """The low format of its plan or candidate; FP16 if it has none."""
        return LOW_FORMATS[self.run.low or "fp16"]

    @cached_property
    def screen(self) -> Report:
        """The report's first screen, the same as on the terminal."""
        return screen(self.run)


@dataclass(frozen=True)
class Section:
    """A section.

    Attributes:
        id: Its anchor. `static/ID.js` and `static/ID.css` are its script and its style, if these
            files exist.
        title: Its heading.
        data: The data that its script receives, by `halfwise.section(ID, (root, data) => …)`.
        template: File in `templates/` that makes its body from `section` and `stored`; "" for an
            empty one, which the script fills.
        facts: Values that only the template needs.
        scripts: Further files in `static/` that its script needs, without `.js`.
        libraries: Libraries in `static/vendor/` that its scripts need.
        is_open: Whether it is unfolded at first.
    """

    id: str
    title: str
    data: Data = None
    template: str = ""
    facts: Any = None
    scripts: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    is_open: bool = False
