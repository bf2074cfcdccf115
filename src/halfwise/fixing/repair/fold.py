"""Fold chains of affine operators into one: a BatchNormalization, say, into its convolution.

The intermediate values (a large result, a variance that leaves the range) then disappear.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log2

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.fixing.attribute import guards_of
from halfwise.fixing.attribute.evidence import Evidence, folding
from halfwise.fixing.attribute.ranges import MOSTLY
from halfwise.fixing.repair.rule import Identity, answered
from halfwise.formats import Format
from halfwise.graph.dataflow import captured
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.model import (
    Names,
    Network,
    Writer,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
)
from halfwise.records import Repair, RepairRule
from halfwise.wording import listed

Array = NDArray[np.float64]

_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Neg", "BatchNormalization")
_LARGEST = 1 << 20
"""Most elements of a constant that is folded; per-channel constants are far smaller."""
_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, eq=False)
class Affine:
    """x → factor · x + offset; both f64 with the rank of x, size 1 where they do not vary."""

    factor: Array
    offset: Array

    def then(self, other: "Affine") -> "Affine":
        """Return this map followed by `other`."""
        return Affine(other.factor * self.factor, other.factor * self.offset + other.offset)


@dataclass(frozen=True, eq=False)
class Chain:
    """Nodes in a row: each is the only reader of the one before it.

    Attributes:
        nodes: The nodes, in order.
        x: The input of the first one.
        before: The map applied to x ahead of `linear`; the whole chain if there is no linear node.
        linear: The node that is linear in weights, if any.
        after: The map applied to its result; None if there is no linear node.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    before: Affine
    linear: ir.Node | None = None
    after: Affine | None = None

    @property
    def output(self) -> ir.Value:
        """The output of the last node."""
        return self.nodes[-1].outputs[0]

    @property
    def inside(self) -> list[ir.Value]:
        """Values that folding removes: tensors between the nodes, and their constants."""
        read = (v for n in self.nodes for v in n.inputs if v is not None and v is not self.x)
        return list(dict.fromkeys(read))


def chains(network: Network) -> Iterator[Chain]:
    """Yield the longest chains of the main graph, in graph order; they share no node."""
    taken: set[ir.Node] = set()
    for node in network.nodes():
        if node in taken or (x := _variable(node)) is None:
            continue
        nodes, read = list[ir.Node](), _Read(x, (_identity(_rank(x)),))
        following: ir.Node | None = node
        while following is not None and (longer := read.then(following)) is not None:
            nodes.append(following)
            read, following = longer, _only_reader(longer.value)
        if nodes:
            taken.update(nodes)
            yield read.chain(nodes, x)


def read_chain(nodes: Sequence[ir.Node]) -> Chain | None:
    """Return the chain that `nodes` form; None if they cannot be folded into one."""
    x = _variable(nodes[0])
    read = None if x is None else _Read(x, (_identity(_rank(x)),))
    for node in nodes:
        alone = read is not None and (read.value is x or _only_reader(read.value) is node)
        read = read.then(node) if read is not None and alone else None
    return None if x is None or read is None else read.chain(nodes, x)


@dataclass(frozen=True, eq=False)
class _Read:
    """The part of a chain up to `value`: the maps before and after the linear node."""

    value: ir.Value
    maps: tuple[Affine, ...]
    linear: "_Linear | None" = None

    def then(self, node: ir.Node) -> "_Read | None":
        """Return this read extended by the next node; None if that node cannot be folded."""
        if _variable(node) is not self.value:
            return None
        maps, linear = self.maps, self.linear
        if linear is None and is_standard(node, *_LINEAR) and (linear := _Linear.of(node)):
            maps = (*maps, _identity(_rank(node.outputs[0])))
        elif (step := _step(node, self.value)) is not None:
            maps = (*maps[:-1], maps[-1].then(step))
        else:
            return None
        fits = linear is None or _by_channel(linear, *maps) is not None
        return _Read(node.outputs[0], maps, linear) if fits else None

    def chain(self, nodes: Sequence[ir.Node], x: ir.Value) -> Chain:
        """Return the chain read, starting at `x`."""
        linear = None if self.linear is None else self.linear.node
        return Chain(tuple(nodes), x, self.maps[0], linear, self.maps[1] if linear else None)


def _identity(rank: int) -> Affine:
    return Affine(np.ones((1,) * rank), np.zeros((1,) * rank))


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else value.shape.rank()


