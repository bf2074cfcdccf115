import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise import api
from halfwise.case import Samples
from halfwise.errors import CaseError
from halfwise.fixing.attribute import Attribution
from halfwise.fixing.repair.exponents import ROOM
from halfwise.fixing.repair.making import repaired
from halfwise.fixing.repair.scale import Scale, scaled
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.casts import low_type
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import roles_of
from halfwise.graph.scaling import completed, relations
from halfwise.observing.reference import observe_network
from halfwise.records import (
    Detail,
    Histogram,
    Observation,
    Observations,
    Repair,
    TensorName,
    replace,
)
from tests import models
from tests.unit.fixing.repair import functions
from tests.unit.graph.sketch import Sketch, f32


def observed(network: Network, peaks: dict[str, float], fmt: Format = FP16) -> Attribution:
    """Return evidence in which tensors reach `peaks`, 1 by default, over four binades."""

    def look(name: str, producer: str | None) -> Observation:
        peak = peaks.get(name, 1.0)
        last = math.floor(math.log2(peak))
        detail = Detail(
            smallest_nonzero=2.0 ** (last - 3),
            overflow=0.0,
            flush=0.0,
            subnormal=0.0,
            histogram=Histogram(first=last - 3, counts=(1, 1, 1, 1), zeros=0),
            samples=1,
        )
        return msgspec.convert(
            {"tensor": name, "producer": producer, "absmax": peak, "nonfinite": 0}
            | {"worst_sample": 0, "detail": detail},
            Observation,
        )

    tensors = [look(str(v.name), None) for v in network.graph.inputs]
    tensors += [look(str(v.name), node_name(n)) for n in network.nodes() for v in n.outputs]
    observations = Observations(tensors=tuple(tensors), inner=(), samples=("only",))
    return Attribution(
        network,
        roles_of(network, low_type(fmt)),
        observations,
        fmt,
        headroom=2.0,
        accumulate="fp32",
    )


def norm() -> Network:
    """Return a projection, and a written-out RMSNorm of it."""
    s = Sketch()
    value = s.op("MatMul", s.input("x", [1, 4]), s.constant(f32(np.eye(4)), "w"), name="project")
    mean = s.op("ReduceMean", s.op("Mul", value, value, name="square"), name="mean", axes=[-1])
    root = s.op("Sqrt", s.op("Add", mean, f32(1e-3), name="eps"), name="root")
    return s.network(s.op("Div", value, root, name="divide"))


def test_a_norm_is_scaled_where_its_squares_overflow():
    large = {
        "project_out": 1e3,
        "square_out": 1e6,
        "mean_out": 1e6,
        "eps_out": 1e6,
        "root_out": 1e3,
    }
    (repair,) = Scale().propose(observed(norm(), large))
    root, square = -6, -12  # six octaves more than needed
    named = {"project_out": root, "square_out": square, "mean_out": square, "eps_out": square}
    assert repair.exponents == named | {"root_out": root}
    assert repair.nodes == ("project", "eps")
    assert {("square", "square"), ("overflow", "mean")} <= {(g.kind, g.node) for g in repair.guards}


def test_a_repaired_norm_of_quiet_sound_holds_for_louder_sound_too():
    """Its smallest squares are zero at any exponent; they must not use up the room above."""
    sound = np.random.default_rng(0).normal(size=(24, 1, 64)).astype(np.float32)
    sound[:, :, :1] *= 1e-7
    sound *= np.geomspace(1e-5, 1e-3, 24, dtype=np.float32)[:, None, None]
    inputs, louder = {"x": sound}, {"x": 4 * sound}
    s = Sketch()
    value = s.op("MatMul", s.input("x", [1, 64]), f32(np.eye(64)), name="project")
    mean = s.op("ReduceMean", s.op("Mul", value, value, name="square"), name="mean", axes=[-1])
    root = s.op("Sqrt", s.op("Add", mean, f32(1e-12), name="eps"), name="root")
    proto = s.proto(s.op("Div", value, root, name="divide"))
    fixed = api.fix(proto, inputs)
    assert fixed.run.verdict.passed
    assert fixed.run.plan
    assert fixed.model
    (repair,) = fixed.run.plan.repairs
    assert (repair.rule, fixed.run.plan.keep) == ("scale", ())
    assert repair.room
    assert repair.room >= 2 ** (ROOM - 1)
    assert api.verify(proto, fixed.model, louder).run.verdict.passed


def test_a_healthy_model_and_one_in_a_format_with_the_range_of_fp32_stay():
    assert not list(Scale().propose(observed(norm(), {})))
    assert not list(Scale().propose(observed(norm(), {"square_out": 1e6}, BF16)))


def test_problems_apart_are_repaired_apart():
    s = Sketch()
    value = s.input("x", [1, 4])
    for i in range(2):
        value = s.op("MatMul", value, f32(np.eye(4)), name=f"a{i}")
        value = s.op("Tanh", s.op("MatMul", value, f32(np.eye(4)), name=f"b{i}"), name=f"t{i}")
    evidence = observed(s.network(value), {"a0_out": 1e5, "a1_out": 1e6})
    repairs = list(Scale().propose(evidence))
    assert [r.exponents for r in repairs] == [{"a0_out": -2 - ROOM}, {"a1_out": -5 - ROOM}]
    assert [r.nodes for r in repairs] == [("a0", "b0"), ("a1", "b1")]


