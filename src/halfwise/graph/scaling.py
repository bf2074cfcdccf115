"""Make a model whose tensors have given exponents."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.formats import FP32
from halfwise.graph.casts import replace_output
from halfwise.graph.model import (
    Names,
    Writer,
    add_constant,
    bodies,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    opset_of,
    tensor_name,
    values_of,
)
from halfwise.graph.reading import scalar
from halfwise.graph.roles import DATA_MOVEMENT, is_float
from halfwise.graph.weights import pieces
from halfwise.records import NodeName, TensorName, replace

Place = int | str
Equation = Mapping[Place, int]

Y = ~0
_PRODUCT: Equation = {0: 1, 1: 1, Y: -1}
_CARRIES: Equation = {0: 1, Y: -1}
_GATES: tuple[Equation, ...] = ({1: 1, 0: 1},)
_NORM: tuple[Equation, ...] = ({"epsilon": 1, 0: -2}, {1: 1, Y: -1}, {2: 1, Y: -1})

RULES: Mapping[str, tuple[Equation, ...]] = {
    # x·w, linear in both: the bias is added to the product.
    "MatMul": (_PRODUCT,),
    "Gemm": ({1: 1, 0: 1, Y: -1}, {2: 1, Y: -1}),
    "Conv": ({1: 1, 0: 1, Y: -1}, {2: 1, Y: -1}),
    "ConvTranspose": ({1: 1, 0: 1, Y: -1}, {2: 1, Y: -1}),
    "DeformConv": ({1: 1, 0: 1, 4: 1, Y: -1}, {3: 1, Y: -1}),
    "Mul": (_PRODUCT,),
    "Div": ({0: 1, 1: -1, Y: -1},),
    "STFT": ({2: 1, 0: 1, Y: -1},),
    # softmax(q·k)·v is linear in v; a cache adds more.
    "Attention": ({2: 1, Y: -1},),
    # √x, 1/x, Σx²: homogeneous of degree ½, -1, 2.
    "Sqrt": ({0: 1, Y: -2},),
    "Reciprocal": ({0: 1, Y: 1},),
    "ReduceSumSquare": ({0: 2, Y: -1},),
    # x for x ≥ 0, else slope·x; rows of x at positions that are read unscaled.
    **dict.fromkeys(("PRelu", "RoiAlign", "MaxRoiPool"), (_CARRIES,)),
    # (x - mean) / √(mean square + eps) · scale + bias: the quotient does not depend on the scale of
    # x where eps has its square. With the scale's sign, whatever x is, NaN and infinities included.
    # A LayerNormalization may give the mean and 1 / √(mean square + eps) as well.
    "LayerNormalization": (*_NORM, {0: 1, ~1: -1}, {0: 1, ~2: 1}),
    "RMSNormalization": _NORM[:2],
    "InstanceNormalization": _NORM,
    "GroupNormalization": _NORM,
    # Here the variance is a constant, whose scale may also go into `scale`.
    "BatchNormalization": (
        {3: 1, 0: -1},
        {1: 2, 0: 2, 4: -1, Y: -2},
        {"epsilon": 1, 4: -1},
        {2: 1, Y: -1},
    ),
    # x / (bias + alpha/size · Σx²)^beta.
    "LRN": (_CARRIES, {"alpha": 1, 0: 2}),
    # The compared operands; the result is no number.
    **dict.fromkeys(
        ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"), ({0: 1, 1: -1},)
    ),
    # Gates read x·W + h·R + b.
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _GATES),
    # Constants that are attributes; `Clip` and `Pad` have them up to opset 10.
    "ConstantOfShape": ({"value": 1, Y: -1},),
    "Clip": ({"min": 1, Y: -1}, {"max": 1, Y: -1}),
    "Pad": ({"value": 1, Y: -1},),
    "Resize": ({"extrapolation_value": 1, Y: -1},),
}
"""Equations by operator. The first constant in one absorbs the remainder."""

HOMOGENEOUS = DATA_MOVEMENT | frozenset(
    (
        *("Add", "Sub", "Sum", "Mean", "Max", "Min", "Clip", "Mod", "CumSum", "Range", "OneHot"),
        *("Relu", "LeakyRelu", "Abs", "Neg"),
        *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"),
        *("AveragePool", "MaxPool", "LpPool", "MaxUnpool"),
        *("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"),
        *("Resize", "Upsample", "GridSample", "Col2Im", "CenterCropPad", "DFT", "TopK", "Unique"),
    )
)
"""Operators with f(s·x, s·z, …) = s·f(x, z, …) for s > 0, where x, z, … are the inputs that share
the result's type in the schema: all have the exponent of the result."""

