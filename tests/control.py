"""Rules for `tests.graphs`: If, Loop and Scan with states, own constants and captured values."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from tests.graphs import Sheet

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
MATRIX, ROW = (F32, (None, None)), (F32, (None,))
STEP, GO = (I64, ()), (BOOL, ())

Formal = tuple[str, tuple[int, Sequence[int | None]]]


def graph(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Formal],
    outputs: Sequence[Formal],
    constants: Mapping[str, object] | None = None,
) -> onnx.GraphProto:
    """Return a body; `inputs` and `outputs` are (name, (element type, shape)).

    Constants of float64 become FP32 ones.
    """
    taken = [helper.make_tensor_value_info(n, dtype, shape) for n, (dtype, shape) in inputs]
    given = [helper.make_tensor_value_info(n, dtype, shape) for n, (dtype, shape) in outputs]
    arrays = {n: np.asarray(array) for n, array in (constants or {}).items()}
    tensors = [
        numpy_helper.from_array(a.astype(np.float32) if a.dtype == np.float64 else a, n)
        for n, a in arrays.items()
    ]
    return helper.make_graph(nodes, name, taken, given, tensors)


def _node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def branches(prefix: str, left: str, right: str) -> dict[str, onnx.GraphProto]:
    """Return two branches that compute with two outer values; one puts them into a sequence."""
    t, e = f"{prefix}_then", f"{prefix}_else"
    then = [
        _node("Mul", f"{left} {right}", f"{t}_a", name="twin"),
        _node("Transpose", f"{t}_a", f"{t}_b", perm=[1, 0]),
        _node("Shape", left, f"{t}_shape"),
        _node("Reshape", f"{t}_b {t}_shape", f"{t}_c"),
        _node("Add", f"{t}_c {t}_own", f"{t}_y"),
    ]
    otherwise = [
        _node("Sub", f"{left} {right}", f"{e}_a", name="twin"),
        _node("SequenceConstruct", f"{e}_a {right}", f"{e}_s"),
        _node("ConstantOfShape", f"{e}_shape", f"{e}_zero"),
        _node("Cast", f"{e}_zero", f"{e}_first", to=I64),
        _node("SequenceAt", f"{e}_s {e}_first", f"{e}_b"),
        _node("Add", f"{e}_b {e}_own", f"{e}_y"),
    ]
    own = {f"{e}_own": np.full(4, 0.1), f"{e}_shape": np.array([], np.int64)}
    return {
        "then_branch": graph(t, then, (), [(f"{t}_y", MATRIX)], {f"{t}_own": np.full(4, 1e6)}),
        "else_branch": graph(e, otherwise, (), [(f"{e}_y", MATRIX)], own),
    }


def _if(s: "Sheet") -> str:
    return s.op("If", ["flag"], **branches(f"i{s.new()}", s.pick(), s.weight((2, 4))))


def _constant_branches(s: "Sheet") -> str:
    p, x = f"c{s.new()}", s.pick()
    then = graph(f"{p}_t", [], (), [(f"{p}_w", MATRIX)], {f"{p}_w": np.full((2, 4), 0.7)})
    back = graph(f"{p}_e", [_node("Identity", x, f"{p}_x")], (), [(f"{p}_x", MATRIX)])
    return s.op("If", ["flag"], then_branch=then, else_branch=back)


def _loop(s: "Sheet") -> list[str]:
    """A state that shrinks and takes up an outer value; each step gives it out, too."""
    p, outer = f"l{s.new()}", s.pick()
    added = _node("Add", f"{p}_a {outer}", f"{p}_b")
    chosen = _node("If", "flag", f"{p}_b", **branches(p, f"{p}_a", outer))
    nodes = [
        _node("Identity", f"{p}_go", f"{p}_on"),
        _node("Mul", f"{p}_state {p}_half", f"{p}_a"),
        _node("Cast", f"{p}_step", f"{p}_f", to=F32),
        chosen if s.draw(st.booleans()) else added,
        _node("Sub", f"{p}_b {p}_f", f"{p}_next"),
        _node("Gather", f"{p}_next {p}_first", f"{p}_seen"),
    ]
    body = graph(
        p,
        nodes,
        [(f"{p}_step", STEP), (f"{p}_go", GO), (f"{p}_state", MATRIX)],
        [(f"{p}_on", GO), (f"{p}_next", MATRIX), (f"{p}_seen", ROW)],
        {f"{p}_half": 0.5 if s.exact else 0.3, f"{p}_first": np.array(0)},
    )
    trips = s.array(s.draw(st.sampled_from((1, 3))))
    # Without the condition, or with matrices to stack, the reference evaluator is wrong.
    last, seen = s.ops("Loop", [trips, s.array(True, np.bool_), s.pick()], 2, body=body)
    return [last, s.op("Sub", [s.pick(), s.op("Gather", [seen, s.array(0)], axis=0)])]


def _scan(s: "Sheet") -> list[str]:
    """Running sums of squares over rows."""
    p = f"s{s.new()}"
    nodes = [
        _node("Mul", f"{p}_row {p}_row", f"{p}_square"),
        _node("Add", f"{p}_sum {p}_square", f"{p}_next"),
        _node("Sub", f"{p}_row {p}_next", f"{p}_seen"),
    ]
    inputs: list[Formal] = [(f"{p}_sum", ROW), (f"{p}_row", ROW)]
    body = graph(p, nodes, inputs, [(f"{p}_next", ROW), (f"{p}_seen", ROW)])
    operands = [s.weight((4,)), s.pick()]
    total, seen = s.ops("Scan", operands, 2, body=body, num_scan_inputs=1)
    return [s.op("Sub", [seen, total]), seen]


def _sequence_loop(s: "Sheet") -> str:
    """A Loop that collects in a sequence (opset 13): it must be FP32."""
    x = s.pick()
    if s.opset < 13:
        return s.op("SequenceAt", [s.op("SequenceConstruct", [x]), s.array(0)])
    p = f"q{s.new()}"
    nodes = [
        _node("Identity", f"{p}_go", f"{p}_on"),
        _node("Neg", x, f"{p}_x"),
        _node("SequenceInsert", f"{p}_list {p}_x", f"{p}_next"),
    ]
    body = graph(p, nodes, [(f"{p}_step", STEP), (f"{p}_go", GO)], [(f"{p}_on", GO)])
    for formals, name in ((body.input, f"{p}_list"), (body.output, f"{p}_next")):
        formals.append(helper.make_tensor_sequence_value_info(name, F32, None))
    start = s.op("SequenceConstruct", [x])
    collected = s.op("Loop", [s.array(1), s.array(True, np.bool_), start], body=body)
    return s.op("SequenceAt", [collected, s.array(1)])


RULES = (_if, _constant_branches, _loop, _scan, _sequence_loop)
