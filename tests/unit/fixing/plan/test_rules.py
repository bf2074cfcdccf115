import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from halfwise.case import Rules
from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.fixing.plan.rules import ISLAND, apply_rules, lowered_by, named, starting_plan
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, bodies, node_name
from halfwise.graph.roles import Role, float_io, roles_of
from halfwise.graph.weights import LARGE_TENSOR_BYTES
from halfwise.records import KeptNode, NodeName, replace
from halfwise.reporting.remarks import remark
from tests import graphs, models
from tests.models import microsoft
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting import runs

NORM = network_from_proto(models.layer_norm().proto)


def applied(network=NORM, **rules):
    return apply_rules(network, roles_of(network), Rules(**rules))


def test_without_rules_nothing_is_decided():
    assert applied() == applied(keep=(), keep_op=(), lower=())
    assert (dict(applied().kept), dict(applied().lowered)) == ({}, {})


def test_a_name_is_taken_before_it_is_an_expression():
    """Exporters write names such as `/norm/Pow(2)`, which match themselves as no expression."""
    sketch = Sketch()
    x = sketch.input("x", [4])
    y = sketch.op("Abs", sketch.op("Exp", x, name="a.(1)"), name="ab(1)")
    network = sketch.network(y)
    assert applied(network, keep=("a.(1)",)).kept.keys() == names("a.(1)")


def test_an_expression_matches_whole_names():
    assert applied(keep=("mean",)).kept.keys() == names("mean")
    assert applied(keep=("m.*",)).kept.keys() == names("mean")
    assert applied(lower=(".*e",)).lowered.keys() == names(
        *("centre", "square", "variance", "divide")
    )
    with pytest.raises(UsageError, match="matches no node"):
        applied(keep=("squar",))


def test_names_that_a_rule_matches_are_in_graph_order():
    assert named("e.*|square", NORM) == ["square", "eps"]


def shared():
    """Two nodes called D, one called E, and two without a name."""
    sketch = Sketch()
    y = sketch.input("x", [4])
    for i, name in enumerate(("D", "", "D", "E", "")):
        y = sketch.op("Exp", y, name=f"n{i}")
        sketch.nodes[-1].name = name
    return sketch.network(y)


def test_the_users_name_stands_for_all_nodes_that_bear_it():
    assert shared().original_names == {"D_1": "D", "Exp": "", "Exp_1": ""}
    assert applied(shared(), keep=("D",)).kept.keys() == names("D", "D_1")
    assert applied(shared(), keep=("D_1",)).kept.keys() == names("D_1")
    assert applied(shared(), lower=("[DE]",)).lowered.keys() == names("D", "D_1", "E")


@pytest.mark.parametrize("rule", ["", "x*", "()"])
def test_no_rule_matches_nodes_without_a_name(rule):
    with pytest.raises(UsageError, match="matches no node"):
        applied(shared(), keep=(rule,))


def test_a_rule_that_matches_nothing_is_told_with_names_like_it():
    with pytest.raises(UsageError) as error:
        applied(keep=("squares",))
    assert error.value.hint.endswith("Did you mean square?")
    with pytest.raises(UsageError) as error:
        applied(lower=("/other/Conv",))
    assert "mean" not in error.value.hint


def test_each_node_knows_its_rule():
    forced = applied(keep=("square",), keep_op=("Sqrt",), lower=("gam.*",))
    assert forced.kept == {"square": "--keep square", "root": "--keep-op Sqrt"}
    assert forced.lowered == {"gamma": "--lower gam.*"}


def test_an_operator_stands_for_its_written_out_form_too():
    kept = applied(keep_op=("LayerNormalization",)).kept
    assert kept.keys() >= names("mean", "centre", "square", "variance", "eps", "root", "divide")
    assert set(kept.values()) == {"--keep-op LayerNormalization"}
    assert applied(keep_op=("ReduceMean",)).kept.keys() == names("mean", "variance")


def test_an_operator_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(UsageError, match="--keep-op Softmax") as error:
        applied(keep_op=("Softmax",))
    assert "ReduceMean" in error.value.hint


def test_outputs_are_what_computes_them():
    assert applied(keep=("outputs",)).kept.keys() == names("gamma")


def test_outputs_behind_data_movement():
    sketch = Sketch()
    x = sketch.input("x", [4])
    computed = sketch.op("Exp", x, name="compute")
    moved = sketch.op("Reshape", computed, [2, 2], name="move")
    other = sketch.op("Neg", computed, name="other")
    network = sketch.network(moved, other)
    assert applied(network, keep=("outputs",)).kept.keys() == names("compute", "move", "other")


def test_a_node_called_outputs_is_no_exception():
    assert applied(keep=("outputs",)).kept.values() != {}


def test_both_kept_and_lowered_is_a_contradiction():
    with pytest.raises(UsageError, match="square") as error:
        applied(keep=("square",), lower=("squ.*",))
    assert "--keep square" in str(error.value)
    assert "--lower squ.*" in str(error.value)