LOGARITHMS = ("Log", "ReduceLogSum")
"""Operators with f(s·x) = log(s) + f(x) for s > 0: a constant is added after them."""
INVARIANT = frozenset(
    (
        *("Sign", "ArgMax", "ArgMin", "Hardmax", "NonZero", "IsNaN", "IsInf", "Shape", "Size"),
        *("LpNormalization", *LOGARITHMS),
    )
)
"""Operators with f(s·x) = f(x) for s > 0, or logarithms: their first input has any exponent."""
SHIFT_INVARIANT = ("Softmax", "LogSoftmax")
"""Operators with f(x + a) = f(x): where a Mul brings x back, its maximum is subtracted before."""

DEFAULTS: Mapping[str, float] = {"epsilon": 1e-5, "alpha": 1e-4, "value": 0.0}
"""ONNX's defaults of omitted attributes; others named here count only if given."""


def equations(node: ir.Node, opset: int) -> tuple[Equation, ...]:
    """Return what a node requires of the exponents of its inputs and outputs.

    Args:
        node: Any node, of any operator.
        opset: The model's.

    Returns:
        Equations between places of inputs, outputs and attributes, which the node may omit.
    """
    if not is_standard(node) or _is_special(node):
        return ()
    if node.op_type == "Pow":
        return _power(node)
    if node.op_type == "Einsum":
        return ({**{i: 1 for i, _ in enumerate(node.inputs)}, Y: -1},)
    if node.op_type == "Cast":
        return (_CARRIES,)
    rules = RULES.get(node.op_type, ())
    return (*rules, *_equal(node, opset)) if node.op_type in HOMOGENEOUS else rules


def is_invariant(node: ir.Node) -> bool:
    """Return whether a node's first input may have any exponent, whatever the others have."""
    boolean = is_standard(node, "Cast") and node.outputs[0].dtype == ir.DataType.BOOL
    return boolean or is_standard(node, *INVARIANT)


def _is_special(node: ir.Node) -> bool:
    """Return whether a node's options make it differ from the operator in the tables."""
    if node.op_type == "BatchNormalization":
        return bool(node.attributes.get_int("training_mode", 0))
    if node.op_type == "Attention":
        return len(node.inputs) > 4 or len(node.outputs) > 1
    reduction = node.attributes.get("reduction")
    return reduction is not None and reduction.value == "mul"


def _power(node: ir.Node) -> tuple[Equation, ...]:
    """Return that x^(n/d) has n/d times the exponent; empty if n/d varies, or d is large."""
    number = scalar(node.inputs[1])
    if number is None or not 0 < abs(number) <= 8 or (4 * number) % 1:
        return ()
    power = Fraction(number)
    return ({0: power.numerator, Y: -power.denominator},)


def _equal(node: ir.Node, opset: int) -> tuple[Equation, ...]:
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    kind = schema.outputs[0].type_str

    def alike(formals: list[onnx.defs.OpSchema.FormalParameter], count: int) -> list[int]:
        kinds = (formals[min(i, len(formals) - 1)].type_str for i in range(count))
        return [i for i, other in enumerate(kinds) if other == kind]

    read = alike(list(schema.inputs), len(node.inputs))
    written = [~i for i in alike(list(schema.outputs), len(node.outputs))]
    return tuple({place: 1, Y: -1} for place in (*read, *written) if place != Y)


_MOST = 126
"""Largest exponent of a Mul's factor: its inverse must also be normal in FP32."""
ANY = 1 << 12
"""An exponent that means no limit: zeros and infinities are their own multiples."""


