import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from halfwise import memory
from halfwise.case import Runtime
from halfwise.emulation import ort
from halfwise.emulation import ort as arena
from halfwise.emulation.ort import Session, devices, runtime_version
from halfwise.errors import BackendMissing, CaseError, KernelMissing, RunFailed
from halfwise.formats import BF16, FP16
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.weights import LARGE_TENSOR_BYTES, MappedTensor, WeightFile
from tests import models
from tests.graphs import Drawn, graphs
from tests.unit.graph.sketch import Sketch, f32

F32 = TensorProto.FLOAT
WIDE = (2, LARGE_TENSOR_BYTES)


def info(name, shape=(2,), dtype=F32):
    return helper.make_tensor_value_info(name, dtype, shape)


def network(nodes, inputs, outputs, constants=(), domains=()) -> Network:
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    return network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def branch(scale):
    weight = numpy_helper.from_array(np.full(WIDE, scale, np.float32), "weight")
    nodes = [helper.make_node("Mul", ["x", "weight"], ["out"], "mul")]
    return helper.make_graph(nodes, "branch", [], [info("out", WIDE)], [weight])


@pytest.fixture(scope="module")
def add():
    nodes = [
        helper.make_node("Add", ["x", "z"], ["sum"]),
        helper.make_node("Mul", ["x", "z"], ["product"]),
    ]
    model = network(nodes, [info("x"), info("z")], [info("sum"), info("product")]).model
    return Session(model)


X, Z = np.array([1, 2], np.float32), np.array([3, 5], np.float32)


# --- running ----------------------------------------------------------------------------------


def test_outputs_come_by_name_in_the_order_of_the_model(add):
    results = add.run({"z": Z, "x": X})
    assert list(results) == ["sum", "product"] == list(add.outputs)
    np.testing.assert_array_equal(results["sum"], [4, 7])
    np.testing.assert_array_equal(results["product"], [3, 10])
    assert add.output_types == {"sum": "tensor(float)", "product": "tensor(float)"}


def test_only_the_outputs_asked_for_are_given(add):
    assert list(add.run({"x": X, "z": Z}, ["product"])) == ["product"]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({"x": X}, "missing"),
        ({"x": X, "z": Z, "q": Z}, "Invalid input name"),
        ({"x": X.astype(np.int64), "z": Z}, "data type"),
        ({"x": X[None], "z": Z}, "rank"),
        ({"x": np.zeros(3, np.float32), "z": Z}, "dimensions"),
    ],
)
def test_a_sample_that_does_not_fit_is_a_failed_run(add, sample, reason):
    with pytest.raises(RunFailed, match=reason):
        add.run(sample)


def test_a_failure_inside_a_node_is_a_failed_run():
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"])]
    gather = network(nodes, [info("x"), info("i", (1,), TensorProto.INT64)], [info("y", (1,))])
    session = Session(gather.model)
    np.testing.assert_array_equal(session.run({"x": X, "i": np.array([1])})["y"], [2])
    with pytest.raises(RunFailed, match="indices"):
        session.run({"x": X, "i": np.array([7])})


# --- loading ----------------------------------------------------------------------------------


def test_large_weights_are_handed_over():
    array = np.random.default_rng(0).standard_normal(WIDE).astype(np.float32)
    weight = numpy_helper.from_array(array, "w")
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = network(nodes, [info("x", WIDE)], [info("y", WIDE)], [weight]).model
    session = Session(model)
    x = np.full(WIDE, 2, np.float32)
    np.testing.assert_array_equal(session.run({"x": x})["y"], array * 2)


@pytest.mark.parametrize(("flag", "scale"), [(True, 2.0), (False, 3.0)])
def test_bodies_with_large_weights_of_the_same_name_keep_their_own(flag, scale):
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch(2.0), else_branch=branch(3.0))
    inputs = [info("x", WIDE), info("flag", (), TensorProto.BOOL)]
    session = Session(network([node], inputs, [info("y", WIDE)]).model)
    x = np.ones(WIDE, np.float32)
    result = session.run({"x": x, "flag": np.array(flag)})["y"]
    np.testing.assert_array_equal(result, np.full(WIDE, scale))


