"""What the bench of repairs makes of two runs of a model."""

import json
from dataclasses import asdict

import pytest

from bench import repairs
from bench.peers.tasks import keywords
from bench.plans import Task
from bench.repairs import Pair, Side
from halfwise.records import replace
from tests import models

KEEPING = Side(
    kept=3,
    cost=1.5,
    passed=True,
    right=True,
    seconds=1.0,
    rules={},
    undone={},
    reasons={"overflow": 3},
)
FREED = replace(KEEPING, kept=0, cost=1.0, rules={"mask": 1}, reasons={})


def measured(*pairs: Pair) -> dict[str, tuple[object, bool]]:
    return {f.what: (f.measured, f.reached) for f in repairs.figures(pairs)}


def test_both_sides_of_a_model_are_run_and_its_file_is_judged() -> None:
    ill = models.batch_norm()
    found = repairs.pair(Task(ill.name, ill.proto, dict(ill.inputs), keywords(ill.options)))
    assert (found.without.kept, found.without.rules) == (1, {})
    assert (found.repaired.kept, found.repaired.rules) == (0, {"scale": 1})
    assert found.repaired.passed
    assert found.repaired.right
    assert found.without.cost is not None
    assert found.repaired.cost is not None
    assert found.repaired.cost < found.without.cost
    assert found.line().startswith("1 → 0 kept, passed; cost 1.110 → 1.000; 1 scale")
    assert json.loads(json.dumps(asdict(found)))["repaired"]["rules"] == {"scale": 1}


def test_what_is_not_reached_is_told() -> None:
    names = [make().name for make in models.CLASSES[:2]]
    good = [Pair(name, KEEPING, FREED) for name in (*names, "digits")]
    found = measured(*good)
    assert found["digits: kept, passed"] == (0, True)
    what = "failure classes without a kept node, of 2 with some without repairs"
    assert found[what] == (2, False)
    assert all(reached for name, (_, reached) in found.items() if name != what)
    for what, side in {
        "models that keep more with repairs": replace(FREED, kept=4),
        "models whose repaired file is wrong": replace(FREED, right=False),
        "models that pass without repairs alone": replace(FREED, passed=False),
        "models whose plan costs more with repairs": replace(FREED, cost=1.6),
    }.items():
        found = measured(*good, Pair("other", KEEPING, side))
        assert found[what] == (1, False)
    found = measured(Pair("digits", KEEPING, replace(FREED, right=False)))
    assert not found["digits: kept, passed"][1]


def test_peers_are_compared_where_they_pass(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"passed": True, "kept": 1}
    told = {
        "tools": {"halfwise": {"title": "halfwise"}, "other": {"title": "Other"}},
        "models": {
            "one": {"attempts": {"other": made}},
            "two": {"attempts": {"other": made}},
            "three": {"attempts": {"other": {"passed": False, "kept": 0}}},
        },
    }
    (tmp_path / "peers.json").write_text(json.dumps({"details": told}), encoding="utf-8")
    monkeypatch.setattr(repairs, "PEERS", tmp_path / "peers.json")
    pairs = [
        Pair("one", KEEPING, FREED),
        Pair("two", KEEPING, KEEPING),
        Pair("three", KEEPING, FREED),
    ]
    (figure,) = repairs.beside_peers([*pairs, Pair("four", KEEPING, FREED)])
    assert figure.what == "kept by Other where it passes, 2 models; repaired here: 3"
    assert (figure.measured, figure.note) == (2, "fewer than repaired: two")
