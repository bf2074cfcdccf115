import pytest

from halfwise.errors import RecordMismatch
from halfwise.records import NetworkLayer, NodeName
from halfwise.tensorrt.recipes.constraints import constraints_of, layers_of
from tests.unit.casing import names
from tests.unit.reporting.engine_runs import build
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
