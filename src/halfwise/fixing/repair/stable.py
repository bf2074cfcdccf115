"""Rewrite exponentials and variances whose intermediate values leave the range."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil, exp, log

import numpy as np
import onnx_ir as ir

from halfwise.fixing.attribute import guards_of
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.repair.rule import Identity, answered, misfit
from halfwise.graph.conversion import raise_opset
from halfwise.graph.dataflow import Part
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.model import (
    Names,
    Network,
    Writer,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    opset_of,
)
from halfwise.graph.one_node import FIRST_OPSET, Candidate, candidates, put_in_place, replace_all
from halfwise.graph.reading import Rewritable, axes_of, read_functions, scalar
from halfwise.records import Repair, RepairRule

_HIGHEST = FIRST_OPSET["LayerNormalization"]
"""The opset is raised no further: every TensorRT with a LayerNormalization reads this one."""
_OPERATORS = (*FIRST_OPSET, "InstanceNormalization", "LogSoftmax", "Softmax")


class OneNode:
    """Replace a written-out LayerNormalization, Softmax and the like by one node.

    Such a node keeps squares, sums and exponentials in FP32 inside, in ONNX (`stash_type`) and in
    TensorRT, so only its input and output have to fit.

    Limits: a norm has to be over the last axes, over all places of each channel, or in groups of
    channels, with known sizes. An RMSNormalization (opset 23), a GroupNormalization (21) and a Gelu
    (20) are made only if the model already has that opset. For a LayerNormalization it is raised to
    17.
    """

    name: RepairRule = "one-node"
    identity = Identity(
        formula="(x - mean(x)) / √(mean((x - mean(x))²) + eps) · w + b = LayerNormalization(x), "
        "exp(x) / Σ exp(x) = Softmax(x), and likewise: ONNX defines the operators so",
        holds="all x. Sums run in another order, and a Softmax subtracts the largest value, so it "
        "is finite where exp(x) is not",
    )

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        """Yield a repair for each pattern inside which something raises a guard."""
        network = evidence.network
        guards = guards_of(evidence)
        for found in _found(network) if guards else ():
            needs = answered(guards, [evidence.nodes[n] for n in found.nodes])
            if needs and found.replacement is not None:
                first = FIRST_OPSET.get(found.replacement.op, 0)
                yield Repair(
                    rule=self.name,
                    nodes=found.nodes,
                    numbers={"opset": first} if first > network.opset else {},
                    guards=needs,
                    advice=evidence.norm_fix(
                        evidence.nodes[found.nodes[-1]], f"Export it as one {found.replacement.op}."
                    ),
                )

    def apply(self, model: ir.Model, repair: Repair) -> None:
        """Make the last of `repair.nodes` one node that reads what the first one did, in place.

        Raises:
            CaseError: they do not form such a pattern here, or ONNX cannot raise the opset.
        """
        opset = int(repair.numbers.get("opset", 0))
        if opset > opset_of(model):
            raised = raise_opset(Network(model, None, "", {}), opset).model
            model.graph, model.ir_version = raised.graph, raised.ir_version
        patterns = _found(Part.of(model, repair.nodes))
        found = next((c for c in patterns if c.nodes[-1] == repair.nodes[-1]), None)
        if found is None or found.replacement is None:
            raise misfit(repair)
        replace_all(model, [found.replacement])


def _found(network: Network) -> list[Candidate]:
    """Return the patterns that can become one node."""
    opset = max(network.opset, _HIGHEST)
    found = candidates(network, _OPERATORS, opset=opset)
    return [c for c in found if c.replacement is not None and c.nodes]


_FARTHEST = 15360.0
"""Upper bound of what is subtracted, so that it is finite even if the largest value is not. With
four times the input it still fits FP16."""


@dataclass(frozen=True, eq=False)
class Form:
    """A place with another form that stays in range.

    Attributes:
        nodes: The nodes that it replaces, in graph order; the last gives the result.
        write: Makes the nodes of the other form.
        advice: What to write instead.
        exponential: For c · exp(x), the output of exp, from which a shift is computed.
    """

    nodes: tuple[ir.Node, ...]
    write: Callable[[Writer, float], ir.Value]
    advice: str
    exponential: ir.Value | None = None


class Stable:
    """Rewrite exponentials, logarithms of their sums, and variances so that they stay in range.

    - log Σ exp(x) → m + log Σ exp(x - m), m the largest x of each sum, within ±15360.
    - 1 / (1 + exp(-x)), exp(x) / (exp(x) + 1), log(1 + exp(x)), tanh and Mish as quotients, in any
      spelling → Sigmoid, Softplus and Tanh, whose exponentials are inside.
    - mean(x²) - mean(x)² → mean((x - mean(x))²).
    - c · exp(x) → (c · eˢ) · exp(x - s), s a whole number, `shift` in `Repair.numbers`.

    Limits: each has to be written exactly so, without data movement in between. L2 norms and
    squares under a root or logarithm are left to "scale". x³ inside a GELU's tanh is harmless: it
    grows beyond all limits only where tanh is ±1. ONNX does not say how a builder computes a
    Softplus; as one node it is computed in FP32 inside, like any other (docs/failure-classes.md).
    """

    name: RepairRule = "stable"
    identity = Identity(
        formula="log Σ exp(x) = m + log Σ exp(x - m); mean(x²) - mean(x)² = mean((x - mean(x))²); "
        "c·exp(x) = (c·eˢ)·exp(x - s); quotients of exp(x) as Sigmoid, Tanh "
        "and Softplus of x",
        holds="all finite x, and infinite ones in sums of exponentials. In FP32 the new forms are "
        "finite for more x than the old ones",
    )

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        """Yield a repair for each form inside which something raises a guard."""
        guards = guards_of(evidence)
        taken: set[ir.Node] = set()
        for form in _forms(evidence.network) if guards else ():
            needs = answered(guards, form.nodes)
            shift = _shift(form, evidence) if form.exponential is not None else None
            if not needs or shift == 0 or not taken.isdisjoint(form.nodes):
                continue
            taken.update(form.nodes)
            yield Repair(
                rule=self.name,
                nodes=tuple(map(node_name, form.nodes)),
                numbers={} if shift is None else {"shift": shift},
                guards=needs,
                advice=form.advice,
            )

    def apply(self, model: ir.Model, repair: Repair) -> None:
        """Rewrite the form of `repair.nodes` in place; its result keeps its name.

        Raises:
            CaseError: these nodes do not form such a place here.
        """
        for form in _forms(Part.of(model, repair.nodes)):
            if tuple(n.name for n in form.nodes) == repair.nodes:
                break
        else:
            raise misfit(repair)
        last = form.nodes[-1]
        writer = Writer(model, node_name(last), Names(graphs_of(model)))
        result = form.write(writer, repair.numbers.get("shift", 0.0))
        put_in_place(model.graph, last.outputs[0], writer.made, result, writer.names)
        drop_unused_constants((model.graph,))


def _forms(network: Network) -> Iterator[Form]:
    order = {node: place for place, node in enumerate(network.nodes())}
    readers = (_log_sum, _variance, _exponential)
    forms = [_function(function) for function in read_functions(network)]
    forms += [form for node in order for read in readers if (form := read(node)) is not None]
    for form in forms:
        yield replace(form, nodes=tuple(sorted(form.nodes, key=order.__getitem__)))


def _function(function: Rewritable) -> Form:
    return Form(
        tuple(function.nodes),
        lambda w, _: function.write(w, function.x),
        "Use the activation itself, not its formula, so that no exponential leaves the range.",
    )


def _maker(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """Return the node that gives a value, if it is one of `ops` in the same graph."""
    node = None if value is None else value.producer()
    return node if node is not None and is_standard(node, *ops) else None


def _log_sum(log_node: ir.Node) -> Form | None:
    """Match log Σ exp(x)."""
    total = _maker(log_node.inputs[0], "ReduceSum") if is_standard(log_node, "Log") else None
    exponential = None if total is None else _maker(total.inputs[0], "Exp")
    if total is None or exponential is None or exponential.inputs[0] is None:
        return None
    x, axes, summed = exponential.inputs[0], axes_of(total), total
    if not axes:
        return None

    def write(w: Writer, _: float) -> ir.Value:
        ends = (("Max", -_FARTHEST), ("Min", _FARTHEST))
        largest = w.reduced("ReduceMax", x, *axes)
        for op, end in ends:
            largest = w.op(op, largest, w.constant("farthest", np.array(end, np.float32)))
        sums = w.like(summed, w.op("Exp", w.op("Sub", x, largest)))
        if _keeps(summed):
            return w.op("Add", w.op("Log", sums), largest)
        return w.op("Add", w.op("Log", sums), w.reshaped("Squeeze", largest, *axes))

    advice = "Subtract the largest value before the exponential, and add it to the logarithm."
    return Form((exponential, total, log_node), write, advice)


def _keeps(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("keepdims", 1))


def _variance(difference: ir.Node) -> Form | None:
    """Match mean(x²) - mean(x)²."""
    if not is_standard(difference, "Sub"):
        return None
    of_squares, product = _maker(difference.inputs[0], "ReduceMean"), _squared(difference.inputs[1])
    squares = None if of_squares is None else _squared(of_squares.inputs[0])
    if of_squares is None or squares is None or product is None:
        return None
    mean, x = _maker(product.inputs[0], "ReduceMean"), squares.inputs[0]
    if mean is None or x is None or mean.inputs[0] is not x:
        return None
    axes = axes_of(mean)
    if not axes or axes != axes_of(of_squares) or _keeps(mean) != _keeps(of_squares):
        return None
    reduced, kept = of_squares, mean.outputs[0] if _keeps(mean) else None

    def write(w: Writer, _: float) -> ir.Value:
        centre = kept if kept is not None else w.reduced("ReduceMean", x, *axes)
        centred = w.op("Sub", x, centre)
        return w.like(reduced, w.op("Mul", centred, centred))

    nodes = (squares, of_squares, mean, product, difference)
    advice = "Subtract the mean first, where the values are exact, and square afterwards."
    return Form(nodes, write, advice)


def _squared(value: ir.Value | None) -> ir.Node | None:
    """Return the node that squares its first input to give `value`."""
    node = _maker(value, "Mul", "Pow")
    if node is None:
        return None
    if node.inputs[0] is node.inputs[1]:
        return node if node.op_type == "Mul" else None
    power = node.op_type == "Pow" and scalar(node.inputs[1]) == 2.0
    return node if power and _keeps_shape(node.inputs[1], node.inputs[0]) else None


def _keeps_shape(number: ir.Value | None, value: ir.Value | None) -> bool:
    """Return whether `value` keeps its shape when combined with a constant."""
    one, other = (None if v is None else v.shape for v in (number, value))
    if one is None or other is None:
        return False
    return one.rank() <= other.rank() and all(size == 1 for size in one)


def _exponential(product: ir.Node) -> Form | None:
    """Match c · exp(x) and exp(x) / c."""
    if not is_standard(product, "Mul", "Div"):
        return None
    slot = next((i for i, v in enumerate(product.inputs) if _maker(v, "Exp")), None)
    if slot is None or (product.op_type == "Div" and slot == 1):
        return None
    node, constant = _maker(product.inputs[slot], "Exp"), product.inputs[1 - slot]
    if node is None or constant is None or constant.const_value is None or node.inputs[0] is None:
        return None
    x, number = node.inputs[0], np.asarray(constant_array(constant), np.float64)

    def write(w: Writer, shift: float) -> ir.Value:
        subtracted = w.op("Sub", x, w.constant("shift", np.array(shift, np.float32)))
        factor = number * exp(shift) if product.op_type == "Mul" else exp(shift) / number
        return w.op(
            "Mul", w.op("Exp", subtracted), w.constant("factor", np.asarray(factor, np.float32))
        )

    advice = "Subtract a whole number s before the exponential, and multiply what scales it by eˢ."
    return Form((node, product), write, advice, exponential=node.outputs[0])


def _shift(form: Form, evidence: Evidence) -> int:
    """Return by how much x of c · exp(x) is lowered so that exp(x) fits; 0 for not at all."""
    largest = evidence.absmax(form.exponential) * evidence.headroom
    return max(0, ceil(log(largest / evidence.fmt.max))) if largest else 0
