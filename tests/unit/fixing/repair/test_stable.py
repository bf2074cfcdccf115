from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.repair.proof import is_same, prove
from halfwise.fixing.repair.stable import OneNode, Stable
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.records import InnerObservation, NodeName, Repair
from tests.models import cancellation, layer_norm
from tests.models.exponentials import exponential, mish_quotient, softmax, softplus
from tests.models.illness import Ill
from tests.models.normalisation import group_norm, instance_norm, rms_norm
from tests.spellings import proto
from tests.unit.fixing.repair.functions import errors, evidence, repaired
from tests.unit.graph.sketch import Sketch, f32


def mended(ill: Ill) -> tuple[Network, Network, Repair]:
    seen = evidence(ill)
    (repair,) = Stable().propose(seen)
    return seen.network, repaired(seen.network, Stable(), repair), repair


def log_sum(axes: list[int], *, keep: bool, opset: int = 17) -> Ill:
    s = Sketch(opset)
    exp = s.op("Exp", s.input("x", [2, 3, 5]))
    y = s.op("Log", s.op("ReduceSum", exp, axes, keepdims=int(keep)))
    return Ill(s.proto(y), {"x": f32(np.full((1, 2, 3, 5), 12))})


@given(
    st.sampled_from([[-1], [0], [1, 2]]),
    st.booleans(),
    st.sampled_from([13, 18]),
    st.integers(0, 2**20),
    st.sampled_from([0.0, 80, -80]),
    st.sampled_from([0.1, 3.0]),
)
def test_a_log_sum_is_the_same_function(
    axes: list[int], keep: bool, opset: int, seed: int, shift: float, scale: float
) -> None:
    before, after, _ = mended(log_sum(axes, keep=keep, opset=opset))
    x = np.random.default_rng(seed).normal(size=(2, 3, 5)) * scale + shift
    x[0, 0, 0], x[1, 1] = -np.inf, shift
    error, now = errors(before, after, {"x": f32(x)})
    assert now <= max(error, 1e-5)


def test_a_log_sum_stays_finite_and_of_nothing_it_is_minus_infinity() -> None:
    _, after, _ = mended(log_sum([-1], keep=True))
    x = f32(np.full((2, 3, 5), 500))
    x[0], x[1, 2, 0] = -np.inf, np.inf
    (y,) = Session(after.model).run({"x": x}).values()
    assert np.all(y[0] == -np.inf)
    np.testing.assert_allclose(np.asarray(y)[1, :2], 500 + np.log(5), rtol=1e-6)
    assert np.all(y[1, 2] == np.inf)


@pytest.mark.parametrize("make", [exponential, mish_quotient, softplus])
def test_exponentials_stay_in_range(make: Callable[[], Ill]) -> None:
    ill = make()
    # The first sample may be large below zero alone.
    ill = Ill(ill.proto, {"x": np.abs(ill.inputs["x"])})
    before, after, repair = mended(ill)
    for scale in (1e-3, 1.0, 1.5, -3.0):
        error, now = errors(before, after, {"x": scale * ill.sample(0)["x"]})
        assert now <= max(error, 1e-5)
    # e⁵ · 65504 / 2 is above e¹⁵.
    assert repair.numbers == ({"shift": 5} if make is exponential else {})
    still = evidence(Ill(ill.proto, {"x": ill.inputs["x"] / 10}))
    assert not list(Stable().propose(still))


@pytest.mark.parametrize("keep", [True, False])
def test_a_variance_is_proven_where_fp32_has_no_digits(keep: bool) -> None:
    s = Sketch()
    x = s.input("x", [4, 256])
    squares = s.op("ReduceMean", s.op("Mul", x, x), axes=[-1], keepdims=int(keep))
    mean = s.op("ReduceMean", x, axes=[-1], keepdims=int(keep))
    y = s.op("Sub", squares, s.op("Pow", mean, f32(2.0)), name="variance")
    rows = 10 + 0.01 * np.random.default_rng(0).normal(size=(8, 4, 256))
    seen = evidence(Ill(s.proto(y), {"x": f32(rows)}))
    cancels = InnerObservation(
        node=NodeName("variance"), op="Sub", kind="cancellation", value=1e6, worst_sample=0
    )
    (repair,) = Stable().propose(_with(seen, cancels))
    after = repaired(seen.network, Stable(), repair)
    samples = Samples(tuple("abcdefgh"), lambda i: {"x": f32(rows[i])})
    proof = prove(seen.network, after, samples, samples)
    assert errors(seen.network, after, {"x": f32(rows[0])})[0] > 1e-2
    assert proof.repaired < 1e-5
    assert is_same(proof)


