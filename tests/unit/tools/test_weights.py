import numpy as np
import onnx
import onnxruntime

from halfwise import api
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import add_constant, constant_array
from halfwise.records import replace
from halfwise.tools.weights import (
    Change,
    factor,
    folded,
    matched,
    read_safetensors,
    write_safetensors,
    written_back,
)
from tests import models


def test_factors():
    one = np.ones((2, 3), np.float32)
    assert factor(one, one / 4) == 0.25
    assert factor(one, one * [[1], [2]]) == {"axis": 0, "factors": [1.0, 2.0]}
    assert factor(one, np.arange(6.0).reshape(2, 3)) is None
    assert factor(one * 0, one) is None
    masked = np.array([0, -np.inf, 2, np.nan])
    assert factor(masked, masked / 2) == 0.5
    assert factor(masked, np.array([0, -1e4, 1, np.nan])) is None


def test_a_tensor_that_another_node_reads_unchanged_has_no_key():
    ill = models.conv_chain()
    network = network_from_proto(ill.proto)
    weight = next(v for v in network.graph.initializers.values() if constant_array(v).ndim > 1)
    before = constant_array(weight)
    change = Change(str(weight.name), ("node",), before, before * 2)
    state = {"w": before.T}
    (named,) = matched([change], state, network)
    assert (named.key, named.transposed) == ("w", before.T.shape != before.shape)
    tied = network.copy()
    add_constant(tied.graph, "tied", before.T)
    (named,) = matched([change], state, replace(network, model=tied))
    assert named.key is None


def test_safetensors_come_back(tmp_path):
    tensors: dict[str, np.ndarray] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones(3, np.float16),
    }
    write_safetensors(tmp_path / "a.safetensors", tensors)
    read = read_safetensors(tmp_path / "a.safetensors")
    assert {n: (a.dtype, a.tolist()) for n, a in read.items()} == {
        n: (a.dtype, a.tolist()) for n, a in tensors.items()
    }


def test_repairs_that_fold_keep_the_function(tmp_path):
    ill = models.conv_chain()
    onnx.save(ill.proto, tmp_path / "user.onnx")
    result = api.fix(tmp_path / "user.onnx", dict(ill.inputs), only="fp16")
    assert result.run.plan
    repairs = result.run.plan.repairs
    assert repairs
    network = load_network(tmp_path / "user.onnx")
    found, others = folded(network, repairs)
    assert found
    assert not others
    state = {f"m.{c.name}": c.before.T for c in found if not c.attribute}
    named = matched([c for c in found if not c.attribute], state, network)
    new = written_back(named, state)
    for c in named:
        assert c.key
        assert c.transposed or c.before.ndim == 1
        np.testing.assert_array_equal(new[c.key].T, c.after)
    proto = onnx.load(tmp_path / "user.onnx")
    after = {c.name: c.after for c in found}
    for tensor in proto.graph.initializer:
        if tensor.name in after:
            tensor.CopyFrom(onnx.numpy_helper.from_array(after[tensor.name], tensor.name))
    feed = {n: np.asarray(a)[0] for n, a in ill.inputs.items()}
    one, two = (
        onnxruntime.InferenceSession(p.SerializeToString()).run(None, feed)[0]
        for p in (ill.proto, proto)
    )
    assert np.abs(one - two).max() <= 1e-5 * np.abs(one).max()
