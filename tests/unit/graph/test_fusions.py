from collections import Counter
from pathlib import Path

import numpy as np

from halfwise.graph.fusions import repeated
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network
from halfwise.graph.roles import Role, roles_of
from tests.unit.graph.sketch import Sketch

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