@pytest.mark.parametrize("shape", [(1, 1), (3,)])
def test_a_number_that_makes_the_result_larger_is_part_of_the_form(shape: tuple[int, ...]) -> None:
    x = f32(3e4 + np.random.default_rng(0).normal(size=(1, 2, 4)))
    s = Sketch()
    own = s.op("ReduceMean", s.input("x", [2, 4]), axes=[1], keepdims=int(shape == (3,)))
    squares = s.op("ReduceMean", s.op("Mul", "x", "x"), axes=[1], keepdims=int(shape == (3,)))
    y = s.op("Sub", squares, s.op("Pow", own, f32(np.full(shape, 2))))
    assert not list(Stable().propose(evidence(Ill(s.proto(y), {"x": x}))))


def _with(seen, inner):
    observations = seen.observations.model_copy(update={"inner": (inner,)})
    return type(seen)(seen.network, seen.roles, observations, seen.fmt, 2.0, "fp32")


def test_another_model_is_refused() -> None:
    repair = Repair(rule="stable", nodes=(NodeName("a"),))
    with pytest.raises(CaseError, match="does not fit this model"):
        repaired(network_from_proto(cancellation().proto), Stable(), repair)


SPELLINGS = {
    "torchscript_layer_norm": "LayerNormalization",
    "torchscript_two_axes": "LayerNormalization",
    "torchscript_instance_norm": "InstanceNormalization",
    "torch_without_keepdim": "LayerNormalization",
    "dynamo_layer_norm": "LayerNormalization",
    "keras_layer_norm": "LayerNormalization",
    "jax_layer_norm": "LayerNormalization",
}


@given(
    st.sampled_from(list(SPELLINGS)),
    st.integers(0, 2**20),
    st.sampled_from([1e-3, 1.0, 1e4, 1e10]),
    st.sampled_from([0, 1, -10]),
)
def test_norms_are_the_same_function(name: str, seed: int, scale: float, shift: float) -> None:
    model = proto(name)
    (start,) = model.graph.input
    sizes = [d.dim_value or 2 for d in start.type.tensor_type.shape.dim]
    x = np.random.default_rng(seed).normal(size=sizes)
    seen = evidence(Ill(model, {start.name: f32(5e3 * x[None])}))
    (repair,) = OneNode().propose(seen)
    after = repaired(seen.network, OneNode(), repair)
    assert SPELLINGS[name] in {n.op_type for n in after.nodes()}
    # Rows without variance, and all elements of a row alike but one.
    x[0, 0] = 0
    x[1, 0].flat[:-1] = shift
    before, now = errors(seen.network, after, {start.name: f32(scale * (x + shift))})
    assert now <= max(before, 1e-5)


@pytest.mark.parametrize(
    ("ill", "op"),
    [
        (layer_norm(), "LayerNormalization"),
        (group_norm(), "LayerNormalization"),
        (instance_norm(), "InstanceNormalization"),
        (softmax(), "Softmax"),
    ],
)
def test_one_node_is_proposed_where_a_guard_points_inside(ill: Ill, op: str) -> None:
    seen = evidence(ill)
    (repair,) = OneNode().propose(seen)
    after = repaired(seen.network, OneNode(), repair)
    assert op in {n.op_type for n in after.nodes()}
    before, now = errors(seen.network, after, ill.sample(0))
    assert now <= max(before, 1e-5)
    small = {name: array / 1e4 for name, array in ill.inputs.items()}
    # Of 65,536 exponentials the sum is large whatever x is.
    assert ill.name == "softmax" or not list(OneNode().propose(evidence(Ill(ill.proto, small))))


def test_rms_norms_need_an_opset_that_not_all_targets_read() -> None:
    assert not list(OneNode().propose(evidence(rms_norm())))


@given(st.integers(0, 2**20), st.sampled_from([0, 80, -80]), st.booleans())
def test_softmax_is_the_same_function(seed: int, shift: float, logarithm: bool) -> None:
    s = Sketch()
    x = s.input("x", [3, 40])
    exp = s.op("Exp", x)
    total = s.op("ReduceSum", exp, [-1])
    y = s.op("Sub", x, s.op("Log", total)) if logarithm else s.op("Div", exp, total)
    rows = np.random.default_rng(seed).normal(size=(1, 3, 40))
    seen = evidence(Ill(s.proto(y), {"x": f32(rows + 12)}))
    (repair,) = OneNode().propose(seen)
    after = repaired(seen.network, OneNode(), repair)
    # One element that all others vanish beside, one that is masked, all alike.
    rows[0, 0, 0], rows[0, 0, 1], rows[0, 1] = 5, -np.inf, 1
    before, now = errors(
        seen.network,
        after,
        {"x": f32(rows[0] + shift) if not logarithm else f32(np.maximum(rows[0], -50))},
    )
    assert now <= max(before, 1e-5)


def test_another_model_is_refused_one_node() -> None:
    repair = Repair(rule="one-node", nodes=(NodeName("a"),))
    with pytest.raises(CaseError, match="does not fit this model"):
        repaired(network_from_proto(layer_norm().proto), OneNode(), repair)
