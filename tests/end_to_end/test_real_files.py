"""Kinds of files that people report: what no TensorRT builds, what only ONNX Runtime has."""

import json
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
F32 = TensorProto.FLOAT
info = helper.make_tensor_value_info


def weights(*shape, seed=0, scale=0.2):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def proto(nodes, inputs, outputs, constants, **domains):
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = [helper.make_opsetid(d, v) for d, v in {"": 17, **domains}.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def signals(*shape, seed=1):
    """Numbers that do not look like noise."""
    return weights(*shape, seed=seed, scale=0.3).cumsum(-1) + 0.5


@pytest.fixture
def fixed(call):
    def fixed(model, *options, code=0, **inputs):
        onnx.save(model, "m.onnx")
        np.savez("x.npz", **inputs)
        arguments = ("fix", "m.onnx", "--inputs", "x.npz", "-o", "run", *options)
        ended = call(*arguments, screen=True)
        assert ended.code == code, ended.out + ended.err
        return ended

    return fixed


def decoder():
    """One layer with a cache, in the form of ONNX Runtime's genai builder."""
    cache: list[str | int | None] = ["n", 2, "past", 8]
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y"], "norm", axis=-1),
        *(helper.make_node("MatMul", ["y", f"w{a}"], [a], a) for a in "qkv"),
        helper.make_node(
            *("GroupQueryAttention", ["q", "k", "v", "pk", "pv", "last", "all"]),
            ["a", "nk", "nv"],
            "attention",
            domain=MICROSOFT,
            num_heads=4,
            kv_num_heads=2,
        ),
        helper.make_node("MatMul", ["a", "wo"], ["o"], "project"),
        helper.make_node(
            "SkipSimplifiedLayerNormalization", ["x", "o", "g"], ["z"], "skip", domain=MICROSOFT
        ),
    ]
    integers = [info("last", TensorProto.INT32, ["n"]), info("all", TensorProto.INT32, [])]
    inputs = [info("x", F32, ["n", "s", 32]), info("pk", F32, cache), info("pv", F32, cache)]
    outputs = [info("z", F32, ["n", "s", 32]), info("nk", F32, ["n", 2, "t", 8])]
    constants = {"g": np.ones(32, np.float32), "wo": weights(32, 32)}
    constants |= {f"w{a}": weights(32, 32 if a == "q" else 16, seed=ord(a)) for a in "qkv"}
    return proto(nodes, [*inputs, *integers], outputs, constants, **{MICROSOFT: 1})


def test_a_cache_that_starts_empty(call, tmp_path):
    onnx.save(decoder(), "m.onnx")
    (tmp_path / "data").mkdir()
    for i in range(8):
        past = 0 if i < 4 else i
        length = 3 if i < 4 else 1
        cache = signals(1, 2, past, 8, seed=i)
        np.savez(
            tmp_path / "data" / f"{i}.npz",
            x=signals(1, length, 32, seed=20 + i),
            pk=cache,
            pv=cache,
            last=np.array([past + length - 1], np.int32),
            all=np.array(past + length, np.int32),
        )
    ended = call("fix", "m.onnx", "--inputs", "data", "-o", "run", screen=True)
    assert ended.code == 0, ended.out + ended.err
    assert ended.kept == set()
    assert ended.record["plan"]["unsupported"] == []
    assert ended.record["search"]["refused"] == ""
    assert "before ONNX Runtime's optimizer" in " ".join(ended.out.split())
    assert "trtexec" not in ended.out


def test_sequences_are_built_by_nobody(fixed, call):
    nodes = [
        helper.make_node("SplitToSequence", ["x", "parts"], ["s"], "split", axis=-1),
        helper.make_node("SequenceAt", ["s", "one"], ["h"], "at"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "mm"),
    ]
    constants = {"parts": np.array([4, 4]), "one": np.array(1), "w": weights(4, 5)}
    model = proto(nodes, [info("x", F32, ["n", 8])], [info("y", F32, ["n", 5])], constants)
    ended = fixed(model, x=signals(8, 1, 8))
    assert "SplitToSequence" in ended.out
    assert "trtexec" not in ended.out
    (step,) = (s for s in ended.record["next_step"] if s["kind"] == "lint")
    linted = call(*step["command"][1:])
    assert linted.code == 10
    assert "SplitToSequence" in linted.out