class Constant(Struct, frozen=True, eq=False, dict=True):
    """A constant at one place: an initializer that a node reads, or an attribute.

    Attributes:
        node: The node.
        slot: Index of the input, or name of the attribute.
        value: The initializer; None for an attribute.
        array: f32[*shape]: its content.
    """

    node: ir.Node
    slot: int | str
    value: ir.Value | None
    array: NDArray[np.float32]

    @property
    def name(self) -> TensorName:
        """What stands for it in relations."""
        return TensorName(f"{self.value.name if self.value else ''}@{self.node.name}:{self.slot}")

    @cached_property
    def magnitudes(self) -> tuple[float, float]:
        """The smallest and largest finite nonzero magnitudes; (0, 0) for none."""
        finite = (np.abs(piece[np.isfinite(piece) & (piece != 0)]) for piece in pieces(self.array))
        sizes = [(float(each.min()), float(each.max())) for each in finite if each.size]
        return (min(sizes)[0], max(high for _, high in sizes)) if sizes else (0.0, 0.0)

    def exponents(self) -> tuple[int, int]:
        """Return the least and greatest exponent with which all elements are normal in FP32.

        So elements can be recovered exactly. The range always includes 0; zeros, NaN and infinities
        do not count; (-`ANY`, `ANY`) if there is nothing else.
        """
        smallest, largest = self.magnitudes
        if not largest:
            return -ANY, ANY
        low = math.frexp(FP32.smallest_normal)[1] - math.frexp(smallest)[1]
        low += math.ldexp(smallest, low) < FP32.smallest_normal
        high = math.frexp(FP32.max)[1] - math.frexp(largest)[1]
        high -= math.ldexp(largest, high) > FP32.max
        return min(low, 0), max(high, 0)


class Edge(NamedTuple):
    """One read of a tensor.

    Attributes:
        tensor: The tensor.
        node: The node that reads it; None for the end of a graph.
        slot: Index of its input; 0 for the end.
    """

    tensor: TensorName
    node: ir.Node | None
    slot: int


class Relation(Struct, frozen=True):
    """Σ coefficient · e(name) = 0.

    Attributes:
        node: The node that requires it.
        terms: Coefficients by name: of an edge, a constant's place, or an output tensor.
        absorber: The constant among them that absorbs the remainder, if any.
    """

    node: NodeName
    terms: Mapping[TensorName, int]
    absorber: TensorName | None


class Relations(Struct, frozen=True):
    """Constraints on the exponents of a model; e(t) means that t is stored as t·2^e.

    There are three kinds of names. Unless set, an exponent is 0 or follows from others:

    - a tensor, by its own name: the stored tensor;
    - an edge "<tensor>@<node>:<slot>", a node's read of a tensor: follows the tensor. If it has
      another exponent, a Mul goes between them (one for all edges of a tensor with the same).
      "<tensor>@output" is the output of a graph: it is fixed, so a scaled output costs a Mul;
    - a constant at a place, "<constant>@<node>:<slot>", or "@<node>:<attribute>": follows from the
      relation that it absorbs. Every reader may have its own multiple of a shared constant. Those
      that absorb none (the variance of a BatchNormalization, say) are free, and 0 unless set.

    Attributes:
        tensors: The tensors with an exponent, in graph order: FP32 ones that are not constants.
        edges: The reads of tensors, except by readers that accept any exponent.
        constants: The constants that may be multiplied, by place.
        equations: What the nodes require.
        fixed: Tensors and edges whose exponent is 0.
        sums: Edges into a logarithm, and results of an exponential, by their node: an exponent
            there costs an Add, and is not bit-exact.
        shifted: Edges into a `SHIFT_INVARIANT` node: behind a Mul they are not beyond the range.
    """

    tensors: dict[TensorName, None] = {}
    edges: dict[TensorName, Edge] = {}
    constants: dict[TensorName, Constant] = {}
    equations: list[Relation] = []
    fixed: set[TensorName] = set()
    sums: dict[TensorName, ir.Node] = {}
    shifted: set[TensorName] = set()

    def without_sums(self) -> "Relations":
        """Return these without what needs a sum before a node: exponentials, shifts."""
        exponentials = self.sums.keys() & self.tensors.keys()
        return replace(self, fixed=self.fixed | exponentials, shifted=set())

    @property
    def names(self) -> set[TensorName]:
        """All names."""
        return {*self.tensors, *self.edges, *self.constants}


