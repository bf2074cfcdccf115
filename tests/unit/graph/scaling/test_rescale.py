import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import numpy_helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.model import network_from_proto
from halfwise.graph.scaling import relations, rescale
from halfwise.records import TensorName
from tests.graph_rules import EVERY_OPSET, rules_at
from tests.graphs import Drawn, graphs
from tests.unit.graph.scaling.solving import random_exponents
from tests.unit.graph.sketch import Sketch, f32


@given(graphs(opsets=EVERY_OPSET, rules=rules_at), st.integers(0, 2**16))
def test_any_exponents_that_fit_leave_every_output_as_it_is(drawn: Drawn, seed: int):
    net = network_from_proto(drawn.proto)
    # ONNX Runtime's MaxPool makes of nothing but NaN the lowest FP32 number.
    assume(not any(n.op_type == "MaxPool" for n in net.nodes()) or _is_finite(drawn))
    model = net.copy()
    rescale(model, random_exponents(relations(model), np.random.default_rng(seed), cuts=0.6))
    try:
        expected = Session(net.copy()).run(drawn.sample)
    except CaseError:
        return
    given = Session(model).run(drawn.sample)
    for name, array in expected.items():
        assert np.array_equal(array, given[name], equal_nan=array.dtype.kind == "f")


def _is_finite(drawn: Drawn) -> bool:
    arrays = [numpy_helper.to_array(t) for t in drawn.proto.graph.initializer]
    return all(np.isfinite(a).all() for a in (*arrays, *drawn.sample.values()))


def test_a_stream_is_scaled_up_to_the_norm_with_its_eps():
    sketch = Sketch()
    x = sketch.input("x", ["batch", 4])
    hidden = sketch.op("MatMul", x, f32(np.eye(4) * 3), name="embed")
    stream = sketch.op("Add", hidden, f32([1, 2, 3, 4]), name="add")
    norm = sketch.op("LayerNormalization", stream, f32([1] * 4), f32([0] * 4), name="norm")
    net = sketch.network(norm)
    model = net.copy()
    rescale(model, {TensorName("embed_out"): -6, TensorName("add_out"): -6})
    assert [n.name for n in model.graph] == [n.name for n in net.nodes()]
    eps = next(n for n in model.graph if n.name == "norm").attributes["epsilon"].value
    assert eps == float(np.float32(1e-5)) * 2.0**-12
    sample = {"x": f32([[1, -5, 7, 3e3]])}
    assert np.array_equal(Session(net.copy()).run(sample)[norm], Session(model).run(sample)[norm])
