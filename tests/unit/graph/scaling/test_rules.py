from typing import Any

import numpy as np
import onnx
import pytest

from halfwise.graph.model import Network
from halfwise.graph.scaling import Relations, relations
from halfwise.graph.scaling.rules import HOMOGENEOUS, INVARIANT, RULES
from tests.unit.graph.scaling.solving import check, random_exponents
from tests.unit.graph.sketch import Operand, Sketch, f32


def test_every_operator_has_the_places_that_its_equations_name():
    schemas: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        schemas.setdefault(schema.name, []).append(schema)
    assert schemas.keys() >= {*RULES, *HOMOGENEOUS, *INVARIANT}
    for op_type, rules in RULES.items():
        attributes = {name for s in schemas[op_type] for name in s.attributes}
        inputs = max(s.max_input for s in schemas[op_type])
        outputs = max(s.max_output for s in schemas[op_type])
        for place in (p for equation in rules for p in equation):
            if isinstance(place, str):
                assert place in attributes
            else:
                assert -outputs <= place < inputs


RNG = np.random.default_rng(0)
W = f32(RNG.standard_normal((2, 2)))
FLAT, IMAGE, SERIES = (4, 4), (1, 2, 4, 4), (1, 16, 1)
FILTER, OFFSET = f32(RNG.random((2, 2, 2, 2))), f32(RNG.random((1, 8, 3, 3)))
GRID = f32(RNG.uniform(-1, 1, (1, 3, 3, 2)))
OUTSIDE = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 0.3}
CASES: list[tuple[int, str, tuple[int, ...], tuple[Operand, ...], dict[str, Any]]] = [
    (17, "CumSum", FLAT, (np.array(0),), {}),
    (17, "DFT", SERIES, (), {"axis": 1}),
    (17, "STFT", SERIES, (np.array(4), f32([0.5, 1, 1, 0.5])), {}),
    (17, "STFT", SERIES, (np.array(4), "", np.array(4)), {}),
    (16, "GridSample", IMAGE, (GRID,), {}),
    (18, "Col2Im", (1, 4, 4), ([4, 4], [2, 2]), {"strides": [2, 2]}),
    (17, "ReduceMin", FLAT, (), {"axes": [1]}),
    (17, "ReduceLogSum", FLAT, (), {"axes": [1]}),
    (17, "ScatterND", FLAT, (np.array([[0], [2]]), f32(np.ones((2, 4)))), {}),
    (17, "ScatterElements", FLAT, (np.array([[0, 1, 2, 3]]), f32(np.ones((1, 4)))), {"axis": 1}),
    (16, "ScatterND", FLAT, (np.array([[0], [2]]), f32(np.ones((2, 4)))), {"reduction": "mul"}),
    (17, "Mod", FLAT, (f32(0.75),), {"fmod": 1}),
    (17, "Trilu", FLAT, (), {}),
    (17, "DepthToSpace", (1, 4, 2, 2), (), {"blocksize": 2}),
    (17, "GlobalMaxPool", IMAGE, (), {}),
    (17, "GlobalLpPool", IMAGE, (), {}),
    (17, "MaxRoiPool", IMAGE, (f32([[0, 0, 0, 2, 2]]),), {"pooled_shape": [2, 2]}),
    (16, "RoiAlign", IMAGE, (f32([[0, 0, 2, 2]]), [0]), {"output_height": 2, "output_width": 2}),
    (9, "Upsample", IMAGE, (f32([1, 1, 2, 2]),), {"mode": "linear"}),
    (10, "Resize", IMAGE, (f32([1, 1, 0.5, 2]),), {"mode": "linear"}),
    (13, "Resize", IMAGE, ("", f32([1, 1, 2, 2])), {"mode": "cubic"}),
    (13, "Resize", IMAGE, (f32([0, 0, 0, 0, 1, 1, 2, 2]), f32([1, 1, 2, 2])), OUTSIDE),
    (10, "Pad", FLAT, (), {"pads": [0, 1, 0, 1], "value": 0.3}),
    (10, "Clip", FLAT, (), {"min": -0.5}),
    (10, "Clip", FLAT, (), {"max": 0.25}),
    (17, "Div", FLAT, (f32(0.3),), {}),
    (17, "Conv", IMAGE, (FILTER, W[0]), {}),
    (17, "Dropout", FLAT, (f32(0.5),), {}),
    (17, "Unique", FLAT, (), {}),
    (17, "Pow", FLAT, (f32(3.0),), {}),
    (17, "Pow", FLAT, (f32(-1.0),), {}),
    (17, "Pow", FLAT, (f32(0.3),), {}),
    (17, "Sign", FLAT, (), {}),
    (17, "ArgMax", FLAT, (), {"axis": 1}),
    (17, "Cast", FLAT, (), {"to": onnx.TensorProto.BOOL}),
    (17, "Cast", FLAT, (), {"to": onnx.TensorProto.DOUBLE}),
    (17, "Equal", FLAT, (f32(0.0),), {}),
    (17, "Equal", FLAT, (f32(RNG.random(FLAT)),), {}),
    (17, "LessOrEqual", FLAT, (f32(0.3),), {}),
    (17, "GreaterOrEqual", FLAT, (f32(0.4),), {}),
    (19, "DeformConv", IMAGE, (FILTER, OFFSET, W[0], f32(RNG.random((1, 4, 3, 3)))), {}),
    (17, "LayerNormalization", FLAT, (f32([1, 2, 3, 4]), f32([4, 3, 2, 1])), {"epsilon": 0.1}),
    (21, "GroupNormalization", IMAGE, (W[0], W[1]), {"num_groups": 2, "epsilon": 0.1}),
    (23, "Attention", IMAGE, (f32(RNG.random(IMAGE)), f32(RNG.random(IMAGE))), {}),
    (23, "RMSNormalization", FLAT, (f32([1, 2, 3, 4]),), {"epsilon": 0.1}),
    (17, "LpNormalization", FLAT, (), {"axis": 1}),
    (17, "MeanVarianceNormalization", IMAGE, (), {}),
    (17, "Hardmax", FLAT, (), {}),
    (17, "Einsum", FLAT, (), {"equation": "ij->ji"}),
]


