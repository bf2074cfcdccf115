import numpy as np
import onnx
import pytest

from halfwise.case import CPU, Case, Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.formats import ROUNDINGS_OF_MODEL
from halfwise.graph import one_node as looking
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.one_node import FIRST_OPSET, OF_ANY_OPSET, Replacement
from halfwise.metrics import relative_error
from halfwise.records import Criterion
from halfwise.tools import modernize
from halfwise.tools.modernize import modernized_case
from tests.models.normalisation import averaged
from tests.spellings import EXPECTED, proto
from tests.unit.graph.sketch import Sketch


def samples_for(model: onnx.ModelProto, count=2) -> Samples:
    sizes = [d.dim_value or 2 for d in model.graph.input[0].type.tensor_type.shape.dim]
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(sizes).astype(np.float32) + 1 for _ in range(count)]
    return Samples(tuple(map(str, range(count))), lambda i: {"x": arrays[i]})


AVAILABLE = (*FIRST_OPSET, *OF_ANY_OPSET)


def modernized(model: onnx.ModelProto, opset=24, available=AVAILABLE):
    network, samples = network_from_proto(model), samples_for(model)
    case = Case(network, samples, samples.select(()), Criterion(), None, (), "")
    return network, *modernized_case(case, CPU, opset, available, "TensorRT")


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
    before, after, record = modernized(proto(name))
    expected = EXPECTED[name]
    assert [r.op for r in record.rewritings] == ([expected] if expected else [])
    assert after.opset == record.new_opset == 24
    assert record.error <= ROUNDINGS_OF_MODEL
    same_at_any_batch(before, after)


def test_the_target_decides():
    _, after, record = modernized(proto("torch_gelu"), 17, ("LayerNormalization",))
    assert after.opset == 17
    assert [(left.op, left.reason) for left in record.left] == [("Gelu", "the target has no Gelu")]
    _, _, record = modernized(proto("torchscript_layer_norm"), 13)
    assert "needs opset 17" in record.left[0].reason


def test_what_is_not_gelu_is_no_pattern():
    _, _, record = modernized(proto("nearly_gelu"))
    assert (record.rewritings, record.left) == ((), ())


def test_a_wrong_axis_is_undone(monkeypatch):
    """What a peer does: LayerNormalization from axis 1 on, for a norm over axis 1 alone."""

    def wrong(norm, _):
        sizes = tuple(norm.x.shape[1:])
        arrays = {"weight": norm.weight, "bias": norm.bias}
        whole = {
            key: np.ascontiguousarray(np.broadcast_to(array.reshape(-1, 1, 1), sizes), np.float32)
            for key, array in arrays.items()
        }
        x, output = tensor_name(norm.x), tensor_name(norm.output)
        return Replacement(norm.kind, x, output, {"axis": 1, "epsilon": norm.eps}, whole)

    monkeypatch.setattr(looking, "_norm_plan", wrong)
    before, after, record = modernized(proto("torchscript_channels_first"))
    assert record.rewritings == ()
    assert "undone: outputs differ by" in record.left[-1].reason
    same_at_any_batch(before, after)


def test_names_of_the_rest_stay():
    _, after, record = modernized(proto("torchscript_layer_norm"))
    assert [node_name(n) for n in after.nodes()][-1] == "after"
    assert "/norm/Sub" in record.rewritings[0].removed
    assert after.graph.outputs[0].name == "after_out"


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
    _, _, record = modernized(s.proto(s.op("Div", s.op("Sub", far, mean), root, name="ill")))
    assert [r.output for r in record.rewritings] == ["good_out"]
    (left,) = record.left
    assert left.reason.startswith("undone: outputs differ by")


def test_the_highest_opset_that_can_be_reached(monkeypatch):
    def up_to_21(network, opset):
        if opset > 21:
            raise CaseError("no adapter")
        return raise_opset(network, opset)

    monkeypatch.setattr(modernize, "raise_opset", up_to_21)
    _, after, record = modernized(proto("torch_gelu"), 25)
    assert after.opset == 20
    assert record.notes[0] == "not raised to opset 25: no adapter"
    assert [r.op for r in record.rewritings] == ["Gelu"]
