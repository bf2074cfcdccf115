"""What holds of all rules."""

import pytest

from halfwise.errors import CaseError
from halfwise.fixing.repair.making import RULES
from halfwise.fixing.repair.rule import answered
from halfwise.records import NodeName, Place, Repair
from tests.models import layer_norm
from tests.unit.fixing.repair.functions import evidence
from tests.unit.fixing.running import found
from tests.unit.graph.sketch import Sketch


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.name != "scale"])
def test_a_repair_of_another_model_is_refused(rule) -> None:
    s = Sketch()
    model = s.network(s.op("Neg", s.op("Abs", s.input("x", [2]), name="one"), name="two")).model
    for name in ("nowhere", "two"):
        repair = Repair(rule=rule.name, nodes=(NodeName(name),))
        with pytest.raises(CaseError, match=f"'{rule.name}' at {name} does not fit"):
            rule.apply(model, repair)


def test_rules_are_named_once_and_rest_on_an_identity():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.identity for rule in RULES)


def test_what_comes_from_outside_or_is_read_there_is_not_answered() -> None:
    observed = evidence(layer_norm())
    guards = observed.guards
    nodes = {str(name): node for name, node in observed.nodes.items()}
    assert [(at.kind, at.node) for at in answered(guards, nodes.values())] == [
        ("square", "square"),
        ("overflow", "variance"),
        ("overflow", "eps"),
    ]
    (at,) = answered(guards, [nodes["variance"], nodes["eps"]])
    assert at == Place(kind="overflow", node=NodeName("variance"))
    assert not answered(guards, [nodes["square"]])


def test_what_is_answered_is_told_of_tensors_as_they_were() -> None:
    fixed = found(layer_norm())
    assert fixed.plan.repairs
    observed = fixed.seen
    assert {guard.kind for guard in observed.mended} == {"square", "overflow"}
    before = {one.tensor: one.absmax for one in observed.before}
    assert before.keys() == {guard.tensor for guard in observed.mended}
    assert max(before.values()) > 65504 > max(one.absmax for one in observed.tensors)
