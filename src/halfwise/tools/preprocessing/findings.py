"""Differences in words."""

from collections.abc import Sequence

from halfwise.records import DifferenceKind, InputDifference, Severity
from halfwise.tools.preprocessing.layout import Layout
from halfwise.tools.preprocessing.matching import Turn
from halfwise.tools.preprocessing.normalisation import Own, Recognised

_SEVERITIES: dict[DifferenceKind, Severity] = {
    "batch-axis": "info",
    "dtype": "warning",
    "rounding": "warning",
    "clipping": "warning",
    "half-pixel": "warning",
    "kernel": "warning",
    "antialias": "warning",
    "resampling": "warning",
}
"""What changes values by little; all else changes what the model sees."""


def difference(
    kind: DifferenceKind, sentence: str, a: str, b: str, evidence: str = ""
) -> InputDifference:
    """Return a difference with the severity of its kind."""
    severity = _SEVERITIES.get(kind, "error")
    return InputDifference(
        kind=kind, severity=severity, sentence=sentence, a=a, b=b, evidence=evidence
    )


def channel_difference(channels: Sequence[int], given: int) -> InputDifference:
    """Say which channel of A each of B is."""
    if len(channels) != given:
        said = f"B has {len(channels)} channels where A has {given}"
    elif tuple(channels) == (2, 1, 0):
        said = "B has the channels in reverse order: one is RGB, the other BGR"
    else:
        said = "B has the channels in another order"
    listed = ", ".join(map(str, channels))
    return difference(
        "channels",
        f"{said}.",
        ", ".join(map(str, range(given))),
        listed,
        f"channels of B are channels {listed} of A",
    )


def normalisation_differences(
    gain: Sequence[float], offset: Sequence[float], recognised: Recognised | None
) -> list[InputDifference]:
    """Say how B is normalised differently; nothing for gains of 1 and offsets of 0."""
    evidence = f"B = {_row(gain)} · A + {_row(offset)}"
    if recognised is not None:
        a, b = recognised.a, recognised.b
        first = recognised.parts[0] if recognised.parts else None
        has = f": B has {b.name}"  # all parts of it, so once
        words = {
            "scale": (f"B is {b.name}, A {a.name}", f"pixels × {a.scale:.4g}", f"× {b.scale:.4g}"),
            "mean": (
                f"The mean that is taken off differs{has * (first == 'mean')}",
                _row(a.mean),
                _row(b.mean),
            ),
            "deviation": (
                f"What is divided by differs{has * (first == 'deviation')}",
                _row(a.deviation),
                _row(b.deviation),
            ),
        }
        return [
            difference(
                part,
                f"{words[part][0]}.",
                words[part][1],
                words[part][2],
                evidence * (part == first),
            )
            for part in recognised.parts
        ]
    level = max(abs(g) for g in gain)
    scaled = max(abs(g - 1) for g in gain) > 0.005
    moved = max(abs(o) for o in offset) > 0.005 * level
    even = max(gain) - min(gain) < 0.01 * level
    found = []
    if scaled:
        kind: DifferenceKind = "scale" if even else "deviation"
        found.append(
            difference(kind, f"B's values are {_row(gain)} times A's.", "1", _row(gain), evidence)
        )
    if moved:
        found.append(
            difference(
                "mean", f"B's values are moved by {_row(offset)}.", "0", _row(offset), evidence
            )
        )
    return found


_OWN: dict[Own | None, str] = {
    "moments": "by each image's own mean and deviation",
    "range": "by each image's own smallest and largest value",
    None: "by fixed numbers",
}


def own_difference(a: Own | None, b: Own | None) -> InputDifference:
    """Say by which numbers of its own each image is normalised; None where by none."""
    names = [_OWN[how] for how in (a, b)]
    return difference(
        "normalisation", f"B is normalised {names[1]}, A {names[0]}.", names[0], names[1]
    )


def layout_difference(a: Layout, b: Layout) -> InputDifference:
    """Say how axes lie otherwise."""
    return difference("layout", f"B is laid out as {b}, A as {a}.", str(a), str(b))


def turn_difference(turn: Turn) -> InputDifference:
    """Say how A is turned to look like B."""
    return difference("flip", f"B is A {turn}.", "as it is", str(turn))


def _row(values: Sequence[float]) -> str:
    numbers = [f"{value:.4g}" for value in values]
    return numbers[0] if len(set(numbers)) == 1 else f"({', '.join(numbers)})"