def _only_reader(value: ir.Value) -> ir.Node | None:
    """Return the only reader of `value` in its graph if it reads the value once; else None."""
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    node, maker = uses[0].node, value.producer()
    same = maker is not None and node.graph is maker.graph
    return node if same and value not in captured(node) else None


def _variable(node: ir.Node) -> ir.Value | None:
    """Return the one non-constant FP32 operand of a node that a chain may contain."""
    if not is_standard(node, *_ELEMENTWISE, *_LINEAR) or len(node.outputs) != 1:
        return None
    found = [v for v in node.inputs if v is not None and v.const_value is None]
    if len(found) != 1 or found[0].dtype != ir.DataType.FLOAT or found[0].shape is None:
        return None
    first = is_standard(node, "BatchNormalization", *_LINEAR)
    return found[0] if not first or node.inputs[0] is found[0] else None


def _array(value: ir.Value | None) -> Array:
    assert value is not None
    return np.asarray(constant_array(value), np.float64)


def _step(node: ir.Node, x: ir.Value) -> Affine | None:
    """Return the map that an elementwise node applies to `x`; None if it cannot be folded."""
    rank = _rank(x)
    one = np.ones((1,) * rank)
    if node.op_type == "BatchNormalization":
        return _batch_norm(node, rank)
    if node.op_type == "Neg":
        return Affine(-one, 0 * one)
    slot = list(node.inputs).index(x)
    constant = _addend(node.inputs[1 - slot], x) if is_standard(node, *_ELEMENTWISE) else None
    if constant is None or (node.op_type == "Div" and (slot == 1 or not constant.all())):
        return None
    return {
        "Mul": Affine(constant, 0 * one),
        "Div": Affine(1 / np.where(constant, constant, 1), 0 * one),
        "Add": Affine(one, constant),
        "Sub": Affine(one, -constant) if slot == 0 else Affine(-one, constant),
    }[node.op_type]


def _addend(value: ir.Value | None, x: ir.Value) -> Array | None:
    """Return a constant operand with the rank of x; None if it is too large, or enlarges x."""
    if value is None or value.const_value is None or value.const_value.size > _LARGEST:
        return None
    array, rank = _array(value), _rank(x)
    if array.ndim > rank or not _fits(array, x):
        return None
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def _fits(constant: Array, x: ir.Value) -> bool:
    """Return whether a constant broadcasts to x without enlarging it."""
    assert x.shape is not None
    sizes = x.shape[x.shape.rank() - constant.ndim :]
    return all(size in (1, own) for size, own in zip(constant.shape, sizes, strict=True))


def _batch_norm(node: ir.Node, rank: int) -> Affine | None:
    trains = bool(node.attributes.get_int("training_mode", 0))
    if trains or "spatial" in node.attributes or rank < 2:
        return None
    eps = node.attributes.get_float("epsilon", 1e-5)
    weight, bias, mean, variance = (
        _array(v).reshape((1, -1) + (1,) * (rank - 2)) for v in node.inputs[1:]
    )
    # eps is FP32 in ONNX, and ONNX Runtime adds it in FP32.
    inside = variance + float(np.float32(eps))
    if not (inside > 0).all():
        return None
    factor = weight / np.sqrt(inside)
    return Affine(factor, bias - mean * factor)


