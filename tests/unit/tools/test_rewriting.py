import numpy as np
import onnx
import pytest

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.formats import ROUNDINGS_OF_MODEL
from halfwise.graph import one_node as looking
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from halfwise.graph.one_node import FIRST_OPSET, Replacement
from halfwise.metrics import relative_error
from halfwise.tools import modernize
from halfwise.tools.modernize import Modernizer
from tests.models.normalisation import averaged
from tests.spellings import EXPECTED, proto
from tests.unit.graph.sketch import Sketch


def samples_for(model: onnx.ModelProto, count=2) -> Samples:
    sizes = [d.dim_value or 2 for d in model.graph.input[0].type.tensor_type.shape.dim]
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(sizes).astype(np.float32) + 1 for _ in range(count)]
    return Samples(tuple(map(str, range(count))), lambda i: {"x": arrays[i]})


def modernized(model: onnx.ModelProto, opset=24, available=tuple(FIRST_OPSET), **options):
    network = network_from_proto(model)
    return network, Modernizer(network, samples_for(model)).run(opset, available, **options)


def same_at_any_batch(before, after) -> None:
    sessions = [Session(n.model) for n in (before, after)]
    value = before.graph.inputs[0]
    for batch in (1, 3):
        sizes = [d if isinstance(d, int) else batch for d in value.shape]
        x = np.random.default_rng(batch).standard_normal(sizes).astype(np.float32) * 3
        one, two = (next(iter(s.run({value.name: x}).values())) for s in sessions)
        assert relative_error(one, two) <= ROUNDINGS_OF_MODEL


@pytest.mark.parametrize("name", EXPECTED)
def test_every_spelling_is_recognised_or_left_alone(name):
    before, proven = modernized(proto(name))
    expected = EXPECTED[name]
    assert [r.op for r in proven.rewritings] == ([expected] if expected else [])
    assert proven.network.opset == 24
    assert proven.error <= ROUNDINGS_OF_MODEL
    same_at_any_batch(before, proven.network)


@pytest.mark.parametrize("name", ["torchscript_channels_first", "keras_channels_first"])
def test_channels_first_between_transposes(name):
    before, proven = modernized(proto(name), transposes=True)
    (rewriting,) = proven.rewritings
    assert len(rewriting.added) == 3
    same_at_any_batch(before, proven.network)


def test_the_target_decides():
    _, proven = modernized(proto("torch_gelu"), 17, ("LayerNormalization",))
    assert proven.network.opset == 17
    assert [(left.op, left.reason) for left in proven.left] == [("Gelu", "the target has no Gelu")]
    _, proven = modernized(proto("torchscript_layer_norm"), 13)
    assert "needs opset 17" in proven.left[0].reason


def test_what_is_not_gelu_is_no_pattern():
    _, proven = modernized(proto("nearly_gelu"))
    assert (proven.rewritings, proven.left) == ((), ())


def test_a_wrong_axis_is_undone(monkeypatch):
    """What a peer does: LayerNormalization from axis 1 on, for a norm over axis 1 alone."""
    read = looking._norm_plan

    def wrong(norm, available, **_):
        found = read(norm, available, transposes=True)
        assert isinstance(found, Replacement)
        sizes = tuple(norm.x.shape[1:])
        whole = {
            key: np.ascontiguousarray(np.broadcast_to(array.reshape(-1, 1, 1), sizes))
            for key, array in found.constants.items()
        }
        return Replacement(found.op, found.x, found.output, {"axis": 1, "epsilon": norm.eps}, whole)

    monkeypatch.setattr(looking, "_norm_plan", wrong)
    before, proven = modernized(proto("torchscript_channels_first"))
    assert proven.rewritings == ()
    assert "undone: it differs by" in proven.left[0].reason
    same_at_any_batch(before, proven.network)


def test_names_of_the_rest_stay():
    _, proven = modernized(proto("torchscript_layer_norm"))
    assert [node_name(n) for n in proven.network.nodes()][-1] == "after"
    assert "/norm/Sub" in proven.rewritings[0].removed
    assert proven.network.graph.outputs[0].name == "after_out"


def test_only_the_ill_one_of_two_is_undone():
    """Large values of little spread: the original's own rounding is what differs."""
    s = Sketch(13)
    x = s.input("x", ["batch", 16])
    fine = s.op("Sub", x, averaged(s, x, [1], "mean"))
    variance = averaged(s, s.op("Mul", fine, fine), [1], "variance")
    y = s.op("Div", fine, s.op("Sqrt", s.op("Add", variance, 1e-5)), name="good")
    far = s.op("Add", s.op("Mul", s.op("Abs", y), 0.01), 100.0)
    mean = averaged(s, far, [1], "far_mean")
    squares = averaged(s, s.op("Mul", far, far), [1], "squares")
    spread = s.op("Sub", squares, s.op("Mul", mean, mean))
    root = s.op("Sqrt", s.op("Add", spread, 1e-1))
    _, proven = modernized(s.proto(s.op("Div", s.op("Sub", far, mean), root, name="ill")))
    assert [r.output for r in proven.rewritings] == ["good_out"]
    (left,) = proven.left
    assert left.reason.startswith("undone: it differs by")


def test_the_highest_opset_that_can_be_reached(monkeypatch):
    def up_to_21(network, opset):
        if opset > 21:
            raise CaseError("no adapter")
        return raise_opset(network, opset)

    monkeypatch.setattr(modernize, "raise_opset", up_to_21)
    _, proven = modernized(proto("torch_gelu"), 25)
    assert proven.network.opset == 21
    assert proven.notes[0] == "not raised to opset 25: no adapter"
    assert [r.op for r in proven.rewritings] == ["Gelu"]


def many(count: int) -> onnx.ModelProto:
    """Gelus in a row, each of an Erf and four others."""
    s = Sketch()
    x = s.input("x", [2, 8])
    for _ in range(count):
        gate = s.op("Add", s.op("Erf", s.op("Div", x, 2**0.5)), 1.0)
        x = s.op("Mul", s.op("Mul", x, gate), 0.5)
    return s.proto(x)


def test_many_are_compared_a_few_at_a_time(monkeypatch):
    chunks: list[int] = []
    probe = Modernizer._probe

    def counting(self, some):
        chunks.append(len(some))
        return probe(self, some)

    monkeypatch.setattr(Modernizer, "_probe", counting)
    assert len(modernized(many(20))[1].rewritings) == 20
    assert chunks == [16, 4]
