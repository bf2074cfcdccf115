from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.repair.exponents import ADDED, BIT, Allowance, Loss, losses, solve
from halfwise.graph.scaling import Relations, completed, relations
from halfwise.records import InnerObservation, NodeName, TensorName, replace
from tests.unit.fixing.repair.test_scale import observed
from tests.unit.graph.sketch import Sketch, f32


def chain(*weights: float) -> Relations:
    """Return what a chain of products asks for, each followed by a Relu."""
    sketch = Sketch()
    value = sketch.input("x", [1, 2])
    for i, weight in enumerate(weights):
        product = sketch.op("MatMul", value, f32(np.eye(2) * weight), name=f"mm{i}")
        value = sketch.op("Relu", product, name=f"relu{i}")
    return relations(sketch.network(value).model)


def everything(constraints: Relations) -> frozenset[TensorName]:
    return (
        frozenset((*constraints.tensors, *constraints.edges, *constraints.constants))
        - constraints.fixed
    )


def solved(constraints: Relations, **limits: int) -> dict[str, int]:
    """Return the exponents of tensors that limits lead to."""
    losses = {TensorName(name): Loss(limit) for name, limit in limits.items()}
    solution = solve(constraints, everything(constraints), losses, Allowance())
    return {str(n): e for n, e in solution.exponents.items() if n in constraints.tensors}


def test_what_is_in_range_stays_as_it_is():
    constraints = chain(1.0, 1.0)
    assert solve(constraints, everything(constraints), {}, Allowance()).exponents == {}
    assert solved(constraints, mm0_out=3, relu1_out=0) == {}


def test_a_factor_goes_through_homogeneous_operators_into_the_next_weights():
    assert solved(chain(1.0, 1.0), mm0_out=-3) == {"mm0_out": -3, "relu0_out": -3}


def test_what_has_no_weights_behind_it_costs_a_mul():
    sketch = Sketch()
    x = sketch.input("x", [1, 2])
    constraints = relations(
        sketch.network(sketch.op("Sqrt", sketch.op("Mul", x, x, name="m"))).model
    )
    exponents = solve(
        constraints, everything(constraints), {TensorName("m_out"): Loss(-3)}, Allowance()
    ).exponents
    assert exponents["m_out"] == -4  # type: ignore[index]
    assert exponents["x@m:0"] == exponents["x@m:1"] == -2  # type: ignore[index]


def test_bits_are_weighed_against_muls():
    constraints = relations(product().model)
    small = Loss(lines=((0.2, 0.1),))
    assert (
        solve(
            constraints, everything(constraints), {TensorName("sum_out"): small}, Allowance()
        ).exponents
        == {}
    )
    large = Loss(lines=((20.0, 10.0),))
    many = solve(
        constraints, everything(constraints), {TensorName("sum_out"): large}, Allowance()
    ).exponents
    assert many["sum_out"] == 2  # type: ignore[index]


def product():
    sketch = Sketch()
    x, y = sketch.input("x", [1, 2]), sketch.input("y", [1, 2])
    total = sketch.op("Add", x, y, name="sum")
    return sketch.network(sketch.op("Relu", total, name="end"))


def test_a_constant_is_not_multiplied_beyond_what_fp32_holds_exactly():
    constraints = chain(2.0**-125, 1.0)
    exponents = solve(
        constraints, everything(constraints), {TensorName("mm0_out"): Loss(-3)}, Allowance()
    ).exponents
    constant = next(name for name in constraints.constants if "@mm0:" in name)
    assert exponents[TensorName("mm0_out")] == -3
    assert exponents.get(constant, 0) >= -1
    assert exponents[TensorName("x@mm0:0")] <= -2


def test_only_what_is_free_changes():
    constraints = chain(*[1.0] * 4)
    free = frozenset(n for n in everything(constraints) if "2" in n or "3" in n)
    limits = {TensorName("mm3_out"): Loss(-2), TensorName("mm0_out"): Loss(-2)}
    assert solve(constraints, free, limits, Allowance()).exponents.keys() <= free


@pytest.mark.parametrize("work", [0, -1, 5])
def test_without_work_nothing_changes(work):
    constraints = chain(1.0, 1.0)
    solution = solve(
        constraints, everything(constraints), {TensorName("mm0_out"): Loss(-3)}, Allowance(work)
    )
    assert solution.exponents == {}


