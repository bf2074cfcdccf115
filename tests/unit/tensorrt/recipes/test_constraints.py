import onnx_ir as ir
import pytest

from halfwise.errors import RecordMismatch
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.records import NetworkLayer, NodeName
from halfwise.tensorrt.recipes.constraints import constraints_of, layers_of, note_on_attention
from tests.unit.casing import names
from tests.unit.fixing.engines.test_units import CORE, attention
from tests.unit.reporting.engine_runs import build
from tests.unit.reporting.runs import run
from tests.unit.tensorrt.recipes.test_recipe import sketch


def test_layers_that_were_constrained_belong_to_their_nodes():
    pinned = NetworkLayer(name="a", type="UNARY", nodes=(NodeName("pow"),), constrained=True)
    free = pinned.model_copy(update={"name": "b", "constrained": False})
    assert layers_of(build(1, "mixed", layers=(pinned, free))) == {"pow": ("a",)}


def test_only_what_takes_a_precision_is_constrained():
    made = constraints_of(sketch(), "m.onnx", names("top", "pow", "shape", "cast"), {})
    assert [(c.node, c.outputs) for c in made] == [("pow", (True,)), ("top", (True, False))]
    with pytest.raises(RecordMismatch, match=r"m\.onnx has no node 'other'"):
        constraints_of(sketch(), "m.onnx", names("other"), {})


def note(kept, version="11.4.0", blocks=1):
    network, roles = attention(blocks)
    names = frozenset(map(NodeName, kept))
    mixed = network_from_proto(ir.to_proto(rewrite(network, roles, names, FP16).model))
    return note_on_attention(run(), mixed, names, version)


def test_what_is_low_of_a_core_is_named():
    told = note({"add", "softmax", "q"})
    assert "1 attention core is partly FP32, but TensorRT 11.4.0 fuses a core only" in told
    assert "--keep mix --keep scale --keep scores keeps whole cores" in told
    assert "with queries, keys and values cast up" in told
    assert "cast up" not in note({"softmax"}, "10.16")
    assert note({"softmax", "add1"}, blocks=2).startswith("2 attention cores are partly FP32")


@pytest.mark.parametrize("kept", [set(), CORE, {"q", "out"}])
def test_a_whole_core_or_none_is_not_told(kept):
    assert note(kept) == ""


def test_of_many_nodes_the_number_is_told():
    told = note({f"softmax{i or ''}" for i in range(7)}, blocks=7)
    assert "--keep for 28 more nodes keeps" in told
