"""An eps is raised where one is lost, for its own reader alone, and by how much is told."""

import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.fixing.repair.rules.epsilon import Epsilon
from halfwise.graph.model import constant_array
from tests import repairing
from tests.unit.graph.sketch import Sketch, f32

SMALLEST = 2.0**-14


def test_one_reader_gets_an_eps_that_survives() -> None:
    s = Sketch()
    x = s.input("x", [1, 16])
    eps = s.constant(f32(1e-12), "tiny")
    square = s.op("Mul", x, x, name="square")
    root = s.op("Sqrt", s.op("Add", square, eps, name="eps"), name="root")
    other = s.op("Sub", x, eps, name="other")
    network = s.network(s.op("Div", x, root, name="divide"), other)
    sample = {"x": f32(np.linspace(0, 3, 16)[None])}
    (repair,) = repairing.proposed(network, [sample], Epsilon())
    assert repair.nodes == ("eps",)
    assert repair.numbers["change"] == pytest.approx((SMALLEST - 1e-12) / 1e-12)
    after = repairing.repaired(network, [repair], Epsilon())
    assert not repairing.proposed(after, [sample], Epsilon())
    nodes = {n.name: n for n in after.nodes()}
    raised = nodes["eps"].inputs[1]
    assert raised is not None
    assert constant_array(raised) == SMALLEST
    assert nodes["other"].inputs[1] is after.graph.initializers["tiny"]
    expected = repairing.run(network, sample)
    assert repairing.error(expected, repairing.run(after, sample)) < 2e-3
    assert repairing.error(expected, repairing.run_low(after, sample)) < 3e-3
    for numbers in (
        {"slot": 0, "eps": SMALLEST},
        {"slot": -1, "eps": SMALLEST},
        {"slot": 1, "eps": 1.0},
        {"slot": 1, "eps": 2.0**-126},
    ):
        wrong = repair.model_copy(update={"numbers": numbers})
        with pytest.raises(CaseError, match="'epsilon' at eps does not fit"):
            repairing.repaired(network, [wrong], Epsilon())
