from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from halfwise.graph.fusions import Fusions, closed, repeated, wider
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import NodeRole, Role, roles_of
from halfwise.records import NodeName
from tests import graph_rules
from tests.graphs import graphs, plans
from tests.unit.graph.sketch import Sketch

F32 = TensorProto.FLOAT
DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits" / "model.onnx"


def node(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def network(nodes) -> Network:
    """A model from x (2×4×8×8) and flag to y, with the constants w, b, m, c and last."""
    arrays = {"w": np.ones((4, 4, 3, 3)), "b": np.ones((4, 1, 1)), "m": np.ones((8, 8)), "c": 2.0}
    tensors = [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in arrays.items()]
    tensors.append(numpy_helper.from_array(np.array([-1]), "last"))
    inputs = [
        helper.make_tensor_value_info("x", F32, (2, 4, 8, 8)),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, ()),
    ]
    output = helper.make_tensor_value_info("y", F32, [None] * 4)
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    domains = {node.domain for node in nodes} - {""}
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    return network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def kind(net: Network, word: str) -> list[set[str]]:
    """Groups of the kind whose name has `word`, without those of one node."""
    groups = next(g for name, g in Fusions(net, roles_of(net)).kinds() if word in name)
    return [set(group) for group in groups if len(group) > 1]


# --- layers -----------------------------------------------------------------------------------


def test_a_layer_has_bias_activation_and_one_residual_sum() -> None:
    nodes = [
        node("Conv", "x w", "a", "conv", pads=[1, 1, 1, 1]),
        node("Add", "a b", "c1", "bias"),
        node("Add", "c1 x", "d", "residual"),
        node("Relu", "d", "e", "relu"),
        node("Add", "e x", "y", "second"),
    ]
    assert kind(network(nodes), "layers") == [{"conv", "bias", "residual", "relu"}]


@pytest.mark.parametrize("custom", ["conv", "bias", "relu"])
def test_an_operator_of_another_domain_is_no_part_of_a_layer(custom) -> None:
    nodes = [
        node("Conv", "x w", "a", "conv", pads=[1, 1, 1, 1]),
        node("Add", "a b", "c1", "bias"),
        node("Relu", "c1", "y", "relu"),
    ]
    for each in nodes:
        each.domain = "theirs" if each.name == custom else ""
    # Known to compute, as where a rule says that it is taken in low precision.
    net = network(nodes)
    roles = roles_of(net, custom={NodeName(custom): NodeRole(Role.COMPUTE, (True,), (True,))})
    groups = next(found for name, found in Fusions(net, roles).kinds() if "layers" in name)
    whole = ["conv", "bias", "relu"]
    expected = [] if custom == "conv" else [frozenset(whole[: whole.index(custom)])]
    assert groups == expected


def test_attention_of_onnx_runtime_is_a_layer() -> None:
    of_ort = {"num_heads": 1, "domain": "com.microsoft"}
    net = network([node("Attention", "x w b", "y", "attention", **of_ort)])
    roles = roles_of(net, custom={NodeName("attention"): NodeRole(Role.COMPUTE, (True,), (True,))})
    groups = next(found for name, found in Fusions(net, roles).kinds() if "layers" in name)
    assert groups == [{"attention"}]


def test_a_layer_ends_where_its_result_forks() -> None:
    nodes = [
        node("Conv", "x w", "a", "conv", pads=[1, 1, 1, 1]),
        node("Relu", "a", "r", "relu"),
        node("Exp", "r", "e", "exp"),
        node("Neg", "r", "n", "neg"),
        node("Add", "e n", "y", "join"),
    ]
    assert kind(network(nodes), "layers") == [{"conv", "relu"}]


def test_a_layer_has_a_written_out_activation_and_none_of_the_shapes() -> None:
    nodes = [
        node("Conv", "x w", "a", "conv", pads=[1, 1, 1, 1]),
        node("Shape", "a", "s", "shape"),
        node("Sigmoid", "a", "g", "gate"),
        node("Mul", "a g", "h", "product"),
        node("Reshape", "h s", "r", "reshape"),
        node("Mul", "r c", "y", "scale"),
    ]
    assert kind(network(nodes), "layers") == [{"conv", "gate", "product", "scale"}]


def test_a_layer_does_not_reach_into_a_body() -> None:
    inner = helper.make_tensor_value_info("inner", F32, [None] * 4)
    body = helper.make_graph(
        [node("Neg", "a", "inner", "neg")],
        "b",
        [],
        [inner],
    )
    nodes = [
        node("Conv", "x w", "a", "conv", pads=[1, 1, 1, 1]),
        node("If", "flag", "y", "if", then_branch=body, else_branch=body),
    ]
    assert kind(network(nodes), "layers") == []


# --- attention cores --------------------------------------------------------------------------


