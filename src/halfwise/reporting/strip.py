"""The headroom strip: every tensor's range between the limits of the low format, at a glance.

Depth runs across, in the order of the graph; log2 of the magnitude runs up. A bar spans the largest
magnitude of a tensor and all its others but the smallest 1 %, since a few values near zero say
nothing. What is at fault is numbered. Where repairs changed a range, both are drawn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, log2

import numpy as np
from markupsafe import Markup

from halfwise.formats import LOW_FORMATS, Format
from halfwise.records import Observation, Observations, Run
from halfwise.reporting.causes import LABELS, Causes, causes
from halfwise.reporting.parts import NARROW
from halfwise.wording import number, shorten

SMALL = 0.01
"""Share of a tensor's values that its bar leaves out at the lower end. Our choice."""
MOST = 5
"""Most faults that are numbered: with the chart they fill a screen."""
Range = tuple[float, float]
"""log2 of the lower and the upper end of a bar."""


@dataclass(frozen=True)
class Bar:
    """A tensor.

    Attributes:
        place: Its place in the order of the graph.
        names: The tensor and the node that computes it, if any.
        now: Its range; None if repairs removed it, or if it is all zeros.
        before: Its range before repairs; None if they left it as it was.
    """

    place: float
    names: tuple[str | None, ...]
    now: Range | None
    before: Range | None = None


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        text: The worst node, and what is wrong there.
        bars: Places of its bars in the strip, in order.
    """

    text: str
    bars: tuple[int, ...]


@dataclass(frozen=True)
class Strip:
    """The strip.

    Attributes:
        low: The low format.
        bars: The tensors, in the order of the graph.
        faults: What is at fault, gravest first.
    """

    low: Format
    bars: tuple[Bar, ...]
    faults: tuple[Fault, ...]


def strip(run: Run, observations: Observations | None) -> Strip | None:
    """Return the strip of a run; None without observations, and for a format of FP32's range."""
    low = LOW_FORMATS[run.low or "fp16"]
    if observations is None or not observations.tensors or low.has_range_of_fp32:
        return None
    bars = _bars(observations)
    groups = [one for one in causes(run, observations) if one.state != "harmless"][:MOST]
    return Strip(low, bars, tuple(_fault(group, bars) for group in groups))


def _bars(seen: Observations) -> tuple[Bar, ...]:
    places = {one.tensor: float(i) for i, one in enumerate(seen.tensors)}
    # Tensors that repairs removed are spread between their neighbours that are still there.
    known = [(i, places[one.tensor]) for i, one in enumerate(seen.before) if one.tensor in places]
    at, there = np.array([(-1, 0.5), *known, (len(seen.before), len(places) - 0.5)]).T
    spread = np.interp(np.arange(len(seen.before)), at, there)
    was = {one.tensor: _range(one) for one in seen.before}
    bars = [
        Bar(places[one.tensor], (one.tensor, one.producer), _range(one), was.get(one.tensor))
        for one in seen.tensors
    ]
    bars += [
        Bar(float(place), (one.tensor, one.producer), None, _range(one))
        for one, place in zip(seen.before, spread, strict=True)
        if one.tensor not in places
    ]
    return tuple(sorted(bars, key=lambda bar: bar.place))


def _range(seen: Observation) -> Range | None:
    if not seen.absmax and not seen.nonfinite:
        return None
    low = high = log2(seen.absmax) if seen.absmax else inf
    if seen.detail is not None and (counts := seen.detail.histogram.counts):
        below = list(accumulate(counts))
        first = next(i for i, count in enumerate(below) if count > SMALL * below[-1])
        low = min(high, float(seen.detail.histogram.first + first))
    return low, inf if seen.nonfinite else high


def _fault(group: Causes, bars: Sequence[Bar]) -> Fault:
    tensors = {one.tensor for one in group.found if one.tensor is not None}
    nodes = {one.node for one in group.found if one.tensor is None}
    marked = [i for i, b in enumerate(bars) if b.names[0] in tensors or b.names[1] in nodes]
    worst = next((one.node for one in group.found if one.node is not None), None)
    title = group.title[:1].lower() + group.title[1:].partition(";")[0]
    where = f"{shorten(worst)}: " if worst is not None else ""
    return Fault(f"{where}{LABELS[group.state].lower()}, {title}", tuple(marked))


def _limits(low: Format) -> tuple[tuple[float, str], ...]:
    """Return log2 of the limits, largest first, and their figures.

    The largest number, the smallest one of full precision, and the largest that becomes zero.
    """
    limits = (low.max, low.smallest_normal, low.flush_threshold)
    return tuple((log2(limit), number(limit)) for limit in limits)


def _part(column: "_Column", top: float) -> Range | None:
    """Return the part of a column's ranges beyond the largest number; None if there is none."""
    drawn = [one[1] for one in (column.now, column.before) if one is not None and one[1] > top]
    return (top, max(drawn)) if drawn else None


def _hull(ranges: Iterable[Range | None]) -> Range | None:
    shown = [one for one in ranges if one is not None]
    return (min(a for a, _ in shown), max(b for _, b in shown)) if shown else None


@dataclass(frozen=True)
class _Column:
    """Neighbouring bars that share a column: hulls of their ranges.

    Attributes:
        now: Of the model as it is.
        before: Of what repairs changed.
        mark: The number of its gravest fault; "" for none.
    """

    now: Range | None
    before: Range | None
    mark: str


def _columns(drawn: Strip, most: int) -> list[_Column]:
    size = len(drawn.bars)
    groups = np.array_split(np.arange(size), min(size, most))
    number_of = {
        place: str(i)
        for i, fault in reversed(list(enumerate(drawn.faults, 1)))
        for place in fault.bars
    }
    return [
        _Column(
            _hull(drawn.bars[i].now for i in group),
            _hull(drawn.bars[i].before for i in group),
            min((number_of[i] for i in group if i in number_of), default=""),
        )
        for group in groups
    ]


