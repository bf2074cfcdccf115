"""What an engine computes: node by node in float64, rounded to what each tensor is stored in."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir

from tests.fake_tensorrt.enums import NUMPY, data_type
from tests.fake_tensorrt.faults import knob
from tests.fake_tensorrt.model import is_float, values_of
from tests.fake_tensorrt.operators import kernel
from tests.fake_tensorrt.plan import Plan
from tests.fake_tensorrt.precision import Precision
from tests.fake_tensorrt.regions import Wrong, spoilt_by
from tests.fake_tensorrt.rounding import BF16, FLOAT, HALF, rounded, rounded_weights, tf32

_PACE = {"fp32": 1.02, "low": 1.0, "int8": 0.9, "quantise": 0.01, "border": 0.0}
"""Milliseconds of a layer: FP32 takes longer, and no mixed engine is slow."""
_FUSED_AWAY = ("Cast", "DequantizeLinear")
_UNSHAPED = ("NonZero", "NonMaxSuppression", "Unique", "Compress")
_Tensors = dict[tuple[ir.Value, ir.DataType | None], np.ndarray]


class Program:
    """An engine's plan with its model.

    `wrongs` are regions that are compiled wrongly; None for those of the knob.
    """

    def __init__(self, plan: Plan, proto: bytes, wrongs: Sequence[Wrong] | None = None) -> None:
        self.plan = plan
        model = ir.serde.deserialize_model(onnx.load_model_from_string(proto))
        self.graph = model.graph
        self.values = {str(v.name): v for v in values_of(model.graph) if v.name}
        self.precision = Precision(model.graph, plan)
        self._kernels = {node: kernel(node, model.opset_imports[""]) for node in self.graph}
        self._factors = dict(self._faulty())
        if wrongs is None:
            wrongs = [Wrong(**given) for given in knob("WRONG", [])]
        low, marked = self.precision.low_nodes, {*plan.outputs}
        self._wrong = spoilt_by(wrongs, model.graph, marked, plan.level, low)
        self._constants = {
            (v, self.precision.stored(v)): _wide(v, v.const_value.numpy())
            for v in self.graph.initializers.values()
            if v.const_value is not None
        }
        self.weight_bytes = sum(
            v.const_value.nbytes for v in self.graph.initializers.values() if v.const_value
        )
        self._last: tuple[object, dict[str, np.ndarray]] | None = None
        self._shapes_seen: dict[object, dict[str, tuple[int, ...]]] = {}

    def _faulty(self) -> Iterator[tuple[ir.Value, float]]:
        """Yield what kernels get wrong, and by which factor."""
        nodes = {node.name: node for node in self.graph}
        lossy = {n: f for n, f in knob("LOSSY", {}).items() if n in self.precision.low_nodes}
        for name, factor in (knob("BROKEN", {}) | lossy).items():
            if name in nodes:
                yield nodes[name].outputs[0], factor

    def io_type(self, name: str):
        """Return the `DataType` of an input or output."""
        value = self.values[name]
        is_inner = not (value.is_graph_input() or value.is_graph_output())
        if is_inner and self.plan.typing == "weak" and value.dtype in (HALF, BF16):
            return data_type(FLOAT)
        return data_type(value.dtype)

    def run(self, sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return outputs by name, in NumPy types as the engine has them.

        Takes arrays in the engine's input types. An engine that is timed runs on the same again and
        again: what it gave the last time is kept.
        """
        given = {name: (array.shape, array.tobytes()) for name, array in sample.items()}
        if self._last is None or self._last[0] != given:
            found = self._compute(sample)
            with np.errstate(all="ignore"):
                results = {n: found[n].astype(NUMPY[self.io_type(n)]) for n in self.plan.outputs}
            self._last = given, results
        return dict(self._last[1])

    def _compute(self, sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every tensor as it is stored, floating-point numbers in float64."""
        found = dict(self._constants)
        for value in self.graph.inputs:
            found[value, self.precision.stored(value)] = _wide(value, sample[str(value.name)])
        with np.errstate(all="ignore"):
            for node, compute in self._kernels.items():
                outputs = compute(*(self._read(found, node, i) for i in range(len(node.inputs))))
                for value, output in zip(node.outputs, outputs, strict=False):
                    if output is not None:
                        found[value, self.precision.stored(value)] = self._store(value, output)
        kept = ((v, found.get((v, self.precision.stored(v)))) for v in self.values.values())
        return {str(v.name): array for v, array in kept if array is not None}

    def _read(self, found: _Tensors, node: ir.Node, slot: int) -> np.ndarray | None:
        value = node.inputs[slot]
        if value is None:
            return None
        kind = self.precision.read(node, slot)
        if (value, kind) not in found:
            array = found[value, self.precision.stored(value)]
            if value.const_value is None:
                found[value, kind] = rounded(array, kind)
            else:
                self._constants[value, kind] = found[value, kind] = rounded_weights(array, kind)
        is_tf32 = slot in (0, 1) and self.precision.in_tf32(node)
        return tf32(found[value, kind]) if is_tf32 else found[value, kind]

    def _store(self, value: ir.Value, array: np.ndarray) -> np.ndarray:
        if not is_float(value):
            return np.asarray(array)
        for wrong in self._wrong.get(value, ()):
            array = wrong.spoil(value, array)
        return rounded(array * self._factors.get(value, 1.0), self.precision.stored(value))

    def shapes(self, sizes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]):
        """Return the shape of every output, -1 where only a run can tell.

        Args:
            sizes: Shape of every input.
            values: What inputs hold that decide about shapes.
        """
        key = tuple(sorted(sizes.items())), tuple((n, a.tobytes()) for n, a in values.items())
        if key not in self._shapes_seen:
            zeros = {n: np.zeros(size, NUMPY[self.io_type(n)]) for n, size in sizes.items()}
            found = self._compute({**zeros, **values})
            self._shapes_seen[key] = {n: self._known(n, found[n].shape) for n in self.plan.outputs}
        return self._shapes_seen[key]

    def _known(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        declared = self.values[name].shape
        if name not in self._unshaped or declared is None:
            return (-1,) * len(shape) if name in self._unshaped else shape
        return tuple(n if isinstance(d, int) else -1 for d, n in zip(declared, shape, strict=True))

    @cached_property
    def _unshaped(self) -> frozenset[str]:
        """Tensors whose shape may depend on data: all that comes from the nodes that do so."""
        found: set[ir.Value] = set()
        for node in self.graph:
            if node.op_type in _UNSHAPED or found.intersection(v for v in node.inputs if v):
                found.update(node.outputs)
        return frozenset(v.name for v in found if v.name)

    @cached_property
    def layers(self) -> tuple[tuple[str, tuple[ir.Node, ...]], ...]:
        """Layers of the engine: a name and the nodes of each."""
        block = {node: tuple(nodes) for nodes in self.plan.fused for node in nodes}
        found: dict[str, list[ir.Node]] = {}
        for node in self.graph:
            if node.op_type in _FUSED_AWAY and node.name not in block:
                continue
            nodes = block.get(str(node.name))
            name = f"{{ForeignNode[{nodes[0]}...{nodes[-1]}]}}" if nodes else str(node.name)
            found.setdefault(name, []).append(node)
        return tuple((name, tuple(nodes)) for name, nodes in found.items())

    @cached_property
    def milliseconds(self) -> dict[str, float]:
        """What each layer is said to take."""
        pace = _PACE | knob("PACE", {})
        found, before = {}, None
        for name, nodes in self.layers:
            low = any(n.name in self.precision.low_nodes for n in nodes)
            high = "tf32" if self.precision.in_tf32(nodes[0]) else "fp32"
            high = "int8" if nodes[0].name in self.precision.int8_nodes else high
            high = "quantise" if nodes[0].op_type == "QuantizeLinear" else high
            found[name] = pace.get("low" if low else high, pace["fp32"])
            if before is not None and before != low:
                found[name] += pace["border"]
            before = low
        return found


def _wide(value: ir.Value, array: np.ndarray) -> np.ndarray:
    assert value.dtype is not None
    return array.astype(np.float64 if is_float(value) else value.dtype.numpy())
