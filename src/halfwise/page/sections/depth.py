"""How the error grows along the graph."""

from halfwise.page.columns import drawn, front_coded
from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.reporting.nodes import grown_with
from halfwise.reporting.origins import appears


def depth(stored: Stored) -> Section | None:
    """Return the section of the error after each node; None if the run measured none."""
    run = stored.run
    if not run.growth:
        return None
    followed = run.followed
    origin = None if followed is None else followed.origin
    return Section(
        "depth",
        "Error along the graph",
        {
            "names": front_coded(step.node for step in run.growth),
            "depth": [step.depth for step in run.growth],
            "error": [drawn(step.error) for step in run.growth],
            "inherited": [drawn(step.inherited) for step in run.growth],
            "origin": None if origin is None else origin.node,
            "label": None if origin is None else f"most of it {appears(origin)} here",
            "grown": grown_with(run),
        },
        scripts=("columns", "scatter"),
        libraries=("uplot",),
    )