def relations(model: ir.Model) -> Relations:
    """Return what the exponents of `model` must satisfy.

    Args:
        model: In normal form: every value has a name and a type. What enters and leaves a body of
            an If, Loop or Scan is not scaled, as the model's inputs and outputs are not.
    """
    constraints, opset = Relations(), opset_of(model)
    _read_graph(constraints, model.graph, opset)
    return constraints


def _read_graph(constraints: Relations, graph: ir.Graph, opset: int) -> None:
    for value in graph.inputs:
        if is_float(value):
            constraints.fixed.add(_tensor(constraints, value))
    for node in graph:
        for body in bodies(node):
            _read_graph(constraints, body, opset)
        _read(constraints, node, opset)
    for value in graph.outputs:
        if is_float(value) and value.name in constraints.tensors:
            constraints.fixed.add(_edge(constraints, value, None, 0))


def completed(constraints: Relations, exponents: Mapping[TensorName, int]) -> dict[TensorName, int]:
    """Return the exponents of all tensors, edges and constants, completed from some of them.

    Args:
        constraints: The constraints that they must satisfy.
        exponents: Exponents of tensors, and of names that do not follow them; 0 if left out.

    Raises:
        CaseError: a name is unknown, a relation does not hold, or a constant would not be exact in
            FP32.
    """
    if unknown := exponents.keys() - constraints.names:
        raise CaseError(
            f"The model has no tensor {min(unknown)!r} to scale.",
            "Give the model for which the repair was proposed.",
        )
    names = (*constraints.tensors, *constraints.constants)
    full = {name: exponents.get(name, 0) for name in names}
    full |= {name: exponents.get(name, full[e.tensor]) for name, e in constraints.edges.items()}
    for relation in constraints.equations:
        absorber = relation.absorber
        if absorber is not None and absorber not in exponents:
            full[absorber] -= _remainder(relation, full) // relation.terms[absorber]
    broken: list[str] = [r.node for r in constraints.equations if _remainder(r, full)]
    broken += sorted(name for name in constraints.fixed if full[name])
    if broken:
        raise CaseError(
            f"The exponents of the inputs and outputs of {broken[0]!r} do not fit together.",
            "Give the model for which the repair was proposed.",
        )
    spans = {n: c.exponents() if full[n] else (0, 0) for n, c in constraints.constants.items()}
    for name, edge in constraints.edges.items():
        stored = full[edge.tensor]
        spans[name] = (stored - _MOST, stored + _MOST)
    for name, (low, high) in spans.items():
        if not low <= full[name] <= high:
            raise CaseError(
                f"{name} times 2^{full[name]} is not exact in FP32.",
                f"Use an exponent from {low} to {high}.",
            )
    return full


def at_once(
    constraints: Relations, scalings: Sequence[Mapping[TensorName, int]]
) -> tuple[Mapping[TensorName, int], Sequence[Mapping[TensorName, int]]]:
    """Return the exponents that the first of some scalings make together, and the others.

    Relations are linear, so exponents add up unless a scaling changes what another one made.

    Args:
        constraints: Of the model before all of them.
        scalings: As for `rescale`.

    Raises:
        CaseError: the first one does not fit.
    """
    full, named = Counter[TensorName](), set[TensorName]()
    for i, exponents in enumerate(scalings):
        if i and (exponents.keys() & named or exponents.keys() - constraints.names):
            return full, scalings[i:]
        full.update(completed(constraints, exponents))
        named |= exponents.keys()
    return full, ()


def _remainder(relation: Relation, exponents: Mapping[TensorName, int]) -> int:
    return sum(c * exponents[name] for name, c in relation.terms.items())


def _tensor(constraints: Relations, value: ir.Value) -> TensorName:
    """Add a stored tensor, and return its name."""
    name = tensor_name(value)
    constraints.tensors[name] = None
    return name


def _edge(constraints: Relations, value: ir.Value, node: ir.Node | None, slot: int) -> TensorName:
    """Add a read of a tensor, and return its name."""
    reader = "output" if node is None else f"{node.name}:{slot}"
    name = TensorName(f"{value.name}@{reader}")
    constraints.edges[name] = Edge(tensor_name(value), node, slot)
    return name


