"""ONNX Runtime's own operators that its CPU lacks, or reads past the end of: their forms."""

import math

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from halfwise.emulation.ort import Session

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
HEADS, BUCKETS, WIDTH = 2, 8, 8
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(HEADS, BUCKETS)).astype(np.float32)
WEIGHTS = (RNG.normal(size=(WIDTH, 3 * WIDTH)) / 3).astype(np.float32)


def info(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def proto(nodes, inputs, output, constants, domain=""):
    tensors = [numpy_helper.from_array(a, n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    imports = [helper.make_opsetid(domain, 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def ms(op, inputs, output, **attributes):
    made = {"name": output, "domain": "com.microsoft", **attributes}
    return helper.make_node(op, inputs, [output], **made)


def positions(length, farthest, *, both, domain=""):
    node = ms(
        *("RelativePositionBias", ["table", "length", "length"], "y"),
        max_distance=farthest,
        is_bidirectional=int(both),
    )
    # Its columns one after the other.
    constants = {"table": TABLE.reshape(BUCKETS, HEADS)}
    ends = [info("length", I64, [1])], info("y", F32, None)
    model = proto([node], *ends, constants, domain)
    (y,) = Session(ir.from_proto(model)).run({"length": np.array([length])}).values()
    return y


def bucket(apart: int, farthest: int, *, both: bool) -> int:
    """Return the bucket of a key behind a query, as T5's own code has it."""
    count, first = BUCKETS, 0
    if both:
        count //= 2
        first = count * (apart > 0)
        apart = abs(apart)
    else:
        apart = -min(apart, 0)
    exact = count // 2
    if apart < exact:
        return first + apart
    share = math.log(apart / exact) / math.log(farthest / exact)
    return first + min(exact + int(share * (count - exact)), count - 1)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("length", "farthest"), [(1, 20), (5, 20), (40, 20), (40, 128)])
def test_positions_are_those_of_t5(length, farthest, both):
    y = positions(length, farthest, both=both)
    places = range(length)
    which = [[bucket(k - q, farthest, both=both) for k in places] for q in places]
    assert np.array_equal(y, TABLE[:, np.array(which)][None])


def test_the_domain_of_onnx_has_a_second_name():
    y = positions(5, 20, both=True, domain="ai.onnx")
    assert np.array_equal(y, positions(5, 20, both=True))


def attention(bias):
    nodes = [ms("Attention", ["x", "w", bias, "", "", "far"], "y", num_heads=HEADS)]
    far = RNG.normal(size=(1, HEADS, 3, 3)).astype(np.float32)
    constants = {"w": WEIGHTS, "far": far}
    if bias:
        constants[bias] = np.zeros(3 * WIDTH, np.float32)
    inputs = [info("x", F32, [1, 3, WIDTH])]
    return proto(nodes, inputs, info("y", F32, [1, 3, WIDTH]), constants), far


def test_attention_without_a_bias_is_that_with_zeros():
    """ONNX Runtime's own kernel reads the bias that is not there: it crashes."""
    bare, far = attention("")
    whole, _ = attention("bias")
    whole.graph.initializer[1].CopyFrom(numpy_helper.from_array(far, "far"))
    x = RNG.normal(size=(1, 3, WIDTH)).astype(np.float32)
    (y,) = Session(ir.from_proto(bare)).run({"x": x}).values()
    (right,) = InferenceSession(whole.SerializeToString()).run(None, {"x": x})
    assert np.abs(y - right).max() <= 1e-6
