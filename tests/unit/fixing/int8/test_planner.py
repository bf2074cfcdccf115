"""What the search tries is what is written, and it leaves out what INT8 is not enough for."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from halfwise.api import fix, ladder
from halfwise.case import CPU, Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing import command
from halfwise.fixing.curve import TradeOff
from halfwise.fixing.fixed import plan_of
from halfwise.fixing.int8.placing import calibrate, given_start, quantisable, quantised
from halfwise.fixing.int8.planner import Int8Planner, int8_plan_of, int8_planner
from halfwise.fixing.int8.planner import _best as best
from halfwise.fixing.plan.found import FP32_ALONE, Types
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.metrics import Outputs
from halfwise.progress import Silent
from halfwise.records import Failure, Guard, NodeName
from halfwise.reporting.remarks import explain_left_out, remark, with_failures
from tests import models
from tests.unit.casing import names, prepare
from tests.unit.fixing.int8.products import outlier, residual
from tests.unit.fixing.running import found, planner, scoring_of
from tests.unit.graph import qdq
from tests.unit.graph.sketch import Sketch, f32

Array = NDArray[np.float32]
MADE = planner(outlier(), snr_db=25, to="int8")
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
    options = {"snr_db": 25, "to": "int8", "allow_bf16": True}
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
    below = planner(residual(at), snr_db=25, to="int8")
    below.settings = replace(below.settings, ranges="minmax")
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


def test_a_plan_tells_what_has_int8_and_what_stays_as_below():

    below = plan_of(MADE, FOUND, frozenset(), 2, [])
    found = INT8.find(frozenset())
    rewritten, placed = INT8.rewrite(found.kept)
    plan = int8_plan_of(below, INT8, found, placed, rewritten.casts)
    assert frozenset(plan.int8) == INT8.choices - names("product2")
    assert [kept.node for kept in plan.left_out] == ["product2"]
    assert (plan.keep, plan.low, plan.ranges) == (below.keep, "fp16", "minmax")
    assert plan.casts == rewritten.casts > 0


@pytest.mark.parametrize(("at", "beside"), [("sum", None), ("second", "second")])
def test_of_a_sum_it_tells_whether_the_convolution_is_the_reason(at, beside):
    made = residual_planner(at)
    found = made.find(frozenset())
    low = plan_of(MADE, FOUND, frozenset(), 2, [])
    plan = int8_plan_of(low, made, found, frozenset(), 0)
    assert set(plan.int8) == made.choices - found.kept
    told = {kept.node: kept for kept in explain_left_out(plan.left_out, None)}[NodeName("sum")]
    assert told.because is not None
    assert told.because.beside == beside
    assert ("convolution second is left out" in told.reason) is (at == "second")


def test_a_sum_beside_a_convolution_that_is_held_in_fp32_says_so():
    made = residual_planner("")
    hold(made, "second")
    found = made.find(frozenset())
    low = plan_of(MADE, FOUND, frozenset(), 2, [])
    (told,) = int8_plan_of(low, made, found, frozenset(), 0).left_out
    assert told.because is not None
    assert (told.node, told.because.beside) == ("sum", "second")


class Stages(Silent):
    def __init__(self):
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


def test_a_run_goes_on_to_int8_and_tells_both_rungs():
    stages = Stages()
    fixed = found(outlier(), stages, to="int8", snr_db=25, allow_random=True)
    plan, below = fixed.plan, fixed.rungs[0].plan
    assert fixed.verdict.passed
    assert fixed.verdict.unseen
    assert (plan.low, plan.keep, below.int8) == ("fp16", (), ())
    assert plan.int8 == ("product0", "product1", "product3")
    assert [(k.node, k.op, k.precision) for k in plan.left_out] == [("product2", "MatMul", "fp16")]
    assert (plan.left_out[0].error_without or 0) > 1
    assert plan.minimal
    assert fixed.curve.nodes == ("product0", "product1", "product2", "product3")
    assert fixed.rungs[1].plan == plan
    assert any("minmax" in note and "entropy" in note for note in stages.notes)


def test_where_int8_is_enough_for_nothing_the_plan_below_is_delivered():
    fixed = found(outlier(), to="int8", snr_db=58, allow_random=True)
    assert fixed.plan == fixed.rungs[0].plan
    assert fixed.plan.int8 == ()
    assert fixed.verdict.passed
    assert fixed.without_int8 == fixed.rungs[1].plan.left_out
    assert len(fixed.without_int8) == 4
    assert fixed.all_int8 is not None


def test_where_int8_fails_in_batches_alone_the_plan_below_is_delivered(monkeypatch):
    def in_batches(verdict, _case, candidate, *_others):
        quantised = any(node.op_type == "QuantizeLinear" for node in candidate.graph)
        failure = Failure(kind="batch", names={"why": "too coarse"})
        return with_failures(verdict, (failure,)) if quantised else verdict

    monkeypatch.setattr(command, "judge_sizes", in_batches)
    ill = outlier()
    result = ladder(ill.proto, dict(ill.inputs), to="int8", snr_db=25, allow_random=True)
    assert result.run.verdict is not None
    assert result.run.verdict.passed
    assert result.run.plan is not None
    assert result.run.plan.int8 == ()
    rungs = {rung.rung: rung for rung in result.run.rungs}
    assert (rungs["int8"].passed, rungs["fp16"].passed) == (False, True)
    assert rungs["fp16"].chosen
    assert result.mixed is not None
    assert not any(node.op_type == "QuantizeLinear" for node in result.mixed.graph)


def test_what_does_not_count_is_not_gone_on_from():
    assert found(outlier(), to="int8", snr_db=25).rungs == ()


def test_a_quantised_model_is_improved_by_what_is_left_out(tmp_path):
    ill = outlier()
    network = network_from_proto(ill.proto)
    ends = calibrate(network, Samples(("x",), lambda _: {"x": ill.inputs["x"]}), ("minmax",))
    given = quantised(network, quantisable(network), ends["minmax"])
    ir.save(given.model, tmp_path / "given.onnx")
    start = load_network(tmp_path / "given.onnx")
    fixed = found(ill, start=start, snr_db=25, allow_random=True)
    assert fixed.verdict.passed
    assert [k.node for k in fixed.plan.left_out] == ["product2"]
    assert (len(fixed.plan.int8), fixed.plan.ranges) == (3, None)
    assert fixed.all_int8 is not None
    assert not fixed.all_int8.passed
    written = [n.op_type for n in fixed.rewritten.model.graph]
    assert written.count("DequantizeLinear") == 6
    with pytest.raises(CaseError, match="not a quantised form of this model"):
        found(models.small(), start=start, snr_db=25)


def test_a_quantised_model_may_be_of_an_opset_before_scales_per_channel():
    whole, none = (qdq.chain(some, per="tensor", opset=11) for some in (qdq.LAYERS, ()))
    start = network_from_proto(whole.proto(qdq.last(whole)))
    x = np.random.default_rng(0).normal(size=(12, 2, qdq.SIZE)).astype(np.float32)
    ill = models.Ill(none.proto(qdq.last(none)), {"x": x}, set())
    fixed = found(ill, start=start, snr_db=1, allow_random=True)
    assert fixed.plan.int8


def test_where_a_metric_takes_all_ranges_for_equal_the_outputs_decide():
    ill = outlier(layer=-1)
    ready = prepare(models.Ill(ill.proto, {"x": ill.inputs["x"][:, None]}, set()))
    ends = calibrate(ready.network, ready.samples, ("minmax",))["minmax"]
    cut = {name: (low / 9, high / 9) for name, (low, high) in ends.items()}
    trials = SimpleNamespace(
        references=ready.references, samples=ready.samples, excess_of=lambda _: 0.995
    )
    below: Any = SimpleNamespace(
        trials=trials,
        case=SimpleNamespace(network=ready.network),
        settings=SimpleNamespace(runtime=CPU),
        budget=SimpleNamespace(spend=lambda *_: None),
    )
    nodes = frozenset(quantisable(ready.network))
    assert best(below, nodes, {"percentile": cut, "minmax": ends}, Silent()) == "minmax"
    assert best(below, nodes, {"minmax": cut, "percentile": ends}, Silent()) == "percentile"


def test_without_a_product_there_is_nothing_to_quantise():
    stages = Stages()
    fixed = found(models.layer_norm(), stages, to="int8", allow_random=True)
    assert fixed.rungs == ()
    assert any("can be INT8" in note for note in stages.notes)


def test_where_int8_cannot_be_tried_the_plan_below_is_delivered_and_says_why():
    s = Sketch()
    weight = f32(np.random.default_rng(0).standard_normal((8, 8)))
    product = s.op("MatMul", s.input("x", ["n", 8]), weight, name="product")
    end = s.op("Add", product, s.input("z", ["n", 8]), name="sum")
    varied = f32(np.random.default_rng(1).standard_normal((12, 8)))
    ill = models.Ill(s.proto(end), {"x": np.full_like(varied, 0.7), "z": varied}, set())
    fixed = found(ill, to="int8", allow_random=True)
    assert fixed.verdict.passed
    assert (fixed.rungs, fixed.planner.int8) == ((), None)
    (why,) = (r for r in fixed.plan.remarks if r.kind == "int8-untried")
    assert "a single value, or no finite one: x" in remark(why)


def test_a_run_with_int8_tells_what_the_next_starts_from(tmp_path):
    options: dict[str, Any] = {"to": "int8", "snr_db": 25, "allow_random": True}
    ill = outlier()
    run = fix(ill.proto, dict(ill.inputs), out=tmp_path / "run", **options).run
    assert run.plan is not None
    again = found(ill, start=run, **options)
    (start,) = (r for r in again.search.remarks if r.kind == "start-int8")
    assert remark(start) == "The starting plan leaves 1 node out of INT8, and passes."
    assert again.plan.left_out[0].node == "product2"
    assert again.plan.ranges == run.plan.ranges
    assert again.evaluations < run.cost.evaluations