def test_a_repair_is_made_from_its_record_alone():
    network = norm()
    (repair,) = Scale().propose(observed(network, {"square_out": 1e6, "mean_out": 1e6}))
    model = network.copy()
    Scale().apply(model, Repair.from_json(repair.to_json()))
    scaled = model.graph.initializers["w"].const_value
    assert scaled is not None
    assert scaled.numpy()[0, 0] < 1
    with pytest.raises(CaseError):
        Scale().apply(model, Repair(rule="scale", nodes=(), exponents={TensorName("other"): 1}))


PEAKS = st.dictionaries(
    st.sampled_from(["m0_out", "r0_out", "s_out", "a_out", "l_out", "m1_out"]),
    st.integers(-30, 25).map(lambda e: 1.5 * 2.0**e),
)


@given(PEAKS, st.integers(-20, 20), st.integers(-20, 20))
def test_proposals_satisfy_relations_and_keep_constants_in_range(peaks, first, second):
    s = Sketch()
    value = s.op("MatMul", s.input("x", [1, 4]), f32(np.eye(4) * 2.0**first), name="m0")
    value = s.op("Relu", value, name="r0")
    value = s.op("Add", s.op("Mul", value, value, name="s"), f32(2.0**second), name="a")
    logarithm = s.op("Log", value, name="l")
    network = s.network(s.op("MatMul", logarithm, f32(np.eye(4)), name="m1"), value)
    evidence = observed(network, peaks)
    constraints = relations(network.model)
    limit = FP16.overflow_threshold / 2
    for repair in Scale().propose(evidence):
        full = completed(constraints, repair.exponents)
        assert repair.guards
        assert any(full.values())
        for name, constant in constraints.constants.items():
            size = max(constant.magnitudes) if constant.value is not None else 0.0
            assert math.ldexp(size, full[name]) <= max(FP16.max, size)
        for name in constraints.tensors:
            peak = evidence.tensors[name].absmax
            assert peak >= limit or math.ldexp(peak, full[name]) < limit


BY_NAME = {make.__name__: make for make in models.CLASSES}


@pytest.mark.parametrize(
    "name", ["layer_norm", "l2_norm_sums", "sum_then_divide", "magnitudes", "zeros"]
)
def test_a_scaled_network_shows_what_the_original_does_times_powers_of_two(name) -> None:
    network = network_from_proto((ill := BY_NAME[name]()).proto)
    few, roles = Samples(("0", "1"), ill.sample), roles_of(network)
    before, _ = observe_network(network, few, FP16, roles=roles)
    evidence = Attribution(network, roles, before, FP16, headroom=2.0, accumulate="fp32")
    repairs = tuple(Scale().propose(evidence))
    assert repairs
    made = repaired(network, repairs)
    expected, _ = observe_network(made, few, FP16, roles=roles_of(made))
    shown = scaled(before, network, made, repairs, roles_of(made), FP16)
    assert shown is not None
    shares = ("overflow", "flush", "subnormal")
    both = shown.to_dict(), expected.to_dict()
    for tensor in (tensor for told in both for tensor in told["tensors"]):
        for share in shares:
            del tensor["detail"][share]
    assert both[0] == both[1]
    for one, other in zip(shown.tensors, expected.tensors, strict=True):
        assert one.detail
        assert other.detail
        assert [getattr(one.detail, share) for share in shares] == pytest.approx(
            [getattr(other.detail, share) for share in shares], abs=1e-3
        )


def test_what_another_rule_changes_has_to_be_observed() -> None:
    evidence = observed(norm(), {})
    network, repair = evidence.network, Repair(rule="mask", nodes=())
    assert scaled(evidence.observations, network, network, [repair], evidence.roles, FP16) is None


@pytest.mark.parametrize("name", ["logarithm", "query_key"])
def test_what_needs_another_node_than_muls_has_to_be_observed(name: str) -> None:
    evidence = functions.evidence(BY_NAME[name]())
    repairs = tuple(Scale().propose(evidence))
    made, before = repaired(evidence.network, repairs), evidence.observations
    assert repairs
    assert scaled(before, evidence.network, made, repairs, roles_of(made), FP16) is None


@pytest.mark.parametrize(
    ("name", "changed"), [("exponential", {"exp", "scale"}), ("inner_squares", {"norm"})]
)
def test_what_a_node_in_fp32_would_do_as_well_is_repaired_only_if_none_is(name, changed) -> None:
    network = network_from_proto((ill := BY_NAME[name]()).proto)
    few, roles = Samples(("0", "1"), ill.sample), roles_of(network)
    seen, _ = observe_network(network, few, FP16, roles=roles)
    evidence = Attribution(network, roles, seen, FP16, headroom=2.0, accumulate="fp16")
    assert not [*Scale().propose(evidence)]
    (repair,) = Scale().propose(replace(evidence, keeps=False))
    assert changed <= set(repair.nodes)
