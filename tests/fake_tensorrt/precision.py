"""Which type an engine has for each tensor: what it is stored in, and what each layer reads.

In weak typing the model's own floating-point types say nothing, and Casts between them vanish: a
layer reads and gives the low format unless a constraint has it in FP32. In strong typing everything
is as the model says. A product whose data and weights are dequantised computes in INT8, in both.
"""

import onnx_ir as ir

from tests.fake_tensorrt.enums import layer_type
from tests.fake_tensorrt.model import is_float
from tests.fake_tensorrt.plan import Plan
from tests.fake_tensorrt.rounding import BF16, FLOAT, HALF

_LOW = {"fp16": HALF, "bf16": BF16}
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MOVES = (
    *("CAST", "CONCATENATION", "FILL", "GATHER", "IDENTITY", "SCATTER", "SELECT", "SHAPE"),
    *("SHUFFLE", "SLICE"),
)
"""Layers that compute nothing."""
_PARAMETERS = {"Resize": (1, 2), "Upsample": (1,)}
"""Inputs that the builder reads: no layer of the engine does."""


class Precision:
    """Types of the tensors of an engine.

    Attributes:
        low_nodes: Names of the nodes that give a low tensor.
        int8_nodes: Names of the products that compute in INT8.
    """

    def __init__(self, graph: ir.Graph, plan: Plan) -> None:
        self._is_weak, self._allows_tf32 = plan.typing == "weak", plan.tf32
        self._low = _LOW[plan.low] if plan.low else FLOAT
        self._fp32 = frozenset(plan.fp32)
        self._exact: set[ir.Value] = set()
        self.int8_nodes = frozenset(str(n.name) for n in graph if self._in_int8(n))
        self._computed: dict[ir.Value, ir.DataType | None] = {}
        for node in graph:
            self._computed |= {v: self._given(node, v) for v in node.outputs}
        low = (n for n in graph if any(self.stored(v) in (HALF, BF16) for v in n.outputs))
        self.low_nodes = frozenset(str(n.name) for n in low)

    def _in_int8(self, node: ir.Node) -> bool:
        """Return whether a product reads what is dequantised; notes what else hands it on."""
        kind = layer_type(node.op_type).name
        if kind == "DEQUANTIZE" or (kind == "SHUFFLE" and node.inputs[0] in self._exact):
            self._exact.update(node.outputs)
        return node.op_type in _PRODUCTS and self._exact.issuperset(node.inputs[:2])

    def _given(self, node: ir.Node, value: ir.Value) -> ir.DataType | None:
        if not (self._is_weak and is_float(value)):
            return value.dtype
        if node.op_type == "Cast" and is_float(node.inputs[0]):
            return self.stored(node.inputs[0])
        return self._of_layer(node)

    def _of_layer(self, node: ir.Node) -> ir.DataType:
        """Return what a layer of weak typing reads and gives."""
        exact = not self._exact.isdisjoint(node.outputs) or node.name in self.int8_nodes
        exact = exact or layer_type(node.op_type).name == "QUANTIZE"
        is_fp32 = exact or node.op_type == "Cast" or node.name in self._fp32
        return FLOAT if is_fp32 else self._low

    def stored(self, value: ir.Value | None) -> ir.DataType | None:
        """Return what a tensor is stored in."""
        return None if value is None else self._computed.get(value, value.dtype)

    def read(self, node: ir.Node, slot: int) -> ir.DataType | None:
        """Return what a layer reads its input `slot` in; between two types the engine converts."""
        value = node.inputs[slot]
        given = slot in _PARAMETERS.get(node.op_type, ()) or node.op_type == "Cast"
        if given or not (self._is_weak and is_float(value)):
            return self.stored(value)
        return self._of_layer(node)

    def in_tf32(self, node: ir.Node) -> bool:
        """Return whether a layer rounds what it reads to TF32."""
        is_product = self._allows_tf32 and node.op_type in _PRODUCTS
        is_product = is_product and node.name not in self.int8_nodes
        return is_product and FLOAT in (self.read(node, 0), self.read(node, 1))


def compute_nodes(graph: ir.Graph) -> tuple[str, ...]:
    """Return the nodes that the builder may choose a precision for, but for what moves data."""
    return tuple(
        str(node.name)
        for node in graph
        if any(map(is_float, (*node.inputs, *node.outputs)))
        and layer_type(node.op_type).name not in _MOVES
    )
