"""All rules; make recorded repairs in a network, and record them in its own metadata.

So anybody can make and prove them again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import isfinite, isqrt
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.fixing.repair.rule import Change, Rewriting, put_in_place
from halfwise.fixing.repair.scale import Scale
from halfwise.fixing.repair.shift import Mask, Shift
from halfwise.graph.conversion import raise_opset
from halfwise.graph.dataflow import nodes_between
from halfwise.graph.loading import REFUSALS, normalise
from halfwise.graph.model import Attribute, Network, Writer, is_standard, node_name, tensor_name
from halfwise.graph.norms import Normalisation, read_normalisations
from halfwise.graph.reading import axes_of
from halfwise.records import Record, Repair, RepairRule, replace
from halfwise.wording import listed

_SUMS = ("MatMul", "ReduceMean", "ReduceSum", "Softmax")
_FIRST_OPSET = 13
"""From here on a Softmax is along one axis, and the axes of a ReduceSum are an input."""


class Split(Rewriting):
    """Add up p·n terms as p sums of n, p near n: an error grows with p + n, not with p·n.

    Rounding m additions loses up to m·u (Higham 2002, "Accuracy and Stability of Numerical
    Algorithms", 4.2). A Softmax is written out, with its maximum subtracted and means as parts, so
    that no sum leaves the range.

    Limits: one axis, of known size, as are the axes after it; a matrix as second operand of a
    MatMul; from opset 13 on; and only where no node may stay in FP32, which costs less.
    """

    name: RepairRule = "split"
    identity = "Σ x over p·n terms = Σ over p of Σ x over n; softmax(x) = exp(x - max x) / Σ …"
    alone = True
    kind = "sum"

    def changes(self, network: Network) -> Iterator[Change]:
        """Yield every sum whose terms divide."""
        for node in network.all_nodes() if network.opset >= _FIRST_OPSET else ():
            axis = _axis(node) if is_standard(node, *_SUMS) else None
            if axis is not None and _parts(axis[1][0]) > 1:
                yield Change((node_name(node),), (node,), partial(_make, node, *axis))


def _make(node: ir.Node, axis: int, sizes: list[int], writer: Writer) -> None:
    put_in_place(writer, node.outputs[0], _split(writer, node, axis, sizes))


def _axis(node: ir.Node) -> tuple[int, list[int]] | None:
    """Return the axis of a node's sum, from 0 on, and the sizes from there on; None if unknown."""
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    along = {"MatMul": (-1,), "Softmax": (node.attributes.get_int("axis", -1),)}
    axes, rank = along.get(node.op_type) or axes_of(node), value.shape.rank()
    if axes is None or len(axes) != 1:
        return None
    axis = axes[0] % rank
    sizes = [size for size in list(value.shape)[axis:] if isinstance(size, int)]
    if node.op_type == "MatMul":
        matrix = node.inputs[1]
        if rank < 2 or matrix is None or matrix.shape is None or matrix.shape.rank() != 2:
            return None
    return (axis, sizes) if len(sizes) == rank - axis else None


def _parts(terms: int) -> int:
    """Return the largest number of equal parts that is not above the size of one."""
    return max((p for p in range(1, isqrt(terms) + 1) if terms % p == 0), default=1)


def _split(writer: Writer, node: ir.Node, axis: int, sizes: list[int]) -> ir.Value:
    """Return the result of new nodes that add up what a node does, in parts."""
    x, other = node.inputs[0], node.inputs[-1]
    assert x is not None
    assert other is not None
    parts = _parts(sizes[0])
    size = sizes[0] // parts

    def shaped(value: ir.Value, *shape: int) -> ir.Value:
        return writer.op("Reshape", value, writer.constant("shape", np.array(shape, np.int64)))

    def apart(value: ir.Value) -> ir.Value:
        return shaped(value, *[0] * axis, parts, size, *sizes[1:])

    if node.op_type == "MatMul":
        order = [*range(axis - 1), axis, axis - 1, axis + 1]
        rows = writer.op("Transpose", apart(x), perm=order)
        products = writer.op("MatMul", rows, shaped(other, parts, size, -1))
        return writer.reduced("ReduceSum", products, -3, keep=False)
    if node.op_type == "Softmax":
        less = writer.op("Sub", x, writer.reduced("ReduceMax", x, axis))
        exp = writer.op("Exp", less)
        means = writer.reduced("ReduceMean", apart(exp), axis + 1, keep=False)
        share = writer.op("Div", exp, writer.reduced("ReduceSum", means, axis))
        return writer.op("Mul", share, writer.constant("size", np.array(1 / size, np.float32)))
    sums = writer.reduced(node.op_type, apart(x), axis + 1, keep=False)
    return writer.reduced(
        node.op_type, sums, axis, keep=bool(node.attributes.get_int("keepdims", 1))
    )


FIRST_OPSET = {"LayerNormalization": 17, "RMSNormalization": 23}
"""Of the operators that replace patterns, those that some opset lacks, with their first one (ONNX
operator changelog)."""
_HIGHEST = FIRST_OPSET["LayerNormalization"]
"""The opset is raised no further: every TensorRT with a LayerNormalization reads this one."""


class OneNode(Rewriting):
    """Replace a written-out LayerNormalization or the like by one node.

    Such a node keeps squares and sums in FP32 inside, in ONNX (`stash_type`) and in TensorRT, so
    only its input and output have to fit.

    Limits: FP32; a norm has to be over the last axes, or over all places of each channel, with
    known sizes. An RMSNormalization (opset 23) is made only if the model already has that opset.
    For a LayerNormalization it is raised to 17.

    The function stays for all x; sums run in another order.
    """

    name: RepairRule = "one-node"
    identity = (
        "(x - mean(x)) / √(mean((x - mean(x))²) + eps) · w + b = LayerNormalization(x), and "
        "likewise: ONNX defines the operators so"
    )

    def changes(self, network: Network) -> Iterator[Change]:
        """Yield every pattern in FP32 that one node can replace."""
        places = {node: place for place, node in enumerate(network.all_nodes())}
        highest = max(network.opset, _HIGHEST)
        for one in filter(None, map(_norm, read_normalisations(network))):
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


class Single(Struct, frozen=True, eq=False):
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
    constants: Mapping[str, NDArray[np.float32]] = {}

    def put(self, writer: Writer) -> None:
        """Put the node in the place of those that compute `output`, which keeps its name."""
        constants = [writer.constant(part, array) for part, array in self.constants.items()]
        result = writer.op(self.op, self.x, *constants, **self.attributes)
        put_in_place(writer, self.output, result)


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


Rule = Rewriting | Scale
RULES: tuple[Rule, ...] = (Mask(), Scale(), Shift(), OneNode(), Split())
"""In the order in which they are made: exact ones, with powers of two, come first."""
KEY = "halfwise.repairs"
MOST_EXPONENT = 252
"""Maximum exponent of two; FP32 has no more between its smallest and largest normal numbers."""


class _Entry(Record):
    version: Literal[1]
    repairs: Annotated[tuple[Repair, ...], msgspec.Meta(max_length=10_000)]


def mark(model: ir.Model, repairs: Sequence[Repair]) -> None:
    """Append repairs to the metadata of a model, in place.

    Other entries stay. The gain from repairs is in the record of the run.

    Raises:
        CaseError: the model's existing entry cannot be read.
    """
    plain = (replace(repair, before=None, after=None, proof=None) for repair in repairs)
    repaired_by = (*marked(model), *plain)
    model.metadata_props[KEY] = _Entry(version=1, repairs=repaired_by).to_json()


def marked(model: ir.Model) -> tuple[Repair, ...]:
    """Return the repairs recorded in a model's metadata, in order; none without an entry.

    Raises:
        CaseError: the entry was not written by halfwise, or by a later version.
    """
    text = model.metadata_props.get(KEY)
    if text is None:
        return ()
    hint = (
        f"Use the version of halfwise that wrote the model, or remove the entry {KEY} from its "
        "metadata."
    )
    try:
        entry = _Entry.from_json(text)
    except msgspec.MsgspecError as error:
        raise CaseError(
            f"The metadata's {KEY} is not a list of repairs that this halfwise knows.", hint
        ) from error
    exponents = (e for repair in entry.repairs for e in repair.exponents.values())
    numbers = (n for repair in entry.repairs for n in repair.numbers.values())
    if any(abs(e) > MOST_EXPONENT for e in exponents) or not all(map(isfinite, numbers)):
        raise CaseError(f"The metadata's {KEY} holds numbers that FP32 cannot represent.", hint)
    return entry.repairs


def further(candidate: ir.Model, original: ir.Model) -> tuple[Repair, ...]:
    """Return the repairs that a candidate names beyond those that the original names first.

    Raises:
        CaseError: as `marked`.
    """
    named, before = marked(candidate), marked(original)
    return named[len(before) :] if named[: len(before)] == before else named


def repaired(network: Network, repairs: Iterable[Repair]) -> Network:
    """Return `network` with repairs made in this order; itself if there are none.

    Remaining nodes keep their names, and the network its file, hash and the user's names; constants
    that no repair changes are shared, not copied. The metadata records the repairs (see
    `mark`).

    Raises:
        CaseError: a repair was not proposed for this network, no rule of this version makes it, or
            ONNX rejects the result.
    """
    repairs = tuple(repairs)
    if not repairs:
        return network
    rules, model = {rule.name: rule for rule in RULES}, network.copy()
    for name, group in groupby(repairs, key=lambda repair: repair.rule):
        if name != repairs[0].rule:
            model = normalise(model, path=network.path, sha256=network.sha256).model
        if name not in rules:
            raise CaseError(
                f"This version of halfwise does not know the repair '{name}'.",
                "Use the version that made the run, or fix the model again.",
            )
        alike = tuple(group)
        try:
            rules[name].apply(model, *alike)
        except REFUSALS as error:
            nodes = [node for repair in alike for node in repair.nodes]
            raise CaseError(
                f"The repair '{name}' at {listed(nodes)} cannot be made: {error}",
                "Leave the graph as it is: --no-repair.",
            ) from error
    mark(model, repairs)
    typed = normalise(model, path=network.path, sha256=network.sha256)
    return replace(network, model=typed.model)


def repaired_at(
    network: Network, repairs: tuple[Repair, ...], opset: int
) -> tuple[Network, Network]:
    """Return a network and what repairs make of it, both at a later opset where they need that.

    Args:
        network: The original.
        repairs: Those that a file names.
        opset: That file's.

    Raises:
        CaseError: as `repaired`, or the opset cannot be raised.
    """
    try:
        changed = repaired(network, repairs)
        if changed.opset >= opset:
            return network, changed
    except CaseError:
        if network.opset >= opset:
            raise
    raised = raise_opset(network, opset)
    return raised, repaired(raised, repairs)
