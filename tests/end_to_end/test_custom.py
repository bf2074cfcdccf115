"""Operators that only ONNX Runtime has: low like those of ONNX."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.formats import FP16
from tests import models
from tests.unit.graph.sketch import f32


def types(model):
    values = (*onnx.load(model).graph.value_info, *onnx.load(model).graph.initializer)
    return {
        v.name: v.data_type if isinstance(v, onnx.TensorProto) else v.type.tensor_type.elem_type
        for v in values
    }


def test_operators_of_onnx_runtime_are_lowered(fix, call):
    ended = fix(models.microsoft())
    assert ended.code == 0, ended.err
    plan = ended.record["plan"]
    assert plan["unsupported"] == []
    assert plan["candidates"] == 6
    found = types(ended.model)
    low = ("w1", "a", "b", "c", "gamma", "d", "s", "w2", "e")
    assert {found[name] for name in low} == {TensorProto.FLOAT16}
    again = call(
        *("verify", "model.onnx", ended.model, "--inputs", "model.npz", "-o", "v"), folder="v"
    )
    assert again.code == 0, again.err


def test_the_emulation_rounds_what_goes_in_and_comes_out(saved, call):
    """y = ½ x·W, alone."""
    ill = models.microsoft()
    proto = onnx.ModelProto()
    proto.CopyFrom(ill.proto)
    del proto.graph.node[1:]
    proto.graph.node[0].output[0] = "y"
    (weight,) = (numpy_helper.to_array(t) for t in proto.graph.initializer if t.name == "w1")
    model, inputs = saved(models.Ill(proto, ill.inputs))
    ended = call("fix", model, "--inputs", inputs, "-o", "run", "--lower", "fused")
    assert ended.code == 0, ended.err
    x = ill.inputs["x"][[3, 7]]
    low = FP16.round(f32(FP16.round(x) @ FP16.round(weight) / 2))
    error = np.abs(low.astype(np.float64) - x.astype(np.float64) @ weight / 2).max()
    (output,) = ended.record["verdict"]["outputs"].values()
    assert output["max_abs"] == pytest.approx(error, rel=1e-2)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (("--keep", "gelu", "--lower", "gelu"), "--keep gelu and --lower gelu both match"),
        (("--keep-op", "Gelu", "--lower", "g.*"), "--keep-op Gelu and --lower g.* both match"),
        (("--lower", "gelus"), "--lower gelus matches no node."),
        (("--lower", "gelu("), "neither a node's name nor a regular expression"),
    ],
)
def test_rules_that_contradict_or_match_nothing(saved, refused, rules, message):
    model, inputs = saved(models.microsoft())
    assert message in refused(2, "fix", model, "--inputs", inputs, "-o", "run", *rules)


def test_some_low_some_kept(fix):
    ended = fix(models.microsoft(), *("--keep", "matmul", "--keep", ".*gelu"))
    assert ended.code == 0, ended.err
    assert ended.kept == {"matmul", "bias_gelu", "gelu"}
    found = types(ended.model)
    assert (found["a"], found["b"], found["d"]) == (TensorProto.FLOAT16, 1, TensorProto.FLOAT16)


def network(nodes, constants, shape):
    """Return a network from x to y, both of one shape."""
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def test_what_the_cpu_of_onnx_runtime_lacks_is_judged(call, tmp_path):
    """T5 after its transformer optimiser: positions, and attention without a bias."""
    rng, shape = np.random.default_rng(0), ("n", 3, 8)
    own, made = {"domain": "com.microsoft"}, "RelativePositionBias"
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], "shape", start=1, end=2),
        helper.make_node(made, ["table", "length", "length"], ["far"], "far", **own),
        helper.make_node(
            *("Attention", ["x", "w", "", "", "", "far"], ["y"], "attention"), num_heads=2, **own
        ),
    ]
    sizes = {"w": (8, 24), "table": (8, 2)}
    constants = {n: f32(rng.normal(size=s)) for n, s in sizes.items()}
    onnx.save(network(nodes, constants, shape), tmp_path / "model.onnx")
    np.savez(tmp_path / "x.npz", x=models.signals(3, 8, seed=1)[:, None])
    ended = call("fix", "model.onnx", "--inputs", "x.npz", "-o", "run")
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert list(ended.record["verdict"]["outputs"]) == ["y"]
    written = onnx.load(ended.model)
    assert {"Attention", made} <= {node.op_type for node in written.graph.node}


def experts(activation):
    """QMoE of weights in four bits, behind its router.

    On one row: with more, WebGPU is wrong now and then, in FP32 too (docs/targets.md).
    """
    rng = np.random.default_rng(0)
    many, width, inner = 4, 64, 64
    gates = 2 if activation == "swiglu" else 1
    packed = lambda *shape: rng.integers(0, 256, (many, *shape)).astype(np.uint8)  # noqa: E731
    constants = {
        "w_router": f32(rng.normal(size=(width, many)) / 8),
        "w1": packed(gates * inner, width // 2),
        "s1": f32(rng.uniform(0.005, 0.02, (many, gates * inner, width // 32))),
        "w2": packed(width, inner // 2),
        "s2": f32(rng.uniform(0.005, 0.02, (many, width, inner // 32))),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w_router"], ["probs"], "router"),
        helper.make_node(
            *("QMoE", ["x", "probs", "w1", "s1", "", "w2", "s2"], ["y"], "experts"),
            domain="com.microsoft",
            activation_type=activation,
            swiglu_fusion=int(activation == "swiglu"),
            k=2,
            expert_weight_bits=4,
            block_size=32,
        ),
    ]
    return nodes, constants, (1, 64)


def packed_attention():
    rng = np.random.default_rng(0)
    constants = {
        "w": f32(rng.normal(size=(8, 24)) / 3),
        "b": np.zeros(24, np.float32),
        "offset": np.arange(3, dtype=np.int32)[None],
        "lengths": np.array([0, 3], np.int32),
    }
    read = ["h", "w", "b", "offset", "lengths"]
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"], "tanh"),
        helper.make_node(
            "PackedAttention", read, ["y"], "attention", domain="com.microsoft", num_heads=2
        ),
    ]
    return nodes, constants, (3, 8)


def skip_group_norm():
    constants = {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)}
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"], "tanh"),
        helper.make_node(
            *("SkipGroupNorm", ["h", "g", "b", "x"], ["y"], "norm"),
            domain="com.microsoft",
            groups=2,
            activation=1,
            channels_last=1,
        ),
    ]
    return nodes, constants, (1, 4, 4, 8)


@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (experts("swiglu"), ""),
        (experts("silu"), "only swiglu is supported for WebGPU"),
        (packed_attention(), "Provider type for PackedAttention node"),
        (skip_group_norm(), "Provider type for SkipGroupNorm node"),
    ],
    ids=["swiglu", "silu", "packed", "group-norm"],
)
@pytest.mark.usefixtures("on_webgpu")
def test_what_a_target_lacks_is_said_in_its_words(made, refusal, call, tmp_path):
    """Whether or not ONNX Runtime's CPU has it: what is set aside here is in the file."""
    nodes, constants, shape = made
    onnx.save(network(nodes, constants, shape), tmp_path / "model.onnx")
    np.savez(tmp_path / "x.npz", x=models.signals(*shape, seed=1))
    ended = call("fix", "model.onnx", "--inputs", "x.npz", "-o", "run", "--target", "webgpu")
    assert ended.code == (10 if refusal else 0), ended.out + ended.err
    on_target = [run for run in ended.record["verdict"]["as_file"] if "WebGPU" in run["runner"]]
    assert on_target
    for run in on_target:
        assert run["passed"] == (not refusal)
        assert refusal in run["not_run"]
        assert "onnxruntime_src" not in run["not_run"]
    assert ("as the targets took it" in ended.out) == (not refusal)
    again = call("verify", "run", "--target", "webgpu", "-o", "again", folder="again")
    assert again.code == ended.code, again.out + again.err
    if refusal:
        held = again.record["held"]
        assert {one["outcome"] for one in held} == {"fp32"}
        assert all(nodes[-1].name in one["first"] for one in held)
