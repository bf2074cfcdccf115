"""The comparison of emulation with engines, on rounds that are made up or a tiny model's own."""

import json
from dataclasses import asdict
from math import inf
from typing import Any

from bench.gpu import rounds as recorded
from bench.gpu.fusion_fit import MARK, OWN, PAGE, RULES, distance, document, fits, predict
from bench.gpu.rounds import Seen
from halfwise.records import NodeName
from tests.unit.fixing.engines.test_prediction import ALL, FACTOR, NORM
from tests.unit.reporting.engine_runs import engines
from tests.unit.reporting.runs import run, search

KEPT = [sorted(ALL), sorted(NORM), []]


def seen(**changed: Any) -> Seen:
    values: dict[str, Any] = {
        "model_sha256": "00",
        "name": "scaled",
        "date": "today",
        "engines": "TensorRT 8.6.0, NVIDIA H200",
        "settings": {
            "criterion": {},
            "io": "fp32",
            "accumulate": "fp32",
            "headroom": 2.0,
            "margin": 0.8,
        },
        "calibration": ["inputs.npz[1]", "inputs.npz[0]"],
        "heldout": False,
        "fp32": ["root", "mean", "square"],
        "rounds": [(KEPT[0], "0.5"), (KEPT[1], "0.6"), (KEPT[2], "inf")],
    }
    return Seen(**values | changed)


def test_rounds_are_predicted_with_each_rule(folder):
    space = recorded.plans_of(seen(), folder)
    assert space.bench.samples.ids == ("inputs.npz[1]", "inputs.npz[0]")
    rounds = list(predict(seen(), space))
    assert [r["kept"] for r in rounds] == [5, 3, 0]
    first, second, third = (r["predicted"] for r in rounds)
    assert first["nothing"] == space.excess(frozenset(map(NodeName, KEPT[0])))
    assert second["nothing"] == inf
    assert second["the profile"] < 1
    assert third["the profile"] > 1
    assert third[f"the profile, {OWN}"] == second["the profile"]
    assert FACTOR > 1


def test_a_fit_counts_decisions_and_how_much_better_engines_are():
    rounds = [
        {"predicted": {"rule": 0.5}, "measured": 0.25},
        {"predicted": {"rule": 8.0}, "measured": 2.0},
        {"predicted": {"rule": 3.0}, "measured": 0.75},
    ]
    (found,) = fits(rounds)
    assert (found.median, found.largest) == (2.0, 2.0)
    assert (found.agree, found.rounds, found.better) == (2, 3, 4.0)


def test_infinite_errors_agree_with_one_another_only():
    assert distance(inf, inf) == 0
    assert distance(0.0, 0.0) == 0
    assert distance(inf, 1.0) == distance(1.0, inf) == distance(0.0, 1.0) == inf
    assert distance(1.0, 8.0) == distance(8.0, 1.0) == 3


def test_the_table_takes_its_place_between_the_marks():
    rounds = [{"predicted": {"rule": inf}, "measured": 1.5}]
    page = f"above\n{MARK}\n\nold\n\n{MARK}\nbelow\n"
    shown = document(fits(rounds), page)
    assert shown.startswith(f"above\n{MARK}\n")
    assert shown.endswith(f"\n{MARK}\nbelow\n")
    assert "| rule | ∞ | ∞ | 1 of 1 |" in shown
    assert "old" not in shown
    assert document(fits(rounds), shown) == shown


def test_the_page_has_every_rule():
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(MARK) == 2
    for name in RULES:
        assert f"| {name} |" in text
        assert f"| {name}, {OWN} |" in text


def test_a_run_tells_its_rounds(folder):
    network = recorded.plans_of(seen(), folder).variant.case.network
    found = recorded.seen_in(run(engines=engines(), search=search()), network, "scaled")
    assert found is not None
    assert found.engines == "TensorRT 8.6.0, NVIDIA H200"
    assert [measured for _, measured in found.rounds] == ["1.6", "0.5"]
    assert Seen(**json.loads(json.dumps(asdict(found)))).calibration == list(found.calibration)
    strong = engines(typing="strong")
    assert recorded.seen_in(run(engines=strong, search=search()), network, "x") is None
    assert recorded.seen_in(run(engines=None), network, "x") is None