def _read(constraints: Relations, node: ir.Node, opset: int) -> None:
    """Add a node, after those it reads from."""
    outputs = ((~i, v) for i, v in enumerate(node.outputs) if v.name and is_float(v))
    names: dict[Place, TensorName] = {place: _tensor(constraints, v) for place, v in outputs}
    read = {
        i: v for i, v in enumerate(node.inputs) if v is not None and v.name in constraints.tensors
    }
    names |= {
        i: _edge(constraints, v, node, i) for i, v in read.items() if i or not is_invariant(node)
    }
    fixed = set(names)
    # After an operator that ONNX does not know, types are unknown too.
    typed = all(v.type for v in (*node.inputs, *node.outputs) if v is not None and v.name)
    for equation in equations(node, opset) if typed else ():
        places = equation.keys() - names.keys() - read.keys()
        constants = {p: c for p in equation if p in places and (c := _constant(node, p))}
        named = names | {p: c.name for p, c in constants.items()}
        terms = {named[p]: c for p, c in equation.items() if p in named}
        if len(terms) > 1:
            constraints.constants.update((c.name, c) for c in constants.values())
            absorber = next((c.name for c in constants.values()), None)
            constraints.equations.append(Relation(node_name(node), terms, absorber))
            fixed -= equation.keys()
    if is_standard(node, "Exp") and Y in names:
        fixed.discard(Y)
        constraints.sums[names[Y]] = node
    constraints.fixed.update(names[place] for place in fixed)
    # Before opset 13 a Softmax is over several axes.
    if is_standard(node, *SHIFT_INVARIANT) and 0 in names and opset >= 13:
        constraints.shifted.add(names[0])
    if is_standard(node, *LOGARITHMS) and 0 in read:
        constraints.sums[_edge(constraints, read[0], node, 0)] = node


def _constant(node: ir.Node, place: Place) -> Constant | None:
    """Return the constant at a place of `node` in equations; None if there is none."""
    if isinstance(place, str):
        value, array = None, _attribute(node, place)
    else:
        value = node.inputs[place] if 0 <= place < len(node.inputs) else None
        array = constant_array(value) if value is not None and is_float(value) else None
    return None if array is None else Constant(node, place, value, array)


