"""Parts of a model that stand alone: fixed shapes, plain names, real inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.cut import GIVEN, region_model
from halfwise.graph.model import Network
from halfwise.records import TensorName

Arrays = Mapping[Any, NDArray[Any]]


def part(
    network: Network,
    targets: Sequence[TensorName],
    given: Sequence[TensorName],
    values: Arrays,
    sample: Arrays,
) -> tuple[ir.Model, dict[str, NDArray[Any]]]:
    """Return the part that computes `targets` from `given`, and its inputs.

    Inputs are called as the tensors that they stand for, but for those that the part computes too.

    Args:
        network: The model; not changed.
        targets: What to compute.
        given: Where the part begins.
        values: Arrays of `targets` and `given`.
        sample: Inputs of the model.
    """
    model = region_model(network, targets, given)
    feed: dict[str, NDArray[Any]] = {}
    for value in list(model.graph.inputs):
        name = str(value.name).removesuffix(GIVEN)
        if not value.uses():
            model.graph.inputs.remove(value)
            continue
        array = values[name] if name in values else sample[name]
        assert value.dtype is not None
        if name not in targets:
            value.name = name
        value.shape = ir.Shape(array.shape)
        feed[str(value.name)] = array.astype(value.dtype.numpy())
    for output in (v for node in model.graph for v in node.outputs):
        output.shape = None
    for output in model.graph.outputs:
        output.shape = ir.Shape(values[output.name].shape)
    return model, feed
