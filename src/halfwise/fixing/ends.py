"""What to know of the inputs and outputs of a mixed model."""

from halfwise.fixing.planner import Planner
from halfwise.graph.casts import adjusted_constants


def end_remarks(planner: Planner) -> list[str]:
    """Return what to know of the inputs and outputs of the mixed model."""
    found, name = [], planner.settings.fmt.name.upper()
    if other := sorted(planner.case.stored.io.keys() - planner.low_io):
        found.append(
            "Low in the model's file, but FP32 in the mixed model, whose low format is "
            f"{name}: {', '.join(other)}."
        )
    found += [
        f"Output {c.name} is a constant that {name} cannot hold ({c.minimum:.3g} to "
        f"{c.maximum:.3g}), so it is stored at other values, whatever is kept."
        for c in adjusted_constants(
            planner.case.network,
            planner.roles,
            frozenset(planner.roles),
            planner.settings.fmt,
            planner.low_io,
        )
    ]
    limit = planner.settings.fmt.overflow_threshold
    found += [
        f"Input {o.tensor} reaches {o.absmax:.3g} and is {name} in the mixed model, so it "
        "becomes infinite before any node computes."
        for o in planner.evidence.observations.tensors
        if o.producer is None and o.tensor in planner.low_io and o.absmax >= limit
    ]
    return found
