import pytest
from onnx import TensorProto, helper

from halfwise.case import Rules
from halfwise.errors import CaseError
from halfwise.fixing.plan.custom import custom_roles
from halfwise.fixing.plan.rules import apply_rules
from halfwise.formats import FP16
from halfwise.graph.model import network_from_proto
from halfwise.graph.roles import Role, roles_of
from halfwise.judging.check import check
from halfwise.records import NodeName
from tests.models import microsoft

NODE = NodeName("node")


def network():
    network = network_from_proto(microsoft().proto)
    check(network)
    return network


def settled(*lower):
    return custom_roles(network(), Rules(lower=lower), FP16)


def test_custom_operators_are_fp32_and_the_reason_says_how_to_lower_them():
    roles = settled()
    assert roles.keys() == {"fused", "bias_gelu", "gelu", "skip"}
    assert {r.role for r in roles.values()} == {Role.PINNED}
    assert roles["gelu"].reason == (
        "operator of the custom domain 'com.microsoft'; --lower NODE if your runtime has it in FP16"
    )


def test_a_rule_lowers_those_that_it_names():
    roles = settled("fused", ".*gelu")
    assert {n for n, r in roles.items() if r.free} == {"fused", "bias_gelu", "gelu"}
    forced = apply_rules(network(), roles_of(network(), custom=roles), Rules(lower=(".*gelu",)))
    assert forced.lowered == {"bias_gelu": "--lower .*gelu", "gelu": "--lower .*gelu"}


def test_slots_that_take_fp32_only_stay_so():
    role = settled("skip")["skip"]
    assert role.inputs == (True, True, True, True)
    assert role.outputs == (True, False, False, True)


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
    role = custom_roles(single("Swirl", "com.example"), Rules(lower=(NODE,)), FP16)[NODE]
    assert (role.role, role.inputs, role.outputs) == (Role.COMPUTE, (True, False), (True,))


def test_an_operator_known_to_take_no_fp16_cannot_be_lowered():
    normalizer = single("Normalizer", "ai.onnx.ml", norm="L2")
    rules = Rules(lower=(NODE,))
    roles = roles_of(normalizer, custom=custom_roles(normalizer, rules, FP16))
    assert roles[NODE].role is Role.PINNED
    with pytest.raises(CaseError, match=r"'ai\.onnx\.ml', which takes no FP16"):
        apply_rules(normalizer, roles, rules)


def test_integers_are_no_matter_of_precision():
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, [4]) for name in "ij"]
    node = helper.make_node("Swirl", ["i"], ["j"], name=NODE, domain="com.example")
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    whole = network_from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert custom_roles(whole, Rules(), FP16) == {}
    assert roles_of(whole)[NODE].role is Role.BLIND
