import onnx
import pytest

from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import network_from_proto, normalise
from halfwise.graph.one_node import (
    FIRST_OPSET,
    Replacement,
    candidates,
    replace_all,
)
from halfwise.graph.written_out import read_softmaxes
from halfwise.records import TensorName
from tests.spellings import proto
from tests.unit.graph.sketch import Sketch


def test_both_forms():
    for name, attributes in (("torch_gelu", {}), ("torch_gelu_tanh", {"approximate": "tanh"})):
        (gelu,) = found(name)
        made = gelu.replacement
        assert (gelu.op, made.x, made.attributes) == ("Gelu", "x", attributes)
        assert made.output == network_from_proto(proto(name)).graph.outputs[0].name


def test_other_activations():
    assert not found("quick_gelu")


def found(name, opset=24, available=tuple(FIRST_OPSET)):
    return candidates(raise_opset(network_from_proto(proto(name)), opset), available)


def test_a_norm_has_its_nodes_and_its_replacement():
    (norm,) = found("torchscript_layer_norm")
    assert len(norm.nodes) == 9
    assert norm.nodes[1] == "/norm/Sub"
    assert norm.reason == ""
    assert norm.replacement is not None
    assert norm.replacement.attributes["axis"] == -1
    assert [a.shape for a in norm.replacement.constants.values()] == [(24,), (24,)]


@pytest.mark.parametrize(
    ("name", "opset", "available", "reason"),
    [
        ("torch_rms_norm", 20, ("RMSNormalization",), "needs opset 23; the model has 20"),
        ("torch_rms_norm", 24, ("LayerNormalization",), "the target has no RMSNormalization"),
        ("torchscript_instance_norm", 24, ("LayerNormalization",), "as InstanceNormalization does"),
        ("torchscript_by_deviation", 24, ("LayerNormalization",), "it is bounded"),
        ("torchscript_channels_first", 24, ("LayerNormalization",), "over axis 1 of 4"),
        ("torchscript_by_deviation", 24, (), "the target has no LayerNormalization"),
    ],
)
def test_reasons(name, opset, available, reason):
    (candidate,) = found(name, opset, available)
    assert candidate.replacement is None
    assert reason in candidate.reason


def test_other_types_are_left_alone():
    s = Sketch(20)
    x = s.input("x", [2, 4], onnx.TensorProto.DOUBLE)
    centred = s.op("Sub", x, s.op("ReduceMean", x, [-1]))
    squares = s.op("ReduceMean", s.op("Mul", centred, centred), [-1])
    network = s.network(s.op("Div", centred, s.op("Sqrt", squares)))
    (candidate,) = candidates(network, tuple(FIRST_OPSET))
    assert candidate.reason == "it computes in DOUBLE"


def test_a_norm_by_channel_is_an_instance_normalization_where_that_is_wanted():
    (norm,) = found("torchscript_instance_norm", 13, ("InstanceNormalization",))
    assert norm.replacement is not None
    assert norm.replacement.op == "InstanceNormalization"
    assert [a.shape for a in norm.replacement.constants.values()] == [(24,), (24,)]


def softmaxes_in(form, *, opset=17, axis=-1, rank=2, **options):
    s = Sketch(opset)
    x = s.input("x", [4] * rank)
    exp = s.op("Exp", x)
    total = s.op("ReduceSum", exp, [axis], **options)
    y = {
        "quotient": lambda: s.op("Div", exp, total),
        "product": lambda: s.op("Mul", s.op("Reciprocal", total), exp),
        "inverse": lambda: s.op("Mul", exp, s.op("Div", 1.0, total)),
        "logarithm": lambda: s.op("Sub", x, s.op("Log", total)),
        "other": lambda: s.op("Div", total, exp),
        "eps": lambda: s.op("Div", exp, s.op("Add", total, 1e-6)),
    }[form]()
    found = read_softmaxes(s.network(y))
    return [(r.op, r.x.name, r.axis) for r in found if r.axis is not None]


@pytest.mark.parametrize("form", ["quotient", "product", "inverse", "logarithm"])
def test_spellings(form):
    op = "LogSoftmax" if form == "logarithm" else "Softmax"
    assert softmaxes_in(form) == [(op, "x", 1)]
    assert softmaxes_in(form, axis=0, rank=3) == [(op, "x", 0)]


def test_what_is_none():
    assert not softmaxes_in("other")
    assert not softmaxes_in("eps")
    assert not softmaxes_in("quotient", keepdims=0)


@pytest.fixture
def sketch():
    s = Sketch(20)
    x = s.input("x", [2, 3])
    doubled = s.op("Add", x, x, name="/a/Add")
    shared = s.op("Mul", doubled, 2.0, name="/b/Mul")
    s.op("Neg", shared, name="/b/Neg")
    s.op("Abs", shared, name="/c/Abs")
    return s


def replacement(output="/b/Neg_out"):
    return Replacement("Gelu", TensorName("x"), TensorName(output), {"approximate": "tanh"})


def test_names_stay_and_what_others_read_too(sketch):
    network = sketch.network("/b/Neg_out", "/c/Abs_out")
    model = network.copy()
    (done,) = replace_all(model, [replacement()])
    assert (done.removed, done.added) == (("/b/Neg",), ("/b/Gelu",))
    assert {n.name for n in model.graph} == {"/a/Add", "/b/Mul", "/c/Abs", "/b/Gelu"}
    assert [v.name for v in model.graph.outputs] == ["/b/Neg_out", "/c/Abs_out"]
    normalise(model, path=None, sha256="")
    assert {n.op_type for n in network.nodes()} == {"Add", "Mul", "Neg", "Abs"}


def test_what_nobody_reads_any_more_goes(sketch):
    sketch.nodes.pop()
    model = sketch.network("/b/Neg_out").copy()
    (done,) = replace_all(model, [replacement()])
    assert done.removed == ("/a/Add", "/b/Mul", "/b/Neg")


def test_one_may_read_what_another_gives(sketch):
    model = sketch.network("/b/Neg_out").copy()
    first = replacement("/b/Mul_out")
    second = Replacement("Gelu", TensorName("/b/Mul_out"), TensorName("/b/Neg_out"), {})
    assert len(replace_all(model, [first, second])) == 2
    assert [n.op_type for n in normalise(model, path=None, sha256="").nodes()][:2] == ["Gelu"] * 2
