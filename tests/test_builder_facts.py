"""The shipped answers are those of the builder, for a sample of operators."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from halfwise.formats import BF16, FP16
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.roles import roles_of
from tests.faults import FAULTS, Fault
from tests.judges import RtxBuilder
from tests.unit.graph.sketch import Sketch, f32

REFUSED = [
    fault
    for fault in FAULTS
    if fault.tensorrt
    and fault.tensorrt.startswith("11")
    and fault.rule.endswith("-unparsed")
    and fault.severity == "error"
]


@pytest.mark.parametrize("fault", REFUSED, ids=lambda f: f"{f.rule}:{f.name}")
def test_what_lint_calls_an_error_is_refused(rtx: RtxBuilder, fault: Fault, tmp_path) -> None:
    for ill in (True, False):
        path = tmp_path / "m.onnx"
        onnx.save(fault.make(ill), path)
        assert rtx.build(path).built is not ill


WEIGHTS = f32(np.linspace(-1, 1, 48).reshape(3, 4, 2, 2))


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
@pytest.mark.parametrize(
    ("op", "more"),
    [
        *(("Mish", ()), ("HardSwish", ()), ("LpNormalization", ()), ("ConvTranspose", (WEIGHTS,))),
        *(("Relu", ()), ("Sin", ()), ("Softmax", ()), ("GlobalAveragePool", ()), ("Erf", ())),
        *(("Celu", ()), ("LpPool", ()), ("Gelu", ()), ("ReduceL2", ())),
    ],
)
def test_what_is_written_is_built_and_what_is_pinned_would_not_be(rtx, tmp_path, op, more, fmt):
    s = Sketch(24)
    x = s.op("Mul", s.input("x", [1, 3, 4, 4]), f32([1.5]))
    attributes = {"kernel_shape": [2, 2]} if op == "LpPool" else {}
    y = s.op("Mul", s.op(op, x, *more, name="n", **attributes), f32([1.5]))
    network, path = s.network(y), tmp_path / "m.onnx"
    roles = [roles_of(network, low_type(fmt), by_schema=by_schema) for by_schema in (False, True)]
    built = []
    for each in roles:
        ir.save(rewrite(network, each, frozenset(), fmt).model, path)
        built.append(rtx.build(path, "SM89").built)
    assert built[0]
    assert built[1] is (roles[0] == roles[1])
