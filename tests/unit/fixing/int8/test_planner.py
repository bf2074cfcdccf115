"""What the search tries is what is written, and it leaves out what INT8 is not enough for."""

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import RunFailed
from halfwise.fixing.int8.planner import Int8Planner
from halfwise.fixing.int8.rung import int8_planner
from halfwise.progress import Silent
from halfwise.records import Guard, NodeName
from tests.unit.casing import names
from tests.unit.fixing.int8.products import outlier
from tests.unit.fixing.test_planner import planner

MADE = planner(outlier(), snr_db=25, to="int8", ranges="minmax")
FOUND = MADE.find(frozenset())


def begun() -> Int8Planner:
    made = int8_planner(MADE, FOUND, Silent())
    assert made is not None
    made.begin(MADE.evidence)
    return made


INT8 = begun()


@settings(max_examples=12)
@given(st.sets(st.sampled_from(sorted(INT8.choices))).map(frozenset))
def test_any_nodes_left_out_are_tried_as_onnx_runtime_runs_the_file(left_out):
    model = INT8.rewrite(left_out)[0].model
    typed = Session(emulate_typed(model.clone()))
    stored = [n for n in model.graph if n.op_type == "DequantizeLinear"]
    assert len(stored) == 2 * len(INT8.choices - left_out)
    for sample, tried in zip(INT8.trials.samples, INT8.trials.results(left_out), strict=True):
        assert not isinstance(tried, RunFailed)
        (expected,), (found,) = typed.run(sample).values(), tried.values()
        np.testing.assert_array_equal(found, expected)
    # ONNX Runtime leaves out roundings between FP16 nodes, which may move a value by an INT8 step.
    (ran,) = Session(model).run(sample).values()
    assert np.abs(ran.astype(float) - expected).max() <= 1e-2 * np.abs(expected).max()


def test_all_left_out_is_the_plan_below():
    assert FOUND.kept == frozenset()
    above, below = INT8.rewrite(INT8.choices)[0], MADE.rewrite(FOUND.kept)[0]
    assert [n.op_type for n in above.model.graph] == [n.op_type for n in below.model.graph]
    assert INT8.price(INT8.choices) == MADE.price(FOUND.kept)


def test_the_search_leaves_out_the_node_with_the_outlier_and_no_more():
    found = INT8.find(frozenset())
    assert found.passed
    assert found.minimal
    assert found.kept == names("product2")
    assert INT8.price(found.kept) < MADE.price(frozenset())


def test_what_is_held_is_neither_quantised_nor_low():
    held = begun()
    node = NodeName("product1")
    guard = Guard(kind="infinite", node=node, tensor=None, fix="", nodes=(node,), severity=1)
    held.hold([guard])
    assert held.choices == INT8.choices - names("product1")
    assert "product1" in held.resolve(held.choices)
    assert "product1" not in held.slots
    model = held.rewrite(frozenset())[0].model
    (written,) = (n for n in model.graph if n.name == "product1")
    assert written.outputs[0].dtype == ir.DataType.FLOAT
    makers = [v.producer() for v in written.inputs if v is not None]
    assert "DequantizeLinear" not in [maker.op_type for maker in makers if maker is not None]
