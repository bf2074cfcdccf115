"""ONNX's reference evaluator, with faster and wider operators of our own.

A module of its own, as it loads 11 MiB that only operators without an FP64 kernel need.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import (
    op_conv,
    op_conv_transpose,
    op_global_max_pool,
    op_layer_normalization,
)

from halfwise.errors import CaseError, RunFailed
from halfwise.metrics import Outputs

Array = NDArray[Any]


def reference(model: ir.Model) -> Callable[[Mapping[str, Array]], Outputs]:
    """Return what runs a model in ONNX's reference evaluator.

    Raises:
        CaseError: the evaluator refuses the model.
        RunFailed: from the returned function, if it fails on a sample.
    """
    try:
        evaluator = ReferenceEvaluator(
            ir.serde.serialize_model(model),
            new_ops=[Conv, ConvTranspose, GlobalMaxPool, LayerNormalization],
        )
    except Exception as error:
        raise CaseError(f"ONNX's reference evaluator refuses the model: {error}", "") from error

    def run(sample: Mapping[str, Array]) -> Outputs:
        # The evaluator is plain Python: a node that fails may raise anything.
        try:
            with np.errstate(all="ignore"):
                outputs = evaluator.run(None, dict(sample))
        except Exception as error:
            raise RunFailed(
                f"ONNX's reference evaluator cannot run the model: {error}", ""
            ) from error
        return dict(zip(evaluator.output_names, outputs, strict=True))

    return run


class Conv(op_conv.Conv):
    """A convolution as one matrix product per kernel element."""

    op_domain = ""

    def _run(self, *given: Any, **options: Any) -> tuple[Array, ...]:
        if options.get("auto_pad") not in (None, "NOTSET"):
            return tuple(super()._run(*given, **options))  # type: ignore[no-untyped-call]
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
            return tuple(super()._run(*given, **options))  # type: ignore[no-untyped-call]
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
        return tuple(super()._run(*given, **wide))  # type: ignore[no-untyped-call]


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
