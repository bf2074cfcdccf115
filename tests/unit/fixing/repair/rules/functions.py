"""Compare what a repaired model gives in FP32 with the function in FP64, beside the original."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from halfwise.emulation.ort import Session
from halfwise.fixing.repair.rule import Rule
from halfwise.graph.model import Network, normalise
from halfwise.records import Repair

Inputs = Mapping[str, NDArray[Any]]


def repaired(network: Network, rule: Rule, *repairs: Repair) -> Network:
    """Apply repairs that went through JSON, as those of a run do."""
    model = network.copy()
    for repair in repairs:
        rule.apply(model, Repair.model_validate_json(repair.model_dump_json()))
    return normalise(model, path=None, sha256="")


def exactly(proto: onnx.ModelProto, inputs: Inputs) -> dict[str, NDArray[np.float64]]:
    """Return the outputs in FP64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    del wide.graph.value_info[:]
    for value in (*wide.graph.input, *wide.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for constant in wide.graph.initializer:
        if constant.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(constant).astype(np.float64)
            constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    names = [o.name for o in wide.graph.output]
    given = {name: array.astype(np.float64) for name, array in inputs.items()}
    with np.errstate(all="ignore"):
        outputs = ReferenceEvaluator(wide).run(names, given)
    return dict(zip(names, outputs, strict=True))


def errors(
    proto: onnx.ModelProto, before: Network, after: Network, inputs: Inputs
) -> tuple[float, float]:
    """Return the largest error of an output over its largest value, before and after."""
    truth = exactly(proto, inputs)
    found = [Session(n.model).run(inputs) for n in (before, after)]
    worst = [
        max(
            float(np.abs(a[name].astype(np.float64) - t).max() / np.abs(t).max(initial=1e-30))
            for name, t in truth.items()
        )
        for a in found
    ]
    return worst[0], worst[1]
