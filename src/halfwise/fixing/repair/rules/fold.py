"""Fold chains of affine operators into one: a BatchNormalization, say, into its convolution.

The intermediate values (a large result, a variance that leaves the range) then disappear.
"""

from collections.abc import Iterator
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
from halfwise.graph.affine import Chain, chains, folded_weights, read_chain
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.model import Names, Writer, constant_array, graphs_of, node_name
from halfwise.records import Repair, RepairRule
from halfwise.wording import listed

_FEW = 0.01
"""Share of weights that may stay subnormal after scaling up."""


Array = NDArray[np.float64]


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
