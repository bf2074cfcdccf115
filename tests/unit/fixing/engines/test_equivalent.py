import numpy as np
import onnx_ir as ir

from halfwise.emulation.ort import Session
from halfwise.fixing.engines.workbench import equivalent, normalisations
from halfwise.graph.model import network_from_proto
from halfwise.graph.modern.candidates import FIRST_OPSET
from halfwise.metrics.relative import relative_rms
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