def test_strings_are_judged_and_built_by_nobody(call, tmp_path):
    words = ["half", "wise", "runs", "not"]
    keys: dict[str, Any] = {"keys_strings": words, "values_int64s": [1, 2, 3, 4]}
    nodes = [
        helper.make_node("LabelEncoder", ["words"], ["ids"], "ids", domain="ai.onnx.ml", **keys),
        helper.make_node("Gather", ["table", "ids"], ["h"], "embed"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "mm"),
    ]
    ends = info("words", TensorProto.STRING, ["n", 3]), info("y", F32, ["n", 3, 4])
    constants = {"table": weights(5, 8), "w": weights(8, 4)}
    onnx.save(proto(nodes, ends[:1], ends[1:], constants, **{"ai.onnx.ml": 2}), "m.onnx")
    (tmp_path / "data").mkdir()
    for i in range(8):
        chosen = np.random.default_rng(i).choice(words, (1, 3))
        np.savez(tmp_path / "data" / f"{i}.npz", words=chosen)
    ended = call("fix", "m.onnx", "--inputs", "data", "-o", "run", screen=True)
    assert ended.code == 0, ended.out + ended.err
    assert ended.kept == set()
    why = "No version of TensorRT can build it: TensorRT has no tensors of type string: words"
    assert why in " ".join(ended.out.split())
    assert "trtexec" not in ended.out


def upscaler():
    """Twice the pixels, of no range that pictures have."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "conv", pads=[1] * 4),
        helper.make_node("DepthToSpace", ["h"], ["y"], "shuffle", blocksize=2),
    ]
    ends = info("x", F32, ["n", 3, 16, 16]), info("y", F32, ["n", 3, 32, 32])
    return proto(nodes, ends[:1], ends[1:], {"w": weights(12, 3, 3, 3, scale=3)})


def points():
    """Places and scores of maxima: as many as there are."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], "conv", pads=[1] * 4),
        helper.make_node("Sigmoid", ["h"], ["p"], "sigmoid"),
        helper.make_node("MaxPool", ["p"], ["m"], "pool", kernel_shape=[5, 5], pads=[2] * 4),
        helper.make_node("Equal", ["p", "m"], ["is"], "is"),
        helper.make_node("NonZero", ["is"], ["found"], "found"),
        helper.make_node("Transpose", ["found"], ["places"], "places", perm=[1, 0]),
        helper.make_node("GatherND", ["p", "places"], ["scores"], "scores"),
        helper.make_node("Gather", ["places", "xy"], ["pixels"], "pixels", axis=1),
        helper.make_node("Cast", ["pixels"], ["keypoints"], "float", to=F32),
    ]
    ends = info("keypoints", F32, ["k", 2]), info("scores", F32, ["k"])
    constants = {"w": weights(1, 1, 3, 3, scale=3), "xy": np.array([3, 2])}
    return proto(nodes, [info("x", F32, [1, 1, 16, 16])], ends, constants)


