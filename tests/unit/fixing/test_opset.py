from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from halfwise.case import Samples
from halfwise.errors import CaseError
from halfwise.fixing import opset as stage
from halfwise.fixing.opset import same, with_opset_for
from halfwise.formats import BF16, FP16
from halfwise.graph.model import Network, constant_array
from halfwise.graph.opset import raise_opset
from tests import models
from tests.unit.casing import prepare
from tests.unit.graph.sketch import Sketch, f32


def convolution(opset: int) -> models.Ill:
    s = Sketch(opset)
    x = s.input("x", [1, 2, 8, 8])
    c = s.op("Conv", x, models.weights(4, 2, 3, 3, seed=1, scale=0.2), name="conv")
    y = s.op("ReduceMean", c, name="mean", axes=[2, 3])
    return models.Ill(s.proto(y), {"x": models.signals(1, 2, 8, 8, seed=4)})


@pytest.mark.parametrize("opset", [13, 17])
def test_the_opset_is_raised_where_convolutions_need_it(opset) -> None:
    prepared = prepare(convolution(opset))
    raised, note = with_opset_for(BF16, prepared.network, prepared.samples)
    assert raised.opset == 22
    assert note is not None
    assert f"raised from {opset} to 22" in note
    assert "Conv" in note
    assert "4 samples" in note


def test_nothing_is_done_for_nothing() -> None:
    prepared = prepare(convolution(17))
    assert with_opset_for(FP16, prepared.network, prepared.samples) == (prepared.network, None)
    small = prepare(models.small())
    assert with_opset_for(BF16, small.network, small.samples) == (small.network, None)


def test_an_adapter_that_changes_the_function_is_not_used(monkeypatch) -> None:
    """The converter of ONNX has had such faults."""
    prepared = prepare(convolution(17))

    def wrong(network: Network) -> Network:
        model = raise_opset(network).model
        weight = next(v for v in model.graph.initializers.values() if v.shape and len(v.shape) == 4)
        array = constant_array(weight).astype(np.float32) * f32(1 + 1e-5)
        weight.const_value = ir.tensor(array, name=weight.name)
        return replace(network, model=model)

    monkeypatch.setattr(stage, "raise_opset", wrong)
    kept, note = with_opset_for(BF16, prepared.network, prepared.samples)
    assert kept is prepared.network
    assert note is not None
    assert "stays at 17" in note
    assert "something else" in note


def test_a_converter_that_gives_up_leaves_the_opset(monkeypatch) -> None:
    prepared = prepare(convolution(17))

    def fail(_: Network) -> Network:
        raise CaseError("No adapter.", "")

    monkeypatch.setattr(stage, "raise_opset", fail)
    kept, note = with_opset_for(BF16, prepared.network, prepared.samples)
    assert kept is prepared.network
    assert note is not None
    assert note.endswith("No adapter.")


def test_a_single_sample_will_do() -> None:
    prepared = prepare(convolution(17))
    one = Samples(("s",), lambda _: prepared.samples[0])
    assert with_opset_for(BF16, prepared.network, one)[0].opset == 22


@pytest.mark.parametrize(
    ("before", "after", "equal"),
    [
        (f32([1, 1000]), f32([1, 1000]), True),
        (f32([1, 1000]), f32([1.0009, 1000]), True),
        (f32([1, 1000]), f32([1.002, 1000]), False),
        (f32([1, np.nan, np.inf]), f32([1, np.nan, np.inf]), True),
        (f32([1, np.inf]), f32([1, -np.inf]), False),
        (f32([1, 2]), f32([1, np.nan]), False),
        (f32([1, 2]), f32([[1, 2]]), False),
        (f32([1]), np.array([1.0]), False),
        (f32([]), f32([]), True),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array(["a"], object), np.array(["a"], object), True),
    ],
)
def test_outputs_are_compared_to_a_millionth_of_the_largest(before, after, equal) -> None:
    assert same({"y": before}, {"y": after}) is equal


def test_outputs_have_the_same_names() -> None:
    assert not same({"y": f32([1])}, {"z": f32([1])})