@dataclass(frozen=True, eq=False)
class _Linear:
    """A node that is linear in weights, and the weight's axes for the channels of x and result."""

    node: ir.Node

    @staticmethod
    def of(node: ir.Node) -> "_Linear | None":
        """Return a linear node; None if it cannot be folded."""
        weight = node.inputs[1]
        found = _Linear(node)
        if weight is None or weight.const_value is None or _rank(node.outputs[0]) < 2:
            return None
        if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) != 0:
            return None
        if not 2 <= len(found.shape) <= max(2, _rank(node.outputs[0])):
            return None
        bias = found.bias()
        fits = bias is None or (bias.ndim == 1 and bias.size in (1, found.channels))
        return found if fits else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        assert self.node.inputs[1] is not None
        assert self.node.inputs[1].const_value is not None
        return tuple(self.node.inputs[1].const_value.shape.numpy())

    @property
    def is_convolution(self) -> bool:
        return self.node.op_type in ("Conv", "ConvTranspose")

    @property
    def _leads(self) -> bool:
        """Whether the channels of the result are the first axis of the weight."""
        if self.is_convolution:
            return self.node.op_type == "Conv"
        return bool(self.node.attributes.get_int("transB", 0))

    @property
    def _groups(self) -> int:
        return self.node.attributes.get_int("group", 1) if self.is_convolution else 1

    @property
    def channels(self) -> int:
        """Channels of the result."""
        return self._size(first=self._leads)

    @property
    def inputs(self) -> int:
        """Channels of x."""
        return self._size(first=not self._leads)

    def _size(self, *, first: bool) -> int:
        if self.is_convolution:
            return self.shape[0] if first else self.shape[1] * self._groups
        return self.shape[-2] if first else self.shape[-1]

    @property
    def takes_offset(self) -> bool:
        """Whether every result sums over all weights of a channel: no padding."""
        if self.node.op_type != "Conv":
            return not self.is_convolution and len(self.shape) == 2
        pads, auto = self.node.attributes.get("pads"), self.node.attributes.get("auto_pad")
        same = auto is not None and auto.as_string() not in ("NOTSET", "VALID")
        return not same and not (pads is not None and any(pads.as_ints()))

    def bias(self) -> Array | None:
        """Return the per-channel bias: f64[1 or channels]; None if there is none.

        A bias that is not per channel keeps its own size.
        """
        rest = [v for v in self.node.inputs[2:] if v is not None]
        if not rest:
            return None
        array = _array(rest[0]) * self.node.attributes.get_float("beta", 1.0)
        return array.reshape(-1) if array.shape[:-1] in ((), (1,)) else array

    def weight(self) -> Array:
        """Return the weight, times Gemm's alpha."""
        return _array(self.node.inputs[1]) * self.node.attributes.get_float("alpha", 1.0)

    def along(self, vector: Array, *, inputs: bool) -> Array:
        """Return f64[channels of x, or of the result] in a shape that broadcasts to the weight."""
        first = self._leads != inputs
        if not self.is_convolution:
            return vector[:, None] if first else vector
        if first:
            return vector.reshape(-1, *(1,) * (len(self.shape) - 1))
        # Row i of the weight belongs to group i // rows, whose channels are its columns.
        rows = self.shape[0] // self._groups
        own = np.repeat(vector.reshape(self._groups, -1), rows, axis=0)
        return own.reshape(*own.shape, *(1,) * (len(self.shape) - 2))

    def summed(self, weight: Array, shift: Array) -> Array:
        """Return the result, f64[channels], for an x whose channels are constant: `shift`."""
        product = weight * self.along(shift, inputs=True)
        axis = tuple(range(1, product.ndim)) if self._leads else 0
        return np.asarray(product.sum(axis))


def _by_channel(linear: _Linear, before: Affine, after: Affine) -> tuple[Array, ...] | None:
    """Return factor and offset before and after a linear node, per channel; None if impossible."""
    axis = 1 if linear.is_convolution else -1
    inner = _vector(before.factor, axis, linear.inputs)
    shift = _vector(before.offset, axis, linear.inputs)
    outer = _vector(after.factor, axis, linear.channels)
    offset = _vector(after.offset, axis, linear.channels)
    if inner is None or shift is None or outer is None or offset is None:
        return None
    # An offset is not added to the zeros that pad x.
    return None if shift.any() and not linear.takes_offset else (inner, shift, outer, offset)


def folded_weights(chain: Chain) -> tuple[Array, Array]:
    """Return f64 weight and bias [channels] of the one linear node that replaces `chain`."""
    assert chain.linear is not None
    assert chain.after is not None
    linear = _Linear(chain.linear)
    vectors = _by_channel(linear, chain.before, chain.after)
    assert vectors is not None
    inner, shift, outer, offset = vectors
    weight, bias = linear.weight(), linear.bias()
    added = linear.summed(weight, shift) if shift.any() else 0.0
    added = added if bias is None else added + bias
    weight = weight * linear.along(inner, inputs=True) * linear.along(outer, inputs=False)
    return weight, np.broadcast_to(added * outer + offset, (linear.channels,))


def _vector(array: Array, axis: int, size: int) -> Array | None:
    """Return f64[size] of an array that varies along `axis` only, else None."""
    if array.size == 1:
        return np.full(size, array.reshape(-1)[0])
    return array.reshape(-1) if array.shape[axis] == array.size == size else None