def one_token():
    """A cache by Concat, and the same word after all of them."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], "cache", axis=1),
        helper.make_node("ReduceMean", ["present"], ["mean"], "mean", axes=[1]),
        helper.make_node("Add", ["x", "mean"], ["h"], "add"),
        helper.make_node("MatMul", ["h", "w"], ["raw"], "head"),
        helper.make_node("Add", ["raw", "most"], ["logits"], "first"),
    ]
    ins = info("x", F32, ["n", "t", 8]), info("past", F32, ["n", "p", 8])
    outs = info("logits", F32, ["n", "t", 12]), info("present", F32, ["n", "all", 8])
    most = np.eye(1, 12, dtype=np.float32)[0] * 90
    return proto(nodes, ins, outs, {"w": weights(8, 12), "most": most})


@pytest.mark.parametrize(
    ("model", "inputs", "metrics"),
    [
        (upscaler, {"x": (8, 1, 3, 16, 16)}, ["psnr", "worst-psnr"]),
        (points, {"x": (8, 1, 1, 16, 16)}, ["keypoints", "worst-keypoints"]),
        (one_token, {"x": (8, 1, 4, 8), "past": (8, 1, 3, 8)}, []),
    ],
)
def test_outputs_are_judged_by_their_use(model, inputs, metrics, fixed):
    ended = fixed(model(), **{name: signals(*shape) for name, shape in inputs.items()})
    assert [one["metric"] for one in ended.record["criterion"]["recognised"]] == metrics


def test_a_token_that_is_all_there_is_decides_nothing(fixed):
    inputs = {"x": signals(8, 1, 4, 8), "past": signals(8, 1, 3, 8, seed=2)}
    ended = fixed(one_token(), "--metric", "token-agreement", code=10, **inputs)
    assert ended.out.startswith("NOT JUDGED")


def test_a_batch_held_by_the_export_is_on_the_first_screen(fixed):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "mm"),
        helper.make_node("Reshape", ["h", "shape"], ["y"], "flat"),
    ]
    constants = {"w": weights(4, 6), "shape": np.array([1, 12])}
    model = proto(nodes, [info("x", F32, ["n", 2, 4])], [info("y", F32, [1, 12])], constants)
    assert "one batch size" in fixed(model, x=signals(8, 1, 2, 4)).out


@pytest.mark.parametrize(("shapes", "told"), [((["n", 1], ["n", 16]), True), ((["n"], [3]), False)])
def test_branches_of_shapes_that_are_known_in_part(call, shapes, told):
    branches = {}
    for name, shape in zip(("then_branch", "else_branch"), shapes, strict=True):
        node = helper.make_node("Identity", [f"of_{name}"], [name])
        branches[name] = helper.make_graph([node], name, [], [info(name, F32, shape)])
    inputs = [info(f"of_{n}", F32, s) for n, s in zip(branches, shapes, strict=True)]
    node = helper.make_node("If", ["c"], ["y"], "if", **branches)
    inputs.append(info("c", TensorProto.BOOL, []))
    onnx.save(proto([node], inputs, [info("y", F32, None)], {}), "m.onnx")
    ended = call("lint", "m.onnx", "--trt-version", "10.3")
    assert ("its branches give [n,1] and [n,16]" in " ".join(ended.out.split())) == told


def test_branches_of_different_shapes(call):
    branches = {}
    for name, length in (("then_branch", 1), ("else_branch", 2)):
        node = helper.make_node(
            *("Constant", [], [name]), value=numpy_helper.from_array(np.ones(length, np.int64))
        )
        end = info(name, TensorProto.INT64, [length])
        branches[name] = helper.make_graph([node], name, [], [end])
    nodes = [
        helper.make_node("If", ["c"], ["r"], "if", **branches),
        helper.make_node("Reshape", ["x", "r"], ["y"], "reshape"),
    ]
    inputs = [info("x", F32, [4]), info("c", TensorProto.BOOL, [])]
    onnx.save(proto(nodes, inputs, [info("y", F32, None)], {}), "m.onnx")
    ended = call("lint", "m.onnx", "--trt-version", "10.3")
    assert ended.code == 10
    assert "its branches give [1] and [2]" in " ".join(ended.out.split())


def squeezed():
    """An axis of length 1 is summed away: the branches give two ranks, as scripted exports do."""
    nodes = [
        helper.make_node("Shape", ["x"], ["length"], "length", start=1, end=2),
        helper.make_node("Equal", ["length", "one"], ["is"], "is"),
        helper.make_node("MatMul", ["x", "w"], ["h"], "mm"),
    ]
    branches = {}
    free: list[str | int | None] = ["n", "t", 5]
    for name, op, shape in (
        ("then_branch", "ReduceSum", [free[0], free[2]]),
        ("else_branch", "Identity", free),
    ):
        more: dict[str, Any] = {"keepdims": 0} if op == "ReduceSum" else {}
        read = ["h", "one"] if op == "ReduceSum" else ["h"]
        inner = helper.make_node(op, read, [name], f"{name}/{op}", **more)
        branches[name] = helper.make_graph([inner], name, [], [info(name, F32, shape)])
    nodes += [
        helper.make_node("If", ["is"], ["chosen"], "if", **branches),
        helper.make_node("Relu", ["chosen"], ["y"], "relu"),
    ]
    constants = {"w": weights(8, 5), "one": np.array([1])}
    return proto(nodes, [info("x", F32, ["n", "t", 8])], [info("y", F32, None)], constants)


@pytest.mark.parametrize("lengths", [(4, 4), (4, 6)])
def test_such_branches_are_built_by_later_versions_or_with_fixed_shapes(lengths, call, tmp_path):
    onnx.save(squeezed(), "m.onnx")
    (tmp_path / "data").mkdir()
    for i in range(8):
        x = signals(1, lengths[i % 2], 8, seed=i)
        np.savez(tmp_path / "data" / f"{i}.npz", x=x)
    ended = call("fix", "m.onnx", "--inputs", "data", "-o", "run", "--allow", "unjudged")
    assert ended.code == 0, ended.out + ended.err
    told = " ".join(ended.out.split())
    fixed = lengths[0] == lengths[1]
    assert f"TensorRT before 11.0 {'builds it only with' if fixed else 'cannot build it'}" in told
    steps = {step["kind"]: step for step in ended.record["next_step"]}
    assert steps["build"]["names"]["since"] == ("9" if fixed else "11.0")
    assert ("model.static.onnx" in told) == fixed
    assert (tmp_path / "run" / "model.static.onnx").exists() == fixed
    assert "older" not in steps
    assert call(*steps["lint"]["command"][1:]).code == 10


def detector(domain, tail=False):
    """Boxes and scores that a plugin reads; `tail` puts a product behind it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "mm"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "wb"], ["boxes"], "to_boxes"),
        helper.make_node("MatMul", ["r", "ws"], ["raw"], "to_scores"),
        helper.make_node("Sigmoid", ["raw"], ["scores"], "sigmoid"),
        helper.make_node(
            *("EfficientNMS_TRT", ["boxes", "scores"], ["num", "kept"], "nms"),
            domain=domain,
            score_threshold=0.25,
        ),
    ]
    outputs = [info("num", TensorProto.INT32, ["n", 1]), info("kept", F32, ["n", 5, 4])]
    constants = {"w": weights(8, 16), "wb": weights(16, 4), "ws": weights(16, 3)}
    if tail:
        nodes.append(helper.make_node("MatMul", ["kept", "wt"], ["y"], "tail"))
        constants["wt"] = weights(4, 4)
        outputs = [info("y", F32, ["n", 5, 4]), info("scores", F32, ["n", 6, 3])]
    domains = {domain: 1} if domain else {}
    return proto(nodes, [info("x", F32, ["n", 6, 8])], outputs, constants, **domains)


