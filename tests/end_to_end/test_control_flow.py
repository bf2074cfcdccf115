"""If, Loop and Scan from the command line to the written model."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.control import GO, MATRIX, ROW, STEP, graph
from tests.end_to_end.soundness import assert_minimal, assert_sound
from tests.models import COUNT, Ill, signals
from tests.unit.graph.sketch import Sketch, f32

HALF = TensorProto.FLOAT16


def node(op_type, inputs, outputs, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), outputs, **attributes)


def loop(factors) -> Ill:
    """A state that each step scales, and gives out; its first and its last value meet again."""
    s = Sketch()
    x = s.input("x", [4, 8])
    body = graph(
        "body",
        [
            node("Identity", "go", "on"),
            node("Gather", "factors step", "factor"),
            node("Mul", "state factor", "next"),
            node("Tanh", "next", "seen"),
        ],
        [("step", STEP), ("go", GO), ("state", MATRIX)],
        [("on", GO), ("next", MATRIX), ("seen", MATRIX)],
        {"factors": factors},
    )
    trips = s.constant(np.array(len(factors)))
    s.nodes.append(helper.make_node("Loop", [trips, "", x], ["last", "all"], "loop", body=body))
    first = s.op("Gather", "all", s.constant(np.array(0)), name="first", axis=0)
    y = s.op("Add", s.op("Sigmoid", "last", name="sigmoid"), first, name="add")
    y = s.op("Reshape", y, [4, 8], name="reshape")
    return Ill(s.proto(y), {"x": signals(4, 8, seed=1)})


def choice(*taken: bool) -> Ill:
    """One branch squares, and takes the root again; the other does nothing of the kind."""
    s = Sketch()
    x, flag = s.input("x", [4, 8]), s.input("flag", [], TensorProto.BOOL)
    h = s.op("Mul", x, f32(2.0), name="double")
    squares = [
        node("Mul", f"{h} {h}", "square"),
        node("Add", "square eps", "positive"),
        node("Sqrt", "positive", "root"),
    ]
    then = graph("then", squares, (), [("root", MATRIX)], {"eps": 1.0})
    other = graph("other", [node("Neg", h, "negative")], (), [("negative", MATRIX)])
    branches = {"then_branch": then, "else_branch": other}
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    y = s.op("Relu", "chosen", name="relu")
    flags = np.resize(taken, COUNT)
    return Ill(s.proto(y), {"x": signals(4, 8, seed=2, peak=1e3), "flag": flags})


def running_norm() -> Ill:
    """A Scan whose state is a sum of squares, of which only the root comes out."""
    s = Sketch()
    x = s.input("x", [16, 8])
    body = graph(
        "body",
        [
            node("Mul", "row row", "square"),
            node("Add", "sum square", "next"),
            node("Sqrt", "next", "norm"),
        ],
        [("sum", ROW), ("row", ROW)],
        [("next", ROW), ("norm", ROW)],
    )
    start = s.constant(np.ones(8, np.float32))
    s.nodes.append(
        helper.make_node(
            "Scan", [start, x], ["total", "norms"], "scan", body=body, num_scan_inputs=1
        )
    )
    return Ill(s.proto(s.op("Neg", "norms", name="neg")), {"x": signals(16, 8, seed=3, peak=300)})


def inner_types(ended) -> set[int]:
    """Return the element types that the bodies of the written model compute in."""
    model = onnx.shape_inference.infer_shapes(onnx.load(ended.model))
    bodies = [a.g for n in model.graph.node for a in n.attribute if a.HasField("g")]
    infos = (i for b in bodies for i in (*b.value_info, *b.output, *b.input))
    floats = (TensorProto.FLOAT, HALF)
    return {i.type.tensor_type.elem_type for i in infos} & set(floats)


@pytest.mark.parametrize(
    ("ill", "kept"),
    [
        (loop([1e3, 1e3, 1e-3, 1e-3]), {"next"}),
        (loop([0.5, 2.0, 0.5, 2.0]), set()),
        (choice(True), {"square", "positive", "root"}),
        (choice(True, False), {"square", "positive", "root"}),
        (choice(False), set()),
        (running_norm(), {"square", "next", "norm"}),
    ],
    ids=["state", "harmless_state", "taken", "both", "not_taken", "running_sum"],
)
def test_nodes_in_a_body_are_kept_one_by_one(fix, call, ill, kept):
    ended = fix(ill, "--allow", "unjudged", "--no-repair")
    assert ended.code == 0, ended.err
    assert ended.kept == kept
    assert ended.record["plan"]["unsupported"] == []
    assert kept or HALF in inner_types(ended)
    assert_sound(ended, ill, call)


def squares(x: str, y: str) -> list[onnx.NodeProto]:
    """A root of squares beyond FP16's range."""
    nodes = [node("Mul", f"{x} {x}", "square"), node("Add", "square eps", "positive")]
    return [*nodes, node("Sqrt", "positive", y)]


