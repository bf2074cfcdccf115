"""What holds of all rules."""

import pytest

from halfwise.errors import CaseError
from halfwise.fixing.attribute import guards_of
from halfwise.fixing.repair.making import RULES
from halfwise.fixing.repair.rule import (
    answered,
    named,
    unscaled,
)
from halfwise.graph.model import node_name
from halfwise.records import Guard, NodeName, Place, Repair, TensorName
from halfwise.reporting.remarks import remark
from tests.models import layer_norm
from tests.unit.fixing.repair.functions import evidence
from tests.unit.fixing.running import found
from tests.unit.graph.sketch import Sketch, f32


def test_a_repair_of_another_model_is_refused() -> None:
    s = Sketch()
    model = s.network(s.op("Neg", s.op("Abs", s.input("x", [2]), name="one"), name="two")).model

    def asked(*names: str) -> Repair:
        return Repair(rule="mask", nodes=tuple(map(NodeName, names)))

    assert [n.name for n in named(model, asked("two", "one"), "Abs", "Neg")] == ["two", "one"]
    for name in ("nowhere", "two"):
        with pytest.raises(CaseError, match=f"'mask' at {name} does not fit"):
            named(model, asked(name), "Abs")


def test_rules_are_named_once_and_rest_on_an_identity():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.identity.formula and rule.identity.holds for rule in RULES)


def test_what_comes_from_outside_or_is_read_there_is_not_answered() -> None:
    seen = evidence(layer_norm())
    guards = guards_of(seen)
    nodes = {str(name): node for name, node in seen.nodes.items()}
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
    seen = fixed.seen
    assert {guard.kind for guard in seen.mended} == {"square", "overflow"}
    before = {one.tensor: one.absmax for one in seen.before}
    assert before.keys() == {guard.tensor for guard in seen.mended}
    assert max(before.values()) > 65504 > max(one.absmax for one in seen.tensors)


def guard(tensor: str, *nodes: str) -> Guard:
    names = tuple(map(NodeName, nodes))
    about = {"kind": "overflow", "fix": "", "severity": 3.0}
    return Guard(node=names[0], tensor=TensorName(tensor), nodes=names, **about)  # type: ignore[arg-type]


def test_each_operator_that_needs_or_gives_a_tensor_as_it_is_is_named_once():
    s = Sketch()
    large = s.op("Mul", s.input("x", [1, 4]), f32(1e5), name="large")
    ends = [
        s.op("Mul", s.op("Exp", large, name=f"exp{i}"), f32(1e-5), name=f"m{i}") for i in (0, 1)
    ]
    network = s.network(*ends)
    guards = [guard("large_out", "large"), guard("exp0_out", "exp0"), guard("exp1_out", "exp1")]
    kept = frozenset(map(node_name, network.nodes()))
    words = [remark(found) for found in unscaled(network, guards, kept)]
    assert words == [
        "large_out is not scaled by a power of two: exp0 (Exp) needs it as it is.",
        "exp0_out is not scaled by a power of two: exp0 (Exp) gives it as it is.",
    ]
    assert not list(unscaled(network, guards, frozenset()))


def test_what_could_be_scaled_has_no_remark():
    s = Sketch()
    network = s.network(s.op("Relu", s.op("Mul", s.input("x", [1, 4]), f32(1e5), name="m")))
    assert not list(unscaled(network, [guard("m_out", "m")], frozenset((NodeName("m"),))))
