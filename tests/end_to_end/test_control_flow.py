"""If, Loop and Scan from the command line to the written model."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.control import GO, MATRIX, ROW, STEP, graph
from tests.end_to_end.soundness import assert_sound
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


def placed(calculation, scope: str) -> Ill:
    """Put a calculation into the main graph, a branch, or the body of a Loop or Scan."""
    s = Sketch()
    s.input("x", [4, 8])
    own = {"eps": np.array(1.0)}
    if scope == "main":
        s.nodes += calculation("x", "y")
        s.constants.append(numpy_helper.from_array(np.array(1, np.float32), "eps"))
    elif scope == "If":
        flag = s.input("flag", [], TensorProto.BOOL)
        then = graph("then", calculation("x", "inside"), (), [("inside", MATRIX)], own)
        other = graph("other", [node("Sigmoid", "x", "outside")], (), [("outside", MATRIX)])
        branches = {"then_branch": then, "else_branch": other}
        s.nodes.append(helper.make_node("If", [flag], ["y"], "choose", **branches))
    elif scope == "Loop":
        nodes = [node("Identity", "go", "on"), *calculation("x", "inside")]
        states = [("step", STEP), ("go", GO), ("state", MATRIX)]
        nodes.append(node("Add", "state inside", "next"))
        body = graph("body", nodes, states, [("on", GO), ("next", MATRIX)], own)
        start = s.constant(np.zeros((4, 8), np.float32))
        loop = [s.constant(np.array(3)), "", start]
        s.nodes.append(helper.make_node("Loop", loop, ["y"], "loop", body=body))
    else:
        body = graph("body", calculation("row", "inside"), [("row", ROW)], [("inside", ROW)], own)
        s.nodes.append(helper.make_node("Scan", ["x"], ["y"], "scan", body=body, num_scan_inputs=1))
    data = {"x": signals(4, 8, seed=2, peak=1e3)}
    if scope == "If":
        data["flag"] = np.resize((True, False), COUNT)
    return Ill(s.proto(s.op("Relu", "y", name="relu")), data)


@pytest.mark.parametrize("scope", ["main", "If", "Loop", "Scan"])
@pytest.mark.parametrize("calculation", [squares, norm])
def test_a_body_is_repaired_like_the_main_graph(fix, call, calculation, scope):
    ill = placed(calculation, scope)
    ended = fix(ill, "--allow", "unjudged")
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    assert len(ended.record["plan"]["repairs"]) == 1
    again = call("verify", "model.onnx", ended.model, "--inputs", "model.npz")
    assert again.code == 0, again.err


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