def written(ended):
    return {node.name: node for node in onnx.load(ended.model).graph.node}


@pytest.mark.parametrize("domain", ["", "TRT", "com.nvidia"])
def test_a_plugin_at_the_end_is_written_back(domain, fixed, call):
    ended = fixed(detector(domain), x=signals(8, 1, 6, 8))
    assert set(ended.record["verdict"]["outputs"]) == {"boxes", "scores"}
    plugin = written(ended)["nms"]
    assert (plugin.op_type, plugin.domain) == ("EfficientNMS_TRT", domain)
    assert list(plugin.input) == ["boxes", "scores"]
    graph = onnx.load(ended.model).graph
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["num", "kept"]
    assert "needs plugins for EfficientNMS_TRT" in ended.out
    again = call("verify", "m.onnx", ended.model, "--inputs", "x.npz")
    assert again.code == 0, again.out + again.err


def test_a_plugin_in_the_middle_takes_what_follows_along(fixed):
    ended = fixed(detector("TRT", tail=True), x=signals(8, 1, 6, 8))
    assert set(ended.record["verdict"]["outputs"]) == {"boxes", "scores"}
    assert {"nms", "tail"} <= set(written(ended))
    assert "nor does what follows (1 node)" in " ".join(ended.err.split())


def test_what_is_not_judged_is_said_first(fixed):
    ended = fixed(detector("TRT", tail=True), x=signals(8, 1, 6, 8))
    (note,) = [n for n in ended.record["provenance"]["notes"] if n["kind"] == "aside"]
    assert (note["facts"]["outputs"], note["facts"]["ops"]) == (["y"], ["EfficientNMS_TRT"])
    assert note["facts"]["read"] == ["boxes", "scores"]
    top = " ".join(ended.out.split("\n\n")[0].split())
    assert "y is not judged: EfficientNMS_TRT does not run here" in top
    assert "what it reads (boxes, scores) is judged." in top


