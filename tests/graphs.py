"""Hypothesis strategies for small FP32 ONNX models, data for them, and plans.

Every float value that ops pass on is f32[2, 4], so any op can follow any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from halfwise.graph.model import Network
from halfwise.graph.roles import float_io, roles_of
from halfwise.records import NodeName, TensorName
from tests import control

SHAPE = (2, 4)
OPSETS = (11, 12, 13, 15, 17, 18, 20, 21)
SPECIAL = (np.nan, -np.nan, -0.0, 1e-8, -3e-6, 1e30, -7e4, 65504.0, np.inf)
"""What weights hold now and then: beyond FP16 at either end, and signs that must survive."""


@dataclass(frozen=True)
class Drawn:
    """A model and one sample for it."""

    proto: onnx.ModelProto
    sample: dict[str, np.ndarray]


def dyadic(shape: Sequence[int]) -> st.SearchStrategy[np.ndarray]:
    """Arrays of multiples of 1/4 up to 2: sums and products of a few are exact in FP32."""
    size = int(np.prod(shape))
    integers = st.lists(st.integers(-8, 8), min_size=size, max_size=size)
    return integers.map(lambda values: (np.array(values, np.float32) / 4).reshape(shape))


def gaussian(shape: Sequence[int]) -> st.SearchStrategy[np.ndarray]:
    """Normal arrays over a wide range of scales, from a drawn seed."""

    def make(seed: int, scale: float) -> np.ndarray:
        return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)

    return st.builds(make, st.integers(0, 2**16), st.sampled_from((1e-4, 1.0, 1.0, 300.0)))


@dataclass
class Sheet:
    """A graph in the making."""

    draw: Callable[..., Any]
    opset: int
    exact: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    floats: list[str] = field(default_factory=lambda: ["x", "y"])
    others: dict[str, int] = field(default_factory=dict)
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)
    named: int = 0

    def new(self) -> str:
        self.named += 1
        return f"v{self.named}"

    def pick(self) -> str:
        """Return a f32[2, 4] value; late ones are likelier, so graphs grow deep."""
        back = self.draw(st.integers(0, len(self.floats) - 1).map(lambda i: i // 2))
        return self.floats[-1 - int(back)]

    def op(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node, maybe without a name or with one that others have; return its output."""
        return self.ops(op_type, inputs, 1, **attributes)[0]

    def ops(
        self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        """Append a node with several outputs."""
        results = [self.new() for _ in range(outputs)]
        name = self.draw(st.sampled_from((f"n{self.named}", f"n{self.named}", "", "twin")))
        self.nodes.append(helper.make_node(op_type, inputs, results, name=name, **attributes))
        return results

    def array(self, values: Any, dtype: Any = np.int64) -> str:
        """Add a constant, as an initializer or as a Constant node."""
        name = self.new()
        tensor = numpy_helper.from_array(np.asarray(values, dtype), name)
        if self.draw(st.booleans()):
            self.constants[name] = tensor
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def weight(self, shape: Sequence[int]) -> str:
        """Return a float initializer, maybe one that other nodes read too."""
        shared = [n for n, t in self.constants.items() if n[0] == "w" and t.dims == list(shape)]
        if shared and self.draw(st.booleans()):
            return str(self.draw(st.sampled_from(shared)))
        array = self.draw(
            dyadic(shape) if self.exact else st.one_of(dyadic(shape), gaussian(shape))
        )
        if not self.exact and self.draw(st.integers(0, 3)) == 0:
            array.flat[self.draw(st.integers(0, array.size - 1))] = self.draw(
                st.sampled_from(SPECIAL)
            )
        name = f"w{self.new()}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name


Rule = Callable[[Sheet], str | list[str]]


def _binary(op_type: str) -> Rule:
    def add(s: Sheet) -> str:
        other = s.draw(st.sampled_from(("value", "matrix", "row")))
        shapes = {"matrix": SHAPE, "row": SHAPE[1:]}
        right = s.pick() if other == "value" else s.weight(shapes[other])
        return s.op(op_type, [s.pick(), right])

    return add


def _unary(op_type: str, **attributes: Any) -> Rule:
    return lambda s: s.op(op_type, [s.pick()], **attributes)


def _pow(s: Sheet) -> str:
    return s.op("Pow", [s.pick(), s.array(2.0, np.float32)])


def _exp(s: Sheet) -> str:
    low, high = s.array(-4.0, np.float32), s.array(4.0, np.float32)
    return s.op("Exp", [s.op("Clip", [s.pick(), low, high])])


def _root(s: Sheet) -> str:
    return s.op("Sqrt", [s.op("Abs", [s.pick()])])


def _clip(s: Sheet) -> str:
    low, high = s.array(-1.0, np.float32), s.array(1.5, np.float32)
    bounds = s.draw(st.sampled_from(([], [low], ["", high], [low, high], [low, ""])))
    return s.op("Clip", [s.pick(), *bounds])


def _matmul(s: Sheet) -> str:
    return s.op("MatMul", [s.pick(), s.weight((4, 4))])


def _gemm(s: Sheet) -> str:
    bias = s.draw(st.sampled_from(([], [s.weight((4,))])))
    return s.op("Gemm", [s.pick(), s.weight((4, 4)), *bias], transB=s.draw(st.integers(0, 1)))


def _conv(s: Sheet) -> str:
    image = s.op("Reshape", [s.pick(), s.array([1, 2, 4])])
    bias = s.draw(st.sampled_from(([], [s.weight((2,))])))
    result = s.op("Conv", [image, s.weight((2, 2, 3)), *bias], pads=[1, 1])
    return s.op("Reshape", [result, s.array(SHAPE)])


def _reduce(op_type: str) -> Rule:
    from_input = 13 if op_type == "ReduceSum" else 18

    def add(s: Sheet) -> str:
        x = s.pick()
        if s.opset >= from_input:
            total = s.op(op_type, [x, s.array([1])], keepdims=1)
        else:
            total = s.op(op_type, [x], axes=[1], keepdims=1)
        return s.op("Sub", [s.pick(), total])

    return add


def _layer_norm(s: Sheet) -> str:
    if s.opset < 17:
        return _root(s)
    return s.op("LayerNormalization", [s.pick(), s.weight((4,)), s.weight((4,))])


def _concat_slice(s: Sheet) -> str:
    joined = s.op("Concat", [s.pick(), s.weight(SHAPE), s.pick()], axis=0)
    return s.op("Slice", [joined, s.array([1]), s.array([3]), s.array([0])])


def _split(s: Sheet) -> list[str]:
    joined = s.op("Concat", [s.pick(), s.pick()], axis=1)
    sizes = {"num_outputs": 2} if s.opset >= 18 else {}
    return s.ops("Split", [joined], 2, axis=1, **sizes)


def _turned(s: Sheet) -> str:
    turned = s.op("Transpose", [s.pick()], perm=[1, 0])
    return s.op("Transpose", [s.op("Relu", [turned])], perm=[1, 0])


def _shape_chain(s: Sheet) -> str:
    x = s.pick()
    flat = s.op("Reshape", [x, s.array([-1])])
    return s.op("Reshape", [flat, s.op("Shape", [s.pick()])])


def _gather(s: Sheet) -> str:
    return s.op("Gather", [s.pick(), s.array([1, 0])], axis=0)


def _pad(s: Sheet) -> str:
    fill = s.draw(st.sampled_from(([], [s.array(0.1, np.float32)])))
    padded = s.op("Pad", [s.pick(), s.array([0, 1, 0, 0]), *fill])
    return s.op("Slice", [padded, s.array([0]), s.array([4]), s.array([1])])


def _where(s: Sheet) -> str:
    greater = s.op("Greater", [s.pick(), s.pick()])
    s.others[greater] = TensorProto.BOOL
    other = s.draw(st.sampled_from((s.pick(), s.weight(SHAPE))))
    return s.op("Where", [greater, s.pick(), other])


def _argmax(s: Sheet) -> str:
    best = s.op("ArgMax", [s.pick()], axis=1)
    s.others[best] = TensorProto.INT64
    return s.op("Add", [s.op("Cast", [best], to=TensorProto.FLOAT), s.pick()])


def _integers(s: Sheet) -> str:
    low, high = s.array(-100.0, np.float32), s.array(100.0, np.float32)
    finite = s.op("Where", [s.op("IsNaN", [x := s.pick()]), low, x])
    small = s.op("Clip", [finite, low, high])
    whole = s.op("Cast", [small], to=TensorProto.INT32)
    return s.op("Cast", [whole], to=TensorProto.FLOAT)


def _resize(s: Sheet) -> str:
    image = s.op("Reshape", [s.pick(), s.array([1, 1, 2, 4])])
    roi = "" if s.opset >= 13 else s.array([], np.float32)
    scales = s.array([1, 1, 2, 1], np.float32)
    larger = s.op("Resize", [image, roi, scales], mode="nearest")
    smaller = s.op("Slice", [larger, s.array([0]), s.array([4]), s.array([2]), s.array([2])])
    return s.op("Reshape", [smaller, s.array(SHAPE)])


def _filled(s: Sheet) -> str:
    fill = s.draw(st.sampled_from((None, 0.5, 0.1, -0.0) + (() if s.exact else (-3e38,))))
    tensor = None if fill is None else numpy_helper.from_array(np.array([fill], np.float32))
    attributes = {} if tensor is None else {"value": tensor}
    return s.op("ConstantOfShape", [s.op("Shape", [s.pick()])], **attributes)


EXACT: tuple[Rule, ...] = (
    *(_binary(op_type) for op_type in ("Add", "Sub", "Mul")),
    *(_unary(op_type) for op_type in ("Relu", "Neg", "Identity")),
    *(_reduce(op_type) for op_type in ("ReduceSum", "ReduceMax", "ReduceMean")),
    *(_clip, _matmul, _gemm, _conv, _concat_slice, _split, _turned, _shape_chain, _gather, _pad),
    *(_where, _argmax, _integers, _resize, _filled, *control.RULES),
)
"""Rules whose results are exact on dyadic data, or nearly always."""
ALL: tuple[Rule, ...] = (
    *EXACT,
    *(_unary(op_type) for op_type in ("Sigmoid", "Tanh")),
    *(_unary("Softmax", axis=-1), _binary("Div"), _pow, _exp, _root, _layer_norm),
)


@st.composite
def graphs(
    draw: Any,
    *,
    exact: bool = False,
    opsets: Sequence[int] = OPSETS,
    rules: Callable[[int], Sequence[Rule]] = lambda _: ALL,
) -> Drawn:
    """Models of 2 to 9 ops with their input.

    Args:
        draw: Hypothesis draws with it.
        exact: Only operators and data whose results do not depend on the order of sums.
        opsets: Operator set versions to choose from.
        rules: The rules for each version, unless `exact`.
    """
    sheet = Sheet(draw, draw(st.sampled_from(opsets)), exact)
    choices = EXACT if exact else rules(sheet.opset)
    for rule in draw(st.lists(st.sampled_from(choices), min_size=2, max_size=9)):
        result = rule(sheet)
        sheet.floats += [result] if isinstance(result, str) else result
    computed = {v for node in sheet.nodes for v in node.output}
    choice = [v for v in sheet.floats[:-1] if v in computed]
    chosen = draw(st.lists(st.sampled_from(choice), unique=True, max_size=2)) if choice else []
    outputs: dict[str, int] = dict.fromkeys((*chosen, sheet.floats[-1]), TensorProto.FLOAT)
    if sheet.others and draw(st.booleans()):
        outputs |= sheet.others
    batch = draw(st.sampled_from((2, "batch")))
    inputs = {"x": TensorProto.FLOAT, "y": TensorProto.FLOAT, "flag": TensorProto.BOOL}
    graph = helper.make_graph(
        sheet.nodes,
        "drawn",
        [
            helper.make_tensor_value_info(n, t, [] if n == "flag" else [batch, 4])
            for n, t in inputs.items()
        ],
        [helper.make_tensor_value_info(n, t, [None, None]) for n, t in outputs.items()],
        list(sheet.constants.values()),
    )
    data = dyadic(SHAPE) if exact else st.one_of(dyadic(SHAPE), gaussian(SHAPE))
    sample = {"x": draw(data), "y": draw(data), "flag": np.array(draw(st.booleans()))}
    domains = {n.domain for n in sheet.nodes} - {""}
    imports = [helper.make_opsetid("", sheet.opset), *(helper.make_opsetid(d, 1) for d in domains)]
    functions = list(sheet.functions.values())
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)
    return Drawn(proto, sample)


def free_nodes(network: Network) -> list[NodeName]:
    """Return the nodes that may be low, moving ones included."""
    return [name for name, role in roles_of(network).items() if role.free]


def low_ends(network: Network) -> st.SearchStrategy[frozenset[TensorName]]:
    """Any set of graph inputs and outputs of the low type; all and none often enough."""
    ends = float_io(network)
    some = st.frozensets(st.sampled_from(sorted(ends)))
    return st.one_of(st.sampled_from([frozenset[TensorName](), ends]), some)


def plans(network: Network) -> st.SearchStrategy[frozenset[NodeName]]:
    """Any set of free nodes in FP32; all and none often enough."""
    free = free_nodes(network)
    if not free:
        return st.just(frozenset())
    some = st.frozensets(st.sampled_from(free))
    return st.one_of(some, some.map(lambda s: frozenset(free) - s))
