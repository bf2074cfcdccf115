"""Runs of `fix`, plans of a model and what listens to them, for the tests of this room."""

from functools import partial

from halfwise.case import Case, Settings
from halfwise.emulation.budget import Budget
from halfwise.fixing import loop
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.fixing.depths import Depths, HeldOut
from halfwise.fixing.evidence import Observed
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import Emulation, fix
from halfwise.fixing.plan.plan import Plan, Variant
from halfwise.fixing.space import Space
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import replace
from tests import models


class Listener(Silent):
    """Remembers notes."""

    def __init__(self):
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


class Clock(Listener):
    """Stands still until a stage of that name, or a note with some words; then time is over."""

    def __init__(self, monkeypatch, words: str) -> None:
        super().__init__()
        self._words, self._time, self._step = words, 0.0, 0.0
        made = partial(Budget, clock=self._passing)
        monkeypatch.setattr(loop, "Budget", made)

    def _passing(self) -> float:
        self._time += self._step
        return self._time

    def stage(self, name: str, total: int | None = None) -> None:
        del total
        self._step = 1e6 if name == self._words else self._step

    def note(self, line: str) -> None:
        super().note(line)
        if self._words in line:
            self._step = 1e6


def found(ill, watcher=None, *, heldout=None, start=None, **options) -> Fixed:
    inputs = dict(ill.inputs)
    request = understand(inputs, {**options, "heldout": heldout})
    case = load_case(ill.proto, request.data, request.criterion)
    return fix(case, request.settings, watcher or Silent(), start_from=start)


def kept(fixed):
    return {k.node for k in fixed.plan.keep}


def growing(*large: int) -> models.Ill:
    """Twelve samples of which some are twenty times as large as the others."""
    ill = models.root_mean_square()
    data = models.signals(1, 2, 16, seed=3, peak=50, count=12)
    data[list(large)] *= 20
    return models.Ill(ill.proto, {"x": data}, ill.kept)


def types_in(fixed: Fixed) -> dict[str, str]:
    values = (v for n in fixed.rewritten.model.graph for v in n.outputs)
    return {str(v.name): v.dtype.name for v in values if v.dtype}


def plans_of(case: Case, settings: Settings, *, look: bool = False) -> Space:
    """The plans of a case, none tried; without a `look` at its samples they cannot be."""
    samples, watcher = case.calibration, Listener()
    budget = Budget(settings.time_budget, work=settings.budget * len(samples))
    variant, observed = Variant(case, settings), Observed(budget, watcher)
    references = observed.look(variant, samples).references if look else []
    tolerance = Tolerance(case.criterion, case.metric, 1.0 if case.metric else settings.margin)
    spend = partial(budget.spend, "trial")
    bench: Bench[Plan] = Bench(Emulation(observed), samples, references, tolerance, spend)
    return Space(variant, bench, observed, budget, watcher)


def space_of(ill, **options) -> Space:
    """The plans of a model, after a look at its calibration samples; none tried yet."""
    request = understand(dict(ill.inputs), options)
    case = load_case(ill.proto, request.data, request.criterion)
    return plans_of(case, request.settings, look=True)


def changed(fixed: Fixed, *, settings=None, case=None, **more) -> Fixed:
    """Return a result of other settings, or of another case, or with other plans."""
    variant = fixed.space.variant
    own, its = replace(variant.settings, **settings or {}), replace(variant.case, **case or {})
    return replace(fixed, space=replace(fixed.space, variant=Variant(its, own), **more))


def heldout_of(space: Space) -> HeldOut:
    """The samples of the search as unseen ones."""
    seen, references = space.bench.samples, space.bench.references
    return HeldOut(space.variant.case, seen, references, references, Silent())


def depths_of(space: Space) -> Depths:
    """What looks deeper at plans, with the samples of the search as unseen ones."""
    return Depths(space, heldout_of(space))
