"""The headroom strip: every tensor's range between the limits of the low format, at a glance.

Depth runs across, in the order of the graph; log2 of the magnitude runs up. A bar spans the largest
magnitude of a tensor and all its others but the smallest 1 %, since a few values near zero say
nothing. Below, ticks mark what is at fault. Where repairs changed a range, both are drawn.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf, log2
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from halfwise.formats import LOW_FORMATS, Format
from halfwise.records import Observation, Observations, Run
from halfwise.reporting.causes import LABELS, Causes, causes
from halfwise.wording import number, shorten

SMALL = 0.01
"""Share of a tensor's values that its bar leaves out at the lower end. Our choice."""
MOST = 5
"""Most faults that are marked: with the chart they fill a screen."""
Range = tuple[float, float]
"""log2 of the lower and the upper end of a bar."""


class Bar(NamedTuple):
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
    before: Range | None


def strip(run: Run, observations: Observations | None) -> Markup | None:
    """Return the strip of a run as an SVG picture of less than 50 KB that refers to nothing.

    None without observations, and for a format of FP32's range.
    """
    low = LOW_FORMATS[run.low or "fp16"]
    if observations is None or not observations.tensors or low.has_range_of_fp32:
        return None
    faults = [one for one in causes(run, observations) if one.state != "harmless"][:MOST]
    return _drawn(bars(observations), faults, low)


def bars(seen: Observations) -> list[Bar]:
    """Return the tensors, in the order of the graph."""
    places = {one.tensor: float(i) for i, one in enumerate(seen.tensors)}
    # Tensors that repairs removed are spread between their neighbours that are still there.
    known = [(i, places[one.tensor]) for i, one in enumerate(seen.before) if one.tensor in places]
    at, there = np.array([(-1, 0.5), *known, (len(seen.before), len(places) - 0.5)]).T
    spread = np.interp(np.arange(len(seen.before)), at, there)
    was = {one.tensor: _range(one) for one in seen.before}
    gone = zip(spread, seen.before, strict=True)
    found = [
        *((places[one.tensor], one, _range(one)) for one in seen.tensors),
        *((float(place), one, None) for place, one in gone if one.tensor not in places),
    ]
    made = (Bar(at, (one.tensor, one.producer), r, was.get(one.tensor)) for at, one, r in found)
    return sorted(made, key=lambda bar: bar.place)


def _range(seen: Observation) -> Range | None:
    if not seen.absmax and not seen.nonfinite:
        return None
    low = high = log2(seen.absmax) if seen.absmax else inf
    if seen.detail is not None and (counts := seen.detail.histogram.counts):
        below = list(accumulate(counts))
        first = next(i for i, count in enumerate(below) if count > SMALL * below[-1])
        low = min(high, float(seen.detail.histogram.first + first))
    return low, inf if seen.nonfinite else high


def _hull(ranges: Iterable[Range | None]) -> Range | None:
    shown = [one for one in ranges if one is not None]
    return (min(a for a, _ in shown), max(b for _, b in shown)) if shown else None


_LIMITS = ("largest number", "fewer bits below", "zero below")
_WIDTH, _HEIGHT, _LEFT, _TOP, _LINE = 960, 300, 110, 24, 16
_INK, _NOW, _BEFORE, _BAD = "#767676", "#4a7fb5", "#e0a458", "#d0342c"
"""Colours with at least 3 : 1 on white and on black, but for bars before repairs."""
_TITLE = "Range of every tensor, inputs left, outputs right, and the format's limits"


def _drawn(drawn: Sequence[Bar], faults: Sequence[Causes], low: Format) -> Markup:
    """Return the picture; neighbouring bars that share a column are drawn as their hull."""
    groups = np.array_split(np.arange(len(drawn)), min(len(drawn), (_WIDTH - _LEFT) // 2))
    columns = [[drawn[i] for i in group] for group in groups]
    now = [_hull(bar.now for bar in column) for column in columns]
    before = [_hull(bar.before for bar in column) for column in columns]
    edges = (low.max, low.smallest_normal, low.flush_threshold)
    limits = [(log2(limit), number(limit)) for limit in edges]
    top, step = limits[0][0], (_WIDTH - _LEFT) / len(columns)
    both = map(_hull, zip(now, before, strict=True))
    beyond = [(top, one[1]) if one is not None and one[1] > top else None for one in both]
    most = max(top + 4, *(one[1] + 1 for one in (*now, *before) if one and one[1] < inf))
    least = limits[-1][0] - 3

    def y(power: float) -> float:
        share = (most - max(least, min(most, power))) / (most - least)
        return round(_TOP + share * _HEIGHT, 1)

    def path(marks: Iterable[tuple[int, float, float]], colour: str) -> Markup:
        lines = "".join(f"M{_LEFT + (i + 0.5) * step:.1f} {a:.1f}V{b:.1f}" for i, a, b in marks)
        return Markup('<path d="{}" stroke="{}" stroke-width="{:.1f}" fill="none"/>').format(
            lines, colour, min(12.0, max(1.0, step * 0.8))
        )

    def text(x: float, at: float, words: str, anchor: str = "start", colour: str = _INK) -> Markup:
        return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}">{}</text>').format(
            x, at, anchor, colour, words
        )

    parts = [
        path(((i, y(r[0]) + 1, y(r[1])) for i, r in enumerate(ranges) if r is not None), colour)
        for ranges, colour in ((before, _BEFORE), (now, _NOW), (beyond, _BAD))
    ]
    for (power, figure), words in zip(limits, _LIMITS, strict=True):
        line = Markup('<path d="M{} {}H{}" stroke="{}" stroke-dasharray="4 3"/>')
        parts.append(line.format(_LEFT, y(power), _WIDTH, _INK))
        parts.append(text(_LEFT - 6, y(power) + 4, figure, "end"))
        parts.append(text(_LEFT - 6, y(power) + 18, words, "end"))
    parts.append(text(_LEFT, _TOP - 9, _TITLE))
    if any(before):
        parts.append(text(_WIDTH, _TOP - 9, "before repairs", "end", _BEFORE))
    at = _TOP + _HEIGHT + 8
    for group in faults:
        tensors = {one.tensor for one in group.found if one.tensor is not None}
        nodes = {one.node for one in group.found if one.tensor is None and one.node is not None}
        at_fault = (
            (i, at, at + 6)
            for i, column in enumerate(columns)
            if any(bar.names[0] in tensors or bar.names[1] in nodes for bar in column)
        )
        parts.append(path(at_fault, _BAD))
        parts.append(text(_LEFT, at + 6 + _LINE, _told(group)))
        at += 2 * _LINE
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12"><title>{}</title>{}</svg>'
    ).format(_WIDTH, at + 4, _TITLE, Markup().join(parts))


def _told(group: Causes) -> str:
    """Return the worst node, and what is wrong there."""
    worst = next((f"{shorten(one.node)}: " for one in group.found if one.node is not None), "")
    title = group.title[:1].lower() + group.title[1:].partition(";")[0]
    return shorten(f"{worst}{LABELS[group.state].lower()}, {title}", 140)