_FEW = 0.01
"""Share of weights that may stay subnormal after scaling up."""


class Fold:
    """Fold chains of affine operators into one.

    With one Conv, ConvTranspose, Gemm or MatMul in the chain, everything goes into its weights and
    bias (behind a MatMul, the bias stays an Add). With only a BatchNormalization, that gets the
    product of all factors as its scale, the sum as its bias, mean 0 and variance 1. Any other chain
    becomes a Mul and an Add.

    If the new factors would leave the range, or most of them would be subnormal, they are stored
    times 2^shift (`Repair.numbers`), and a Mul by 2^-shift follows. If no shift fits weights and
    result, nothing is proposed.

    Limits: next to weights, constants must be per channel, and no intermediate tensor may have a
    second reader or be an output. Ahead of a padded Conv, or a ConvTranspose, only factors are
    folded: padding zeros would get no offset. Weights alone are not scaled; that is the job of
    "scale".
    """

    name: RepairRule = "fold"
    identity = Identity(
        formula="a·(W(c·x + d) + b) + e = (a·W·c)x + (a·(W·d + b) + e)",
        holds="all x; d = 0 where x is padded. In FP64, rounded to FP32 once: differences of the "
        "order of FP32's rounding, which cancellation against e can magnify, as it could before",
    )

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        """Yield a repair for each chain inside which a tensor or constant raises a guard."""
        guards = guards_of(evidence)
        for chain in chains(evidence.network):
            needs = answered(guards, chain.nodes)
            if not needs or not changes(chain):
                continue
            shift = _shift(chain, evidence)
            if shift is None:
                continue
            yield Repair(
                rule=self.name,
                nodes=tuple(map(node_name, chain.nodes)),
                numbers={"shift": shift} if shift else {},
                guards=needs,
                advice=advice(chain),
            )

    def apply(self, model: ir.Model, repair: Repair) -> None:
        """Fold the chain of `repair.nodes`, in place; its last tensor keeps its name.

        Raises:
            CaseError: these nodes do not form such a chain here.
        """
        named = {n.name: n for n in model.graph}
        nodes = [named[name] for name in repair.nodes if name in named]
        chain = read_chain(nodes) if len(nodes) == len(repair.nodes) else None
        if chain is None:
            raise CaseError(
                f"The chain of {repair.nodes[0]} cannot be folded: this is another model.",
                "Use the model that the repair was proposed for.",
            )
        _Folding(model, chain, int(repair.numbers.get("shift", 0))).run()


def advice(chain: Chain) -> str:
    """Return what to do before the export."""
    for node in chain.nodes:
        if node.op_type == "BatchNormalization":
            return folding(node)
    if chain.linear is None:
        return f"Multiply the constants of {node_name(chain.nodes[0])} and what follows beforehand."
    others = listed([node_name(n) for n in chain.nodes if n is not chain.linear])
    return f"Fold {others} into the weights of {node_name(chain.linear)}, computed in FP32."


def changes(chain: Chain) -> bool:
    """Return whether folding changes the graph: it leaves a product, and a sum behind it."""
    ops = [n.op_type for n in chain.nodes]
    factor, offset = _factors(chain)
    if "BatchNormalization" in ops:
        weight, *_ = (constant_array(v).ravel() for v in chain.inside if v.const_value is not None)
        return len(ops) > 1 or not np.array_equal(weight, factor.ravel())
    if chain.linear is not None:
        apart = chain.linear.op_type == "MatMul" and bool(offset.any())
        return len(ops) > 1 + apart
    left = bool((factor != 1).any()) + bool(offset.any())
    return len(ops) > left > 0 or (left == 2 and ops[0] in ("Add", "Sub"))


def _factors(chain: Chain) -> tuple[Array, Array]:
    """Return the factor and the offset of x."""
    if chain.linear is None:
        return chain.before.factor, chain.before.offset
    return folded_weights(chain)


