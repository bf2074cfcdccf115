"""One node in place of a norm, Softmax or activation that is written out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.fixing.repair.rule import Change, Rewriting, put_in_place
from halfwise.graph.dataflow import nodes_between
from halfwise.graph.model import Attribute, Network, Writer, node_name, tensor_name
from halfwise.graph.norms import Normalisation, read_normalisations
from halfwise.graph.reading import activations
from halfwise.graph.written_out import read_softmaxes
from halfwise.records import RepairRule

FIRST_OPSET = {"LayerNormalization": 17, "Gelu": 20, "RMSNormalization": 23}
"""Of the operators that replace patterns, those that some opset lacks, with their first one (ONNX
operator changelog)."""
_HIGHEST = FIRST_OPSET["LayerNormalization"]
"""The opset is raised no further: every TensorRT with a LayerNormalization reads this one."""


class OneNode(Rewriting):
    """Replace a written-out LayerNormalization, Softmax and the like by one node.

    Such a node keeps squares, sums and exponentials in FP32 inside, in ONNX (`stash_type`) and in
    TensorRT, so only its input and output have to fit.

    Limits: FP32; a norm has to be over the last axes, or over all places of each channel, with
    known sizes. An RMSNormalization (opset 23) and a Gelu (20) are made only if the model already
    has that opset. For a LayerNormalization it is raised to 17.

    The function stays for all x. Sums run in another order, and a Softmax subtracts the largest
    value, so it is finite where exp(x) is not.
    """

    name: RepairRule = "one-node"
    identity = (
        "(x - mean(x)) / √(mean((x - mean(x))²) + eps) · w + b = LayerNormalization(x), "
        "exp(x) / Σ exp(x) = Softmax(x), and likewise: ONNX defines the operators so"
    )

    def changes(self, network: Network) -> Iterator[Change]:
        """Yield every pattern in FP32 that one node can replace."""
        places = {node: place for place, node in enumerate(network.all_nodes())}
        highest = max(network.opset, _HIGHEST)
        for one in (*_norms(network), *_gelus(network), *_softmaxes(network)):
            first = FIRST_OPSET.get(one.op, 0)
            if one.x.dtype != ir.DataType.FLOAT or first > highest:
                continue
            if one.output.producer() in places:
                inner = sorted(
                    nodes_between(one.x, one.output) & places.keys(), key=places.__getitem__
                )
                path = tensor_name(one.output).rsplit("/", 1)[0]
                yield Change(
                    tuple(map(node_name, inner)),
                    inner,
                    one.put,
                    stem=path or tensor_name(one.output),
                    opset=first,
                    advice=f"Export it as one {one.op}.",
                )


@dataclass(frozen=True, eq=False)
class Single:
    """A node that computes `output` from `x`.

    Attributes:
        op: Its operator, of the default domain.
        x: Its first input.
        output: Its output.
        attributes: Its attributes.
        constants: Its other inputs, f32, by the last part of their names.
    """

    op: str
    x: ir.Value
    output: ir.Value
    attributes: Mapping[str, Attribute]
    constants: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def put(self, writer: Writer) -> None:
        """Put the node in the place of those that compute `output`, which keeps its name."""
        constants = [writer.constant(part, array) for part, array in self.constants.items()]
        result = writer.op(self.op, self.x, *constants, **self.attributes)
        put_in_place(writer, self.output, result)


def _gelus(network: Network) -> Iterator[Single]:
    for gelu in activations(network, "Gelu"):
        tanh = any(node.op_type == "Tanh" for node in gelu.nodes)
        yield Single("Gelu", gelu.x, gelu.output, {"approximate": "tanh"} if tanh else {})


def _softmaxes(network: Network) -> Iterator[Single]:
    for softmax in read_softmaxes(network):
        if softmax.axis is not None:
            yield Single("Softmax", softmax.x, softmax.output, {"axis": softmax.axis})


def _norms(network: Network) -> Iterator[Single]:
    yield from filter(None, map(_norm, read_normalisations(network)))


def _norm(norm: Normalisation) -> Single | None:
    """Return the replacement of a normalisation; None if no operator computes the same.

    The sizes of axes along which a weight varies have to be known: a weight has them.
    """
    assert norm.x.shape is not None
    rank, op, axes, bias = norm.rank, str(norm.kind), norm.axes, norm.bias
    attributes: dict[str, Attribute] = {"epsilon": norm.eps}
    if rank >= 4 and axes == tuple(range(2, rank)) and norm.varying <= {1}:
        op, axes = "InstanceNormalization", (1,)
        bias = np.zeros(1) if bias is None else bias
    elif norm.varying.issubset(axes) and axes == tuple(range(rank - len(axes), rank)):
        attributes["axis"] = -len(axes)
    else:
        return None
    sizes = [norm.x.shape[axis] for axis in axes]
    known = all(isinstance(size, int) for size in sizes)
    if not norm.exact or not known or (axes == (1,) and norm.kind != "LayerNormalization"):
        return None
    arrays = {"weight": norm.weight, "bias": bias}
    constants = {n: _whole(a, rank, axes, sizes) for n, a in arrays.items() if a is not None}
    return Single(op, norm.x, norm.output, attributes, constants)


def _whole(
    array: NDArray[np.float64], rank: int, axes: tuple[int, ...], sizes: list[Any]
) -> NDArray[np.float32]:
    """Return a weight that broadcasts to a tensor of `rank`, in the shape of some of its axes."""
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    inner = full.reshape(tuple(full.shape[axis] for axis in axes))
    return np.ascontiguousarray(np.broadcast_to(inner, sizes), np.float32)
