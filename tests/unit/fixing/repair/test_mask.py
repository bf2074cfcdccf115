"""Masks come out of the Add finite in FP16, and no weight changes but in rows masked as a whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from halfwise.case import Samples
from halfwise.fixing.attribute.ranges import mask_guards
from halfwise.fixing.repair.proof import is_same, prove
from halfwise.fixing.repair.shift import Mask
from halfwise.graph.model import Network
from tests import repairing
from tests.models.attention import mask_at_the_edge, mask_infinite, mask_of_whole_rows
from tests.repairing import Arrays
from tests.unit.graph.sketch import Sketch, f32

LOWEST = float(np.finfo(np.float32).min)
ROWS, KEYS = 6, 8


def attention(
    kind: str, largest: float, hidden: np.ndarray, opset: int = 17, *, behind: str = ""
) -> Network:
    """Scores of two heads plus a mask of `largest` (< 0) where `hidden`, in two layers."""
    s = Sketch(opset)
    heads = [s.input(f"scores_{i}", [2, ROWS, KEYS]) for i in range(2)]
    if kind == "constant":
        fill = s.constant(f32(np.where(hidden, largest, 0)), "fill_out")
    elif kind == "chosen":
        seen = s.input("hidden", [1, ROWS, KEYS], TensorProto.BOOL)
        fill = s.op("Where", seen, f32(largest), f32(0), name="fill")
    else:
        number = s.op("Cast", s.input("hidden", [1, ROWS, KEYS], TensorProto.BOOL), to=1)
        sign = -1 if kind == "subtracted" else 1
        fill = s.op("Mul", number, f32(sign * largest), name="fill")
    outputs = []
    for i, scores in enumerate(heads):
        order = (scores, fill) if kind in ("chosen", "subtracted") else (fill, scores)
        z = s.op("Sub" if kind == "subtracted" else "Add", *order, name=f"add_{i}")
        if behind == "bounded":
            z = s.op("Max", z, f32(LOWEST), name=f"bound_{i}")
        elif behind == "reshaped":
            z = s.op("Reshape", z, [2 * ROWS, KEYS], name=f"flat_{i}")
        outputs.append(s.op("Softmax", z, name=f"softmax_{i}", axis=-1))
    return s.network(*outputs)


def exactly(scores: np.ndarray, hidden: np.ndarray, largest: float) -> np.ndarray:
    wide = scores.astype(np.float64) + np.where(hidden, np.float64(largest), 0)
    exp = np.exp(wide - wide.max(-1, keepdims=True))
    return np.asarray(exp / exp.sum(-1, keepdims=True))


KINDS = ("constant", "chosen", "product", "subtracted")


@given(
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(KINDS),
    largest=st.sampled_from((-40_000.0, -65_504.0, -1e5, -1e20, LOWEST)),
    peak=st.sampled_from((0.5, 3.0, 12.0)),
    opset=st.sampled_from((12, 17, 20)),
    behind=st.sampled_from(("", "bounded", "reshaped")),
)
def test_rows_keep_their_weights(
    seed: int, kind: str, largest: float, peak: float, opset: int, behind: str
) -> None:
    random = np.random.default_rng(seed)
    hidden = random.random((1, ROWS, KEYS)) < 0.5
    hidden[:, 1], hidden[:, 2], hidden[:, 3, 0] = True, False, False
    network = attention(kind, largest, hidden, opset, behind=behind)

    def sample(factor: float) -> Arrays:
        drawn = {f"scores_{i}": f32(random.normal(size=(2, ROWS, KEYS))) for i in range(2)}
        given = {n: f32(factor * peak * a / np.abs(a).max() - peak) for n, a in drawn.items()}
        return given if kind == "constant" else {**given, "hidden": hidden}

    repairs = repairing.proposed(network, [sample(1.0)], Mask())
    assert [set(r.nodes) for r in repairs] == [{"add_0", "add_1"}]
    after = repairing.repaired(network, repairs, Mask())
    assert not repairing.proposed(after, [sample(1.0)], Mask())
    remaining = list(mask_guards(repairing.evidence(after, [sample(1.0)])))
    assert len(remaining) == (2 if behind == "bounded" else 0)
    whole = np.asarray(hidden.all(-1))[0]
    for factor in (1.0, 10.0):
        inputs = sample(factor)
        before, now = repairing.run(network, inputs), repairing.run(after, inputs)
        low = repairing.run_low(after, inputs)
        for i in range(2):
            name = f"softmax_{i}_out"
            shape = (2, ROWS, KEYS)
            old, new, rounded = (r[name].reshape(shape) for r in (before, now, low))
            np.testing.assert_array_equal(new[:, ~whole], old[:, ~whole])
            right = exactly(inputs[f"scores_{i}"], hidden, largest)
            assert np.abs(new - right).max() <= max(1e-6, np.abs(old - right).max())
            assert np.abs(rounded - new).max() <= 2.0**-9 * max(1.0, 10 * peak)


@pytest.mark.parametrize("make", [mask_at_the_edge, mask_of_whole_rows])
def test_a_failure_is_repaired(make) -> None:
    network, after, _ = repairing.repair(make(), Mask())
    for sample in repairing.samples_of(make()):
        expected = repairing.run(network, sample)
        assert repairing.error(expected, repairing.run(after, sample)) < 1e-3
        assert repairing.error(expected, repairing.run_low(after, sample)) < 1e-2


def test_masks_that_fp16_has_stay() -> None:
    assert not repairing.repair(mask_infinite(), Mask())[2]


def unrepaired(network: Network, *, peak: float = 1.0, hidden: np.ndarray | None = None) -> bool:
    random = np.random.default_rng(1)
    sample = {f"scores_{i}": f32(peak * random.normal(size=(2, ROWS, KEYS))) for i in range(2)}
    if hidden is not None:
        sample["hidden"] = hidden
    return not repairing.proposed(network, [sample], Mask())


def test_what_is_no_identity_is_not_proposed() -> None:
    hidden = np.zeros((1, ROWS, KEYS), bool)
    hidden[:, 1] = True
    assert not unrepaired(attention("constant", -65504, hidden))
    # In rows masked as a whole, FP32 has scores to 64 and 65536: neither exact, nor none at all.
    assert unrepaired(attention("constant", -1e9, hidden))
    assert unrepaired(attention("constant", -1e12, hidden))
    # Ten times the queries and keys, and scores reach beyond the mask.
    assert unrepaired(attention("constant", -65504, hidden), peak=60.0)
    # Nothing is masked in the data.
    assert unrepaired(attention("product", -65504, hidden), hidden=~hidden & False)


def test_a_reader_that_is_no_softmax_is_not_the_same_function() -> None:
    s = Sketch()
    scores = s.input("scores_0", [2, ROWS, KEYS])
    hidden = np.arange(ROWS)[:, None] < np.arange(KEYS)
    z = s.op("Add", scores, s.constant(f32(np.where(hidden, -65504, -3))[None]), name="add")
    y = s.op("Softmax", z, name="softmax", axis=-1)
    sample = {"scores_0": f32(np.random.default_rng(0).normal(size=(2, ROWS, KEYS)))}
    for network in (s.network(y), s.network(y, z)):
        repairs = repairing.proposed(network, [sample], Mask())
        made = repairing.repaired(network, repairs, Mask())
        data = Samples(("0",), lambda _: sample)
        assert is_same(prove(network, made, data, data)) is (len(network.graph.outputs) == 1)
