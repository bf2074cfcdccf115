"""The score of bands, on rounds that are made up."""

import json
from math import inf

from bench import bands
from bench.bands import Emulator, Round, figures, fit, rounds_of, scored
from bench.gpu.rounds import raced
from halfwise.fixing.engines.prediction import Emulated
from tests.bench.test_fusion_fit import KEPT, seen


def drawn(model: str, *measured: float, apart: float = 0.2) -> list[Round]:
    return [Round(model, 0, m, Emulated(0.2, 0.2, 0.2, 0.2, apart)) for m in measured]


def test_the_spread_is_the_smallest_that_is_enough():
    rounds = drawn("a", 0.2, 0.25, 0.3, 0.39)
    assert fit(rounds, 0.75) == 0.5
    assert fit(rounds, 1.0) == 0.95
    assert fit(drawn("a", 0.1), 1.0) == 0  # nothing is wide enough for what is below


def test_no_model_is_scored_with_a_spread_that_it_was_fitted_on():
    rounds = [*drawn("a", 0.2, 0.2), *drawn("b", 0.39, 0.39)]
    assert {r.model: spread for r, spread in scored(rounds)} == {"a": 0.95, "b": 0}


def test_the_figures_count_what_is_inside_and_decided():
    rounds = [*drawn("a", 0.2, 0.2), *drawn("b", 0.39, 1.5, apart=0.0)]
    decided, inside, width, *_ = figures(rounds)
    assert (decided.measured, inside.measured) == (0.75, 0.5)
    assert width.measured < 0.1  # type: ignore[operator]
    assert not decided.reached


def test_rounds_are_emulated_by_what_was_known_before_them(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(bands, "EMULATED", tmp_path / "emulated.json")
    run = seen(rounds=[(KEPT[1], "0.5"), ([], "inf"), ([], "0.6")])
    found = Emulator().emulate(run, folder)
    first, before, after = found
    assert first.stored == inf
    assert after.own == first.fused < 1 < before.own
    bands.store({bands.key_of(run): found})
    assert bands.stored() == {"00 today": found}
    told = list(rounds_of(run, found))
    assert [r.decided for r in told] == [True, True, True]
    assert told[2].band(1.0).holds(0.6)


def test_sets_of_others_that_ran_in_a_race_are_rounds(tmp_path):
    racers = [
        {"name": "delivered", "keep": ["a"], "searched": "0.5"},
        {"name": "norms", "keep": ["b"], "searched": None},
        {"name": "autocast", "keep": ["c"], "searched": "inf"},
    ]
    path = tmp_path / "race.json"
    assert raced(path) == []
    path.write_text(json.dumps(racers), encoding="utf-8")
    assert raced(path) == [(["c"], "inf")]


def test_engines_of_one_plan_weigh_as_much_as_one():
    one = Emulated(0.2, 0.2, 0.2, 0.2)
    rounds = [Round("a", 0, m, one, plan="a") for m in (0.2, 0.2, 0.2, 2.0)]
    rounds += [Round("b", 0, 0.2, one, plan="b")]
    decided, inside, width, of_engines, *_ = figures(rounds)
    assert (decided.measured, inside.measured, of_engines.measured) == (0.875, 0.875, 0.8)
    assert width.measured < 0.1  # type: ignore[operator]


def test_an_engine_as_exact_as_fp32_is_inside():
    told = Emulated(0.2, 0.2, 0.2, 0.2)
    exact = Round("a", 0, 1.9e-5, told, full=1e-5)
    assert exact.inside(0)
    assert not Round("a", 0, 1.9e-5, told).inside(0)
    assert not Round("a", 0, 2.1e-5, told, full=1e-5).inside(0)
