from halfwise.fixing.attribute import guards_of
from halfwise.fixing.repair.need import answered
from tests.models import layer_norm
from tests.unit.fixing.repair.rules.functions import evidence


def test_what_comes_from_outside_or_is_read_there_is_not_answered() -> None:
    seen = evidence(layer_norm())
    guards = guards_of(seen)
    nodes = {str(name): node for name, node in seen.nodes.items()}
    assert answered(guards, nodes.values()) == (
        "square at square",
        "overflow at variance",
        "overflow at eps",
    )
    assert answered(guards, [nodes["variance"], nodes["eps"]]) == ("overflow at variance",)
    assert not answered(guards, [nodes["square"]])