@pytest.mark.parametrize(("opset", "op", "shape", "others", "attributes"), CASES)
def test_one_operator_between_two_that_are_scaled(opset, op, shape, others, attributes):
    sketch = Sketch(opset)
    x = sketch.op("Identity", sketch.input("x", list(shape)), name="before")
    y = sketch.op(op, x, *others, name="it", **attributes)
    tell(sketch.network(y), shape, close=op == "ReduceLogSum")


@pytest.mark.parametrize("given", [["mean"], ["", "inverse"], ["mean", "inverse"]])
def test_what_a_norm_gives_besides_is_scaled_with_what_it_reads(given):
    sketch = Sketch()
    x = sketch.op("Identity", sketch.input("x", list(FLAT)), name="before")
    y = sketch.op("LayerNormalization", x, f32([1, 2, 3, 4]), epsilon=0.1)
    sketch.nodes[-1].output.extend(given)
    every = (y, *filter(None, given))
    ends = [sketch.op("Identity", name) for name in every]
    found = tell(sketch.network(*ends), FLAT)
    assert not found.fixed.intersection(every)


def tell(net: Network, shape: tuple[int, ...], *, close: bool = False) -> Relations:
    """Store tensors times random powers of two that fit, and compare the outputs."""
    found = relations(net.model)
    for seed in (0, 3):
        told = random_exponents(found, np.random.default_rng(seed), cuts=1.0)
        check(
            net,
            told,
            {"x": f32(RNG.random(shape) - 0.5 * (not close))},
            close=close,
        )
    return found