def renamed(proto):
    """Other names of nodes and of the values behind the plugin."""
    for number, node in enumerate(proto.graph.node):
        node.name = f"n{number}"
        for names in (node.input, node.output):
            names[:] = [{"kept": "selected"}.get(name, name) for name in names]


def low_aside(proto):
    """A rounded constant, and Casts in front of the plugin and of what follows."""
    graph = proto.graph
    (weight,) = (value for value in graph.initializer if value.name == "wt")
    rounded = numpy_helper.to_array(weight).astype(np.float16)
    weight.CopyFrom(numpy_helper.from_array(rounded, "wt"))
    half, full = TensorProto.FLOAT16, F32
    tail = graph.node.pop()
    tail.input[:], tail.output[:] = ["kept_low", "wt"], ["y_low"]
    graph.node.extend(
        [
            helper.make_node("Cast", ["kept"], ["kept_low"], "lower", to=half),
            tail,
            helper.make_node("Cast", ["y_low"], ["y"], "raise", to=full),
        ]
    )


def low_before(proto):
    """Scores in FP16, and a Cast with a name of its own in front of the plugin."""
    nodes = proto.graph.node
    (sigmoid,) = (node for node in nodes if node.name == "sigmoid")
    (nms,) = (node for node in nodes if node.name == "nms")
    place = list(nodes).index(sigmoid)
    sigmoid.input[:], nms.input[1] = ["raw_low"], "scores_full"
    nodes.insert(place + 1, helper.make_node("Cast", ["scores"], ["scores_full"], "up", to=F32))
    nodes.insert(
        place, helper.make_node("Cast", ["raw"], ["raw_low"], "down", to=TensorProto.FLOAT16)
    )


def without_plugin(proto):
    """The boxes stand in for what the plugin selects."""
    (nms,) = (node for node in proto.graph.node if node.name == "nms")
    nms.CopyFrom(helper.make_node("Identity", ["boxes"], ["kept"], "nms"))


def other_score(proto):
    (nms,) = (node for node in proto.graph.node if node.name == "nms")
    nms.attribute[0].f = 0.5


def other_weight(proto):
    (weight,) = (value for value in proto.graph.initializer if value.name == "wt")
    weight.CopyFrom(numpy_helper.from_array(weights(4, 4) * np.float32(1.01), "wt"))


def swapped(proto):
    (nms,) = (node for node in proto.graph.node if node.name == "nms")
    nms.input[:] = ["scores", "boxes"]


def without_tail(proto):
    proto.graph.node.pop()
    proto.graph.node[-1].output[1] = "y"


def with_relu(proto):
    proto.graph.node[-1].output[0] = "z"
    proto.graph.node.append(helper.make_node("Relu", ["z"], ["y"], "last"))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (renamed, None),
        (low_aside, None),
        (low_before, None),
        (without_plugin, "nms (EfficientNMS_TRT)"),
        (other_score, "nms (EfficientNMS_TRT)"),
        (other_weight, "wt"),
        (swapped, "scores"),
        (without_tail, "tail (MatMul)"),
        (with_relu, "tail (MatMul)"),
    ],
)
def test_what_is_not_run_is_compared(change, where, call):
    original = detector("TRT", tail=True)
    del original.graph.output[1:]
    onnx.save(original, "m.onnx")
    change(original)
    onnx.save(original, "candidate.onnx")
    np.savez("x.npz", x=signals(8, 1, 6, 8))
    command = ("verify", "m.onnx", "candidate.onnx", "--inputs", "x.npz", "-o", "v")
    ended = call(*command, folder="v")
    kinds = {f["kind"]: f["names"] for f in ended.record["verdict"]["failures"]}
    assert kinds == ({} if where is None else {"other-aside": {"where": where}}), ended.err
    assert ended.code == (0 if where is None else 10)
    assert (f"differs from the original: at {where}" in ended.out) == (where is not None)


@pytest.mark.parametrize("kind", ["file", "function"])
def test_numbers_stand_in_for_a_plugin_in_the_middle(kind, fixed, tmp_path):
    source = "kept.npz"
    if kind == "file":
        np.savez("kept.npz", kept=signals(8, 1, 5, 4).astype(np.float64))
    else:
        source = "kept.py:kept"
        (tmp_path / "kept.py").write_text(
            "import numpy as np\n"
            "def kept(sample):\n"
            "    return {'kept': np.repeat(sample['x'][:, :5, :4], 1, 0)}\n"
        )
    ended = fixed(detector("TRT", tail=True), "--plugin-outputs", source, x=signals(8, 1, 6, 8))
    assert set(ended.record["verdict"]["outputs"]) == {"y", "boxes", "scores"}
    graph = onnx.load(ended.model).graph
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["y", "scores"]
    assert list(written(ended)["nms"].output) == ["num", "kept"]


