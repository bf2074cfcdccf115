import onnx
import pytest

from halfwise.graph.unchecked import read_unchecked
from halfwise.tensorrt.trtexec import kinds_of, layers_of
from halfwise.tensorrt.trtexec.kinds import kind_meant
from tests import models


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
