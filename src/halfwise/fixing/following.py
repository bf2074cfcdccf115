"""Where the error of a plan comes from if no guard explains it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from math import inf, prod
from pathlib import Path

from halfwise.emulation.bounded import OutOfTime
from halfwise.emulation.runner import ModelRunner, seen_shapes
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.plan.found import Found
from halfwise.fixing.planner import Planner
from halfwise.fixing.propagation import BORN_HERE, computed, errors_of, follow, growth
from halfwise.graph.model import node_name
from halfwise.judging.channel import Channels, Patched
from halfwise.judging.deciding import Deciding, given_to
from halfwise.progress import Watcher
from halfwise.records import Channel, Followed, Growth, NodeName

SPREAD = 32
"""Tensors whose errors are shown if nothing had to be followed: the outputs of two sessions."""
LARGEST = 1 << 18
"""Maximum number of elements of such a tensor: as many at a time take 64 MiB at most, see
`growth`."""

Stage = Callable[[str], AbstractContextManager[None]]


def followed_of(
    planner: Planner, found: Found, watcher: Watcher, stage: Stage
) -> tuple[tuple[Growth, ...], Followed | None]:
    """Follow the error that guards do not explain, with the explained nodes kept.

    Does nothing if guards explain it, if there was no search, or if the budget is spent.

    Args:
        planner: After its search.
        found: What that found.
        watcher: Receives progress.
        stage: Begins and ends a stage of the run.
    """
    explained = found.needed & planner.explained
    if found.needed == explained or not planner.settings.searches:
        return (), None
    work = lambda: _followed(planner, explained, watcher, stage)  # noqa: E731
    return planner.budget.within("growth", work, ((), None))


def _followed(
    planner: Planner, explained: frozenset[NodeName], watcher: Watcher, stage: Stage
) -> tuple[tuple[Growth, ...], Followed | None]:
    network, trials, settings = planner.case.network, planner.trials, planner.settings

    def step(done: int, total: int) -> None:
        planner.budget.spend("growth")
        watcher.step(done, total)

    with stage("growth"):
        errors = errors_of(trials, explained, planner.step)
        mixed, _ = planner.rewrite(explained)
        low = emulate_typed(mixed.model, accumulate=settings.accumulate)
        path = growth(
            network,
            low,
            computed(network, planner.roles),
            trials.samples[errors.index(max(errors))],
            runtime=settings.runtime,
            progress=step,
        )
    with stage("origin"):
        runtime = settings.runtime
        patched = lambda patch: given_to(low, network, runtime=runtime, patch=patch)  # noqa: E731
        look = Deciding(
            network,
            planner.roles,
            lambda some: ModelRunner(low, some, partial=True, runtime=runtime),
            given_to(low, network, runtime=runtime),
            trials.error,
            trials.samples.with_progress(lambda *_: planner.budget.spend("trial")),
            runtime,
        )
        decided, out_of_time = None, True
        with suppress(OutOfTime):
            decided, out_of_time = look.cause(errors), False
        if decided is None and not out_of_time:
            found = follow(network, planner.roles, trials, explained, errors, path, planner.step)
            if found.origin is None and not found.out_of_time:
                channel = _channel(look, patched, errors)
                # Where all channels are off alike, depth says more than the largest of them.
                if channel and found.accumulates and channel.error * BORN_HERE < channel.rest:
                    channel = None
                found = found.model_copy(update={"channel": channel})
        else:
            found = Followed(
                kept=tuple(n for n in map(node_name, network.nodes()) if n in explained),
                error=max(errors),
                tried=(),
                origin=None,
                accumulates=False,
                samples=len(errors),
                out_of_time=out_of_time,
                decided=decided,
            )
    if found.out_of_time:
        planner.budget.leave_out("origin")
    return path, found


def _channel(look: Deciding, patched: Patched, errors: Sequence[float]) -> Channel | None:
    with suppress(OutOfTime):
        return Channels(look, patched).cause(errors, computed(look.network, look.roles))
    return None


def with_growth(fixed: Fixed, folder: Path | None) -> Fixed:
    """Add the error along the user's model, everything low, if none was followed.

    For readers only; it decides nothing. Skipped if time is up, if everything low passed by so much
    that nothing was looked at closer, if the all-low model cannot be loaded, or if the run writes
    no folder.
    """
    planner = fixed.planner
    late = {"seconds", "interrupt"}.intersection(planner.budget.ended_by)
    if folder is None or fixed.growth or late:
        return fixed
    while planner.original is not None:
        planner = planner.original
    if planner.evidence.closer is not None:
        return fixed
    network, sample = planner.case.network, planner.trials.samples[0]
    runtime = planner.settings.runtime
    with suppress(CaseError, RunFailed):
        sizes = {n: prod(s) for n, s in seen_shapes(network, sample, runtime=runtime).items()}
        names = [n for n in computed(network, planner.roles) if sizes.get(n, inf) <= LARGEST]
        few = min(len(names), SPREAD)
        low, _ = planner.rewrite(frozenset())
        path = growth(
            network,
            emulate_typed(low.model, accumulate=planner.settings.accumulate),
            [names[(i + 1) * len(names) // few - 1] for i in range(few)],
            sample,
            runtime=runtime,
        )
        return replace(fixed, growth=path)
    return fixed
