"""A model in FP64: shows its true function where FP32 rounding hides it.

ONNX Runtime's CPU provider has FP64 kernels for most operators, but not for convolutions, some
pooling and some activations. ONNX's reference evaluator has nearly all, but its convolutions loop
over positions in Python, so this module brings its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.defs import SchemaError, get_schema

from halfwise.case import CPU, Sample
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.casts import fill_of
from halfwise.graph.conversion import TO_FP64, upcast_storage
from halfwise.graph.model import graphs_of, is_standard, opset_of
from halfwise.metrics import Outputs

Array = NDArray[Any]


_Run = Callable[[Mapping[str, Array]], Outputs]
_HIDDEN = ("stash_type", "softmax_precision")
"""Attributes that by default make an operator compute in FP32 inside."""


class DoubleSession:
    """A model that runs in FP64 on FP32 inputs."""

    def __init__(self, model: ir.Model) -> None:
        """Copy and widen `model`, which is FP32 and is not changed."""
        wide = model.clone()
        for node in [n for graph in graphs_of(wide) for n in graph]:
            _say_types(node, opset_of(wide))
        upcast_storage(wide, TO_FP64)
        self._wide = wide
        self._run: _Run | None = None

    def run(self, sample: Sample) -> Outputs:
        """Return the outputs by name; FP32 outputs of the model are FP64 here.

        Args:
            sample: The inputs by name; f32 arrays are widened.

        Raises:
            RunFailed: nothing runs the model in FP64 on this sample.
        """
        inputs = {
            n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in sample.items()
        }
        if self._run is not None:
            return self._run(inputs)
        for way in (_runtime, _reference):
            try:
                run = way(self._wide)
                outputs = run(inputs)
            except (CaseError, RunFailed):
                continue
            self._run = run
            return outputs
        raise RunFailed("The model cannot be run in FP64.", "")


def _say_types(node: ir.Node, opset: int) -> None:
    """State explicitly, in place, what an operator computes in FP32 by default."""
    if not is_standard(node):
        return
    if node.op_type == "ConstantOfShape":
        node.attributes["value"] = ir.AttrTensor("value", fill_of(node))
    try:
        schema = get_schema(node.op_type, opset, "")
    except SchemaError:
        return
    for name in _HIDDEN:
        if name in schema.attributes and name not in node.attributes:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _runtime(model: ir.Model) -> _Run:
    return Session(model, runtime=CPU).run


def _reference(model: ir.Model) -> _Run:
    from halfwise.emulation.reference_ops import reference  # noqa: PLC0415

    return reference(model)
