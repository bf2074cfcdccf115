"""A plot of plans, or of engines: what each costs, and its error."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log10

from markupsafe import Markup

from halfwise.wording import number

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 160, 80, 16, 44
_INK, _OTHER, _CHOSEN, _BAD = "#767676", "#4a7fb5", "#2e8b57", "#d0342c"
"""Colours with at least 3 : 1 on white and on black."""
_DECADES = 3.0
"""Powers of ten that are drawn below the allowed error: smaller errors are alike to a user."""


@dataclass(frozen=True)
class Spot:
    """What is plotted.

    Attributes:
        cost: Its cost, ≥ 0, in any unit.
        error: Its error over what is allowed: 1 just passes; inf is drawn at the upper edge.
        label: What a reader sees who points at it.
        chosen: Whether it was delivered.
    """

    cost: float
    error: float
    label: str
    chosen: bool = False


def scatter(spots: Sequence[Spot], unit: str) -> Markup:
    """Return an SVG picture that refers to nothing: cost across, error up, on a scale of decades.

    Args:
        spots: At least one.
        unit: What the cost is, as the axis says it.
    """
    logs = [log10(s.error) if 0 < s.error < inf else -inf for s in spots]
    most = max(1.0, *(v + 0.3 for v in logs if v < inf))
    right = max(s.cost for s in spots) * 1.05 or 1.0
    left = min(s.cost for s in spots) * 0.95

    def x(cost: float) -> float:
        return _LEFT + (cost - left) / (right - left) * (_WIDTH - _LEFT - 20)

    def y(error: float) -> float:
        power = log10(error) if 0 < error < inf else (most if error else -inf)
        share = (most - max(-_DECADES, min(most, power))) / (most + _DECADES)
        return _TOP + share * _HEIGHT

    def text(at_x: float, at_y: float, anchor: str, words: str, colour: str = _INK) -> Markup:
        return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}">{}</text>').format(
            at_x, at_y, anchor, colour, words
        )

    line = Markup('<path d="M{} {:.1f}H{}" stroke="{}" stroke-dasharray="4 3"/>')
    parts = [line.format(_LEFT, y(1.0), _WIDTH, _BAD)]
    parts.append(text(_LEFT - 6, y(1.0) + 4, "end", "allowed", _BAD))
    parts += [
        text(_LEFT - 6, y(10.0**power) + 4, "end", f"{10.0**power:g} ×")
        for power in range(-int(_DECADES), int(most) + 1)
        if power
    ]
    bottom = _TOP + _HEIGHT
    for cost in {min(s.cost for s in spots), max(s.cost for s in spots)}:
        parts.append(text(x(cost), bottom + 18, "middle", number(cost)))
    parts.append(text((_LEFT + _WIDTH) / 2, bottom + 36, "middle", unit))
    for spot in sorted(spots, key=lambda s: s.chosen):
        colour = _CHOSEN if spot.chosen else _OTHER if spot.error <= 1 else _BAD
        dot = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}"><title>{}</title></circle>')
        size = 7 if spot.chosen else 5
        parts.append(dot.format(x(spot.cost), y(spot.error), size, colour, spot.label))
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12"><title>{}</title>{}</svg>'
    ).format(_WIDTH, bottom + _BOTTOM, "Error over what is allowed, by cost", Markup().join(parts))
