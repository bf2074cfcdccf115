"""A model in FP64: shows its true function where FP32 rounding hides it.

ONNX Runtime's CPU provider has FP64 kernels for most operators, but not for convolutions, some
pooling and some activations. ONNX's reference evaluator has nearly all, but its convolutions copy
each window or loop over positions in Python, so this module brings its own.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.defs import SchemaError, get_schema
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import (
    op_conv,
    op_conv_transpose,
    op_global_max_pool,
    op_layer_normalization,
)

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.casts import fill_of
from halfwise.graph.conversion import TYPE_ATTRIBUTES
from halfwise.graph.model import graphs_of, is_standard, opset_of, values_of

Array = NDArray[Any]
_HIDDEN = ("stash_type", "softmax_precision")
"""Attributes that by default make an operator compute in FP32 inside."""


def in_fp64(model: ir.Model, sample: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of an FP32 model, computed in FP64.

    Raises:
        RunFailed: nothing runs the model in FP64 on this sample.
    """
    inputs = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in sample.items()}
    wide = _widened(model)
    try:
        return dict(Session(wide).run(inputs))
    except (CaseError, RunFailed):
        return _referred(wide, inputs)


def _referred(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    new_ops: Any = [Conv, ConvTranspose, GlobalMaxPool, LayerNormalization]
    # The evaluator is plain Python: a node that fails may raise anything.
    try:
        evaluator = ReferenceEvaluator(ir.serde.serialize_model(model), new_ops=new_ops)
        with np.errstate(all="ignore"):
            outputs = evaluator.run(None, dict(inputs))
    except Exception as error:
        raise RunFailed("The model cannot be run in FP64.", "") from error
    return dict(zip(evaluator.output_names, outputs, strict=True))


def _widened(model: ir.Model) -> ir.Model:
    wide = model.clone()
    for graph in graphs_of(wide):
        for value in values_of(graph):
            if value.dtype is ir.DataType.FLOAT:
                value.type = ir.TensorType(ir.DataType.DOUBLE)
            if value.const_value is not None:
                value.const_value = _double(value.const_value)
        for node in graph:
            _say_types(node, opset_of(wide))
            for name, attribute in list(node.attributes.items()):
                if attribute.type is ir.AttributeType.TENSOR:
                    node.attributes[name] = ir.AttrTensor(name, _double(attribute.as_tensor()))
                elif name in TYPE_ATTRIBUTES and attribute.as_int() == ir.DataType.FLOAT:
                    node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.DOUBLE))
    return wide


def _double(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype is not ir.DataType.FLOAT:
        return tensor
    return ir.tensor(np.asarray(tensor.numpy()).astype(np.float64), name=tensor.name)


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


class Conv(op_conv.Conv):
    """A convolution as one matrix product per kernel element."""

    op_domain = ""

    def _run(self, *given: Any, **options: Any) -> tuple[Array, ...]:
        if options.get("auto_pad") not in (None, "NOTSET"):
            return tuple(super()._run(*given, **options))
        x, w, b = (*given, None)[:3]
        window = _Window(w, options)
        padded = np.pad(x, ((0, 0), (0, 0), *window.pads))
        sizes = window.fitting(padded.shape[2:])
        grouped = padded.reshape(len(x), window.groups, w.shape[1], *padded.shape[2:])
        factors = w.reshape(window.groups, -1, *w.shape[1:])
        total = np.zeros((len(x), window.groups, factors.shape[1], prod(sizes)))
        for place in np.ndindex(*window.kernel):
            seen = grouped[(..., *window.slices(place, sizes))]
            seen, factor = seen.reshape(*seen.shape[:3], -1), factors[(..., *place)]
            # With one channel per group, matrix products are slow.
            total += factor @ seen if factor.shape[-1] > 1 else factor * seen
        return (_with_bias(total.reshape(len(x), len(w), *sizes), b),)


class ConvTranspose(op_conv_transpose.ConvTranspose):
    """A transposed convolution as one matrix product per kernel element."""

    op_domain = ""

    def _run(self, *given: Any, **options: Any) -> tuple[Array, ...]:
        if options.get("auto_pad") not in (None, "NOTSET") or options.get("output_shape"):
            return tuple(super()._run(*given, **options))
        x, w, b = (*given, None)[:3]
        window = _Window(w, options)
        sizes = x.shape[2:]
        more = options.get("output_padding") or [0] * len(sizes)
        whole = [
            s * (n - 1) + d * (k - 1) + 1 + p
            for n, k, s, d, p in zip(
                sizes, window.kernel, window.step, window.dilation, more, strict=True
            )
        ]
        grouped = x.reshape(len(x), window.groups, -1, prod(sizes))
        factors = w.reshape(window.groups, -1, *w.shape[1:]).swapaxes(1, 2)
        total = np.zeros((len(x), window.groups, w.shape[1], *whole))
        for place in np.ndindex(*window.kernel):
            seen = total[(..., *window.slices(place, sizes))]
            seen += (factors[(..., *place)] @ grouped).reshape(seen.shape)
        inner: tuple[Any, ...] = tuple(
            slice(a, n - b) for n, (a, b) in zip(whole, window.pads, strict=True)
        )
        return (_with_bias(total.reshape(len(x), -1, *whole)[(..., *inner)], b),)


class GlobalMaxPool(op_global_max_pool.GlobalMaxPool):
    """The maximum over all spatial axes; ONNX's own covers two axes only."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array, ...]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class LayerNormalization(op_layer_normalization.LayerNormalization):
    """Computes in the type of its input; ONNX's own accepts no `stash_type` but FP32."""

    op_domain = ""

    def _run(self, *given: Any, **options: Any) -> tuple[Array, ...]:
        wide = {**options, "stash_type": int(ir.DataType.FLOAT)}
        return tuple(super()._run(*given, **wide))


class _Window:
    """Where the elements of a kernel fall."""

    def __init__(self, w: Array, options: Mapping[str, Any]) -> None:
        self.kernel = w.shape[2:]
        rank = len(self.kernel)
        self.step = options.get("strides") or [1] * rank
        self.dilation = options.get("dilations") or [1] * rank
        pads = options.get("pads") or [0] * 2 * rank
        self.pads = list(zip(pads[:rank], pads[rank:], strict=True))
        self.groups = options.get("group") or 1

    def fitting(self, sizes: Sequence[int]) -> list[int]:
        """Return how often the kernel fits along each axis."""
        axes = zip(sizes, self.kernel, self.step, self.dilation, strict=True)
        return [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in axes]

    def slices(self, place: Sequence[int], sizes: Sequence[int]) -> tuple[Any, ...]:
        """Return the `sizes` positions on each axis where one element of the kernel falls."""
        axes = zip(place, sizes, self.step, self.dilation, strict=True)
        return tuple(slice(p * d, p * d + s * (n - 1) + 1, s) for p, n, s, d in axes)


def _with_bias(total: Array, bias: Array | None) -> Array:
    return total if bias is None else total + bias.reshape(-1, *[1] * (total.ndim - 2))