@given(st.lists(st.floats(2.0**-8, 2.0**8), min_size=2, max_size=4))
def test_solutions_satisfy_relations_and_limits(weights):
    constraints = chain(*weights)
    sizes = np.cumsum(np.log2(weights))
    losses = {TensorName(f"mm{i}_out"): Loss(15 - ceil(s)) for i, s in enumerate(sizes[:-1])}
    exponents = solve(constraints, everything(constraints), losses, Allowance()).exponents
    absorbed = {r.absorber for r in constraints.equations}
    chosen = {n: e for n, e in exponents.items() if n not in absorbed}
    full = completed(constraints, chosen | {n: exponents.get(n, 0) for n in constraints.edges})
    assert all(full[n] == exponents.get(n, 0) for n in full)
    for name, loss in losses.items():
        assert loss.limit is None or full[name] <= loss.limit


def test_a_program_has_to_fit_into_what_is_left_and_may_not_be_huge():
    allowance = Allowance(10)
    assert not allowance.take(11)
    assert allowance.take(10)
    assert not allowance.take(1)
    assert not Allowance(10**9).take(10**6)


def constraints(
    peaks: dict[str, float], problems: dict[str, float] | None = None
) -> dict[str, Loss]:
    """Return losses of x · weight + eps; x and tensors without a peak reach 1."""
    s = Sketch()
    product = s.op("Mul", s.input("x", [1, 4]), s.constant(f32([[1, 2**-16, 4, 8]]), "w"), name="p")
    network = s.network(s.op("Add", product, s.constant(f32(2.0**-16), "eps"), name="sum"))
    weights = {TensorName(name): w for name, w in (problems or {}).items()}
    evidence = observed(network, peaks)
    return {str(n): loss for n, loss in losses(evidence, relations(network.model), weights)}


@pytest.mark.parametrize(("peak", "limit"), [(1.0, 14), (32759.9, 0), (32760.0, -1), (1e6, -5)])
def test_the_limit_keeps_the_headroom(peak, limit):
    assert constraints({"p_out": peak})["p_out"].limit == limit


def test_bits_are_lost_below_the_smallest_normal_number():
    loss = constraints({})["p_out"]
    assert loss.cost(0) == loss.cost(-11) == 0
    # Four elements, in the binades of 1, 1/2, 1/4 and 1/8.
    assert loss.cost(-12) == pytest.approx(BIT * 0.25)
    assert loss.cost(-14) == pytest.approx(BIT * (0.75 + 0.5 + 0.25))
    assert loss.cost(20) == 0


def test_what_is_lost_today_counts_for_problems_only():
    small = {"p_out": 2.0**-16}
    assert constraints(small)["p_out"].cost(0) == 0
    problem = constraints(small, {"p_out": BIT})["p_out"]
    assert problem.cost(0) > problem.cost(2) > problem.cost(4) > 0
    assert problem.cost(5) == 0


def test_constants_lose_what_their_readers_notice():
    alone = constraints({"p_out": 1.0, "sum_out": 1.0})
    weight, eps = alone["w@p:1"], alone["eps@sum:1"]
    assert weight.limit == 12
    assert weight.cost(-2) == pytest.approx(BIT * 0.25 * 2)
    # What is added hardly counts.
    assert eps.cost(-2) == pytest.approx(ADDED * 2)
    assert constraints({}, {"eps": BIT})["eps@sum:1"].cost(0) >= BIT * 2


def test_a_saturating_constant_has_no_limit_but_a_problem_has():
    s = Sketch()
    x = s.input("x", [1, 4])
    network = s.network(s.op("Mul", x, s.constant(f32(1e6), "w"), name="p"))
    wanted = relations(network.model)
    evidence = observed(network, {})
    assert dict(losses(evidence, wanted, {}))[TensorName("w@p:1")].limit is None
    named = {TensorName("w"): BIT}
    assert dict(losses(evidence, wanted, named))[TensorName("w@p:1")].limit == -4


def test_a_sum_inside_limits_what_is_stored_and_not_what_is_read():
    s = Sketch()
    network = s.network(s.op("ReduceMean", s.input("x", [1, 4096]), name="mean", axes=[1]))
    inner = InnerObservation(
        node=NodeName("mean"), op="ReduceMean", kind="sum", value=1e6, worst_sample=0
    )
    given = observed(network, {})
    evidence = replace(
        given,
        observations=replace(given.observations, inner=(inner,)),
        accumulate="fp16",
    )
    alone = dict(losses(evidence, relations(network.model), {}))
    assert alone[TensorName("mean_out")].limit == -5
    assert alone[TensorName("mean_out@output")].limit == 14