_TITLE = "Range of every tensor, inputs left, outputs right, and the format's limits"
_KEY = ("before repairs", "now")
_MARGIN = 8


def as_text(drawn: Strip) -> str:
    """Return the strip as text of at most 24 lines and 80 columns."""
    columns = _columns(drawn, NARROW - _MARGIN)
    wide = max(1, min(4, (NARROW - _MARGIN) // len(columns)))
    limits = dict(_limits(drawn.low))
    top, normal, flush = limits
    edges = [inf, top + 8, top + 4, *np.linspace(top, normal, 8), (normal + flush) / 2, flush, -inf]

    def row(high: float, low: float, empty: str) -> str:
        return "".join((_sign(column, high, low) or empty) * wide for column in columns)

    lines = [_TITLE]
    for high, low in pairwise(edges):
        lines.append(" " * _MARGIN + row(high, low, " "))
        if low in limits:
            lines.append(f"{limits[low]:>{_MARGIN - 1}} {row(low, low, '┄')}")
    lines.append(" " * _MARGIN + "".join(f"{column.mark:<{wide}}" for column in columns))
    if any(column.before is not None for column in columns):
        lines.append(" " * _MARGIN + f"░ {_KEY[0]}  █ {_KEY[1]}")
    # The node is what counts: what is wrong there may be cut.
    lines += [f"{i} {fault.text}"[:NARROW] for i, fault in enumerate(drawn.faults, 1)]
    return "\n".join(line.rstrip() for line in lines)


def _sign(column: _Column, high: float, low: float) -> str:
    """Return what fills a cell between two magnitudes; "" if nothing reaches it."""
    for drawn, sign in ((column.now, "█"), (column.before, "░")):
        if drawn is not None and drawn[0] < high and drawn[1] >= low:
            return sign
    return ""


def _marks(columns: Sequence[_Column], step: float) -> list[tuple[float, set[str]]]:
    """Return where marks are, and which: those too near to the one before share its place."""
    marks: list[tuple[float, set[str]]] = []
    for i, column in enumerate(columns):
        x = (i + 0.5) * step
        if column.mark and marks and x - marks[-1][0] < _APART:
            marks[-1][1].add(column.mark)
        elif column.mark:
            marks.append((x, {column.mark}))
    return marks


_APART = 20
"""Units between two marks: two digits and a gap."""
_LIMITS = ("largest number", "fewer bits below", "zero below")
_WIDTH, _HEIGHT, _LEFT, _TOP, _LINE = 960, 300, 110, 24, 20
_INK, _NOW, _BEFORE, _BAD = "#767676", "#4a7fb5", "#e0a458", "#d0342c"
"""Colours with at least 3 : 1 on white and on black, but for bars before repairs."""


def as_svg(drawn: Strip) -> Markup:
    """Return the strip as an SVG picture of less than 50 KB that refers to nothing."""
    columns = _columns(drawn, (_WIDTH - _LEFT) // 2)
    step = (_WIDTH - _LEFT) / len(columns)
    limits = _limits(drawn.low)
    ends = [end for column in columns for r in (column.now, column.before) if r for end in r]
    most = max(limits[0][0] + 4, *(end + 1 for end in ends if end < inf))
    least = limits[-1][0] - 3

    def y(power: float) -> float:
        share = (most - max(least, min(most, power))) / (most - least)
        return round(_TOP + share * _HEIGHT, 1)

    def path(ranges: Iterable[Range | None], colour: str) -> Markup:
        bars = "".join(
            f"M{_LEFT + (i + 0.5) * step:.1f} {y(r[0]) + 1:.1f}V{y(r[1]):.1f}"
            for i, r in enumerate(ranges)
            if r is not None
        )
        return Markup('<path d="{}" stroke="{}" stroke-width="{:.1f}" fill="none"/>').format(
            bars, colour, min(12.0, max(1.0, step * 0.8))
        )

    def text(x: float, at: float, words: str, anchor: str = "start", colour: str = _INK) -> Markup:
        return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}">{}</text>').format(
            x, at, anchor, colour, words
        )

    beyond = [_part(column, limits[0][0]) for column in columns]
    parts = [path((c.before for c in columns), _BEFORE), path((c.now for c in columns), _NOW)]
    parts.append(path(beyond, _BAD))
    for (power, figure), words in zip(limits, _LIMITS, strict=True):
        line = Markup('<path d="M{} {}H{}" stroke="{}" stroke-dasharray="4 3"/>')
        parts.append(line.format(_LEFT, y(power), _WIDTH, _INK))
        parts.append(text(_LEFT - 6, y(power) + 4, figure, "end"))
        parts.append(text(_LEFT - 6, y(power) + 18, words, "end"))
    bottom = _TOP + _HEIGHT
    for x, marks in _marks(columns, step):
        parts.append(text(_LEFT + x, bottom + 14, " ".join(sorted(marks)), "middle", _BAD))
    parts.append(text(_LEFT, _TOP - 9, _TITLE))
    if any(column.before is not None for column in columns):
        parts.append(text(_WIDTH, _TOP - 9, _KEY[0], "end", _BEFORE))
    parts += [
        text(_LEFT, bottom + 16 + _LINE * i, f"{i} {shorten(fault.text, 140)}")
        for i, fault in enumerate(drawn.faults, 1)
    ]
    height = bottom + 24 + _LINE * len(drawn.faults)
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12"><title>{}</title>{}</svg>'
    ).format(_WIDTH, height, _TITLE, Markup().join(parts))
