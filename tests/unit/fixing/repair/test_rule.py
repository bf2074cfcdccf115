"""A repair names nodes that the model has, of the operators that its rule mends."""

import pytest

from halfwise.errors import CaseError
from halfwise.fixing.repair.rule import named
from halfwise.records import NodeName, Repair
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
