import numpy as np
import pytest
from onnx import TensorProto, helper

from halfwise.formats import BF16
from tests import control
from tests.unit.fixing.attribute.observing import guards, only
from tests.unit.graph.sketch import Sketch, f32

X = {"x": np.ones((2, 4), np.float32)}


def weighted(weight: np.ndarray, op: str = "MatMul") -> tuple[Sketch, str]:
    s = Sketch()
    constant = s.constant(weight.astype(np.float32), "weight")
    return s, s.op(op, s.input("x", [2, 4]), constant, name="reader")


def test_weights_out_of_range() -> None:
    weight = np.ones((4, 4))
    weight[0, 0], weight[1, 1] = -1e6, np.inf
    guard = only(guards(*weighted(weight), X), "constant-range")
    assert (guard.tensor, guard.nodes) == ("weight", ("reader",))
    assert guard.message == (
        "1 of the 16 values of constant weight is beyond FP16's 65504, up to 1e+06"
    )
    assert 3.0 < guard.severity < 4.0


def test_constants_in_a_body_are_the_concern_of_its_node() -> None:
    s = Sketch()
    x, flag = s.input("x", [2, 4]), s.input("flag", [], TensorProto.BOOL)
    branches = control.branches("b", s.op("Relu", x, name="relu"), x)
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    y = s.op("Neg", "chosen", name="neg")
    guard = only(guards(s, y, {**X, "flag": np.array(True)}), "constant-range")
    assert guard.message.startswith("4 of the 4 values of constant b_then_own are beyond")
    assert (guard.tensor, guard.node, guard.nodes) == ("b_then_own", "choose", ("choose",))


def test_bf16_holds_them() -> None:
    assert guards(*weighted(np.full((4, 4), 1e6)), X, fmt=BF16) == ()


def test_weights_that_are_mostly_subnormal() -> None:
    weight = np.full((4, 4), 1e-8)
    weight[0] = 1e-5
    weight[1] = 0.0
    guard = only(guards(*weighted(weight), X), "constant-subnormal")
    assert "100 % of the non-zero values of constant weight" in guard.message
    assert "67 % become zero" in guard.message
    assert 1.0 < guard.severity < 2.0


def test_a_minority_of_tiny_weights_is_usual() -> None:
    weight = np.ones((4, 4))
    weight[0] = 1e-8
    assert guards(*weighted(weight), X) == ()


def test_a_tiny_bias_is_lost_in_the_sum_anyway() -> None:
    assert guards(*weighted(np.full(4, 1e-6), "Add"), X) == ()


def batch_norm(variance: list[float], eps: float = 1e-5) -> tuple[Sketch, str]:
    s = Sketch()
    ones = np.ones(4, np.float32)
    variances = s.constant(f32(variance), "variance")
    y = s.op(
        "BatchNormalization", s.input("x", [2, 4]), ones, ones, ones, variances,
        name="norm", epsilon=eps,
    )  # fmt: skip
    return s, y


def test_a_variance_out_of_range_is_folded_away() -> None:
    guard = only(guards(*batch_norm([1.0, 1.0, 2e10, 1.0]), X), "constant-range")
    assert guard.nodes == ("norm",)
    assert "Fold the BatchNormalization" in guard.fix


@pytest.mark.parametrize(("eps", "lost"), [(1e-5, False), (1e-9, True)])
def test_a_tiny_variance_counts_unless_eps_outweighs_it(eps, lost) -> None:
    found = [g.kind for g in guards(*batch_norm([1.0, 2e-7, 1.0, 1.0], eps), X)]
    assert found == (["constant-subnormal"] if lost else [])


def test_a_constant_behind_data_movement_concerns_what_computes_with_it() -> None:
    s = Sketch()
    wide = s.op("Expand", s.constant(np.full((1, 4), 1e6, np.float32), "wide"), [2, 4])
    y = s.op("Mul", s.input("x", [2, 4]), wide, name="reader")
    guard = only(guards(s, y, {"x": np.full((2, 4), 1e-3, np.float32)}), "constant-range")
    assert guard.nodes == ("reader",)
