"""Choose repairs again on all samples, once held-out ones have joined."""

from functools import partial

from halfwise.fixing.filed import pass_on
from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.planner import Planner
from halfwise.fixing.repair.choice import Choice, asked_rules, choose_repairs
from halfwise.progress import Watcher
from halfwise.records import Repair


def choose_again(
    original: Planner, planner: Planner, heldout: HeldOut, watcher: Watcher
) -> Choice | None:
    """Return other repairs if samples joined that make `planner` keep nodes.

    None if there are none, or no time to look for them: those of `planner` then stay.

    Args:
        original: For the network without repairs; gets the samples that joined since.
        planner: For the network with the present repairs, perhaps none.
        heldout: The remaining samples.
        watcher: Receives progress.
    """
    trial = lambda: planner.trials.evaluate(planner.ruled, confirm=True).passed  # noqa: E731
    if not asked_rules(planner.settings) or planner.budget.within("repair", trial, True):
        return None
    watcher.note("looking for repairs again, with the samples that joined")
    catch_up(original, planner)
    chosen = choose_repairs(original, heldout, watcher)
    made = chosen.planner.case.repairs
    if chosen.whole and made and [*map(_core, made)] != [*map(_core, planner.case.repairs)]:
        return chosen
    if chosen.planner not in (original, planner):
        chosen.planner.trials.runner.release()
    return None


def catch_up(original: Planner, planner: Planner) -> None:
    """Give a planner the samples that joined another."""
    known, every = len(original.trials.samples), planner.trials.samples
    if len(every) > known:
        more = every.select(range(known, len(every)))
        gather = partial(original.gather, every)
        evidence = original.budget.within("observe", gather, original.evidence)
        original.join(more, planner.trials.references[known:], evidence)
        pass_on(planner, original)


def _core(repair: Repair) -> Repair:
    """Return a repair without its measurements."""
    return repair.model_copy(update={"before": None, "after": None, "proof": None})
