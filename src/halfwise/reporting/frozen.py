"""A frozen size in words."""

from halfwise.records import FrozenSize
from halfwise.wording import listed


def frozen_cause(found: FrozenSize) -> str:
    """Return what a model insists on, and which nodes hold it."""
    inputs = " and ".join(f"'{name}'" for name in found.axes)
    where = (
        f"on batches of {found.given}"
        if found.batch
        else f"where axis {'/'.join(map(str, sorted(set(found.axes.values()))))} of {inputs} is "
        f"{found.given} long"
    )
    size = f"on batches of {found.runs}" if found.batch else f"where it is {found.runs} long"
    text = f"The model declares the axis dynamic, fails {where}, and runs {size}"
    if not found.nodes:
        return f"{text}; no constant is known that holds this size. {found.failure}"
    verb = "holds" if len(found.nodes) == 1 else "hold"
    held = f"{listed(found.nodes)} {verb} the size of the export in a constant"
    if found.shown:
        return f"{text}: {held}; with {found.given} in its place, the model runs."
    return f"{text}: {held}, as far as the file shows. {found.failure}"


def frozen_advice(found: FrozenSize) -> tuple[str, ...]:
    """Return what to do: once for good, and with the file as it is."""
    again = "Export it again with this axis dynamic: `halfwise lint` tells how."
    if not found.batch:
        return (again, f"Until then, give data whose axis is {found.runs} long.")
    return (
        again,
        f"Until then, give samples that are batches of {found.runs}: arrays of [samples, "
        f"{found.runs}, …].",
    )
