"""Runs of `fix`, planners and what listens to them, for the tests of this room."""

from functools import partial

from halfwise.emulation.budget import Budget
from halfwise.fixing import planner as planning
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.planner import Planner
from halfwise.fixing.scoring import HeldOut, Scoring
from halfwise.fixing.trial import gather
from halfwise.graph.roles import roles_of
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
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
        monkeypatch.setattr(planning, "Budget", made)

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


def found(ill, watcher=None, *, heldout=None, quick=False, start=None, **options) -> Fixed:
    inputs = dict(ill.inputs)
    request = understand(inputs, {**options, "heldout": heldout})
    case = load_case(ill.proto, request.data, request.criterion)
    return fix(case, request.settings, watcher or Silent(), start_from=start, quick=quick)


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


def planner(ill, **options):
    request = understand(dict(ill.inputs), options)
    case = load_case(ill.proto, request.data, request.criterion)
    roles = roles_of(case.network)
    made = Planner(case, request.settings, roles, Listener())
    made.begin(gather(case.network, roles, case.calibration, request.settings, lambda *_: None))
    return made


def scoring_of(made: Planner) -> Scoring:
    """Return what measures plans, with the searched samples as unseen ones."""
    return Scoring(made, HeldOut(made, made.trials.samples, made.trials.references, Silent()))
