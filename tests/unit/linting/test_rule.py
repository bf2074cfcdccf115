import pytest
from onnx import helper

from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name, tensor_name
from halfwise.linting import RULES, examine
from halfwise.linting.rule import Subject
from tests.faults import FAULTS
from tests.unit.graph.sketch import Sketch, f32


@pytest.fixture
def ill():
    def ill(name):
        fault = next(f for f in FAULTS if f.name == name)
        return subject(fault.make(True))

    return ill


def subject(proto):
    return Subject(network_from_proto(proto), proto=proto)


def placed(of):
    return [(node_name(n), of.own_name(n), of.place(n)) for n in of.network.nodes()]


def test_ids_are_unique():
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_findings_carry_the_rule_and_the_place(ill):
    (finding,) = examine(ill("huge_weights"))
    assert (finding.node, finding.op, finding.place) == ("matmul", "MatMul", 1)
    assert finding.tensor == "constant_0"
    assert finding.source == next(r.source for r in RULES if r.id == finding.rule)


def test_ignored_rules_are_not_looked_for(ill):
    assert examine(ill("huge_weights"), ignored=("constant-beyond-fp16",)) == ()


def sketch():
    s = Sketch()
    x = s.op("Add", s.input("x", [4]), s.constant(f32([1.0] * 4), "ones"), name="add")
    return s.proto(s.op("Relu", x, name="relu"))


def test_places_are_those_of_the_file():
    proto = sketch()
    first = proto.graph.node[0]
    del proto.graph.node[0]
    proto.graph.node.append(first)
    assert placed(subject(proto)) == [("add", "add", 2), ("relu", "relu", 1)]
    assert placed(Subject(network_from_proto(proto))) == [
        ("add", "add", None),
        ("relu", "relu", None),
    ]


def test_names_are_the_users():
    proto = sketch()
    for node in proto.graph.node:
        node.name = "twice"
    assert [name for _, name, _ in placed(subject(proto))] == ["twice", "twice"]


def test_nodes_without_a_name_are_called_as_by_other_commands():
    proto = sketch()
    proto.graph.node[1].name = ""
    of = subject(proto)
    assert placed(of) == [("add", "add", 1), ("Relu", "", 2)]
    assert tensor_name(list(of.network.nodes())[1].outputs[0]) == "relu_out"


def test_a_node_of_a_function_stands_where_it_is_called():
    proto = sketch()
    body = helper.make_node("Neg", ["a"], ["b"], name="inside")
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], [body], opsets))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.graph.node[1].domain, proto.graph.node[1].op_type = "own", "F"
    assert placed(subject(proto)) == [("add", "add", 1), ("relu/inside", "relu/inside", 2)]
