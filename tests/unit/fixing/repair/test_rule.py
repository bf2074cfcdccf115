"""What holds of all rules."""

import pytest

from halfwise.errors import CaseError
from halfwise.fixing.repair.rule import named
from halfwise.fixing.repair.rules import RULES
from halfwise.records import APPROXIMATE, NodeName, Repair
from tests.unit.graph.sketch import Sketch


def test_a_repair_of_another_model_is_refused() -> None:
    s = Sketch()
    model = s.network(s.op("Neg", s.op("Abs", s.input("x", [2]), name="one"), name="two")).model

    def asked(*names: str) -> Repair:
        return Repair(rule="mask", nodes=tuple(map(NodeName, names)))

    assert [n.name for n in named(model, asked("two", "one"), "Abs", "Neg")] == ["two", "one"]
    for name in ("nowhere", "two"):
        with pytest.raises(CaseError, match=f"'mask' at {name} does not fit"):
            named(model, asked(name), "Abs")


def test_rules_are_named_once_and_say_whether_they_rest_on_an_identity():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert {rule.name for rule in RULES if not rule.identity.exact} <= APPROXIMATE
    assert not any(rule.identity.exact for rule in RULES if rule.name in APPROXIMATE)
    assert all(rule.identity.formula and rule.identity.holds for rule in RULES)
