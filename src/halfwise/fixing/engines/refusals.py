"""What the builder refused, and what to try in its place.

The region that the builder names had kernels in the all-FP32 engine, and usually in the all-low
one: the plan's form is what has none. So the same plan is tried in other forms, then other plans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from halfwise.fixing.engines.plan import NOTHING, Assignment, EnginePlan
from halfwise.fixing.engines.workbench import Workbench
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Roles
from halfwise.records import BuildOutcome, Move, MoveKind, Refusal, RefusalKind
from halfwise.tensorrt.layers import region_of
from halfwise.tensorrt.refusals import how_refused
from halfwise.tensorrt.versions import has, version_of

REFUSED = ("failed", "crashed", "timeout")
"""Build outcomes that concern the request, not the worker."""
LEVELS = (5, 1)
"""Optimization levels to try: at 5 the builder tries every kernel that it has or can generate, at 1
it generates none and uses its compiler least (TensorRT's developer guide, "Builder optimization
level"; the default is 3)."""
ISLAND = 1 / 2
"""Share of the compute nodes; with more in FP32 an engine is hardly mixed."""


def has_levels(bench: Workbench) -> bool:
    """Return whether the optimization level is free: there are levels, and the user chose none."""
    version = version_of(bench.worker.info.tensorrt or "")
    level = bench.builds.settings.optimization_level
    return level is None and has("optimization levels", version)


def levels_after(kind: RefusalKind) -> tuple[int, ...]:
    """Return the optimization levels to try, most promising first: after a time-out, lower ones."""
    return LEVELS[::-1] if kind in ("crash", "timeout") else LEVELS


def refusals(builds: Sequence[BuildOutcome], network: Network, roles: Roles) -> tuple[Refusal, ...]:
    """Return what the builder refused, in order.

    Args:
        builds: All builds of a device.
        network: The model that its plans are of.
        roles: Roles of its nodes.
    """
    found = []
    order = [node_name(n) for n in network.nodes()]
    for build in builds:
        if build.engine is not None or build.status not in REFUSED:
            continue
        how = how_refused(build)
        nodes = region_of(network, roles, how.ends) if how.ends else NOTHING
        said = how.line or (build.message if how.kind == "unknown" else "")
        named = tuple(n for n in order if n in nodes)
        found.append(
            Refusal(kind=how.kind, build=build.number, ends=how.ends, nodes=named, said=said)
        )
    return tuple(found)


def instead(
    plan: EnginePlan, refused: Refusal | None, number: int, computing: Assignment, *, level: bool
) -> Iterator[tuple[Move, EnginePlan]]:
    """Yield what to try in place of a plan that gave no engine, most promising first.

    Args:
        plan: The plan.
        refused: How and where it was refused; None if it was not refused, but lost.
        number: Number of its build.
        computing: All compute nodes of the model.
        level: Whether the optimization level is free.
    """
    kind: RefusalKind = "unknown" if refused is None else refused.kind
    ends = () if refused is None else refused.ends
    named = NOTHING if refused is None else frozenset(refused.nodes)
    # Nodes kept next to the named region may have created it: then it is the whole model.
    region = named & computing if named & computing & plan.keep else computing

    def move(kind: MoveKind, level: int | None = None) -> Move:
        return Move(kind=kind, refused=number, ends=ends, level=level or plan.level)

    whole = replace(plan, keep=plan.keep | region)
    if is_small := len(whole.keep) <= ISLAND * len(computing):
        yield move("region"), whole
    for each in levels_after(kind) if level and plan.level is None else ():
        yield move("level", each), replace(plan, level=each)
    if not is_small:
        yield move("region"), whole
    yield move("none"), replace(plan, keep=plan.keep - region)
