"""Plans by what they cost and how wrong they are: as engines measure, else as predicted."""

from collections.abc import Iterable, Iterator
from math import inf, log10

from markupsafe import Markup

from halfwise.records import Curve, Engines, Run
from halfwise.wording import number

_WIDTH, _HEIGHT, _LEFT, _TOP = 480, 220, 70, 30
_INK, _PLAN, _CHOSEN = "#767676", "#4a7fb5", "#d0342c"
"""Colours with at least 3 : 1 on white and on black."""


def plot(run: Run) -> Markup | None:
    """Return the plans as an SVG picture that refers to nothing; None with fewer than two.

    Across is the median time of engines in ms, or the predicted cost relative to everything low; up
    is the logarithm of the error relative to what is allowed. Exact plans lie below all others, and
    those whose outputs are not finite above.
    """
    points, across = _placed(_timed(run.engines)), "median time in ms"
    if len(points) < 2:
        points, across = _placed(_predicted(run.curve)), "predicted cost"
    if len(points) < 2:
        return None
    costs = [cost for cost, *_ in points]
    least, widest = min(costs), max(costs) - min(costs) or 1.0
    known = [log10(error) for _, error, _ in points if 0 < error < inf]
    low, high = min(known, default=0.0), max(known, default=0.0)
    bottom, top = min(low, 0.0) - 1, max(high, 0.0) + 1

    def x(cost: float) -> float:
        return round(_LEFT + 20 + (cost - least) / widest * (_WIDTH - _LEFT - 60), 1)

    def y(error: float) -> float:
        power = bottom if error == 0 else top if error == inf else log10(error)
        return round(_TOP + 10 + (top - power) / (top - bottom) * (_HEIGHT - 20), 1)

    def text(left: float, top: float, words: str, anchor: str = "end") -> Markup:
        return Markup('<text x="{}" y="{}" text-anchor="{}" fill="{}">{}</text>').format(
            left, top, anchor, _INK, words
        )

    circle = Markup('<circle cx="{}" cy="{}" r="5" fill="{}"/>')
    parts = [circle.format(x(c), y(e), _CHOSEN if own else _PLAN) for c, e, own in points]
    line = Markup('<path d="M{} {}H{}" stroke="{}" stroke-dasharray="4 3"/>')
    parts.append(line.format(_LEFT, y(1.0), _WIDTH, _INK))
    said = {inf: "not finite", 10**high: f"{number(10**high)} ×", 10**low: f"{number(10**low)} ×"}
    said |= {1.0: "allowed", 0.0: "exact"}
    parts += (text(_LEFT - 6, y(error) + 4, words) for error, words in said.items())
    below, ends = _TOP + _HEIGHT + 18, sorted({least, max(costs)})
    parts += (text(x(cost), below, number(cost), "middle") for cost in ends)
    title = f"Error over what is allowed, by {across}; the delivered plan in red"
    parts.append(text(0, _TOP - 14, title, "start"))
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" width="{}" '
        'font-family="system-ui, sans-serif" font-size="12"><title>{}</title>{}</svg>'
    ).format(_WIDTH, _TOP + _HEIGHT + 28, _WIDTH, title, Markup().join(parts))


_Shown = tuple[float | None, float | None, bool]
"""Cost, error over what is allowed, and whether it is the delivered plan."""


def _timed(engines: Engines | None) -> Iterator[_Shown]:
    if engines is not None:
        yield from ((r.median_ms, r.measured, r.keep == engines.keep) for r in engines.rounds)


def _predicted(curve: Curve | None) -> Iterator[_Shown]:
    if curve is not None:
        shown = ((curve.points[i], i == curve.plan) for i in curve.front)
        yield from ((point.cost, point.error, own) for point, own in shown)


def _placed(shown: Iterable[_Shown]) -> list[tuple[float, float, bool]]:
    """Return the plans whose cost and error are known."""
    return [(c, error, own) for c, error, own in shown if c is not None and error is not None]
