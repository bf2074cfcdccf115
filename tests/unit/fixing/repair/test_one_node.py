import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.fixing.repair.making import OneNode
from halfwise.graph.loading import network_from_proto
from halfwise.records import NodeName, Repair
from tests.models import layer_norm
from tests.models.illness import Ill
from tests.models.normalisation import group_norm, instance_norm, rms_norm
from tests.spellings import proto
from tests.unit.fixing.repair.functions import errors, evidence, repaired
from tests.unit.graph.sketch import f32

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
    guards = evidence(Ill(model, {start.name: f32(5e3 * x[None])}))
    (repair,) = OneNode().propose(guards)
    after = repaired(guards.network, OneNode(), repair)
    assert SPELLINGS[name] in {n.op_type for n in after.nodes()}
    # Rows without variance, and all elements of a row alike but one.
    x[0, 0] = 0
    x[1, 0].flat[:-1] = shift
    before, now = errors(guards.network, after, {start.name: f32(scale * (x + shift))})
    # ONNX Runtime's node adds in another order.
    assert now <= max(2 * before, 1e-5)


@pytest.mark.parametrize(
    ("ill", "op"),
    [
        (layer_norm(), "LayerNormalization"),
        (group_norm(), "LayerNormalization"),
        (instance_norm(), "InstanceNormalization"),
    ],
)
def test_one_node_is_proposed_where_a_guard_points_inside(ill: Ill, op: str) -> None:
    guards = evidence(ill)
    (repair,) = OneNode().propose(guards)
    after = repaired(guards.network, OneNode(), repair)
    assert op in {n.op_type for n in after.nodes()}
    before, now = errors(guards.network, after, ill.sample(0))
    # ONNX Runtime's node adds in another order.
    assert now <= max(2 * before, 1e-5)
    small = {name: array / 1e4 for name, array in ill.inputs.items()}
    assert not list(OneNode().propose(evidence(Ill(ill.proto, small))))


def test_rms_norms_need_an_opset_that_not_all_targets_read() -> None:
    assert not list(OneNode().propose(evidence(rms_norm())))


def test_another_model_is_refused() -> None:
    repair = Repair(rule="one-node", nodes=(NodeName("a"),))
    with pytest.raises(CaseError, match="does not fit this model"):
        repaired(network_from_proto(layer_norm().proto), OneNode(), repair)
