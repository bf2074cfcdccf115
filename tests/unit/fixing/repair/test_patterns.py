import numpy as np
import onnx
import pytest

from halfwise.emulation.ort import Session
from halfwise.fixing.repair.making import OneNode, Single
from halfwise.formats import ROUNDINGS_OF_MODEL
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import network_from_proto, normalise
from halfwise.graph.model import Names, Writer, graphs_of, values_of
from halfwise.metrics.difference import is_close
from halfwise.records import replace
from tests.spellings import EXPECTED, proto
from tests.unit.graph.sketch import Sketch


def same_at_any_batch(before, after) -> None:
    sessions = [Session(n.model) for n in (before, after)]
    value = before.graph.inputs[0]
    for batch in (1, 3):
        sizes = [d if isinstance(d, int) else batch for d in value.shape]
        x = np.random.default_rng(batch).standard_normal(sizes).astype(np.float32) * 3
        one, two = (next(iter(s.run({value.name: x}).values())) for s in sessions)
        assert is_close(two, one, ROUNDINGS_OF_MODEL)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_spelling_becomes_one_node_or_stays(name):
    network = raise_opset(network_from_proto(proto(name)), 24)
    model, expected = network.copy(), EXPECTED[name]
    expected = expected if expected and expected.endswith("Normalization") else None
    found = singles(replace(network, model=model))
    assert [one.op for one in found] == ([expected] if expected else [])
    for one in found:
        put(model, one)
    same_at_any_batch(network, normalise(model, path=None, sha256=""))


def singles(network):
    return [change.make.__self__ for change in OneNode().changes(network)]  # type: ignore[attr-defined]


def found(name, opset=24):
    return singles(raise_opset(network_from_proto(proto(name)), opset))


def put(model, one, stem="new"):
    one.put(Writer(model, stem, Names(graphs_of(model))))


def test_a_norm_has_its_nodes_and_its_replacement():
    network = network_from_proto(proto("torchscript_layer_norm"))
    (change,), (norm,) = OneNode().changes(network), singles(network)
    assert len(change.nodes) == 9
    assert change.nodes[1] == "/norm/Sub"
    assert norm.attributes["axis"] == -1
    assert [a.shape for a in norm.constants.values()] == [(24,), (24,)]


def test_what_needs_a_later_opset_stays():
    assert not found("torch_rms_norm", 20)
    assert [one.op for one in found("torch_rms_norm", 23)] == ["RMSNormalization"]


def test_other_types_are_left_alone():
    s = Sketch(20)
    x = s.input("x", [2, 4], onnx.TensorProto.DOUBLE)
    centred = s.op("Sub", x, s.op("ReduceMean", x, [-1]))
    squares = s.op("ReduceMean", s.op("Mul", centred, centred), [-1])
    network = s.network(s.op("Div", centred, s.op("Sqrt", squares)))
    assert not singles(network)


def test_a_norm_by_channel_is_an_instance_normalization():
    (norm,) = found("torchscript_instance_norm", 13)
    assert norm.op == "InstanceNormalization"
    assert [a.shape for a in norm.constants.values()] == [(24,), (24,)]


@pytest.fixture
def sketch():
    s = Sketch(20)
    x = s.input("x", [2, 3])
    doubled = s.op("Add", x, x, name="/a/Add")
    shared = s.op("Mul", doubled, 2.0, name="/b/Mul")
    s.op("Neg", shared, name="/b/Neg")
    s.op("Abs", shared, name="/c/Abs")
    return s


def single(model, x="x", output="/b/Neg_out"):
    values = {value.name: value for value in values_of(model.graph)}
    return Single("Gelu", values[x], values[output], {"approximate": "tanh"})


def test_names_stay_and_what_others_read_too(sketch):
    network = sketch.network("/b/Neg_out", "/c/Abs_out")
    model = network.copy()
    put(model, single(model), "/b")
    assert {n.name for n in model.graph} == {"/a/Add", "/b/Mul", "/c/Abs", "/b/Gelu"}
    assert [v.name for v in model.graph.outputs] == ["/b/Neg_out", "/c/Abs_out"]
    normalise(model, path=None, sha256="")
    assert {n.op_type for n in network.nodes()} == {"Add", "Mul", "Neg", "Abs"}


def test_what_nobody_reads_any_more_goes(sketch):
    sketch.nodes.pop()
    model = sketch.network("/b/Neg_out").copy()
    put(model, single(model))
    assert [n.op_type for n in model.graph] == ["Gelu"]


def test_one_may_read_what_another_gives(sketch):
    model = sketch.network("/b/Neg_out").copy()
    put(model, single(model, output="/b/Mul_out"))
    put(model, single(model, x="/b/Mul_out"))
    assert [n.op_type for n in normalise(model, path=None, sha256="").nodes()][:2] == ["Gelu"] * 2