def norm(x: str, y: str) -> list[onnx.NodeProto]:
    """A LayerNorm of numbers whose squares are beyond FP16's range."""
    return [
        node("ReduceMean", x, "mean", axes=[-1]),
        node("Sub", f"{x} mean", "centred"),
        node("Mul", "centred centred", "square"),
        node("ReduceMean", "square", "variance", axes=[-1]),
        node("Add", "variance eps", "positive"),
        node("Sqrt", "positive", "root"),
        node("Div", "centred root", y),
    ]


SCOPES = pytest.mark.parametrize("scope", ["main", "If", "Loop", "Scan"])


def placed(calculation, scope: str, own=None, *, width=8, peak=1e3, masks=None) -> Ill:
    """Put a calculation into the main graph, a branch, or the body of a Loop or Scan.

    It may read `own` constants and, if there are `masks` ([samples, 1, width]), "mask".
    """
    s = Sketch(opset=13 if masks is not None or width > 8 else 12)
    s.input("x", [4, width])
    data = {"x": signals(4, width, seed=2, peak=peak)}
    if masks is not None:
        s.input("mask", [1, width])
        data["mask"] = masks
    own = own or {"eps": np.array(1.0)}
    if scope == "main":
        s.nodes += calculation("x", "y")
        s.constants += graph("own", (), (), (), own).initializer
    elif scope == "If":
        flag = s.input("flag", [], TensorProto.BOOL)
        then = graph("then", calculation("x", "inside"), (), [("inside", MATRIX)], own)
        other = graph("other", [node("Sigmoid", "x", "outside")], (), [("outside", MATRIX)])
        branches = {"then_branch": then, "else_branch": other}
        s.nodes.append(helper.make_node("If", [flag], ["y"], "choose", **branches))
        data["flag"] = np.resize((True, True, False), COUNT)
    elif scope == "Loop":
        nodes = [node("Identity", "go", "on"), *calculation("x", "inside")]
        states = [("step", STEP), ("go", GO), ("state", MATRIX)]
        nodes.append(node("Add", "state inside", "next"))
        body = graph("body", nodes, states, [("on", GO), ("next", MATRIX)], own)
        start = s.constant(np.zeros((4, width), np.float32))
        loop = [s.constant(np.array(3)), "", start]
        s.nodes.append(helper.make_node("Loop", loop, ["y"], "loop", body=body))
    else:
        nodes = calculation("row", "inside")
        row = [("row", (TensorProto.FLOAT, (width,)))]
        body = graph("body", nodes, row, [("inside", MATRIX if masks is not None else ROW)], own)
        s.nodes.append(helper.make_node("Scan", ["x"], ["y"], "scan", body=body, num_scan_inputs=1))
    return Ill(s.proto(s.op("Relu", "y", name="relu")), data)


@SCOPES
@pytest.mark.parametrize("calculation", [squares, norm])
def test_a_body_is_repaired_like_the_main_graph(fix, call, calculation, scope):
    ill = placed(calculation, scope)
    ended = fix(ill, "--allow", "unjudged")
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert len(ended.record["plan"]["repairs"]) == 1
    again = call("verify", "model.onnx", ended.model, "--inputs", "model.npz")
    assert again.code == 0, again.err


