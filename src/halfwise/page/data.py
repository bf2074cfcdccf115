"""What every section of the page reads: the stored run, and data as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import Any, Self, TypeAlias

from markupsafe import Markup

from halfwise.formats import LOW_FORMATS, Format
from halfwise.records import Observations, Run, RunEvidence
from halfwise.reporting.parts import Report
from halfwise.reporting.view import screen
from halfwise.store import read_evidence, read_observations
from halfwise.store import report as stored_run

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


@dataclass(frozen=True)
class Stored:
    """A stored run.

    Attributes:
        run: The record.
        screen: The report's first screen, the same as on the terminal.
        observations: Observations of its tensors; None if the command made none.
        evidence: Its graph, sources and samples; None if the folder has none.
    """

    run: Run
    screen: Report
    observations: Observations | None
    evidence: RunEvidence | None

    @property
    def low(self) -> Format:
        """The low format of its plan or candidate; FP16 if it has none."""
        return LOW_FORMATS[self.run.low or "fp16"]

    @classmethod
    def of(
        cls, run: Run, observations: Observations | None = None, evidence: RunEvidence | None = None
    ) -> Self:
        """Return a run with its words."""
        return cls(run, screen(run), observations, evidence)


def stored(folder: Path, trt_worker: str | None = None) -> Stored:
    """Return the contents of a run folder.

    Args:
        folder: The folder, or its `run.json`.
        trt_worker: One of its devices, shown as if it were the only one; None for all.

    Raises:
        RecordMismatch: no run, or one that cannot be read.
        UsageError: the run has no device of that name.
    """
    run = stored_run(folder, trt_worker=trt_worker)
    return Stored.of(run, read_observations(folder), read_evidence(folder))


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
