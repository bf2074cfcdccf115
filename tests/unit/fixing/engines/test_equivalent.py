import re

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.engines.equivalent import equivalent, normalisations, unrolled
from halfwise.graph.loading import network_from_proto, normalise
from halfwise.graph.one_node import FIRST_OPSET
from halfwise.metrics.difference import relative_rms
from halfwise.records import NodeName
from tests import models
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch, f32


def recurrences():
    """Two GRUs in a row; the name of one begins with that of the other."""
    s = Sketch()
    rng = np.random.default_rng(0)
    last = s.input("x", [2, 1, 4])
    for name in ("rnn", "rnn/two"):
        w, r = (s.constant(f32(rng.normal(size=(1, 12, 4))), f"{name}_{k}") for k in "wr")
        last = s.op("GRU", last, w, r, name=name, hidden_size=4)
        last = s.op("Squeeze", last, s.constant([1]), name=f"{name}_row")
    return network_from_proto(s.proto(last))


def test_what_stands_for_each_node_is_known_and_constrained_for_it():
    network = recurrences()
    made = equivalent(network, names("rnn", "rnn/two"))
    first, second = (made.parts[name] for name in sorted(made.parts))
    assert not set(first) & set(second)
    assert all(name.startswith("rnn/two/") for name in second)
    present = {n.name for n in made.network.nodes()}
    assert {*first, *second} <= present
    assert "rnn" not in present
    assert made.constraints(map(NodeName, ("rnn_row", "rnn/two"))) == ("rnn_row", *second)
    one = equivalent(network, names("rnn"))
    assert "rnn/two" in {n.name for n in one.network.nodes()}
    assert one.constraints(names("rnn/two")) == ("rnn/two",)


def test_it_is_the_same_function_whatever_is_written_out():
    network = recurrences()
    before = ir.serde.serialize_model(network.model).SerializeToString()
    x = {"x": np.random.default_rng(1).normal(size=(2, 1, 4)).astype(np.float32)}
    made = equivalent(network, names("rnn"))
    (expected,), (found,) = (Session(n.model).run(x).values() for n in (network, made.network))
    assert relative_rms(expected, found) < 1e-6
    assert ir.serde.serialize_model(network.model).SerializeToString() == before


def test_a_normalisation_is_one_node_that_is_constrained_for_all_of_it():
    network = network_from_proto(models.layer_norm().proto)
    raised, (found,) = normalisations(network, FIRST_OPSET)
    assert found.op == "LayerNormalization"
    nodes = frozenset(found.nodes)
    made = equivalent(network, nodes)
    (norm,) = (n for n in made.network.nodes() if n.op_type == "LayerNormalization")
    assert made.constraints(sorted(nodes)) == (norm.name,)
    sample = {"x": models.layer_norm().inputs["x"][0]}
    (right,), (given,) = (Session(n.model).run(sample).values() for n in (raised, made.network))
    assert relative_rms(right, given) < 1e-5


def test_before_there_was_such_a_node_the_opset_is_raised():
    s = Sketch(13)
    x = s.input("x", [1, 4, 32])
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=[-1]))
    variance = s.op("ReduceMean", s.op("Pow", centred, f32(2.0)), axes=[-1])
    root = s.op("Sqrt", s.op("Add", variance, f32(1e-5)))
    network = s.network(s.op("Mul", s.op("Div", centred, root), f32(np.ones(32))))
    made = equivalent(network, frozenset(normalisations(network, FIRST_OPSET)[1][0].nodes))
    assert made.network.opset == 17
    assert "LayerNormalization" in {n.op_type for n in made.network.nodes()}


def test_what_the_builder_lacks_is_no_candidate():
    network = network_from_proto(models.layer_norm().proto)
    assert normalisations(network, [])[1] == []


GATES = {"GRU": 3, "LSTM": 4}
BATCH, INPUT, HIDDEN = 2, 3, 4
USUAL = {"steps": 3, "direction": "forward", "layout": 0, "bias": True, "states": False}


def recurrent(op="GRU", batch=BATCH, opset=17, **changes):
    """A model of one node, all its outputs given out, and a sample for it."""
    how = {**USUAL, **changes}
    s = Sketch(opset=opset)
    rng = np.random.default_rng(3)
    directions = 2 if how["direction"] == "bidirectional" else 1
    first = how["layout"]
    sizes = [batch, how["steps"]] if first else [how["steps"], batch]
    x = s.input("x", [*sizes, INPUT])
    sample = {
        "x": rng.normal(size=[3 if how["steps"] == "T" else how["steps"], BATCH, INPUT]).astype(
            np.float32
        )
    }
    if first:
        sample["x"] = sample["x"].transpose(1, 0, 2).copy()
    width = GATES[op] * HIDDEN
    w, r, b = (
        s.constant(rng.normal(size=(directions, *size)).astype(np.float32), name)
        for name, size in (("w", (width, INPUT)), ("r", (width, HIDDEN)), ("b", (2 * width,)))
    )
    states = []
    for name in ("h", "c")[: 1 if op == "GRU" else 2] if how["states"] else ():
        shape = [batch, directions, HIDDEN] if first else [directions, batch, HIDDEN]
        states.append(s.input(name, shape))
        real = [BATCH if size == batch else size for size in shape]
        sample[name] = rng.normal(size=real).astype(np.float32)
    outputs = ["y", "y_h", "y_c"][: 2 if op == "GRU" else 3]
    attributes = {k: v for k, v in how.items() if k not in USUAL}
    if first:
        attributes["layout"] = 1
    read = [x, w, r, b if how["bias"] else "", how.get("lengths", ""), *states]
    attributes.pop("lengths", None)
    if "peepholes" in attributes:
        attributes.pop("peepholes")
        read = [*read[:5], "", "", s.constant(np.ones((1, 3 * HIDDEN), np.float32), "p")]
    s.nodes.append(
        helper.make_node(
            op, read, outputs, "rnn", hidden_size=HIDDEN, direction=how["direction"], **attributes
        )
    )
    return s.network(*outputs), sample


