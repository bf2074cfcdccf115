from halfwise.fixing.attribute import guards_of
from halfwise.fixing.repair.need import answered
from halfwise.records import NodeName, Place
from tests.models import layer_norm
from tests.unit.fixing.repair.rules.functions import evidence
from tests.unit.fixing.test_loop import found


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