def _shift(chain: Chain, evidence: Evidence) -> int | None:
    """Return the power of two by which factors are stored so that they fit; None if none does."""
    fmt = evidence.fmt
    factor, offset = _factors(chain)
    sizes = np.abs(factor[factor != 0])
    if not np.isfinite(sizes).all() or not np.isfinite(offset).all() or not sizes.size:
        return None
    if sizes.max() <= fmt.max and np.mean(sizes < fmt.smallest_normal) <= MOSTLY:
        return 0
    up = fmt.smallest_normal / float(np.quantile(sizes, _FEW))
    most = _room(fmt, float(sizes.max()))
    # The result without later additions, times 2^shift, lies between the two products.
    seen = evidence.absmax(chain.output) + float(np.abs(offset).max(initial=0.0))
    most = min(most, _room(fmt, seen * evidence.headroom))
    shift = most if most < 0 else min(most, -floor(-log2(up)))
    lost = np.mean(sizes * 2.0**shift < fmt.smallest_normal)
    return shift if lost <= MOSTLY else None


def _room(fmt: Format, largest: float) -> int:
    """Return the largest power of two by which something can be multiplied and still fit."""
    return floor(log2(fmt.max / largest)) if largest else 0


class _Folding:
    """Replaces a chain by one operator, or a few."""

    def __init__(self, model: ir.Model, chain: Chain, shift: int) -> None:
        self.graph = model.graph
        self.chain = chain
        self.shift = shift
        self.factor, self.offset = _factors(chain)
        self.kept = chain.linear or self._norm()
        stem = node_name(self.kept or chain.nodes[-1])
        self.writer = Writer(model, stem, Names(graphs_of(model)))

    def run(self) -> None:
        """Make the change; the last tensor keeps its name, type and shape."""
        old = self.chain.output
        # Temporary output: the node that gives it may stay, with another one behind.
        end = ir.Value(name=f"{old.name}", type=old.type, shape=old.shape)
        ir.convenience.replace_all_uses_with(old, end, replace_graph_outputs=True)
        old.name = self.writer.names.take(f"{end.name}_before")
        factor, offset = self.factor * 2.0**self.shift, self.offset
        apart = self._merged(factor, offset * 2.0**self.shift)
        result = self.kept.outputs[0] if self.kept else self.chain.x
        if self.kept is None and (factor != 1).any():
            result = self._with("Mul", result, factor)
        if self.shift:
            result = self._with("Mul", result, np.array(2.0**-self.shift))
        if apart and offset.any():
            result = self._with("Add", result, offset)
        self.graph.insert_after(self.kept or self.chain.nodes[-1], self.writer.made)
        result.type, result.shape = end.type, end.shape
        ir.convenience.replace_all_uses_with(end, result, replace_graph_outputs=True)
        self.graph.remove([n for n in self.chain.nodes if n is not self.kept], safe=True)
        result.name = end.name
        drop_unused_constants((self.graph,))

    def _norm(self) -> ir.Node | None:
        """Return the last BatchNormalization if everything is per channel."""
        by_channel = all(a.shape[1:2] in ((), (a.size,)) for a in (self.factor, self.offset))
        norms = [n for n in self.chain.nodes if n.op_type == "BatchNormalization"]
        return norms[-1] if norms and by_channel else None

    def _merged(self, factor: Array, offset: Array) -> bool:
        """Give the remaining node its constants; return whether the offset is still to be added."""
        node = self.kept
        if node is None:
            return True
        node.replace_input_with(0, self.chain.x)
        if node.op_type == "BatchNormalization":
            weight = node.inputs[1]
            assert weight is not None
            ones = np.ones(constant_array(weight).size)
            given = {"scale": factor, "bias": offset, "mean": np.zeros(1), "variance": ones}
            for slot, (what, array) in enumerate(given.items(), 1):
                node.replace_input_with(slot, self._constant(what, array.reshape(-1) * ones))
            node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 0.0)
            return False
        node.replace_input_with(1, self._constant("weight", factor))
        if node.op_type == "MatMul":
            return True
        for name in ("alpha", "beta"):
            node.attributes.pop(name, None)
        node.resize_inputs(3 if offset.any() else 2)
        if offset.any():
            node.replace_input_with(2, self._constant("bias", offset))
        return False

    def _with(self, op: str, value: ir.Value, array: Array) -> ir.Value:
        """Return the result of an operator with a constant of as few axes as needed."""
        shape = array.shape
        while shape and shape[0] == 1:
            shape = shape[1:]
        return self.writer.op(op, value, self._constant(op.lower(), array.reshape(shape)))

    def _constant(self, what: str, array: Array) -> ir.Value:
        return self.writer.constant(what, np.ascontiguousarray(array, np.float32))