def both(network, sample):
    """What a model gives, and what it gives written out."""
    written = normalise(unrolled(network.model), path=None, sha256="")
    assert not {"GRU", "LSTM"} & {node.op_type for node in written.nodes()}
    return Session(network.model).run(sample), Session(written.model).run(sample)


@given(
    op=st.sampled_from(sorted(GATES)),
    steps=st.integers(1, 5),
    direction=st.sampled_from(("forward", "reverse", "bidirectional")),
    late=st.integers(0, 1),
    bias=st.booleans(),
    states=st.booleans(),
    opset=st.sampled_from((12, 14, 17, 21)),
    batch=st.sampled_from((BATCH, "N")),
)
def test_what_is_written_out_gives_the_same(op, late, **how):
    changes = {"linear_before_reset": late} if op == "GRU" else {}
    right, written = both(*recurrent(op, **how, **changes))
    assert right.keys() == written.keys()
    for name, expected in right.items():
        assert written[name].shape == expected.shape
        assert relative_rms(expected, written[name]) < 2e-6, name


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("states", [False, True])
def test_a_batch_that_comes_first_is_only_transposed(op, states):
    """ONNX Runtime has no kernel for it on the CPU."""
    how = {"direction": "bidirectional", "states": states}
    usual, sample = recurrent(op, **how)
    first, turned = recurrent(op, layout=1, **how)
    for name in ("h", "c")[: len(sample) - 1]:
        turned[name] = sample[name].transpose(1, 0, 2).copy()
    right = Session(usual.model).run(sample)
    written = Session(normalise(unrolled(first.model), path=None, sha256="").model).run(turned)
    for name, order in (("y", (2, 0, 1, 3)), *((n, (1, 0, 2)) for n in right if n != "y")):
        assert relative_rms(right[name].transpose(order), written[name]) < 2e-6


@pytest.mark.parametrize(
    ("op", "changes", "why"),
    [
        ("GRU", {"steps": "T"}, "the length of its sequence is not fixed"),
        ("GRU", {"steps": 300}, "its sequence has 300 steps; only 1 to 256"),
        ("GRU", {"activations": ["Relu", "Tanh"]}, "its activations are relu, tanh"),
        ("LSTM", {"clip": 2.0}, "it clips"),
        ("LSTM", {"input_forget": 1}, "couples its gates"),
        ("LSTM", {"peepholes": True}, "it has peepholes"),
    ],
)
def test_what_cannot_be_written_out_is_refused_and_left_alone_where_all_are_asked_for(
    op, changes, why
):
    network, _ = recurrent(op, **changes)
    with pytest.raises(CaseError, match=f"rnn cannot be written out: .*{re.escape(why)}"):
        unrolled(network.model, [NodeName("rnn")])
    assert [node.op_type for node in unrolled(network.model).graph] == [op]


def test_lengths_that_vary_and_weights_that_are_computed_are_refused():
    s = Sketch()
    x, lengths = s.input("x", [3, 2, 3]), s.input("lengths", [2], 6)
    w = s.op("Tanh", s.constant(np.ones((1, 12, 3), np.float32)), name="w")
    r = s.constant(np.ones((1, 12, 4), np.float32), "r")
    fixed = s.constant(np.ones((1, 12, 3), np.float32), "fixed")
    s.nodes.append(helper.make_node("GRU", [x, w, r], ["a"], "computed", hidden_size=4))
    s.nodes.append(
        helper.make_node("GRU", [x, fixed, r, "", lengths], ["b"], "lengths", hidden_size=4)
    )
    network = s.network("a", "b")
    with pytest.raises(CaseError, match="its weights are not constant"):
        unrolled(network.model, [NodeName("computed")])
    with pytest.raises(CaseError, match="may differ in length"):
        unrolled(network.model, [NodeName("lengths")])
    with pytest.raises(CaseError, match="other is not a GRU or LSTM"):
        unrolled(network.model, [NodeName("other")])


def test_the_named_ones_alone_are_written_out_and_tensors_keep_their_names():
    s = Sketch()
    x = s.input("x", [3, 2, 3])
    w, r = (s.constant(np.ones((1, 12, n), np.float32) / 8, f"w{n}") for n in (3, 4))
    for name in ("one", "two"):
        s.nodes.append(helper.make_node("GRU", [x, w, r], ["", f"{name}_h"], name, hidden_size=4))
    network = s.network(s.op("Add", "one_h", "two_h"))
    model = unrolled(network.model, [NodeName("one")])
    left = [str(node.name) for node in model.graph]
    assert "two" in left
    assert "one" not in left
    assert all(name.startswith("one/") for name in left if name not in ("two", "Add_2"))
    assert "one_h" in {v.name for node in model.graph for v in node.outputs}
    assert [node.name for node in network.nodes()] == ["one", "two", "Add_2"]
