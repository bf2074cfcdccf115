import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from halfwise.case import Case, Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from halfwise.graph.roles import roles_of
from halfwise.judging.reference import (
    check,
    check_types,
    find_unjudged,
    frozen_named,
    inspected_reference,
)
from halfwise.records import Criterion, Unjudged
from tests import control, models
from tests.frozen import frozen_batch, frozen_length, network
from tests.unit.casing import prepare
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.graph.test_bodies import choice


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_low_tensors_that_widening_left_are_refused(dtype):
    sketch = Sketch()
    x = sketch.input("x", [1, 4])
    low = sketch.op("Cast", x, name="down", to=dtype)
    network = sketch.network(sketch.op("Cast", low, name="up", to=TensorProto.FLOAT))
    with pytest.raises(CaseError, match="down_out") as error:
        check(network)
    assert "custom operators" in error.value.hint


def test_a_body_with_low_tensors_is_refused():
    sketch = Sketch()
    x, flag = sketch.input("x", [2, 4]), sketch.input("flag", [], TensorProto.BOOL)
    nodes = [
        helper.make_node("Cast", [x], ["down"], "down", to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["down"], ["up"], "up", to=TensorProto.FLOAT),
    ]
    body = control.graph("body", nodes, (), [("up", control.MATRIX)])
    branches = {"then_branch": body, "else_branch": body}
    sketch.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    with pytest.raises(CaseError, match="'down'"):
        check(sketch.network(sketch.op("Neg", "chosen", name="neg")))


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.DOUBLE])
def test_a_model_without_fp32_is_refused(dtype):
    sketch = Sketch()
    x = sketch.input("x", [1, 4], dtype)
    network = sketch.network(sketch.op("Abs", x, name="abs"))
    with pytest.raises(CaseError, match="no FP32 tensor"):
        check(network)