def hidden(x: str, y: str) -> list[onnx.NodeProto]:
    """Squares beyond FP16's range: x / inf is 0, which a large addend hides."""
    return [
        node("Mul", f"{x} {x}", "square"),
        node("ReduceMean", "square", "mean", axes=[-1]),
        node("Sqrt", "mean", "root"),
        node("Div", f"{x} root", "normal"),
        node("Add", "normal big", y),
    ]


@SCOPES
def test_an_infinity_that_no_output_shows_is_kept_out_of_a_body(fix, scope):
    ill = placed(hidden, scope, {"big": 1e4})
    ended = fix(ill, "--allow", "unjudged", "--no-repair")
    assert ended.code == 0, ended.err
    baseline = ended.record["baseline"]
    assert baseline["passed"]
    inside = {"square", "mean", "root"}
    harmless = {i["producer"]: i["harmless"] for i in baseline["intermediate_nonfinite"]}
    assert harmless == dict.fromkeys(inside, False)
    assert ended.kept == inside
    assert ended.record["verdict"]["intermediate_nonfinite"] == []
    assert_minimal(ended, ill)


@SCOPES
def test_an_infinity_may_end_in_a_body(fix, scope):
    def ended_by_tanh(x: str, y: str) -> list[onnx.NodeProto]:
        return [node("Mul", f"{x} {x}", "square"), node("Tanh", "square", y)]

    ended = fix(placed(ended_by_tanh, scope), "--allow", "unjudged", "--no-repair")
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    (inside,) = ended.record["verdict"]["intermediate_nonfinite"]
    assert (inside["producer"], inside["harmless"]) == ("square", True)


def masked(x: str, y: str) -> list[onnx.NodeProto]:
    """Attention's weights behind a mask that FP16 has as -inf."""
    nodes = [node("Mul", "mask lowest", "far"), node("Add", f"{x} far", "scores")]
    return [*nodes, node("Softmax", "scores", y, axis=-1)]


def masks(*lengths: int) -> np.ndarray:
    """Return [samples, 1, 8]: 1 from each length on."""
    return np.resize(np.arange(8) >= np.array(lengths)[:, None], (COUNT, 1, 8)).astype(np.float32)


@SCOPES
def test_a_mask_that_leaves_something_of_each_row_does_no_harm_in_a_body(fix, scope):
    ill = placed(masked, scope, {"lowest": np.array(-1e9)}, masks=masks(3, 5), peak=50.0)
    ended = fix(ill, "--allow", "unjudged")
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert ended.record["plan"]["repairs"] == []
    inside = ended.record["verdict"]["intermediate_nonfinite"]
    assert {(i["producer"], i["harmless"]) for i in inside} == {("scores", True)}


def computed(file, ill: Ill, webgpu) -> tuple[np.ndarray, np.ndarray]:
    """Return the original's output on the CPU, and a file's on WebGPU."""
    session = onnxruntime.InferenceSession(ill.proto.SerializeToString())
    samples = [ill.sample(i) for i in range(COUNT)]
    ran = webgpu.run(file, samples)
    right = [session.run(None, sample)[0] for sample in samples]
    return np.stack(right), np.stack([next(iter(out.values())) for out in ran])


@SCOPES
def test_a_mask_is_repaired_in_a_body(fix, call, webgpu, scope):
    lowest = {"lowest": np.array(-3.4028235e38)}
    ill = placed(masked, scope, lowest, masks=masks(3, 0), peak=3.0)
    ended = fix(ill, "--allow", "unjudged")
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert [one["rule"] for one in ended.record["plan"]["repairs"]] == ["mask"]
    again = call("verify", "model.onnx", ended.model, "--inputs", "model.npz")
    assert again.code == 0, again.err
    right, actual = computed(ended.model, ill, webgpu)
    assert np.abs(actual - right).max() <= 0.01 * np.abs(right).max()


