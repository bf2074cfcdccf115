"""Models of which somebody made every tensor an output, by its name alone."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.models import signals
from tests.unit.graph.sketch import Sketch, f32


@pytest.fixture
def every(tmp_path):
    """A model that overflows inside; its outputs bear neither type nor shape."""
    s = Sketch()
    x = s.input("x", ["n", 4])
    large = s.op("Mul", s.op("Relu", x, name="relu"), s.constant(f32([3e5] * 4), "w"), name="large")
    y = s.op("Mul", large, 1e-5, name="small")
    s.nodes.append(onnx.helper.make_node("TopK", [y, s.constant([2], "k")], ["v", "i"], name="top"))
    proto = s.proto("v")
    names = [name for node in proto.graph.node for name in node.output]
    del proto.graph.output[:]
    # Twice the same, a constant, and the input, which has a shape.
    for name in (*names, "v", "w", "x"):
        proto.graph.output.append(onnx.ValueInfoProto(name=name))
    del proto.graph.value_info[:]
    onnx.save(proto, tmp_path / "every.onnx")
    np.savez(tmp_path / "in.npz", x=signals(4, seed=3, count=8))
    return names


def test_its_tensors_are_observed(call, every):
    ended = call("observe", "every.onnx", "--inputs", "in.npz")
    assert ended.code == 0, ended.err
    assert "1 of 5 tensors reach 10000" in ended.out
    assert "repaired while reading: inputs or outputs have no shape" in " ".join(ended.err.split())
    assert len(every) == 5


@pytest.mark.usefixtures("every")
def test_it_is_fixed_and_verified(call):
    fixed = call("fix", "every.onnx", "--inputs", "in.npz", "-o", "run")
    assert fixed.code == 0, fixed.err
    # Scaled, and brought back for the output that it is, the tensor would cost more.
    assert fixed.kept == {"large", "small"}
    outputs = {o.name: o.type.tensor_type for o in onnx.load(fixed.model).graph.output}
    assert {"relu_out", "large_out", "small_out", "v", "i", "w", "x"} == set(outputs)
    assert outputs["i"].elem_type == TensorProto.INT64
    judged = call("verify", "every.onnx", "run/model.onnx", "--inputs", "in.npz")
    assert judged.code == 0, judged.err
