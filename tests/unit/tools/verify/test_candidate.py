"""What is no candidate, and what there is to say of one."""

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise import api
from halfwise.graph.loading import network_from_proto
from halfwise.reporting.remarks import clause
from halfwise.tools.verify.candidate import demand_valid
from tests.models import signals
from tests.unit.graph.qdq import LAYERS, SIZE, chain, last
from tests.unit.graph.sketch import Sketch


def halved(dtype: int) -> onnx.ModelProto:
    """x / 2 in one branch of an If, in FP16, whose Cast there is declared as one to `dtype`."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        end = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        half = helper.make_tensor("half", TensorProto.FLOAT16, [], [0.5])
        low = helper.make_tensor_value_info(f"{name}_low", dtype, None)
        return helper.make_graph(nodes, name, [], [end], [half], value_info=[low])

    def body(name: str) -> onnx.GraphProto:
        cast, back = (
            helper.make_node("Cast", [read], [given], name=given, to=to)
            for read, given, to in (
                ("x", f"{name}_low", TensorProto.FLOAT16),
                (f"{name}_half", f"{name}_out", TensorProto.FLOAT),
            )
        )
        mul = helper.make_node("Mul", [f"{name}_low", "half"], [f"{name}_half"], name=f"{name}_mul")
        return branch(name, cast, mul, back)

    node = helper.make_node(
        "If", ["positive"], ["y"], name="if", then_branch=body("a"), else_branch=body("b")
    )
    sign = [
        helper.make_node("ReduceSum", ["x"], ["sum"], name="sum", keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"], name="greater"),
    ]
    graph = helper.make_graph(
        [*sign, node],
        "halved",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("declared", [TensorProto.FLOAT16, TensorProto.FLOAT])
def test_a_type_that_is_declared_wrongly_in_a_body_is_corrected_while_reading(declared):
    network = network_from_proto(halved(declared))
    demand_valid(network)
    low = [
        v for n in network.model.graph.all_nodes() for v in n.outputs if "_low" in (v.name or "")
    ]
    assert {v.dtype for v in low} == {ir.DataType.FLOAT16}


def test_a_kernel_that_is_missing_is_another_matter():
    s = Sketch(opset=22)
    low = s.op("Cast", s.input("x", [1, 4]), name="low", to=TensorProto.BFLOAT16)
    y = s.op("Cast", s.op("Gelu", low, name="gelu"), name="back", to=TensorProto.FLOAT)
    demand_valid(network_from_proto(s.proto(y)))


def test_that_nothing_is_low_is_told(tmp_path):
    s = Sketch()
    proto = s.proto(s.op("Mul", s.input("x", [1, 4]), 3.0, name="a"))
    data = {"x": signals(1, 4, seed=5)}
    onnx.save(proto, tmp_path / "same.onnx")
    low = api.fix(proto, data).model
    assert low is not None
    warned = [api.verify(proto, c, data).run.warnings for c in (tmp_path / "same.onnx", low)]
    assert warned == [("nothing in the candidate is FP16 or BF16",), ()]


def test_what_is_quantised_in_a_model_or_a_candidate_is_told(tmp_path):
    for name, quantised in (("float.onnx", []), ("two.onnx", LAYERS[:2])):
        sketch = chain(quantised)
        onnx.save(sketch.proto(last(sketch)), tmp_path / name)
    data = {"x": signals(2, SIZE, seed=5)}
    run = api.verify(tmp_path / "float.onnx", tmp_path / "two.onnx", data, rel_max=0.5).run
    told = "is quantised: of 3 products, 2 read data and weights through Q/DQ"
    assert f"the candidate {told}" in map(clause, run.provenance.notes)
    assert not run.warnings
    fixed = api.fix(tmp_path / "two.onnx", data, rel_max=0.5).run
    assert f"the model {told}; it is its own" in " ".join(map(clause, fixed.provenance.notes))
    assert fixed.verdict.passed
