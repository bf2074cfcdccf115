import numpy as np
import pytest

from halfwise.errors import UsageError
from halfwise.tools.verify.command import demand_types
from tests.unit.graph.sketch import Sketch


def test_weak_typing_takes_no_types_of_a_file() -> None:
    s = Sketch()
    x = s.op("Cast", s.input("x", [2]), to=10)
    mixed = s.network(s.op("Cast", s.op("Mul", x, np.array(2, np.float16)), to=1))
    demand_types(mixed, "strong")
    with pytest.raises(UsageError, match="Weak typing ignores"):
        demand_types(mixed, "weak")
    s = Sketch()
    demand_types(s.network(s.op("Relu", s.input("x", [2]))), "weak")