def attention(softmax, masked="Add"):
    return [
        node("Transpose", "x", "k", "turn", perm=[0, 1, 3, 2]),
        node("Mul", "x c", "q", "scale"),
        node("MatMul", "q k", "s", "scores"),
        node(masked, "s m", "t", "mask"),
        *softmax,
        node("MatMul", "p x", "o", "mix"),
        node("MatMul", "o m", "y", "out"),
    ]


WRITTEN_OUT = [
    node("ReduceMax", "t", "top", "max", axes=[-1]),
    node("Sub", "t top", "z", "shift"),
    node("Exp", "z", "e", "exp"),
    node("ReduceSum", "e last", "sum", "sum"),
    node("Div", "e sum", "p", "divide"),
]


@pytest.mark.parametrize(
    ("softmax", "inside"),
    [
        ([node("Softmax", "t", "p", "softmax", axis=-1)], {"softmax"}),
        (WRITTEN_OUT, {"max", "shift", "exp", "sum", "divide"}),
    ],
)
def test_a_core_is_all_from_product_to_product(softmax, inside) -> None:
    assert kind(network(attention(softmax)), "cores") == [
        {"scale", "scores", "mask", "mix"} | inside
    ]


def test_a_softmax_of_scores_alone_is_no_core() -> None:
    nodes = [
        node("MatMul", "x m", "s", "head"),
        node("Softmax", "s", "y", "softmax", axis=-1),
    ]
    assert kind(network(nodes), "cores") == []


# --- branches and blocks ----------------------------------------------------------------------


def residual_blocks(count):
    """Blocks that all read a mask, computed before them."""
    nodes = [node("Exp", "x", "mask", "mask"), node("Conv", "x w", "h0", "stem", pads=[1, 1, 1, 1])]
    for i in range(count):
        nodes += [
            node("Conv", f"h{i} w", f"a{i}", f"conv{i}", pads=[1, 1, 1, 1]),
            node("Mul", f"a{i} mask", f"b{i}", f"masked{i}"),
            node("Softplus", f"b{i}", f"c{i}", f"soft{i}"),
            node("Add", f"c{i} h{i}", f"h{i + 1}", f"sum{i}"),
        ]
    return [*nodes, node("Identity", f"h{count}", "y", "end")]


def test_branches_lie_between_residual_sums() -> None:
    net = network(residual_blocks(4))
    assert kind(net, "branches") == [
        {"mask", "stem"},
        *({f"conv{i}", f"masked{i}", f"soft{i}", f"sum{i}"} for i in range(4)),
    ]


def test_a_branch_that_is_most_of_the_model_is_none() -> None:
    blocks = residual_blocks(1)[:-1]
    beside = [node("Exp", f"h1{'+' * i}", f"h1{'+' * (i + 1)}", f"beside{i}") for i in range(2)]
    for count, branches in ((0, 1), (1, 1), (2, 2)):
        end = node("Identity", f"h1{'+' * count}", "y", "end")
        assert len(kind(network([*blocks, *beside[:count], end]), "branches")) == branches


def test_the_blocks_of_a_transformer_are_found() -> None:
    net = load_network(DIGITS)
    blocks = kind(net, "blocks")
    assert [len(block) for block in blocks] == [41] * 6
    for i, block in enumerate(blocks):
        assert {name.split("/")[1] for name in block} == {f"blocks.{i}"}
    assert [len(core) for core in kind(net, "cores")] == [4] * 6


def test_blocks_are_found_where_some_differ() -> None:
    net = load_network(DIGITS)
    model = net.copy()
    norm = next(n for n in model.graph if n.name == "/blocks.2/norm2/Pow")
    twice = ir.node("Add", [norm.inputs[0], norm.inputs[0]], name="/blocks.2/norm2/twice")
    model.graph.insert_before(norm, twice)
    norm.replace_input_with(0, twice.outputs[0])
    changed = network_from_proto(ir.serde.serialize_model(model))
    assert sorted(len(block) for block in kind(changed, "blocks")) == [41] * 5 + [42]


# --- wider ------------------------------------------------------------------------------------


def test_islands_of_a_transformer_grow_from_norm_to_block() -> None:
    net = load_network(DIGITS)
    found = wider(net, roles_of(net), frozenset({NodeName("/blocks.1/norm1/Pow")}))
    assert [(name, len(kept)) for name, kept in found] == [
        ("whole normalisations and activations", 9),
        ("whole branches", 22),
        ("whole repeated blocks", 41),
    ]


def test_groups_that_overlap_pull_in_more() -> None:
    one, two, three, four = map(NodeName, "abcd")
    groups = [frozenset({two, three}), frozenset({one, two}), frozenset({four})]
    assert closed(frozenset({one}), groups) == {one, two, three}
    assert closed(frozenset(), groups) == frozenset()


@given(graphs(opsets=graph_rules.EVERY_OPSET, rules=graph_rules.rules_at), st.data())
def test_wider_sets_grow_by_compute_nodes(drawn, data) -> None:
    net = network_from_proto(drawn.proto)
    roles = roles_of(net)
    kept = data.draw(plans(net))
    found = wider(net, roles, kept)
    assert found == wider(net, roles, kept)
    for smaller, larger in zip((kept, *(s for _, s in found)), (s for _, s in found), strict=False):
        assert smaller < larger
        assert all(roles[name].role is Role.COMPUTE for name in larger - kept)
    for name, groups in Fusions(net, roles).kinds():
        assert all(group <= roles.keys() for group in groups), name


