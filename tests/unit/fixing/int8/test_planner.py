"""What the search tries is what is written, and it leaves out what INT8 is not enough for."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import RunFailed
from halfwise.fixing.curve import TradeOff
from halfwise.fixing.int8.given import given_start
from halfwise.fixing.int8.planner import Int8Planner
from halfwise.fixing.int8.rung import int8_planner
from halfwise.fixing.types import FP32_ALONE, Types
from halfwise.metrics import Outputs
from halfwise.progress import Silent
from halfwise.records import Guard, NodeName
from tests import models
from tests.unit.casing import names
from tests.unit.fixing.int8.products import outlier, residual
from tests.unit.fixing.test_planner import planner, scoring_of
from tests.unit.graph.sketch import Sketch, f32

Array = NDArray[np.float32]
MADE = planner(outlier(), snr_db=25, to="int8", ranges="minmax")
FOUND = MADE.find(frozenset())


def begun() -> Int8Planner:
    made = int8_planner(MADE, FOUND, Silent())
    assert made is not None
    made.begin(MADE.evidence)
    return made


INT8 = begun()


def tried_and_written(made: Int8Planner, left_out: frozenset[NodeName]) -> tuple[ir.Model, Outputs]:
    """Return the file, and what was tried, of the first sample: what the file gives of all."""
    model = made.rewrite(left_out)[0].model
    typed = Session(emulate_typed(model.clone()))
    for sample, tried in zip(made.trials.samples, made.trials.results(left_out), strict=True):
        assert not isinstance(tried, RunFailed)
        for name, expected in typed.run(sample).items():
            np.testing.assert_array_equal(tried[name], expected)
    first = made.trials.results(left_out)[0]
    assert not isinstance(first, RunFailed)
    return model, first


@given(st.sets(st.sampled_from(sorted(INT8.choices))).map(frozenset))
def test_any_nodes_left_out_are_tried_as_onnx_runtime_runs_the_file(left_out):
    model, tried = tried_and_written(INT8, left_out)
    stored = [n for n in model.graph if n.op_type == "DequantizeLinear"]
    assert len(stored) == 2 * len(INT8.choices - left_out)
    # ONNX Runtime leaves out roundings between FP16 nodes, which may move a value by an INT8 step.
    (expected,), (ran,) = tried.values(), Session(model).run(INT8.trials.samples[0]).values()
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


def hold(planner, *nodes):
    holding = tuple(map(NodeName, nodes))
    guard = Guard(kind="infinite", node=holding[0], tensor=None, fix="", nodes=holding, severity=1)
    planner.hold([guard])


def test_what_is_held_is_neither_quantised_nor_low():
    held = begun()
    hold(held, "product1")
    assert held.choices == INT8.choices - names("product1")
    assert "product1" in held.resolve(held.choices)
    assert "product1" not in held.slots
    model = held.rewrite(frozenset())[0].model
    (written,) = (n for n in model.graph if n.name == "product1")
    assert written.outputs[0].dtype == ir.DataType.FLOAT
    makers = [v.producer() for v in written.inputs if v is not None]
    assert "DequantizeLinear" not in [maker.op_type for maker in makers if maker is not None]


def test_what_was_tried_before_nodes_are_held_says_nothing_of_plans_with_them():
    late, early = begun(), begun()
    for tried in (late, early):
        hold(tried, "product2") if tried is early else None
        before = tried.trials.excess(frozenset()), tried.price(frozenset())
    hold(late, "product2")
    assert (late.trials.excess(frozenset()), late.price(frozenset())) == before
    assert before[0] < 1
    assert late.find(names("product2")).kept == frozenset()


def test_a_held_node_that_is_no_product_is_on_no_curve():
    held = begun()
    trade_off = TradeOff(scoring_of(held))
    hold(held, "Relu_1", "product0")
    assert "Relu_1" in held.held_nodes
    curve = trade_off.curve(held.find(frozenset()))
    assert curve.nodes == ("product1", "product2", "product3")
    assert trade_off.sketched().points


def test_beside_int8_what_the_plan_below_has_in_bf16_is_fp32_as_it_is_tried():
    options = {"snr_db": 25, "to": "int8", "ranges": "minmax", "allow": ("bf16",)}
    made = planner(outlier(factor=300), no_repair=True, **options)
    below = made.find(frozenset())
    made.narrowing.known[below.kept] = Types(below.kept)
    int8 = int8_planner(made, below, Silent())
    assert int8 is not None
    int8.begin(made.evidence)
    assert below.kept
    assert int8.types_of(frozenset()) == FP32_ALONE
    dtypes = {v.dtype for n in int8.rewrite(frozenset())[0].model.graph for v in n.outputs}
    assert ir.DataType.BFLOAT16 not in dtypes


def test_scales_along_an_axis_that_is_moved_are_left_out():
    rng = np.random.default_rng(0)
    first, second, x = (rng.normal(size=(8, 8)).astype(np.float32) for _ in range(3))

    def drawn(*, paired: bool) -> Sketch:
        s = Sketch()

        def through(value: str | Array, scale: Array) -> str | Array:
            ends = s.constant(scale), s.constant(np.zeros(scale.shape, np.int8))
            if not paired:
                return value
            return s.op("DequantizeLinear", s.op("QuantizeLinear", value, *ends), *ends)

        one = f32(np.array(0.03))
        y = s.op("MatMul", through(s.input("x", [8, 8]), one), through(first, one), name="first")
        y = s.op("Transpose", through(y, f32(np.linspace(0.01, 0.2, 8))), perm=[1, 0])
        s.op("MatMul", y, through(second, one), name="second")
        s.nodes[-1].output[0] = "y"
        return s

    below = planner(models.Ill(drawn(paired=False).proto("y"), {"x": x[None]}, set()), snr_db=15)
    given = given_start(below.case.network, drawn(paired=True).network("y"))
    made = int8_planner(below, below.find(frozenset()), below.watcher, given)
    assert made is not None
    assert made.choices == names("first")
    assert "left out of INT8: second, because " in below.watcher.notes[-1]
    made.begin(below.evidence)
    for left_out in (frozenset[NodeName](), made.choices):
        tried_and_written(made, left_out)


def residual_planner(at: str) -> Int8Planner:
    below = planner(residual(at), snr_db=25, to="int8", ranges="minmax")
    made = int8_planner(below, below.find(frozenset()), Silent())
    assert made is not None
    made.begin(below.evidence)
    return made


@pytest.mark.parametrize(
    ("at", "left_out"), [("", set()), ("sum", {"sum"}), ("second", {"second", "sum"})]
)
def test_a_residual_sum_is_left_out_if_it_hurts_or_its_convolution_does(at, left_out):
    made = residual_planner(at)
    assert made.choices == names("first", "second", "sum", "next", "head")
    found = made.find(frozenset())
    assert found.passed
    assert found.kept == left_out
    for tried in (found.kept, names("sum"), names("second")):
        tried_and_written(made, tried)
    assert made.alone(names("second")) == names("sum")
    assert made.alone(found.kept) == frozenset()


def test_a_residual_costs_less_in_int8_and_nothing_beside_a_convolution_left_out():
    made = residual_planner("")
    costs = {n: made.price(names(*n.split())) for n in ("first", "sum", "second", "second sum")}
    all_int8 = made.price(frozenset())
    assert all_int8 is not None
    assert costs["sum"] is not None
    assert all_int8 < costs["sum"]
    assert costs["second"] == costs["second sum"]
