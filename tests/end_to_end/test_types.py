"""Files in which one constant, input or branch has the wrong one of FP16 and FP32."""

import shlex
import shutil
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.graph.sketch import Sketch

WIDE, LOW = np.float32, np.float16
Arrays = dict[str, np.ndarray]


def network(arrays: Arrays, *, given: type = WIDE, computed: type = WIDE) -> onnx.ModelProto:
    """Return a small network whose constants have the types of `arrays`."""

    def element(dtype: type) -> int:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Add", ["c", "a"], ["s"], "add"),
        helper.make_node("Clip", ["s", "low", ""], ["k"], "clip"),
        helper.make_node("InstanceNormalization", ["k", "scale", "shift"], ["n"], "norm"),
        helper.make_node("GlobalAveragePool", ["n"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "g", "h"], ["z"], "gemm"),
        helper.make_node("Shape", ["x"], ["size"], "size"),
        helper.make_node("Gather", ["size", "zero"], ["rows"], "rows"),
        helper.make_node("Greater", ["rows", "zero"], ["some"], "some"),
        helper.make_node("If", ["some"], ["y"], "if", **branches(arrays, element(computed))),
    ]
    inner = ("mul",)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element(given), ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", element(computed), ["n", 5])],
        [
            *(numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in inner),
            numpy_helper.from_array(np.array(0), "zero"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def branches(arrays: Arrays, kind: int) -> dict[str, Any]:
    made = {}
    for name, op in (("then_branch", "Mul"), ("else_branch", "Sub")):
        graph = helper.make_graph(
            [helper.make_node(op, ["z", f"{name}_m"], [f"{name}_y"], f"{name}/{op}")],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", kind, ["n", 5])],
            [numpy_helper.from_array(arrays["mul"], f"{name}_m")],
        )
        made[name] = graph
    return made


def constants(dtype: type = WIDE) -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {
        "w": (4, 3, 3, 3),
        "b": (4,),
        "a": (1, 4, 1, 1),
        "low": (),
        "scale": (4,),
        "shift": (4,),
        "g": (4, 5),
        "h": (5,),
        "mul": (5,),
    }
    arrays = {n: rng.standard_normal(s) * 0.3 for n, s in shapes.items()}
    return {n: np.asarray(a, dtype) for n, a in arrays.items()}


def samples(dtype: type = WIDE) -> None:
    x = np.random.default_rng(1).standard_normal((8, 1, 3, 8, 8)).cumsum(-1)
    np.savez("x.npz", x=x.astype(dtype))


@pytest.fixture
def fixed(call, tmp_path):
    def fixed(proto, dtype):
        onnx.save(proto, tmp_path / "m.onnx")
        samples(dtype)
        ended = call("fix", "m.onnx", "--inputs", "x.npz", "-o", "run", "--allow", "unjudged")
        assert ended.code == 0, ended.out + ended.err
        onnx.checker.check_model(onnx.load(ended.model), full_check=True)
        ort.InferenceSession(ended.model)
        return ended.out + ended.err

    return fixed


@pytest.mark.parametrize("name", ["w", "b", "a", "low", "scale", "g", "mul"])
@pytest.mark.parametrize("dtype", [WIDE, LOW])
def test_one_constant_of_the_other_type(name, dtype, fixed, call):
    arrays = constants(dtype)
    arrays[name] = arrays[name].astype(LOW if dtype == WIDE else WIDE)
    proto = network(arrays, given=dtype, computed=dtype)
    with pytest.raises(Exception, match="ype"):
        ort.InferenceSession(proto.SerializeToString())
    assert "types contradict each other" in fixed(proto, dtype)
    lint = call("lint", "m.onnx")
    assert lint.code == 10
    assert "mixed-types" in lint.out
    assert "FLOAT16" in lint.out


def test_the_input_of_the_other_type(fixed):
    fixed(network(constants(), given=LOW), LOW)


def test_an_output_declared_as_the_other_type(fixed):
    proto = network(constants())
    proto.graph.node.append(helper.make_node("Cast", ["y"], ["last"], "last", to=TensorProto.FLOAT))
    proto.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("last", TensorProto.FLOAT16, ["n", 5])
    )
    fixed(proto, WIDE)


def test_one_branch_of_the_other_type(fixed):
    proto = network(constants())
    (branch,) = (a.g for a in proto.graph.node[-1].attribute if a.name == "then_branch")
    branch.node.append(
        helper.make_node("Cast", [branch.output[0].name], ["half"], "half", to=TensorProto.FLOAT16)
    )
    branch.output[0].CopyFrom(helper.make_tensor_value_info("half", TensorProto.FLOAT16, ["n", 5]))
    assert "types contradict each other" in fixed(proto, WIDE)


def test_a_right_file_is_left_alone(fixed):
    assert "types contradict" not in fixed(network(constants()), WIDE)


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "wrong.onnx", "m.onnx"),
        ("diagnose", "wrong.onnx", "-o", "run"),
        ("compare", "m.onnx", "--b", "wrong.onnx"),
    ],
)
def test_other_commands_read_it_too(command, call):
    arrays = constants()
    onnx.save(network(arrays), "m.onnx")
    onnx.save(network(arrays | {"w": arrays["w"].astype(LOW)}), "wrong.onnx")
    samples()
    ended = call(*command, "--inputs", "x.npz")
    assert ended.code in (0, 10), ended.out + ended.err


