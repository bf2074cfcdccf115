"""What each operator requires of the exponents of its inputs and outputs.

A tensor t with exponent e is stored as t·2^e. An operator computes the same function of the stored
tensors if certain linear equations between exponents hold. In FP32 and lower formats, the results
are then bit-exact multiples by a power of two, as long as nothing becomes subnormal or leaves the
range: such a factor changes neither significands nor rounding. Exceptions are `Log`, which needs an
Add; MaxPool, which in ONNX Runtime outputs the lowest FP32 number if it sees only NaN; and perhaps
`Pow` with an exponent other than 2 or 3, if libm is not glibc's.

An equation maps places to coefficients, and means Σ coefficient · e(place) = 0. A place is the
index of an input, `~index` of an output (`Y` is the first), or the name of an attribute. Places
that no equation names have exponent 0. So do all places of operators outside the tables: Softmax,
Exp, Sigmoid, Erf, Sin, Round and others take unscaled inputs.
"""

from collections.abc import Mapping
from fractions import Fraction

import onnx
import onnx_ir as ir

from halfwise.graph.model import is_standard
from halfwise.graph.reading import scalar
from halfwise.graph.roles import DATA_MOVEMENT

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
    own = RULES.get(node.op_type, ())
    return (*own, *_equal(node, opset)) if node.op_type in HOMOGENEOUS else own


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
    given = [~i for i in alike(list(schema.outputs), len(node.outputs))]
    return tuple({place: 1, Y: -1} for place in (*read, *given) if place != Y)
