"""The effect of rounding alone on the values that logarithms and denominators read.

It is measured, not bounded: next to each node, a twin computes from rounded values. The difference
is computed in the model, so no activation has to be fetched.
"""

from collections.abc import Set

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.rounding import cast, new_node
from halfwise.formats import FP32, Format
from halfwise.graph.dataflow import drop_unused_nodes
from halfwise.graph.model import Network, add_constant, node_name, small_constant, tensor_name
from halfwise.graph.roles import Role, Roles, bodies, is_float
from halfwise.graph.sensitivity import amplifiers, chain
from halfwise.records import NodeName, TensorName

_PREFIX = "halfwise::rounded::"


def with_roundoff(
    network: Network, roles: Roles, fmt: Format
) -> tuple[ir.Model, dict[TensorName, NodeName]]:
    """Return a model without outputs that computes relative errors, and the node of each.

    Every tensor of a node that may be low, every weight and every graph input is rounded to the
    significand of `fmt` with the exponents of FP32: underflow and overflow are not counted here.
    For elements that are zero in the original, the absolute error counts. Choices (comparisons,
    indices, shapes) are those of the original, and If, Loop and Scan compute as before.

    The nodes behind the operands of `amplifiers` are measured, as far as `chain` goes.
    """
    wanted = [n for _, value in amplifiers(network, roles) for n in chain(value, roles)]
    names = {node_name(n) for n in wanted}
    if not names:
        # Most models have none, and copying thousands of nodes takes time.
        return ir.Model(ir.Graph([], [], nodes=[]), ir_version=10), {}
    model = network.copy()
    twins = _Twins(model.graph, roles, fmt, network.opset)
    errors: dict[TensorName, NodeName] = {}
    for node in _needed(model.graph, names):
        twins.add(node)
        if (name := node_name(node)) in names and is_float(node.outputs[0]):
            errors[twins.error(node)] = name
    values = (v for node in model.graph for v in node.outputs if v.name in errors)
    model.graph.outputs[:] = list(values)
    drop_unused_nodes(model.graph)
    model.graph.outputs.clear()
    return model, errors


def rounded(array: NDArray[np.float32], fmt: Format) -> NDArray[np.float32]:
    """Return f32[*shape] rounded to the precision of `fmt`, ties to even, at any exponent.

    NaN and infinities stay. Finite numbers stay finite, even FP32's lowest, which masks use.
    """
    largest = np.float32((2 - 2.0 ** (1 - fmt.precision)) * 2.0**127)
    within = np.where(np.isinf(array), array, np.clip(array, -largest, largest))
    fraction, exponent = np.frexp(within)
    scale = np.float32(2.0**fmt.precision)
    return np.ldexp(np.rint(fraction * scale) / scale, exponent).astype(np.float32)


def _needed(graph: ir.Graph, names: Set[NodeName]) -> list[ir.Node]:
    """Return the nodes that `names` depend on, in graph order."""
    needed = {n for n in graph if node_name(n) in names}
    for node in reversed(graph):
        if node in needed:
            needed |= {p for v in node.inputs if v is not None and (p := v.producer())}
    return [n for n in graph if n in needed]