def test_an_output_that_is_no_tensor_is_refused():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("SequenceConstruct", ["x", "x"], ["y"], name="pack")
    graph = helper.make_graph([node], "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    with pytest.raises(CaseError, match="'y' is not a tensor"):
        check(network_from_proto(proto))


def test_types_that_onnx_does_not_know_come_from_schemas_of_onnx_runtime():
    """`FusedMatMul` of Microsoft's domain has no ONNX schema."""
    sketch = Sketch()
    x = sketch.input("x", [2, 4])
    weight = sketch.constant(np.eye(4, dtype=np.float32), "weight")
    sketch.nodes.append(
        helper.make_node("FusedMatMul", [x, weight], ["h"], name="fused", domain="com.microsoft")
    )
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
    sketch.nodes.append(helper.make_node("Relu", ["h"], ["y"], name="relu"))
    graph = helper.make_graph(sketch.nodes, "g", sketch.inputs, [end], sketch.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    network = network_from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    (hidden,) = next(n for n in network.nodes() if n.name == "fused").outputs
    check(network)
    assert hidden.dtype == ir.DataType.FLOAT


def behind_gelu(low=TensorProto.FLOAT16, *, inside=False, domain="com.microsoft"):
    """A low model that squares what a custom operator gives, or does so in the branch of an If."""
    gelu = helper.make_node("FastGelu", ["x"], ["h"], "gelu", domain=domain)
    square = helper.make_node("Mul", ["h", "h"], ["s"], "square")
    end = helper.make_tensor_value_info("s", low, [2, 4])
    nodes = [gelu, square]
    if inside:
        branch = helper.make_graph([square], "branch", [], [end])
        other = helper.make_graph([helper.make_node("Neg", ["h"], ["n"])], "other", [], [end])
        other.output[0].name = "n"
        choose = helper.make_node(
            "If", ["flag"], ["c"], "choose", then_branch=branch, else_branch=other
        )
        nodes = [gelu, choose]
    nodes.append(helper.make_node("Sqrt", ["c" if inside else "s"], ["y"], "root"))
    x, y = (helper.make_tensor_value_info(n, low, [2, 4]) for n in "xy")
    flag = helper.make_tensor("flag", TensorProto.BOOL, [], [True])
    graph = helper.make_graph(nodes, "g", [x], [y], [flag] if inside else [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("inside", [False, True])
def test_what_lies_behind_a_custom_operator_gets_its_low_type(inside):
    network = network_from_proto(behind_gelu(inside=inside))
    check_types(network)
    values = [v for n in network.model.graph.all_nodes() for v in n.outputs]
    assert {v.dtype for v in values} == {ir.DataType.FLOAT16}


def test_a_custom_operator_that_the_runtime_lacks_is_named_where_its_types_are_asked_for():
    with pytest.raises(CaseError, match=r"com\.example::FastGelu"):
        check_types(network_from_proto(behind_gelu(domain="com.example")))


def test_outputs_are_those_of_the_onnx_reference_in_the_order_of_the_samples():
    ill = models.small()
    prepared = prepare(ill)
    outputs, _ = inspected_reference(prepared.network, prepared.samples)
    evaluator = ReferenceEvaluator(ill.proto)
    assert len(outputs) == models.COUNT
    for i, output in enumerate(outputs):
        (expected,) = evaluator.run(None, ill.sample(i))
        np.testing.assert_allclose(output["relu_out"], np.asarray(expected), rtol=1e-6, atol=1e-6)


def test_no_samples_no_outputs():
    prepared = prepare(models.small())
    nothing = inspected_reference(prepared.network, prepared.samples.select(()))
    assert nothing == ([], frozenset())


def test_tensors_that_are_not_finite_on_any_sample_are_named():
    sketch = Sketch()
    x = sketch.input("x", [1, 4])
    log = sketch.op("Log", sketch.op("Relu", x, name="relu"), name="log")
    y = sketch.op("Exp", log, name="exp")
    data = f32([[[1, 2, 3, 4]], [[1, 2, 3, 4]], [[1, 2, 0, 4]]])
    prepared = prepare(models.Ill(sketch.proto(y), {"x": data}))
    outputs, result = inspected_reference(prepared.network, prepared.samples)
    assert result == {"log_out"}
    session = Session(prepared.network.model)
    plain = [session.run(sample) for sample in prepared.samples]
    for one, other in zip(outputs, plain, strict=True):
        np.testing.assert_array_equal(one["exp_out"], other["exp_out"])
    finite = prepared.samples.select([0, 1])
    assert inspected_reference(prepared.network, finite)[1] == frozenset()


def test_a_failure_is_told_by_its_size():
    for sketch in (frozen_batch(2), frozen_length()):
        message = pytest.raises(CaseError, match="constants of split")
        with message, frozen_named(network(sketch)):
            raise RunFailed("the model failed.")


def test_a_failure_of_something_else_stays():
    with pytest.raises(RunFailed, match="no memory"), frozen_named(prepare(models.small()).network):
        raise RunFailed("no memory")


def test_what_took_too_long_is_no_size():
    with pytest.raises(RunFailed, match="too long"), frozen_named(network(frozen_batch(2))):
        raise RunFailed("too long", late=True)


DRAWN = np.random.default_rng(7)


def unjudged_case(flags, heldout=1):
    """An If whose flag is a sample's own; the last samples are held out."""
    s = Sketch()
    x, flag = s.input("x", [2, 3]), s.input("flag", [], TensorProto.BOOL)
    s.nodes.append(choice("choose", x, flag))
    network = s.network(s.op("Neg", "choose_out", name="neg"))
    data = [{"x": DRAWN.normal(size=(2, 3)).astype(np.float32), "flag": np.array(f)} for f in flags]
    samples = Samples(tuple(map(str, range(len(data)))), data.__getitem__)
    first = len(data) - heldout
    return Case(
        network=network,
        calibration=samples.select(range(first)),
        heldout=samples.select(range(first, len(data))),
        criterion=Criterion(),
        metric=None,
        notes=(),
        data_sha256="",
    )


def result(unjudged_case, candidate=None):
    session = Session(unjudged_case.network.model)
    references = [session.run(sample) for sample in unjudged_case.heldout]
    return find_unjudged(unjudged_case, candidate, unjudged_case.heldout, references)


NEVER = Unjudged(
    kind="never-ran",
    name="choose",
    body="else_branch",
    op="If",
    around="choose",
    inputs=("flag",),
)


@pytest.mark.parametrize(
    ("flags", "idle"), [([True] * 4, (NEVER,)), ([True, False, True], ()), ([True, False], ())]
)
def test_a_branch_that_runs_on_no_sample_is_named(flags, idle):
    assert result(unjudged_case(flags)) == idle


@pytest.mark.parametrize(("kept", "idle"), [((), (NEVER,)), (("choose_else_y_node",), ())])
def test_a_branch_that_stays_fp32_needs_no_sample(kept, idle):
    one = unjudged_case([True, True])
    roles = roles_of(one.network)
    names = frozenset(node_name(n) for n in one.network.all_nodes() if n.name in kept)
    assert result(one, rewrite(one.network, roles, names, FP16).model) == idle


def test_a_candidate_without_that_node_has_to_be_tested():
    s = Sketch()
    other = s.network(s.op("Neg", s.input("x", [2, 3]), name="neg"))
    assert result(unjudged_case([True, True]), other.model) == (NEVER,)