def test_what_was_mended_while_reading_does_not_end_the_ladder(call):
    proto = network(constants() | {"w": constants()["w"].astype(LOW)})
    proto.graph.node.insert(0, proto.graph.node.pop())
    onnx.save(proto, "wrong.onnx")
    samples()
    command = ("--inputs", "x.npz", "--allow", "unjudged")
    ended = call("diagnose", "wrong.onnx", *command, "-o", "run")
    rungs = {rung["name"]: rung for rung in ended.record["diagnosis"]}
    assert rungs["model"]["passed"]
    told = " ".join(sign["text"] for sign in rungs["harness"]["evidence"])
    assert "w is FLOAT16, not FLOAT" in told


@pytest.fixture
def verified(call):
    def verified(candidate, *options):
        shutil.rmtree("v", ignore_errors=True)
        command = ("verify", "m.onnx", candidate, "--inputs", "x.npz", "-o", "v", *options)
        ended = call(*command, folder="v")
        return ended.record["verdict"] | {"code": ended.code, "said": " ".join(ended.out.split())}

    return verified


@pytest.mark.parametrize("wrong", ["w", "g"])
def test_a_candidate_that_cannot_be_loaded_fails(wrong, verified):
    arrays = constants()
    onnx.save(network(arrays), "m.onnx")
    onnx.save(network(arrays | {wrong: arrays[wrong].astype(LOW)}), "wrong.onnx")
    with pytest.raises(Exception, match="ype"):
        ort.InferenceSession("wrong.onnx")
    samples()
    judged = verified("wrong.onnx")
    assert (judged["code"], judged["passed"]) == (10, False)
    assert all(output["passed"] for output in judged["outputs"].values())
    (failure,) = [f for f in judged["failures"] if f["kind"] == "mistyped"]
    assert failure["names"]["first"].startswith(f"{wrong} is FLOAT16, not FLOAT")
    assert failure["names"]["outputs"] == "pass"
    assert failure["numbers"]["clashes"] == 1
    assert judged["as_file"] == []
    assert "the file as it is cannot be loaded: 1 element type contradicts" in judged["said"]
    assert "halfwise lint wrong.onnx" in judged["said"]


def test_an_engine_of_a_mended_file_does_not_make_it_valid(verified, fake_worker):
    for name, dtype in (("m.onnx", WIDE), ("wrong.onnx", LOW)):
        s = Sketch()
        product = s.op(
            "MatMul", s.input("x", [1, 4]), s.constant(np.eye(4, dtype=dtype)), name="mm"
        )
        onnx.save(s.proto(s.op("Relu", product, name="relu")), name)
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((8, 1, 4), np.float32))
    where = ("--target", "tensorrt", "--trt-command", shlex.join(fake_worker("10.0.1")))
    assert verified("m.onnx", *where)["passed"]
    judged = verified("wrong.onnx", *where)
    assert (judged["level"], [f["kind"] for f in judged["failures"]]) == ("engine", ["mistyped"])


def test_what_fix_made_of_such_a_file_can_be_loaded(fixed, verified):
    arrays = constants()
    fixed(network(arrays | {"w": arrays["w"].astype(LOW)}), WIDE)
    judged = verified("run/model.onnx")
    assert not [f for f in judged["failures"] if f["kind"] == "mistyped"]


def test_what_was_taken_otherwise_than_it_is_given_is_on_the_first_screen(call):
    arrays = constants()
    onnx.save(network(arrays | {"w": arrays["w"].astype(LOW)}), "m.onnx")
    samples()
    with np.load("x.npz") as given:
        (values,) = given.values()
    np.savez("y.npz", other=np.abs(100 * values).astype(np.uint8))
    ended = call("fix", "m.onnx", "--inputs", "y.npz", "-o", "run", "--metric", "auto", screen=True)
    said = " ".join(ended.out.partition("Result")[0].split())
    assert "Types contradict each other" in said
    assert "y.npz has no array 'x': its only one, 'other', is taken" in said
    assert "is given as uint8, and converted to float32" in said


def test_types_that_no_cast_of_floats_mends_are_named(refused):
    onnx.save(network(constants() | {"a": np.ones((1, 4, 1, 1), np.int64)}), "m.onnx")
    samples()
    assert "Cast of a to FLOAT" in refused(3, "fix", "m.onnx", "--inputs", "x.npz", "-o", "run")