_OF_VALUES = ("Bernoulli", "Dropout")


def noisy(op, **attributes):
    given = ["h"] if op.endswith("Like") or op in _OF_VALUES else []
    given += ["ratio", "training"] if op == "Dropout" else []
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["l"], "mm"),
        helper.make_node("Sigmoid", ["l"], ["h"], "sigmoid"),
        helper.make_node(op, given, ["noise"], "noise", **attributes),
        helper.make_node("Mul", ["noise", "scale"], ["scaled"], "scaled"),
        helper.make_node("Add", ["h", "scaled"], ["z"], "add"),
        helper.make_node("MatMul", ["z", "v"], ["y"], "out"),
    ]
    constants = {"w": weights(8, 8), "v": weights(8, 4), "scale": np.float32(0.5)}
    constants |= {"ratio": np.float32(0.5), "training": np.array(True)}
    return proto(nodes, [info("x", F32, ["n", 6, 8])], [info("y", F32, ["n", 6, 4])], constants)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("RandomNormalLike", {}),
        ("RandomUniformLike", {"seed": 3.0}),
        ("RandomNormal", {"shape": [1, 6, 8]}),
        ("Bernoulli", {}),
        ("Dropout", {}),
    ],
)
def test_what_is_drawn_is_drawn_again(op, attributes, fixed, call):
    ended = fixed(noisy(op, **attributes), x=signals(8, 1, 6, 8))
    assert "draws random numbers" in " ".join(ended.err.split())
    graph = onnx.load(ended.model).graph
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["y"]
    assert written(ended)["noise"].op_type == op
    verdict = ended.record["verdict"]
    # What these read is judged, too; only the shape matters to those that are like a value.
    judged = {"y", "h"} if op in _OF_VALUES else {"y"}
    assert set(verdict["outputs"]) == set(verdict["as_file"][0]["outputs"]) == judged
    assert set(ended.record["baseline"]["outputs"]) == judged
    assert {name for axis in verdict["axes"] for name in axis["inputs"]} == {"x"}
    assert not verdict["hints"]
    again = call("verify", "m.onnx", ended.model, "--inputs", "x.npz")
    assert again.code == 0, again.out + again.err


def sampling(kind):
    """Draws that end a network, in a branch, or in a Loop, whose words nothing reads."""
    drawn = helper.make_node(
        *("Multinomial", ["h"], ["drawn"], "drawn"), sample_size=4, dtype=TensorProto.INT64
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "mm")]
    outputs = [info("y", F32, ["n", 4])]
    if kind == "end":
        nodes.append(drawn)
        outputs = [info("drawn", TensorProto.INT64, ["n", 4])]
    if kind == "branch":
        inner = [helper.make_node("Dropout", ["h", "ratio", "yes"], ["dropped"], "drop")]
        branches = {
            "then_branch": helper.make_graph(inner, "t", [], [info("dropped", F32, ["n", 8])]),
            "else_branch": helper.make_graph(
                *([helper.make_node("Identity", ["h"], ["same"], "same")], "e", []),
                [info("same", F32, ["n", 8])],
            ),
        }
        nodes += [
            helper.make_node("ReduceMax", ["x"], ["most"], "most", keepdims=0),
            helper.make_node("Greater", ["most", "ratio"], ["is"], "is"),
            helper.make_node("If", ["is"], ["z"], "holder", **branches),
        ]
    if kind == "loop":
        add = helper.make_node("Cast", ["drawn"], ["float"], "float", to=F32)
        inner = [drawn, add, helper.make_node("Concat", ["float"] * 2, ["after"], "twice", axis=1)]
        inner.append(helper.make_node("Identity", ["go"], ["goes"], "goes"))
        given = [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, [])]
        given.append(info("before", F32, ["n", 8]))
        ends = [info("goes", TensorProto.BOOL, []), info("after", F32, ["n", 8])]
        ends.append(info("drawn", TensorProto.INT64, ["n", 4]))
        body = helper.make_graph(inner, "body", given, ends)
        nodes.append(
            helper.make_node("Loop", ["3", "yes", "h"], ["z", "words"], "holder", body=body)
        )
        outputs.append(info("words", TensorProto.INT64, [3, "n", 4]))
    if kind != "end":
        nodes.append(helper.make_node("MatMul", ["z", "v"], ["y"], "out"))
    constants = {"w": weights(8, 8), "v": weights(8, 4), "ratio": np.float32(0.5)}
    constants |= {"yes": np.array(True), "3": np.array(3)}
    return proto(nodes, [info("x", F32, ["n", 8])], outputs, constants)


