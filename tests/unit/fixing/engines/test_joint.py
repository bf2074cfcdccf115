from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.engines.attempts import USUAL, Candidate, Chosen
from halfwise.fixing.engines.device import (
    JointAttempts,
    chosen_on,
    joint,
    mean,
    only_on,
    parts_of,
    search_on,
)
from halfwise.fixing.engines.prediction import Prediction
from halfwise.fixing.engines.proposals import Budget
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.plan.result import FP32_ALONE
from halfwise.records import Band
from tests.unit.casing import names
from tests.unit.reporting.engine_runs import build, latency

KEEP = names("a")


def candidate(excess, milliseconds=1.0, *, number=1, lost=False):
    timed = None if excess is None else latency(milliseconds)
    return Candidate(KEEP, "tried", build(number, "tried"), excess, timed, lost=lost)


def test_a_plan_is_as_good_as_where_it_is_worst():
    good, bad = candidate(0.5, 1.0), candidate(2.0, 4.0, number=2)
    both = joint({"orin": good, "a100": bad})
    assert (both.passed, both.excess, both.build.number) == (False, 2.0, 2)
    assert both.milliseconds == pytest.approx(2.0)
    assert joint({"orin": good, "a100": candidate(0.9)}).passed
    broken = joint({"orin": candidate(None), "a100": bad})
    assert (broken.excess, broken.passed, broken.milliseconds) == (None, False, inf)
    # An error that is not finite is one that is known.
    assert joint({"orin": candidate(inf), "a100": candidate(None, number=3)}).build.number == 3


@given(st.lists(st.floats(0.001, 1e6), min_size=1), st.floats(0.01, 100))
def test_how_plans_compare_depends_on_no_speed_of_a_device(times, factor):
    scaled = [times[0] * factor, *times[1:]]
    expected = factor ** (1 / len(times))
    assert mean(scaled) / mean(times) == pytest.approx(expected)
    assert mean([*times, inf]) == inf
    assert mean([0.0, *times]) == 0
    assert mean([]) == inf


class Device:
    """A device of which every candidate is known."""

    def __init__(self, *found, typing="weak"):
        self.found, self.built = list(found), 0
        self.notes = []
        self.bench = self
        self.builds = self.watcher = self.worker = self
        self.typing = typing

    def note(self, line):
        self.notes.append(line)

    def builder(self, *_):
        return self._build

    def _build(self):
        self.built += 1
        return build(self.built, "tried")

    def measured(self, *_):
        return self.found.pop(0)

    def attempt(self, *_):
        return self.measured(self._build())

    def again(self, _):
        return self.found.pop(0)


class Told(Prediction):
    """Tells the same band of every plan."""

    def __init__(self, most: float) -> None:
        self.most = most
        samples = SimpleNamespace(samples=())
        self.planner: Any = SimpleNamespace(trials=samples, types_of=lambda _: FP32_ALONE)

    def band(self, *_: Any, **__: Any) -> Band:
        return Band(least=0.0, most=self.most)


def attempts_on(devices: Any) -> JointAttempts:
    return JointAttempts(devices, {name: Told(n) for n, name in enumerate(devices)})


def test_a_lost_device_leaves_and_the_rest_goes_on():
    orin = Device(candidate(0.5), candidate(0.5))
    a100 = Device(candidate(None, lost=True), candidate(None, lost=True))
    attempts = attempts_on({"orin": orin, "a100": a100})
    assert attempts.attempt(KEEP, "tried").passed
    assert list(attempts.gone) == ["a100"]
    assert "continues without it" in a100.notes[0]
    assert list(attempts.attempt(KEEP, "tried").parts) == ["orin"]


def test_where_all_are_lost_nobody_leaves():
    attempts = attempts_on({"orin": Device(*[candidate(None, lost=True)] * 2)})
    assert attempts.attempt(KEEP, "tried").untold
    assert attempts.gone == {}


def test_in_strong_typing_one_build_of_a_plan_is_enough():
    weak = Device(candidate(0.5), candidate(0.6), candidate(0.7))
    strong = Device(candidate(0.8), candidate(0.1), typing="strong")
    attempts = attempts_on({"weak": weak, "strong": strong})
    for _ in range(2):
        found = attempts.attempt(KEEP, "tried")
        assert found.excess == 0.8
    assert (strong.built, weak.built) == (1, 2)
    bands = {name: part.band.most for name, part in parts_of(found).items() if part.band}
    assert bands == {"weak": 0, "strong": 1}
    assert found.band == Band(least=0, most=1)  # that of the device where it is worst
    again = attempts.again(found)
    assert (parts_of(again)["weak"].excess, parts_of(again)["strong"].excess) == (0.7, 0.1)


def search(tried: Candidate, nothing: Any = None) -> EngineSearch:
    return EngineSearch(nothing, nothing, [], Budget(1), 1, tried={(KEEP, USUAL): [tried]})


def test_each_device_has_a_view_of_the_search():
    tried = joint({"orin": candidate(0.5), "a100": candidate(2.0)})
    whole = search(tried)
    seen = search_on("orin", replace(whole, builds=3), whole)
    assert ([c.excess for c in seen.tried[KEEP, USUAL]], seen.builds) == ([0.5], 3)
    assert whole.tried[KEEP, USUAL] == [tried]
    chosen = chosen_on("orin", Chosen(tried, tried, (2.0,), True, frozenset(), ()), seen)
    assert chosen.best is not None
    assert chosen.plain is not None
    assert (chosen.best.excess, chosen.plain.excess, chosen.excesses) == (0.5, 0.5, (0.5,))
    assert search_on("absent", whole, whole).tried == {}
    # A build that serves twice, as in strong typing, is one build.
    whole.tried[KEEP, USUAL] = [tried, joint({**tried.parts, "a100": candidate(0.7, number=5)})]
    assert [len(search_on(n, whole, whole).tried[KEEP, USUAL]) for n in ("orin", "a100")] == [1, 2]


def test_without_a_lost_device_a_plan_that_failed_there_passes():
    tried = joint({"orin": candidate(0.5), "a100": candidate(2.0)})
    whole = search(tried)
    chosen = only_on({"orin"}, whole, Chosen(None, tried, (), False, frozenset(), ()))
    assert whole.tried[KEEP, USUAL][0].passed
    assert chosen.plain is not None
    assert (chosen.best, list(parts_of(chosen.plain))) == (None, ["orin"])