@SCOPES
def test_a_sum_is_split_in_a_body(fix, webgpu, scope):
    def shares(x: str, y: str) -> list[onnx.NodeProto]:
        mean = node("ReduceMean", "size", "mean", axes=[-1])
        return [node("Abs", x, "size"), mean, node("Div", f"{x} mean", y)]

    ill = placed(shares, scope, width=4096, peak=3.0)
    asked = ("--only", "fp16", "--accumulate", "fp16", "--rel-max", "0.0015")
    ended = fix(ill, *asked, "--allow", "unjudged")
    assert ended.code == 0, ended.err
    assert [one["rule"] for one in ended.record["plan"]["repairs"]] == ["split"]
    right, actual = computed(ended.model, ill, webgpu)
    assert np.abs(actual - right).max() <= 0.0015 * np.abs(right).max()


def captured_squares() -> Ill:
    """Squares beyond FP16's range, which only the branches read.

    The large addend hides it, so that a constant would pass, too.
    """
    s = Sketch()
    x, flag = s.input("x", [4, 8]), s.input("flag", [], TensorProto.BOOL)
    square = s.op("Mul", x, x, name="square")
    branches = {}
    for b in ("then_branch", "else_branch"):
        nodes = [
            node("ReduceMean", square, f"{b}_mean", axes=[-1]),
            node("Sqrt", f"{b}_mean", f"{b}_root"),
            node("Div", f"{x} {b}_root", f"{b}_normal"),
            node("Add", f"{b}_normal {b}_big", f"{b}_y"),
        ]
        branches[b] = graph(b, nodes, (), [(f"{b}_y", MATRIX)], {f"{b}_big": 1e3})
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    data = {"x": signals(4, 8, seed=4, peak=3e3), "flag": np.full(COUNT, True)}
    return Ill(s.proto("chosen"), data)


def test_an_infinity_that_only_a_body_reads_is_not_harmless(fix, call):
    ill = captured_squares()
    ended = fix(ill, "--allow", "unjudged")
    assert ended.code == 0, ended.err
    assert [one["kind"] for one in ended.record["verdict"]["unjudged"]] == ["flat"]
    assert ended.kept == {"square", "then_branch_mean", "then_branch_root"}
    assert "do no harm" not in ended.out
    baseline = ended.record["baseline"]["intermediate_nonfinite"]
    inside = ("square", "then_branch_mean", "then_branch_root")
    assert {t["producer"]: t["harmless"] for t in baseline} == dict.fromkeys(inside, False)
    assert ended.record["verdict"]["intermediate_nonfinite"] == []
    again = call("verify", "model.onnx", ended.model, "--inputs", "model.npz")
    assert again.code in (0, 10)
    assert "not the original" not in again.out


def test_a_body_that_is_not_observed_is_named(fix):
    s = Sketch(opset=8)
    nodes = [node("Identity", "go", "on"), node("Mul", "state half", "next")]
    formals = [("step", STEP), ("go", GO), ("state", MATRIX)]
    body = graph("body", nodes, formals, [("on", GO), ("next", MATRIX)], {"half": 0.5})
    loop = [s.constant(np.array(3)), "", s.input("x", [4, 8])]
    s.nodes.append(helper.make_node("Loop", loop, ["y"], "loop", body=body))
    ended = fix(Ill(s.proto("y"), {"x": signals(4, 8, seed=2)}), "--allow", "unjudged")
    notes = ended.record["provenance"]["notes"]
    (told,) = [n for n in notes if n["kind"] == "unobserved"]
    assert told["facts"] == {"nodes": ["loop"], "opset": 8}
    assert "no guard and no repair sees inside loop" in ended.err


def test_a_state_may_grow_beyond_the_shape_that_its_body_declares(fix):
    s = Sketch()
    x = s.input("x", [4, 8])
    nodes = [node("Identity", "go", "on"), node("Concat", "state state", "next", axis=0)]
    formals = [("step", STEP), ("go", GO), ("state", (TensorProto.FLOAT, (4, 8)))]
    body = graph("body", nodes, formals, [("on", GO), ("next", MATRIX)])
    s.nodes.append(helper.make_node("Loop", [s.constant(np.array(3)), "", x], ["last"], body=body))
    ill = Ill(s.proto(s.op("Tanh", "last", name="tanh")), {"x": signals(4, 8, seed=5)})
    ended = fix(ill, "--allow", "unjudged")
    assert ended.code == 0, ended.err