def _attribute(node: ir.Node, name: str) -> NDArray[Any] | None:
    """Return the value or default of a float attribute; None if it plays no part."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return np.asarray(DEFAULTS[name], np.float32) if name in DEFAULTS else None
    tensor = attribute.type is ir.AttributeType.TENSOR
    array = np.asarray(attribute.as_tensor().numpy() if tensor else attribute.as_float())
    return array.astype(np.float32)


def rescale(model: ir.Model, *scalings: Mapping[TensorName, int]) -> None:
    """Store each tensor times a power of two, in place.

    Constants and attributes are multiplied as the relations require; a node that needs another
    multiple of a shared constant reads a copy. A Mul is inserted where an edge and its tensor
    differ in exponent, and an Add after a Log. Nodes and tensors keep their names, and graph inputs
    and outputs keep their values: if an output is stored scaled, a Mul's result takes its name and
    the stored tensor gets another.

    Args:
        model: In normal form.
        scalings: The nonzero exponents of tensors, edges and constants that do not follow (see
            `Relations`), of one scaling after the other.

    Raises:
        CaseError: they do not fit the model.
    """
    waiting: Sequence[Mapping[TensorName, int]] = scalings
    while waiting:
        constraints = relations(model)
        full, waiting = at_once(constraints, waiting)
        _rescale(model, constraints, full)


def _rescale(model: ir.Model, constraints: Relations, full: Mapping[TensorName, int]) -> None:
    names = Names(graphs_of(model))
    places: dict[ir.Value, dict[Constant, int]] = {}
    for name, constant in constraints.constants.items():
        # Zeros and infinities are their own multiples.
        exponent = full[name] if full[name] and constant.magnitudes[1] else 0
        if constant.value is not None:
            places.setdefault(constant.value, {})[constant] = exponent
        elif exponent:
            _multiply_attribute(constant, exponent)
    for value, wanted in places.items():
        _multiply(value, wanted, model.graph, names)
    values = {TensorName(v.name or ""): v for graph in graphs_of(model) for v in values_of(graph)}
    edges: dict[tuple[TensorName, int, ir.Node | None], list[Edge]] = {}
    for name, edge in constraints.edges.items():
        if difference := full[name] - full[edge.tensor]:
            shifts = name in constraints.shifted and difference > 0
            group = edge.tensor, difference, edge.node if shifts else None
            edges.setdefault(group, []).append(edge)
    for (tensor, difference, softmax), readers in edges.items():
        writer, value = Writer(model, tensor, names), values[tensor]
        read = value if softmax is None else _less_maximum(writer, value, softmax)
        _insert_mul(model, writer, value, read, difference, readers)
    for name, node in constraints.sums.items():
        if full[name]:
            _insert_add(model, node, full[name], names)


def _multiply(
    value: ir.Value, wanted: Mapping[Constant, int], graph: ir.Graph, names: Names
) -> None:
    """Give each place its multiple of an initializer, which others may read unchanged."""
    array = constant_array(value)
    shared = len(value.uses()) > len(wanted) or value.is_graph_output()
    kept = 0 if shared or 0 in wanted.values() else next(iter(wanted.values()))
    stored = {kept: value}
    for constant, exponent in wanted.items():
        if exponent not in stored:
            name = names.take(f"{value.name}_scaled")
            stored[exponent] = add_constant(graph, name, np.ldexp(array, exponent))
        assert isinstance(constant.slot, int)
        constant.node.replace_input_with(constant.slot, stored[exponent])
    if kept:
        value.const_value = ir.Tensor(np.ldexp(array, kept), name=value.name)


def _multiply_attribute(constant: Constant, exponent: int) -> None:
    name, array = str(constant.slot), np.ldexp(constant.array, exponent)
    is_tensor = array.ndim > 0
    constant.node.attributes[name] = (
        ir.AttrTensor(name, ir.Tensor(array)) if is_tensor else ir.AttrFloat32(name, float(array))
    )


def _less_maximum(writer: Writer, value: ir.Value, softmax: ir.Node) -> ir.Value:
    """Return `value` less its maximum along the axis of a node."""
    axis = softmax.attributes.get_int("axis", -1)
    return writer.op("Sub", value, writer.reduced("ReduceMax", value, axis))


def _insert_mul(
    model: ir.Model,
    writer: Writer,
    value: ir.Value,
    read: ir.Value,
    difference: int,
    readers: Iterable[Edge],
) -> None:
    """Make `readers` of `value` read `read` times 2^difference."""
    result = _behind(writer, value, "Mul", read, _number(writer, 2.0**difference))
    for _, node, slot in readers:
        if node is None:
            result.name, value.name = value.name, result.name
            for graph in graphs_of(model):
                replace_output(graph, value, result)
        else:
            node.replace_input_with(slot, result)


def _insert_add(model: ir.Model, node: ir.Node, exponent: int, names: Names) -> None:
    """Add log(2^exponent) to what an exponential reads, or subtract it from a logarithm.

    What a logarithm gives keeps its name.
    """
    if node.op_type == "Exp":
        (value,) = node.inputs
        assert value is not None
        writer = Writer(model, tensor_name(node.outputs[0]), names)
        number = _number(writer, exponent * math.log(2))
        node.replace_input_with(0, _behind(writer, value, "Add", value, number))
        return
    (value,) = node.outputs
    writer = Writer(model, tensor_name(value), names)
    add_behind(writer, value, _number(writer, -exponent * math.log(2)))


def add_behind(writer: Writer, value: ir.Value, operand: ir.Value) -> None:
    """Add `operand` to `value` for all that read it; the result takes its name.

    Args:
        writer: Inserts the Add, and the nodes that it has made before.
        value: What a node computes.
        operand: Computed before that node, or by `writer`.
    """
    result = _behind(writer, value, "Add", value, operand)
    result.name, value.name = value.name, result.name
    ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
    writer.made[-1].replace_input_with(0, value)


def _number(writer: Writer, number: float) -> ir.Value:
    return writer.constant("operand", np.array(number, np.float32))


def _behind(
    writer: Writer, value: ir.Value, op: str, read: ir.Value, operand: ir.Value
) -> ir.Value:
    """Insert a node that computes with `read` and `operand` behind `value`; return its result."""
    result = writer.op(op, read, operand)
    result.type, result.shape = value.type, value.shape
    producer, graph = value.producer(), value.graph
    if producer is not None:
        producer.append(writer.made)
    else:
        assert graph is not None  # an input or a constant of it
        graph[0].prepend(writer.made)
    return result
