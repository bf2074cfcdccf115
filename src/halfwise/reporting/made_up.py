"""Words on inputs that look made up."""

from collections.abc import Sequence

from halfwise.case import MadeUp

_KINDS = {"normal": "standard normal noise", "uniform": "uniform noise"}


def look(found: MadeUp) -> str:
    """Return what an input looks like, as a clause."""
    if found.kind == "constant":
        return f"input '{found.input}' looks made up: all its elements are equal"
    return (
        f"input '{found.input}' looks like {_KINDS[found.kind]} (mean {found.mean:.2f}, standard "
        f"deviation {found.deviation:.2f}, neighbours do not correlate)"
    )


def warning(found: MadeUp) -> str:
    """Return what to do about an input that looks made up, where others look real."""
    return (
        f"{look(found)}; what rounding breaks on real data may be another matter, so give real "
        "inputs, unless this is what the model gets in use"
    )


def not_real(found: Sequence[MadeUp]) -> str:
    """Return why inputs say nothing of real data; of none that look made up, that they are random.

    Args:
        found: What looks made up; empty where random inputs were asked for.
    """
    if not found:
        return "the inputs are random, so this says nothing: not on real data"
    return (
        f"{'; '.join(map(look, found))}: not on real data. Where the model gets just that in use, "
        "--allow-random judges on it"
    )