class _Twins:
    """Rounded twins of values, added to the values' graph."""

    def __init__(self, graph: ir.Graph, roles: Roles, fmt: Format, opset: int) -> None:
        self.graph, self.roles, self.fmt = graph, roles, fmt
        self.twin: dict[ir.Value, ir.Value] = {}
        bits = FP32.precision - fmt.precision
        self.factor = self._constant(np.float32(2.0**bits + 1), "factor")
        # The largest number whose product with the factor is finite.
        edge = np.float32(FP32.max / 2.0 ** (bits + 1))
        self.ends: list[ir.Value] = []
        self.clipping: dict[str, float] = {}
        if opset < 11:
            self.clipping = {"min": -float(edge), "max": float(edge)}
        else:
            self.ends = [self._constant(-edge, "lowest"), self._constant(edge, "highest")]

    def add(self, node: ir.Node) -> None:
        """Add the twin of `node` after it, if it computes float values from float values."""
        role = self.roles[node_name(node)]
        floats = [v for v in node.outputs if is_float(v)]
        if not floats or bodies(node) or not any(is_float(v) for v in node.inputs):
            return
        low = role.inputs if role.free else [True] * len(node.inputs)
        inputs = [self._rounded(v) if slot else v for v, slot in zip(node.inputs, low, strict=True)]
        outputs = [ir.val(f"{_PREFIX}{v.name}" if v.name else "", v.dtype) for v in node.outputs]
        twin = ir.node(
            node.op_type,
            inputs,
            dict(node.attributes),
            domain=node.domain,
            name=f"{_PREFIX}{node.name}",
            outputs=outputs,
        )
        added = [twin]
        for value, made in zip(node.outputs, twin.outputs, strict=True):
            if is_float(value) and value.name:
                step = self._round(made) if role.role is Role.COMPUTE else []
                added += step
                self.twin[value] = step[-1].outputs[0] if step else made
        self.graph.insert_after(node, added)

    def error(self, node: ir.Node) -> TensorName:
        """Add the relative error of the first output; return its name."""
        value = node.outputs[0]
        twin = self.twin.get(value, value)
        prefix = f"{_PREFIX}error::{value.name}"
        difference = new_node("Sub", [twin, value], f"{prefix}::d")
        # Before opset 11, Equal takes no floats.
        nonzero = cast(value, ir.DataType.BOOL, f"{prefix}::n")
        zero = new_node("Not", nonzero.outputs, f"{prefix}::z", dtype=ir.DataType.BOOL)
        one = cast(zero.outputs[0], ir.DataType.FLOAT, f"{prefix}::o")
        divisor = new_node("Add", [value, one.outputs[0]], f"{prefix}::v")
        error = new_node("Div", [difference.outputs[0], divisor.outputs[0]], prefix)
        self.graph.extend([difference, nonzero, zero, one, divisor, error])
        return tensor_name(error.outputs[0])

    def _rounded(self, value: ir.Value | None) -> ir.Value | None:
        if value is None or not is_float(value):
            return value
        if value not in self.twin:
            if (array := small_constant(value)) is not None:
                self.twin[value] = self._constant(rounded(array, self.fmt), str(value.name))
            else:
                # A graph input, an output of a body, or a large weight, rounded while the model
                # runs: at the start of the graph, so ONNX Runtime rounds it just before its first
                # reader (see `probe.py`), and copies of all weights are never alive at once.
                step = self._round(value)
                node = value.producer()
                if node is None:
                    for made in reversed(step):
                        self.graph.insert_before(self.graph[0], made)
                else:
                    self.graph.insert_after(node, step)
                self.twin[value] = step[-1].outputs[0]
        return self.twin[value]

    def _round(self, value: ir.Value) -> list[ir.Node]:
        """Return nodes that round `value`: Dekker's splitting (1971, doi 10.1007/BF01397083).

        For c = x · (2^s + 1), c - (c - x) is x rounded to 24 - s bits.
        """
        prefix = f"{_PREFIX}round::{value.name}"
        # Max and Min do not broadcast before opset 8.
        x = new_node("Clip", [value, *self.ends], f"{prefix}::x", self.clipping)
        c = new_node("Mul", [x.outputs[0], self.factor], f"{prefix}::c")
        rest = new_node("Sub", [c.outputs[0], x.outputs[0]], f"{prefix}::rest")
        return [x, c, rest, new_node("Sub", [c.outputs[0], rest.outputs[0]], prefix)]

    def _constant(self, array: NDArray[np.float32] | np.float32, name: str) -> ir.Value:
        return add_constant(self.graph, f"{_PREFIX}constant::{name}", np.asarray(array, np.float32))