def test_nothing_kept_grows_to_nothing() -> None:
    net = load_network(DIGITS)
    assert wider(net, roles_of(net), frozenset()) == []


DIGITS_repetition = Path(__file__).resolve().parents[3] / "examples" / "digits" / "model.onnx"


def classes(network: Network) -> dict[str, int]:
    return {str(k): v for k, v in repeated(network, roles_of(network)).items()}


def weights(*shape: int) -> np.ndarray:
    return np.full(shape, 0.1, np.float32)


def block(s: Sketch, x: str, prefix: str) -> str:
    hidden = s.op(
        "Relu", s.op("MatMul", x, weights(8, 32), name=f"{prefix}up"), name=f"{prefix}act"
    )
    down = s.op("MatMul", hidden, weights(32, 8), name=f"{prefix}down")
    return s.op("Add", x, down, name=f"{prefix}residual")


def stack(depth: int) -> Network:
    s = Sketch()
    x = s.op("MatMul", s.input("x", ["n", 4]), weights(4, 8), name="stem")
    for i in range(depth):
        x = block(s, x, f"{i}.")
    return s.network(s.op("MatMul", x, weights(8, 3), name="head"))


def test_inner_copies_of_a_block_share_classes_and_its_nodes_do_not() -> None:
    found = classes(stack(8))
    for part in ("up", "act", "down", "residual"):
        assert len({found[f"{i}.{part}"] for i in range(2, 6)}) == 1
    assert len({found[f"3.{part}"] for part in ("up", "act", "down", "residual")}) == 4


def test_every_compute_node_and_no_other_has_a_class() -> None:
    network = load_network(DIGITS_repetition)
    roles = roles_of(network)
    computing = {name for name, role in roles.items() if role.role is Role.COMPUTE}
    found = repeated(network, roles)
    assert set(found) == computing
    assert sorted(set(found.values())) == list(range(len(set(found.values()))))


def test_layer_norms_of_a_vision_transformer_are_one_class() -> None:
    found = classes(load_network(DIGITS_repetition))
    squares = Counter(v for k, v in found.items() if k.endswith("/Pow"))
    assert sorted(squares.values()) == [1, 12]


def test_parts_of_an_attention_block_are_told_apart() -> None:
    found = classes(load_network(DIGITS_repetition))
    parts = ("attn/q/MatMul", "attn/k/MatMul", "attn/v/MatMul", "attn/proj/MatMul")
    adds = ("Add", "Add_1", "attn/q/Add", "attn/k/Add", "attn/v/Add", "norm1/Add", "norm1/Add_1")
    for names in (parts, adds):
        assert len({found[f"/blocks.2/{name}"] for name in names}) == len(names)
        for name in names:
            assert found[f"/blocks.2/{name}"] == found[f"/blocks.3/{name}"]


def test_operand_order_counts_only_where_the_operator_does_not_commute() -> None:
    s = Sketch()
    x, y = s.input("x", [4]), s.op("Relu", s.input("y", [4]))
    s.op("Add", x, y, name="add")
    s.op("Add", y, x, name="add swapped")
    s.op("Sub", x, y, name="sub")
    s.op("Sub", y, x, name="sub swapped")
    outputs = [f"{n.name}_out" for n in s.nodes if n.op_type != "Relu"]
    found = classes(s.network(*outputs))
    assert found["add"] == found["add swapped"]
    assert found["sub"] != found["sub swapped"]


def test_names_and_values_play_no_part_but_attributes_and_constant_shapes_do() -> None:
    s = Sketch()
    x = s.input("x", [4, 4])
    ends = [
        s.op("MatMul", x, weights(4, 4), name="one"),
        s.op("MatMul", x, weights(4, 4) * 2, name="other values"),
        s.op("MatMul", x, weights(4, 5), name="other shape"),
        s.op("LeakyRelu", x, alpha=0.1, name="leaky"),
        s.op("LeakyRelu", x, alpha=0.2, name="leakier"),
    ]
    found = classes(s.network(*ends))
    assert found["one"] == found["other values"] != found["other shape"]
    assert found["leaky"] != found["leakier"]


def test_data_movement_tells_what_it_lies_between_apart() -> None:
    s = Sketch()
    x = s.input("x", [2, 3, 4, 5])
    ends = []
    for name, perm in (("a", [0, 2, 1, 3]), ("b", [0, 2, 1, 3]), ("c", [0, 3, 2, 1])):
        moved = s.op("Transpose", s.op("Relu", x, name=name), perm=perm)
        ends.append(s.op("Exp", moved))
    found = classes(s.network(*ends))
    assert found["a"] == found["b"] != found["c"]
