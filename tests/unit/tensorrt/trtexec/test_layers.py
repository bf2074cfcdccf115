import onnx
import pytest

from halfwise.graph.loading import read_unchecked
from halfwise.tensorrt.trtexec.layers import (
    is_parsers_own,
    kind_meant,
    kinds_of,
    layers_of,
    matching,
    producers_of,
)
from tests import models
from tests.unit.tensorrt.trtexec.wired import model


@pytest.fixture
def layers(tmp_path):
    return layers_of(model(tmp_path))


def test_layers_are_called_as_their_nodes(layers):
    assert [(n.name, n.op, n.outputs) for n in layers] == [
        ("/a/MatMul", "MatMul", ("fp32",)),
        ("/a/Relu", "Relu", ("fp32",)),
        ("/b/Split", "Split", ("fp32", "fp32")),
        ("/b/Add:0", "Add", ("fp32",)),
        ("/b/Cast", "Cast", ("fp16",)),
        ("/c/Shape", "Shape", ("",)),
        ("/c/Cast", "Cast", ("fp32",)),
        ("/c/Neg, odd", "Neg", ("fp32",)),
        ("node_of_unnamed_out", "Abs", ("fp32",)),
        ("weight", "Constant", ("fp32",)),
    ]


def test_what_takes_no_constraint(layers):
    own = {n.name: n.own_type for n in layers if n.own_type}
    assert own == {
        "/b/Cast": "a Cast has a type of its own",
        "/c/Cast": "a Cast has a type of its own",
        "/c/Shape": "it outputs integers, Booleans or shapes",
        "weight": "a constant is fused away, and the constraint with it",
    }


def test_patterns_pass_integers_over(layers):
    assert [n.name for n in matching("/c/*", layers)] == ["/c/Cast", "/c/Neg, odd"]
    assert [n.name for n in matching("/c/Shape", layers)] == ["/c/Shape"]
    assert [n.name for n in matching("/*/*a*t", layers)] == ["/b/Cast", "/c/Cast"]
    assert matching("/a.MatMul", layers) == []


def test_names_of_the_parser():
    assert is_parsers_own("(Unnamed Layer* 7) [Shuffle]")
    assert is_parsers_own("ONNXTRT_Broadcast_3")
    assert not is_parsers_own("/a/Relu")


def test_makers_of_tensors(tmp_path):
    makers = producers_of(model(tmp_path))
    assert makers["two"] == "/b/Split"
    assert makers["unnamed_out"] == "node_of_unnamed_out"


@pytest.fixture
def kinds(tmp_path):
    onnx.save(models.layer_norm().proto, tmp_path / "m.onnx")
    unchecked = read_unchecked(tmp_path / "m.onnx")
    return kinds_of(unchecked, layers_of(unchecked))


@pytest.mark.parametrize("word", ["layernorm", "LayerNormalization", "layer_norm*", "NORM"])
def test_words_for_a_norm_that_is_written_out(kinds, word):
    found = kind_meant(word, kinds)
    assert found is not None
    assert found[0] == "LayerNormalization"
    assert {layer.op for layer in found[1]} >= {"ReduceMean", "Sub", "Sqrt"}


def test_operators_are_words_too_and_others_are_none(kinds):
    found = kind_meant("reducemean", kinds)
    assert found is not None
    assert {layer.op for layer in found[1]} == {"ReduceMean"}
    for word in ("softmax", "groupnorm", "/norm/Pow", "", "*"):
        assert kind_meant(word, kinds) is None


def test_constants_are_no_kind(kinds):
    assert all(layer.place.number is not None for some in kinds.values() for layer in some)