@given(graphs())
def test_the_normal_form_computes_what_the_file_does(drawn: Drawn):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    for node in drawn.proto.graph.node:
        node.name = ""  # ONNX Runtime takes no two equal names
    plain = onnxruntime.InferenceSession(
        drawn.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = plain.run(None, drawn.sample)
    results = Session(network_from_proto(drawn.proto).model).run(drawn.sample)
    for array, output in zip(expected, plain.get_outputs(), strict=True):
        np.testing.assert_array_equal(results[output.name], array)


def test_nothing_is_optimised_unless_asked_for():
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = network(nodes, [info("x")], [info("y")]).model
    levels = onnxruntime.GraphOptimizationLevel
    for optimise, level in ((False, levels.ORT_DISABLE_ALL), (True, levels.ORT_ENABLE_ALL)):
        options = Session(model, optimise=optimise)._session.get_session_options()
        assert options.graph_optimization_level == level


def test_no_pattern_of_memory_is_made():
    """It would be allocated beside what the run that shows it took."""
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    model = network(nodes, [info("x")], [info("y")]).model
    assert Session(model)._session.get_session_options().enable_mem_pattern is False


def test_outputs_outlive_the_memory_of_their_session():
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    session = Session(network(nodes, [info("x")], [info("y")]).model)
    sample = {"x": np.array([-1.0, 2.0], np.float32)}
    assert session.run(sample)["y"].flags.owndata
    np.testing.assert_array_equal(session.run(sample, lent=True)["y"], [0.0, 2.0])


def test_a_custom_operator_asks_for_its_library(tmp_path):
    nodes = [helper.make_node("Scale", ["x"], ["y"], domain="com.example")]
    model = network(nodes, [info("x")], [info("y")], domains=["com.example"]).model
    with pytest.raises(CaseError, match=r"com\.example::Scale") as caught:
        Session(model)
    assert "--ort-library" in caught.value.hint
    library = tmp_path / "none.so"
    with pytest.raises(CaseError, match=re.escape(str(library))):
        Session(model, runtime=Runtime(libraries=(library,)))


def test_a_model_that_onnx_takes_and_onnx_runtime_does_not():
    # ONNX Runtime convolves no FP64.
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    shape, dtype = (1, 1, 2), TensorProto.DOUBLE
    weight = numpy_helper.from_array(np.ones((1, 1, 1)), "w")
    model = network(nodes, [info("x", shape, dtype)], [info("y", shape, dtype)], [weight]).model
    with pytest.raises(KernelMissing, match="cannot run the model") as caught:
        Session(model)
    assert "--ort-library" not in caught.value.hint


def test_a_device_that_is_not_there_is_missing(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert devices() == {"cpu": True, "cuda": False}
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = network(nodes, [info("x")], [info("y")]).model
    with pytest.raises(BackendMissing, match="CUDAExecutionProvider"):
        Session(model, runtime=Runtime("cuda"))


def test_a_device_that_does_not_start_is_missing(monkeypatch):
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    # What ONNX Runtime falls back to if CUDA cannot be loaded.
    monkeypatch.setitem(ort._CHAINS, "cuda", ["CPUExecutionProvider"])
    assert devices() == {"cpu": True, "cuda": True}
    model = network([helper.make_node("Relu", ["x"], ["y"])], [info("x")], [info("y")]).model
    with pytest.raises(BackendMissing, match="cannot start it"):
        Session(model, runtime=Runtime("cuda"))


def test_a_device_starts_while_a_model_is_read_and_leaves_errors_to_its_first_session(monkeypatch):
    begun = []
    monkeypatch.setattr(ort, "_start", lambda: begun.append(threading.current_thread()))
    for device, is_there in (("cpu", True), ("cuda", False), ("cuda", True)):
        monkeypatch.setattr(ort, "devices", lambda is_there=is_there: {"cuda": is_there})
        ort.start(Runtime(device))
    (thread,) = begun
    assert thread is not threading.current_thread()
    monkeypatch.undo()

    def refuses(_):
        raise ort_errors.Fail("no driver")

    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    monkeypatch.setattr(ort, "_smallest", refuses)
    ort._start()


def test_the_version_is_that_of_the_import_package():
    assert runtime_version() == onnxruntime.__version__


# --- large models -----------------------------------------------------------------------------


@pytest.mark.parametrize("optimise", [True, False])
def test_weights_are_read_where_they_are_without_optimisation(optimise):
    place = WeightFile(4 * 64 * 64).take(np.dtype(np.float32), (64, 64))
    place[...] = 1
    weight = ir.val("w", const_value=MappedTensor(place, name="w"))
    x = ir.val("x", ir.DataType.FLOAT, [2, 64])
    node = ir.node("MatMul", [x, weight], name="matmul")
    node.outputs[0].name = "y"
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[weight], opset_imports={"": 17})
    session = Session(ir.Model(graph, ir_version=8), optimise=optimise)
    sample = {"x": np.ones((2, 64), np.float32)}
    np.testing.assert_array_equal(session.run(sample)["y"], 64)
    place[...] = 2
    np.testing.assert_array_equal(session.run(sample)["y"], 64 if optimise else 128)


@pytest.mark.parametrize("flag", [True, False])
def test_bodies_read_weights_where_they_are_too(tmp_path, flag):
    path = models.saved_beside(models.two_bodies(), tmp_path)
    sample = {"x": np.ones((1, 8, 64), np.float32), "flag": np.array(flag)}
    model = load_network(path).model
    np.testing.assert_array_equal(Session(model).run(sample)["y"], 192 if flag else 128)


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
@pytest.mark.parametrize("optimise", [True, False])
def test_low_weights_are_handed_over(fmt, optimise):
    dtype = ir.DataType.from_numpy(fmt.dtype)
    array = np.full((64, 64), 1.5, fmt.dtype)
    weight = ir.val("w", const_value=MappedTensor(array, dtype=dtype, name="w"))
    x = ir.val("x", ir.DataType.FLOAT, [64, 64])
    wide = ir.node("Cast", [weight], {"to": int(ir.DataType.FLOAT)}, name="wide")
    node = ir.node("Add", [x, wide.outputs[0]], name="add")
    wide.outputs[0].name, node.outputs[0].name = "w_wide", "y"
    graph = ir.Graph(
        [x], node.outputs, nodes=[wide, node], initializers=[weight], opset_imports={"": 17}
    )
    session = Session(ir.Model(graph, ir_version=8), optimise=optimise)
    result = session.run({"x": np.ones((64, 64), np.float32)})
    np.testing.assert_array_equal(result["y"], 2.5)


def test_it_leaves_nothing_in_the_temporary_folder(tmp_path):
    environment = {n: v for n, v in os.environ.items() if n != "ORT_DISABLE_TELEMETRY"}
    subprocess.run(
        [sys.executable, "-c", "from halfwise.emulation.ort import devices; devices()"],
        env=environment | {"TMPDIR": str(tmp_path)},
        check=True,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("free", "told"), [(1 << 30, True), (4 << 30, False), (None, False)])
def test_what_is_available_is_told_only_if_it_is_less_than_what_was_requested(
    monkeypatch, free, told
):
    monkeypatch.setattr(memory, "available", lambda: free)
    error = MemoryError("Failed to allocate memory for requested buffer of size 2400000000")
    failure = ort._too_large(error)
    assert failure is not None
    assert "asked for 2.24 GiB of memory" in failure.message
    assert ("but only 1 GiB are available" in failure.message) is told


MIB = 1 << 20
LARGE = 64 * MIB


def resident() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def swelling() -> Session:
    """Return a session that computes two tensors of 64 MiB on its way from x to y."""
    f32 = TensorProto.FLOAT
    ends = [
        helper.make_tensor_value_info("x", f32, [1]),
        helper.make_tensor_value_info("y", f32, [1]),
    ]
    shape = helper.make_tensor("n", TensorProto.INT64, [1], [LARGE // 4])
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["wide"]),
        helper.make_node("Abs", ["wide"], ["magnitude"]),
        helper.make_node("ReduceMax", ["magnitude"], ["y"], keepdims=1),
    ]
    graph = helper.make_graph(nodes, "swelling", ends[:1], ends[1:], [shape])
    opset = [helper.make_opsetid("", 17)]
    return Session(
        network_from_proto(helper.make_model(graph, opset_imports=opset, ir_version=8)).model
    )


def test_sessions_that_take_turns_take_the_memory_of_one():
    sessions = [swelling() for _ in range(3)]
    sample = {"x": np.full(1, -2.0, np.float32)}
    np.testing.assert_array_equal(sessions[0].run(sample)["y"], [2.0])
    after_one = resident()
    results = [session.run(sample)["y"] for session in sessions]
    assert resident() < after_one + LARGE // 2
    np.testing.assert_array_equal(results, [[2.0]] * 3)


def test_a_new_session_finds_what_others_no_longer_use_given_back():
    session = swelling()
    arena.give_back()
    before = resident()
    kept = session.run({"x": np.ones(1, np.float32)})
    assert resident() > before + LARGE // 2
    other = swelling()
    assert resident() < before + LARGE // 2
    np.testing.assert_array_equal(other.run({"x": kept["y"]})["y"], [1.0])


def test_low_weights_are_widened_one_after_another():
    """ONNX Runtime's own Casts; in the order that is its default, all of them run first."""
    weight, count = np.zeros((1024, 1024), np.float16), 32
    value = ir.val("x", ir.DataType.FLOAT16, [1, 1024])
    ends, weights, nodes = [value], [], []
    for i in range(count):
        weights.append(ir.val(f"w{i}", const_value=MappedTensor(weight, name=f"w{i}")))
        weights[i].dtype = ir.DataType.FLOAT16
        nodes.append(ir.node("MatMul", [value, weights[i]], name=f"matmul{i}"))
        value = nodes[i].outputs[0]
        value.name, value.dtype = f"y{i}", ir.DataType.FLOAT16
    graph = ir.Graph(ends, [value], nodes=nodes, initializers=weights, opset_imports={"": 17})
    session = Session(ir.Model(graph, ir_version=8))
    arena.give_back()
    before = resident()
    session.run({"x": np.ones((1, 1024), np.float16)})
    assert resident() < before + count * 2 * weight.nbytes // 2


@pytest.mark.parametrize("name", ["int4", "uint4", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_quantised_weights_are_handed_over(name):
    s = Sketch(opset=21)
    codes = np.arange(3001).astype(np.int32).reshape(3001, 1) % 7 + [[0, 1]]
    stored = codes.astype(getattr(ml_dtypes, name, name))
    y = s.op("DequantizeLinear", s.constant(stored), 0.5)
    x = s.op("QuantizeLinear", s.input("x", [2]), 1.0, np.array(0, stored.dtype), name="q")
    proto = s.proto(s.op("MatMul", y, s.op("DequantizeLinear", x, 1.0)))
    for optimise in (False, True):
        session = Session(network_from_proto(proto).model, optimise=optimise)
        (found,) = session.run({"x": f32([1, 2])}).values()
        np.testing.assert_array_equal(found, codes @ [1, 2] / 2)


@pytest.mark.gpu
def test_sessions_on_a_gpu_read_one_copy_of_the_weights():
    wide = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    constants = [numpy_helper.from_array(wide, "w")]
    rows = [info(name, (2, 64)) for name in "xy"]
    held = network([product], rows[:1], rows[1:], constants)
    first, second = (Session(held.copy(), runtime=Runtime("cuda")) for _ in range(2))
    assert first._lent["w"] is second._lent["w"]
    sample = {"x": np.ones((2, 64), np.float32)}
    np.testing.assert_array_equal(first.run(sample)["y"], second.run(sample)["y"])
    expected = sample["x"] @ wide
    np.testing.assert_allclose(first.run(sample)["y"].astype(np.float64), expected, rtol=1e-4)


def test_weights_that_a_gpu_cannot_take_are_left_to_the_session(monkeypatch):
    def full(*_):
        raise RuntimeError("CUDA failure 2: out of memory")

    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_numpy", full)
    assert ort.uploaded(np.ones(WIDE, np.float32)) is None
