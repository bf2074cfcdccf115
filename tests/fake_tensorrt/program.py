"""What an engine computes: a session of ONNX Runtime that rounds as its plan says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir

from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import BF16, FP16
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network, network_from_proto, node_name
from halfwise.graph.roles import Role, is_float, roles_of
from tests.fake_tensorrt.enums import NUMPY, data_type
from tests.fake_tensorrt.faults import knob
from tests.fake_tensorrt.plan import Plan

_FORMATS = {"fp16": (FP16, ir.DataType.FLOAT16), "bf16": (BF16, ir.DataType.BFLOAT16)}
_LOW = tuple(kind for _, kind in _FORMATS.values())
_TF32 = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_PACE = {"fp32": 1.02, "low": 1.0, "border": 0.0}
"""Milliseconds of a layer: FP32 takes longer, and no mixed engine is slow."""
_UNSHAPED = ("NonZero", "NonMaxSuppression", "Unique", "Compress")


class Program:
    """An engine's plan with its model."""

    def __init__(self, plan: Plan, proto: bytes) -> None:
        self.plan = plan
        self.network = network_from_proto(onnx.load_model_from_string(proto))
        self.weight_bytes = sum(v.nbytes for v in self._constants())
        self._shapes_seen: dict[object, dict[str, tuple[int, ...]]] = {}

    def _constants(self):
        return (v.const_value for v in self.network.graph.initializers.values() if v.const_value)

    @cached_property
    def values(self) -> dict[str, ir.Value]:
        """Every tensor of the model by name."""
        graph = self.network.graph
        computed = (v for node in graph for v in node.outputs)
        found = (*graph.inputs, *graph.initializers.values(), *computed)
        return {v.name: v for v in found if v.name}

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """Names of all that a run gives: outputs, then debug tensors that are none."""
        return tuple(dict.fromkeys((*self.plan.outputs, *self.plan.debug, *self.plan.unfused)))

    def io_type(self, name: str):
        """Return the `DataType` of an input, output or debug tensor."""
        graph, value = self.network.graph, self.values[name]
        is_inner = name not in (v.name for v in (*graph.inputs, *graph.outputs))
        if is_inner and self.plan.typing == "weak" and value.dtype in _LOW:
            return data_type(ir.DataType.FLOAT)
        return data_type(value.dtype)

    @cached_property
    def typed(self) -> ir.Model:
        """The model in the types that the engine computes in."""
        if self.plan.typing == "strong":
            model = self.network.copy()
            _give_out(model, self.asked)
            return model
        wide, stored = upcast(self.network)
        model = wide.copy()
        _give_out(model, self.asked)
        wide = replace(wide, model=model)
        fmt, kind = _FORMATS[self.plan.low or "fp16"]
        roles = roles_of(wide, kind)
        free = frozenset(name for name, role in roles.items() if role.free)
        kept = free if self.plan.low is None else free.intersection(self.plan.fp32)
        rewritten, _ = rewrite(
            wide, roles, kept, fmt, fixed=frozenset(), low_io=frozenset(stored.io)
        )
        return rewritten.model

    @cached_property
    def low_nodes(self) -> frozenset[str]:
        """Nodes that give a low tensor."""
        nodes = (n for n in self.typed.graph if any(v.dtype in _LOW for v in n.outputs))
        return frozenset(map(node_name, nodes))

    @cached_property
    def _session(self) -> Session:
        model = emulate_typed(self.typed)
        _Distorter(model, self).run()
        return Session(model)

    def run(self, sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return outputs and debug tensors by name, in NumPy types as the engine has them.

        Takes arrays in the engine's input types.
        """
        given = {name: array.astype(self._emulated(name)) for name, array in sample.items()}
        with np.errstate(all="ignore"):
            found = self._session.run(given, self.asked)
            return {
                name: np.asarray(array).astype(NUMPY[self.io_type(name)])
                for name, array in found.items()
            }

    def _emulated(self, name: str) -> np.dtype:
        kind = self.values[name].dtype
        assert kind is not None
        return np.dtype(np.float32) if kind in _LOW else kind.numpy()

    def shapes(self, sizes: Mapping[str, tuple[int, ...]], values: Mapping[str, np.ndarray]):
        """Return the shape of every output, -1 where only a run can tell.

        Args:
            sizes: Shape of every input.
            values: What inputs hold that decide about shapes.
        """
        key = tuple(sorted(sizes.items())), tuple((n, a.tobytes()) for n, a in values.items())
        if key not in self._shapes_seen:
            zeros = {
                name: values.get(name, np.zeros(size, NUMPY[self.io_type(name)]))
                for name, size in sizes.items()
            }
            given = {name: array.astype(self._emulated(name)) for name, array in zeros.items()}
            found = self._session.run(given, self.plan.outputs)
            self._shapes_seen[key] = {
                name: self._known(name, np.shape(array)) for name, array in found.items()
            }
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
        for node in self.network.graph:
            if node.op_type in _UNSHAPED or found.intersection(v for v in node.inputs if v):
                found.update(node.outputs)
        return frozenset(v.name for v in found if v.name)

    @cached_property
    def layers(self) -> tuple[tuple[str, tuple[ir.Node, ...]], ...]:
        """Layers of the engine: a name and the nodes of each."""
        block = {node: tuple(nodes) for nodes in self.plan.fused for node in nodes}
        found: dict[str, list[ir.Node]] = {}
        for node in self.network.graph:
            if node.op_type == "Cast" and node.name not in block:
                continue
            nodes = block.get(node_name(node))
            name = f"{{ForeignNode[{nodes[0]}...{nodes[-1]}]}}" if nodes else node_name(node)
            found.setdefault(name, []).append(node)
        return tuple((name, tuple(nodes)) for name, nodes in found.items())

    @cached_property
    def milliseconds(self) -> dict[str, float]:
        """What each layer is said to take."""
        pace = _PACE | knob("PACE", {})
        found, before = {}, None
        for name, nodes in self.layers:
            low = any(n.name in self.low_nodes for n in nodes)
            high = "tf32" if self.plan.tf32 and nodes[0].op_type in _TF32 else "fp32"
            found[name] = pace.get("low" if low else high, pace["fp32"])
            if before is not None and before != low:
                found[name] += pace["border"]
            before = low
        return found


def _give_out(model: ir.Model, names: Sequence[str]) -> None:
    """Make the tensors `names` the outputs of `model`."""
    graph = model.graph
    values = {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
    values |= {v.name: v for node in graph for v in node.outputs}
    graph.outputs[:] = [values[name] for name in names if name in values]


class _Distorter:
    """Puts into the emulated model what a GPU does beside rounding: TF32, and faulty kernels."""

    def __init__(self, model: ir.Model, program: Program) -> None:
        self.graph, self.program = model.graph, program

    def run(self) -> None:
        nodes = {n.name: n for n in self.graph}
        if self.program.plan.tf32:
            for node in self.program.typed.graph:
                if node.op_type in _TF32 and is_float(node.inputs[0]):
                    self._round_inputs(nodes[node.name])
        factors = knob("BROKEN", {}) | {
            name: factor
            for name, factor in knob("LOSSY", {}).items()
            if name in self.program.low_nodes
        }
        for name, factor in factors.items():
            self._multiply(nodes[name], factor)

    def _constant(self, name: str, number: float) -> ir.Value:
        value = ir.val(name, const_value=ir.tensor(np.float32(number)))
        value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
        self.graph.register_initializer(value)
        return value

    def _round_inputs(self, node: ir.Node) -> None:
        # Dekker's splitting: 24 - 13 = 11 bits stay, as in TF32.
        for slot in (0, 1):
            prefix = f"{node.name}::tf32_{slot}"
            factor = self._constant(f"{prefix}_factor", 2.0**13 + 1)
            scaled = ir.node("Mul", [node.inputs[slot], factor], name=f"{prefix}_scaled")
            rest = ir.node("Sub", [scaled.outputs[0], node.inputs[slot]], name=f"{prefix}_rest")
            high = ir.node("Sub", [scaled.outputs[0], rest.outputs[0]], name=f"{prefix}_high")
            for made in (scaled, rest, high):
                made.outputs[0].name = made.name
                made.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            self.graph.insert_before(node, [scaled, rest, high])
            node.replace_input_with(slot, high.outputs[0])

    def _multiply(self, node: ir.Node, factor: float) -> None:
        value = node.outputs[0]
        product = ir.node("Mul", [value, self._constant(f"{node.name}::factor", factor)])
        product.name = f"{node.name}::distorted"
        name, uses = value.name, list(value.uses())
        value.name, product.outputs[0].name = f"{name}::exact", name
        product.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        self.graph.insert_after(node, product)
        for use in uses:
            if use.node is not product:
                use.node.replace_input_with(use.idx, product.outputs[0])
        for i, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[i] = product.outputs[0]


def compute_nodes(network: Network, low: str | None) -> tuple[str, ...]:
    """Return the nodes that the builder may choose a precision for."""
    kind = _FORMATS[low or "fp16"][1]
    roles = roles_of(upcast(network)[0], kind)
    return tuple(name for name, role in roles.items() if role.role is Role.COMPUTE)
