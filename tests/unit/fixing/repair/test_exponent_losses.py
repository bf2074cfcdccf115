from dataclasses import replace

import pytest

from halfwise.fixing.repair.exponent_losses import ADDED, BIT, Loss, losses
from halfwise.graph.scaling import relations
from halfwise.records import InnerObservation, NodeName, TensorName
from tests.unit.fixing.repair.rules.test_scale import seen
from tests.unit.graph.sketch import Sketch, f32


def found(peaks: dict[str, float], problems: dict[str, float] | None = None) -> dict[str, Loss]:
    """Return losses of x · weight + eps; x and tensors without a peak reach 1."""
    s = Sketch()
    product = s.op("Mul", s.input("x", [1, 4]), s.constant(f32([[1, 2**-16, 4, 8]]), "w"), name="p")
    network = s.network(s.op("Add", product, s.constant(f32(2.0**-16), "eps"), name="sum"))
    weights = {TensorName(name): w for name, w in (problems or {}).items()}
    evidence = seen(network, peaks)
    return {str(n): loss for n, loss in losses(evidence, relations(network.model), weights)}


@pytest.mark.parametrize(("peak", "limit"), [(1.0, 14), (32759.9, 0), (32760.0, -1), (1e6, -5)])
def test_the_limit_keeps_the_headroom(peak, limit):
    assert found({"p_out": peak})["p_out"].limit == limit


def test_bits_are_lost_below_the_smallest_normal_number():
    loss = found({})["p_out"]
    assert loss.cost(0) == loss.cost(-11) == 0
    # Four elements, in the binades of 1, 1/2, 1/4 and 1/8.
    assert loss.cost(-12) == pytest.approx(BIT * 0.25)
    assert loss.cost(-14) == pytest.approx(BIT * (0.75 + 0.5 + 0.25))
    assert loss.cost(20) == 0


def test_what_is_lost_today_counts_for_problems_only():
    small = {"p_out": 2.0**-16}
    assert found(small)["p_out"].cost(0) == 0
    problem = found(small, {"p_out": BIT})["p_out"]
    assert problem.cost(0) > problem.cost(2) > problem.cost(4) > 0
    assert problem.cost(5) == 0


def test_constants_lose_what_their_readers_notice():
    own = found({"p_out": 1.0, "sum_out": 1.0})
    weight, eps = own["w@p:1"], own["eps@sum:1"]
    assert weight.limit == 12
    assert weight.cost(-2) == pytest.approx(BIT * 0.25 * 2)
    # What is added hardly counts, but where the smallest sum rests on it.
    assert eps.cost(-2) == pytest.approx(ADDED * 2)
    assert found({"sum_out": 2.0**-15})["eps@sum:1"].cost(-2) > ADDED * 2
    assert found({}, {"eps": BIT})["eps@sum:1"].cost(0) >= BIT * 2


def test_a_saturating_constant_has_no_limit_but_a_problem_has():
    s = Sketch()
    x = s.input("x", [1, 4])
    network = s.network(s.op("Mul", x, s.constant(f32(1e6), "w"), name="p"))
    asked = relations(network.model)
    evidence = seen(network, {})
    assert dict(losses(evidence, asked, {}))[TensorName("w@p:1")].limit is None
    named = {TensorName("w"): BIT}
    assert dict(losses(evidence, asked, named))[TensorName("w@p:1")].limit == -4


def test_a_sum_inside_limits_what_is_stored_and_not_what_is_read():
    s = Sketch()
    network = s.network(s.op("ReduceMean", s.input("x", [1, 4096]), name="mean", axes=[1]))
    inner = InnerObservation(
        node=NodeName("mean"), op="ReduceMean", kind="sum", value=1e6, worst_sample=0
    )
    given = seen(network, {})
    evidence = replace(
        given,
        observations=given.observations.model_copy(update={"inner": (inner,)}),
        accumulate="fp16",
    )
    own = dict(losses(evidence, relations(network.model), {}))
    assert own[TensorName("mean_out")].limit == -5
    assert own[TensorName("mean_out@output")].limit == 14