@pytest.mark.parametrize(
    ("kind", "lost", "judged"),
    [("end", "drawn", {"h"}), ("branch", "", {"y", "h", "is"}), ("loop", "words", {"y", "h"})],
)
def test_what_is_drawn_in_bodies_or_given_out_is_said(kind, lost, judged, fixed, call):
    model = sampling(kind)
    ended = fixed(model, x=signals(8, 1, 8))
    top = " ".join(ended.out.split("\n\n")[0].split())
    assert (f"{lost} is not judged: " if lost else "holder draws random numbers") in top
    assert set(ended.record["verdict"]["outputs"]) == judged
    graph = onnx.load(ended.model).graph
    assert [v.name for v in graph.output] == [v.name for v in model.graph.output]
    assert [v.name for v in graph.input] == ["x"]
    onnx.checker.check_model(onnx.load(ended.model), full_check=True)
    again = call("verify", "m.onnx", ended.model, "--inputs", "x.npz")
    assert again.code == 0, again.out + again.err


@pytest.mark.parametrize("inner", [False, True])
def test_a_plugin_in_a_branch_is_named(inner, fixed):
    """A plugin at the start, or in a branch, whose If is set aside."""
    plugin = helper.make_node("Own_TRT", ["h"], ["p"], "own", domain="TRT")
    nodes = [helper.make_node("Relu", ["x"], ["h"], "relu"), plugin]
    if inner:
        end = [info("p", F32, ["n", 8])]
        body = helper.make_graph([plugin], "t", [], end)
        nodes[1] = helper.make_node("If", ["c"], ["q"], "if", then_branch=body, else_branch=body)
    nodes.append(helper.make_node("MatMul", ["q" if inner else "p", "w"], ["y"], "mm"))
    model = proto(
        *(nodes, [info("x", F32, ["n", 8]), info("c", TensorProto.BOOL, [])][: 1 + inner]),
        *([info("y", F32, ["n", 8])], {"w": weights(8, 8)}),
        TRT=1,
    )
    ended = fixed(model, x=signals(8, 1, 8), **({"c": np.array([True] * 8)} if inner else {}))
    assert "y is not judged: Own_TRT does not run here" in " ".join(ended.out.split())
    assert "needs plugins for Own_TRT:" in " ".join(ended.out.split())


def two_rates(op="Equal", *, named=False):
    """A network that is one If: the sampling rate chooses the weights, as in voice detectors.

    If `named`, an Identity gives its output out.
    """
    branches = {}
    for name, seed in (("then_branch", 1), ("else_branch", 2)):
        nodes = [
            helper.make_node("MatMul", ["h", f"{name}_w"], [f"{name}_a"], f"{name}/mm"),
            helper.make_node("Mul", [f"{name}_a", f"{name}_a"], [f"{name}_s"], f"{name}/square"),
            helper.make_node("Add", [f"{name}_s", f"{name}_b"], [f"{name}_y"], f"{name}/add"),
        ]
        constants = {f"{name}_w": weights(8, 4, seed=seed), f"{name}_b": weights(4, seed=seed)}
        tensors = [numpy_helper.from_array(a, n) for n, a in constants.items()]
        end = info(f"{name}_y", F32, ["n", 6, 4])
        branches[name] = helper.make_graph(nodes, name, [], [end], tensors)
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], "relu"),
        helper.make_node(op, ["rate", "wanted"], ["is"], "is"),
        helper.make_node("If", ["is"], ["chosen" if named else "y"], "if", **branches),
        *([helper.make_node("Identity", ["chosen"], ["y"], "name")] if named else []),
    ]
    inputs = [info("x", F32, ["n", 6, 8]), info("rate", TensorProto.INT64, [])]
    constants = {"wanted": np.array(16000)}
    return proto(nodes, inputs, [info("y", F32, ["n", 6, 4])], constants)


