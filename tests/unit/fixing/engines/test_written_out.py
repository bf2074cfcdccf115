import numpy as np
import onnx_ir as ir

from halfwise.emulation.ort import Session
from halfwise.fixing.engines.written_out import write_out
from halfwise.graph.model import network_from_proto
from halfwise.metrics.relative import relative_rms
from halfwise.records import NodeName
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
    made = write_out(network, names("rnn", "rnn/two"))
    first, second = (made.parts[name] for name in sorted(made.parts))
    assert not set(first) & set(second)
    assert all(name.startswith("rnn/two/") for name in second)
    present = {n.name for n in made.network.nodes()}
    assert {*first, *second} <= present
    assert "rnn" not in present
    assert made.constraints(map(NodeName, ("rnn_row", "rnn/two"))) == ("rnn_row", *second)
    one = write_out(network, names("rnn"))
    assert "rnn/two" in {n.name for n in one.network.nodes()}
    assert one.constraints(names("rnn/two")) == ("rnn/two",)


def test_it_is_the_same_function_whatever_is_written_out():
    network = recurrences()
    before = ir.serde.serialize_model(network.model).SerializeToString()
    x = {"x": np.random.default_rng(1).normal(size=(2, 1, 4)).astype(np.float32)}
    made = write_out(network, names("rnn"))
    (expected,), (found,) = (Session(n.model).run(x).values() for n in (network, made.network))
    assert relative_rms(expected, found) < 1e-6
    assert ir.serde.serialize_model(network.model).SerializeToString() == before