def test_contradictions_of_other_rules():
    with pytest.raises(UsageError, match=r"--keep-op Sqrt and --lower root both match node root\."):
        applied(keep_op=("Sqrt",), lower=("root",))
    with pytest.raises(UsageError, match="--keep outputs and --lower gamma both match node gamma"):
        applied(keep=("outputs",), lower=("gamma",))
    for rules in ({"keep": ("eye",)}, {"keep_op": ("EyeLike",)}):
        with pytest.raises(CaseError, match="--lower eye matches eye, which must be FP32"):
            applied(pinned(), lower=("eye",), **rules)


def test_an_expression_that_is_none_is_refused():
    with pytest.raises(UsageError, match="regular expression"):
        applied(lower=("square(",))


def pinned():
    sketch = Sketch()
    x = sketch.input("x", [2, 2])
    eye = sketch.op("EyeLike", x, name="eye")
    return sketch.network(sketch.op("Abs", eye, name="abs"))


def test_what_must_be_fp32_satisfies_a_rule_to_keep_it():
    assert applied(pinned(), keep=("eye", "abs")).kept.keys() == names("abs")
    assert dict(applied(pinned(), keep_op=("EyeLike",)).kept) == {}


def test_what_must_be_fp32_cannot_be_lowered():
    with pytest.raises(CaseError, match="generates its values"):
        applied(pinned(), lower=("eye",))


def test_a_node_with_bodies_stands_for_the_nodes_in_them():
    network = network_from_proto(models.two_bodies().proto)
    choose = next(n for n in network.nodes() if n.op_type == "If")
    inner = [node_name(n) for body in bodies(choose) for n in body]
    assert named(node_name(choose), network) == inner
    assert named(inner[0], network) == inner[:1]


def test_islands_are_kept_unless_a_rule_lowers_them():
    islands = names("square", "root", "gamma")
    rules = Rules(keep=("root",), lower=("gamma",))
    forced = apply_rules(NORM, roles_of(NORM), rules, islands)
    assert forced.kept == {"square": ISLAND, "root": "--keep root"}
    assert forced.lowered.keys() == names("gamma")


NODE = NodeName("node")


def test_operators_of_onnx_runtime_may_be_low_in_the_slots_that_take_it():
    roles = roles_of(network_from_proto(microsoft().proto))
    assert {roles[n].role for n in names("fused", "bias_gelu", "gelu", "skip")} == {Role.COMPUTE}
    skip = roles[NodeName("skip")]
    assert skip.inputs == (True, True, True, True)
    assert skip.outputs == (True, False, False, True)


def settled(network, *lower):
    return roles_of(network, lowered=lowered_by(Rules(lower=lower), network))


def single(op, domain, **attributes):
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4]),
        helper.make_tensor_value_info("k", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4]),
    ]
    inputs = ["x", "k"] if domain == "com.example" else ["x"]
    node = helper.make_node(op, inputs, ["y"], name=NODE, domain=domain, **attributes)
    graph = helper.make_graph([node], "g", ends[:2], ends[2:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    return network_from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def test_every_float_tensor_of_an_unknown_operator_is_low():
    swirl = single("Swirl", "com.example")
    reason = (
        "operator of the custom domain 'com.example'; --lower NODE if your runtime has it in FP16"
    )
    assert settled(swirl)[NODE].reason == reason
    role = settled(swirl, NODE)[NODE]
    assert (role.role, role.inputs, role.outputs) == (Role.COMPUTE, (True, False), (True,))


def test_an_operator_known_to_take_no_fp16_cannot_be_lowered():
    normalizer = single("Normalizer", "ai.onnx.ml", norm="L2")
    rules = Rules(lower=(NODE,))
    roles = settled(normalizer, NODE)
    assert roles[NODE].role is Role.PINNED
    with pytest.raises(CaseError, match="Normalizer does not take float16"):
        apply_rules(normalizer, roles, rules)


def test_integers_are_no_matter_of_precision():
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, [4]) for name in "ij"]
    node = helper.make_node("Swirl", ["i"], ["j"], name=NODE, domain="com.example")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    whole = network_from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert roles_of(whole)[NODE].role is Role.BLIND


NEEDED = models.layer_norm().kept


def start(source, network=NORM):
    return starting_plan(network, roles_of(network), source)


def lowered(network: Network, kept, **options) -> onnx.ModelProto:
    rewritten = rewrite(network, roles_of(network), kept, FP16, **options)
    return ir.serde.serialize_model(rewritten.model)


def recorded(*kept: tuple[str, str], model: str = "other", candidates: int = 1):
    found = runs.run()
    assert found.plan is not None
    keep = tuple(KeptNode(node=NodeName(n), op=op, reason="") for n, op in kept)
    origin = replace(found.provenance, model_sha256=model)
    plan = replace(found.plan, keep=keep, candidates=candidates)
    return replace(found, plan=plan, provenance=origin)