@pytest.mark.parametrize(("rate", "named"), [(16000, False), (8000, False), (16000, True)])
def test_a_network_that_is_one_if(rate, named, call, tmp_path):
    onnx.save(two_rates(named=named), "m.onnx")
    (tmp_path / "data").mkdir()
    for i in range(8):
        x = signals(1, 6, 8, seed=i)
        np.savez(tmp_path / "data" / f"{i}.npz", x=x, rate=np.array(rate))
    ended = call("fix", "m.onnx", "--inputs", "data", "-o", "run", screen=True)
    assert ended.code == 0, ended.out + ended.err
    assert ended.record["plan"]["candidates"] == 4
    choice = written(ended)["if"]
    bodies = {a.name: a.g for a in choice.attribute}
    taken, other = ("then_branch", "else_branch")[:: 1 if rate == 16000 else -1]
    assert {t.data_type for t in bodies[other].initializer} == {F32}
    products = [n for n in onnx.load(ended.model).graph.node if n.op_type == "MatMul"]
    assert not products
    assert {n.name for n in bodies[taken].node} >= {f"{taken}/mm", f"{taken}/square"}
    onnx.checker.check_model(onnx.load(ended.model), full_check=True)
    again = call("verify", "m.onnx", ended.model, "--inputs", "data")
    assert again.code == 0, again.out + again.err
    # The other branch computes what it did.
    sample = {"x": signals(1, 6, 8, seed=3), "rate": np.array(24000 - rate)}
    before, after = (
        ort.InferenceSession(path).run(None, sample)[0] for path in ("m.onnx", ended.model)
    )
    np.testing.assert_allclose(after, before, rtol=2e-3, atol=2e-3)


def test_fp32_that_is_nan_itself_ends_fix(call):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "mm"),
        helper.make_node("Log", ["h"], ["l"], "log"),
        helper.make_node("Relu", ["l"], ["y"], "relu"),
    ]
    ends = info("x", F32, ["n", 8]), info("y", F32, ["n", 8])
    onnx.save(proto(nodes, ends[:1], ends[1:], {"w": weights(8, 8)}), "m.onnx")
    np.savez("x.npz", x=signals(8, 1, 8))
    ended = call("fix", "m.onnx", "--inputs", "x.npz", "-o", "run")
    assert ended.code == 3
    assert "node log (Log)" in " ".join(ended.err.split())


@pytest.mark.parametrize(
    ("line", "kind", "nodes"),
    [
        (
            "[E] Error[4]: IElementWiseLayer /Add_3: operation SUM has incompatible input types "
            "Float and Half",
            *("types-clash", ["/Add_3"]),
        ),
        (
            "[E] ITensor::getDimensions: Error Code 4: API Usage Error (/rope/Concat: all concat "
            "input tensors must have the same dimensions except on the concatenation axis (0))",
            *("shape-clash", ["/rope/Concat"]),
        ),
        (
            "[TRT] [E] IExecutionContext::getTensorShape: Error Code 7: Internal Error "
            "(IShuffleLayer /Reshape_5: reshaping failed for tensor: t)",
            *("shape-clash", ["/Reshape_5"]),
        ),
        (
            "[E] [TRT] 3: getPluginCreator could not find plugin: MultiHeadAttention version: 1",
            *("operator-unsupported", []),
        ),
        (
            "[E] [TRT] 3: getPluginCreator could not find plugin: EfficientNMS_TRT version: 1",
            *("plugin-missing", []),
        ),
        ("2026-01-02 10:00:00,123 - ERROR - Tensorflow op [a: B] is not supported", "unknown", []),
    ],
)
def test_messages_of_others_are_errors_with_their_nodes(line, kind, nodes, call, tmp_path):
    (tmp_path / "log").write_text(line + "\n")
    ended = call("explain-log", "log", "--json")
    assert ended.code == 10
    (finding,) = json.loads(ended.out)["findings"]
    assert (finding["kind"], finding["nodes"]) == (kind, nodes)
    assert ("before its optimizer" in finding["hint"]) == ("MultiHeadAttention" in line)
