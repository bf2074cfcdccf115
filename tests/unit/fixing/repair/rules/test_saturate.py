"""What data came close to bounds what follows; larger values come out bounded, not infinite."""

import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.fixing.repair.rules.saturate import Saturate
from tests import repairing
from tests.unit.fixing.repair.rules.test_mask import KEYS, ROWS, attention
from tests.unit.graph.sketch import Sketch, f32


def test_a_tensor_close_to_the_end_of_the_range() -> None:
    s = Sketch()
    x = s.input("x", [1, 4])
    large = s.op("Mul", x, f32(1000.0), name="large")
    y = s.op("Sub", large, s.op("Mul", large, f32(0.5), name="half"), name="rest")
    network = s.network(y, large)
    seen = {"x": f32([[1, -2, 40, 3]])}
    repairs = repairing.proposed(network, [seen], Saturate())
    assert [r.nodes for r in repairs] == [("large",)]
    after = repairing.repaired(network, repairs, Saturate())
    assert not repairing.proposed(after, [seen], Saturate())
    assert repairing.error(repairing.run(network, seen), repairing.run(after, seen)) == 0
    larger = {"x": f32([[1, -2, 400, 3]])}
    before, now = repairing.run_low(network, larger), repairing.run_low(after, larger)
    assert np.isnan(before["rest_out"][0, 2])
    assert now["rest_out"][0, 2] == 32752
    assert repairing.run(after, larger)["large_out"][0, 2] == 400_000
    for numbers in (
        {"most": 65504.0, "output": 1},
        {"most": 65504.0, "output": -1},
        {"most": 1.0, "output": 0},
    ):
        wrong = repairs[0].model_copy(update={"numbers": numbers})
        with pytest.raises(CaseError, match="'saturate' at large does not fit"):
            repairing.repaired(network, [wrong], Saturate())


def test_a_mask_that_swallows_the_scores_that_were_seen() -> None:
    hidden = np.zeros((1, ROWS, KEYS), bool)
    hidden[:, 1] = hidden[:, 2:, 0] = True
    network = attention("constant", -1e9, hidden)
    random = np.random.default_rng(0)
    sample = {f"scores_{i}": f32(3 * random.normal(size=(2, ROWS, KEYS))) for i in range(2)}
    repairs = repairing.proposed(network, [sample], Saturate())
    assert [set(r.nodes) for r in repairs] == [{"add_0", "add_1"}]
    after = repairing.repaired(network, repairs, Saturate())
    expected = repairing.run(network, sample)
    assert repairing.error(expected, repairing.run(after, sample)) == 0
    assert repairing.error(expected, repairing.run_low(after, sample)) < 5e-3
    numbers = {**repairs[0].numbers, "axis": -2}
    with pytest.raises(CaseError, match="does not fit"):
        repairing.repaired(
            network, [repairs[0].model_copy(update={"numbers": numbers})], Saturate()
        )