def test_a_mixed_model_gives_what_it_keeps():
    found = start(network_from_proto(lowered(NORM, NEEDED)))
    assert found.kept == NEEDED
    assert "8 of 8 compute nodes" in remark(found.note)


def chained(*names: str) -> Network:
    values = [f"of_{name}" for name in names]
    read = ["x", *values]
    nodes = [
        helper.make_node("Relu", [read[i]], [v], n)
        for i, (n, v) in enumerate(zip(names, values, strict=True))
    ]
    first, last = (
        helper.make_tensor_value_info(v, TensorProto.FLOAT, [2]) for v in ("x", read[-1])
    )
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "g", [first], [last])
    return network_from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def test_half_of_the_nodes_make_a_mixed_form_of_the_model():
    network = chained(*"abcdefghij")
    assert start(chained(*"abcdeVWXYZ"), network).note.numbers["found"] == 5
    with pytest.raises(CaseError, match="only 4 of 10"):
        start(chained(*"abcdUVWXYZ"), network)


def test_weights_are_not_read_for_what_a_mixed_model_keeps():
    ill = models.large_weights()
    network = network_from_proto(ill.proto)
    mixed = network_from_proto(lowered(network, ill.kept))
    large = 0
    for name, value in mixed.graph.initializers.items():
        weight = value.const_value
        assert weight is not None
        if weight.nbytes > LARGE_TENSOR_BYTES:
            shape = ir.Shape(weight.shape.numpy())
            value.const_value = ir.ExternalTensor(
                "nowhere", 0, weight.nbytes, weight.dtype, shape=shape, name=name, base_dir=""
            )
            large += 1
    assert large == 3
    assert start(mixed, network).kept == ill.kept


def test_nodes_of_other_names_are_known_by_their_outputs():
    proto = lowered(NORM, NEEDED)
    for i, node in enumerate(proto.graph.node):
        node.name = f"renamed_{i}"
    assert start(network_from_proto(proto)).kept == NEEDED


def test_a_name_that_another_operator_bears_is_no_match():
    proto = lowered(NORM, NEEDED)
    for node in proto.graph.node:
        node.name = {"mean": "gamma", "gamma": "mean"}.get(node.name, node.name)
    assert start(network_from_proto(proto)).kept == NEEDED


def test_names_that_halfwise_made_up_are_no_evidence():
    """Nodes without a name are numbered anew in each file."""
    proto = models.deep(4).proto
    for node in proto.graph.node:
        node.ClearField("name")
    network = network_from_proto(proto)
    made_up = list(network.original_names)
    kept = names(made_up[1], made_up[3])
    mixed = lowered(network, kept)
    for node in mixed.graph.node:
        node.ClearField("name")
    assert start(network_from_proto(mixed), network).kept == kept


def test_a_model_without_casts_keeps_all_or_nothing():
    every = frozenset(n for n, role in roles_of(NORM).items() if role.role is Role.COMPUTE)
    assert start(NORM).kept == every
    assert start(network_from_proto(lowered(NORM, names(), low_io=float_io(NORM)))).kept == names()


def test_another_model_is_refused():
    with pytest.raises(CaseError, match="only 0 of 8 compute nodes"):
        start(network_from_proto(models.small().proto))


def test_a_run_gives_what_its_plan_keeps():
    found = start(recorded(("square", "Pow"), ("root", "Sqrt"), model=NORM.sha256))
    assert found.kept == names("square", "root")


def test_a_run_of_another_file_with_the_same_nodes_is_taken_with_a_warning():
    found = start(recorded(("square", "Pow")))
    assert found.kept == names("square")
    assert remark(found.note).startswith("warning: ")


@pytest.mark.parametrize("stranger", [("squares", "Pow"), ("square", "Mul")])
@pytest.mark.parametrize("sha256", [NORM.sha256, "other"])
def test_a_run_of_another_model_is_refused(stranger, sha256):
    with pytest.raises(RecordMismatch, match=f"no {stranger[1]} called {stranger[0]}"):
        start(recorded(("root", "Sqrt"), stranger, model=sha256))


def test_a_run_without_a_plan_is_refused():
    run = replace(runs.run(), plan=None, kind="verify")
    with pytest.raises(RecordMismatch, match="halfwise verify"):
        start(run)


@given(graphs.graphs(), st.data())
def test_every_rewritten_model_gives_its_plan_back(drawn, data):
    network = network_from_proto(drawn.proto)
    plan = data.draw(graphs.plans(network))
    computing = {n for n, role in roles_of(network).items() if role.role is Role.COMPUTE}
    mixed = network_from_proto(lowered(network, plan))
    assert start(mixed, network).kept == plan & computing
    # Without the names in the file, outputs tell the same.
    bare = replace(mixed, original_names={node_name(n): "" for n in mixed.nodes()})
    assert start(bare, network).kept == plan & computing
