"""What the search tries is what is written, and it leaves out what INT8 is not enough for."""

from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from halfwise import api
from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing import command
from halfwise.fixing.fixed import Fixed, int8_plan_of
from halfwise.fixing.int8.placing import quantisable, quantised
from halfwise.fixing.loop import fix
from halfwise.fixing.plan.plan import Nodes
from halfwise.fixing.space import Int8Space
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.metrics import Outputs
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import Failure, Guard
from halfwise.reporting.remarks import explain_left_out, remark, with_failures
from tests import models
from tests.unit.casing import names
from tests.unit.fixing.int8.products import outlier, peaks_of, residual
from tests.unit.fixing.running import Listener, found
from tests.unit.graph import qdq
from tests.unit.graph.sketch import Sketch, f32

Array = NDArray[np.float32]
TO_INT8: dict[str, Any] = {"to": "int8", "snr_db": 25, "allow_random": True}
NONE = names()
RUN = found(outlier(), **TO_INT8)


def int8_of(fixed: Fixed) -> Int8Space:
    """Return the plans with INT8 of a run."""
    assert isinstance(fixed.rungs[1].space, Int8Space)
    return fixed.rungs[1].space


INT8 = int8_of(RUN)
LOW = INT8.below


def tried_and_written(space: Int8Space, left_out: Nodes) -> tuple[ir.Model, Outputs]:
    """Return the file, and what was tried, of the first sample: what the file gives of all."""
    plan, bench = space.plan(left_out), space.bench
    model, results = space.variant.write(plan)[0].model, [*bench.outputs(plan)]
    typed = Session(emulate_typed(model.clone()))
    for sample, tried in zip(bench.samples, results, strict=True):
        assert not isinstance(tried, RunFailed)
        for name, expected in typed.run(sample).items():
            np.testing.assert_array_equal(tried[name], expected)
    first = results[0]
    assert not isinstance(first, RunFailed)
    return model, first


@given(st.sets(st.sampled_from(sorted(INT8.choices))).map(frozenset))
def test_any_nodes_left_out_are_tried_as_onnx_runtime_runs_the_file(left_out):
    model, tried = tried_and_written(INT8, left_out)
    stored = [n for n in model.graph if n.op_type == "DequantizeLinear"]
    assert len(stored) == 2 * len(INT8.choices - left_out)
    # ONNX Runtime leaves out roundings between FP16 nodes, which may move a value by an INT8 step.
    (expected,), (ran,) = tried.values(), Session(model).run(INT8.bench.samples[0]).values()
    assert np.abs(ran.astype(float) - expected).max() <= 1e-2 * np.abs(expected).max()


def test_all_left_out_is_the_plan_below():
    assert RUN.rungs[0].result.kept == NONE
    above, below = (
        space.variant.write(space.plan(kept))[0].model
        for space, kept in ((INT8, INT8.choices), (LOW, NONE))
    )
    assert [n.op_type for n in above.graph] == [n.op_type for n in below.graph]
    assert INT8.cost(INT8.choices) == LOW.cost(NONE)


def holding(space: Int8Space, *nodes: str) -> Int8Space:
    first, kept = names(nodes[0]), tuple(names(*nodes))
    guard = Guard(kind="infinite", node=min(first), tensor=None, fix="", nodes=kept, severity=1)
    return space.holding([guard])


def test_what_is_held_is_neither_quantised_nor_low():
    held = holding(INT8, "product1", "Relu_1")
    assert held.choices == INT8.choices - names("product1")
    assert held.plan(NONE).kept == names("product1", "Relu_1")
    model = held.variant.write(held.plan(NONE))[0].model
    (written,) = (n for n in model.graph if n.name == "product1")
    assert written.outputs[0].dtype == ir.DataType.FLOAT
    makers = [v.producer() for v in written.inputs if v is not None]
    assert "DequantizeLinear" not in [maker.op_type for maker in makers if maker is not None]
    tried_and_written(held, NONE)


def test_what_was_tried_before_nodes_are_held_says_nothing_of_plans_with_them():
    held = holding(INT8, "product2")
    assert INT8.excess(NONE) > 1 > held.excess(NONE)
    assert held.find().kept == NONE
    assert held.tried().keys().isdisjoint({names("product2")})


def test_beside_int8_what_the_plan_below_has_in_bf16_is_fp32_as_it_is_tried():
    fixed = found(outlier(factor=300), no_repair=True, allow_bf16=True, **TO_INT8)
    below, int8 = (rung.assigned for rung in fixed.rungs)
    assert below.bf16
    assert (int8.bf16, int8.kept >= below.kept) == (NONE, True)
    graph = fixed.rungs[1].rewritten.model.graph
    assert ir.DataType.BFLOAT16 not in {v.dtype for n in graph for v in n.outputs}


def test_data_with_scales_along_an_axis_are_left_out():
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(8, 8)).astype(np.float32) for _ in range(2))
    x = rng.normal(size=(4, 8, 8)).astype(np.float32)

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

    ill = models.Ill(drawn(paired=False).proto("y"), {"x": x}, set())
    start = drawn(paired=True).network("y")
    fixed = found(ill, start=start, snr_db=15, allow_random=True)
    space = int8_of(fixed)
    assert space.choices == names("first")
    for left_out in (NONE, space.choices):
        tried_and_written(space, left_out)


@cache
def residual_run(at: str) -> Fixed:
    ill = residual(at)
    request = understand(dict(ill.inputs), TO_INT8)
    case = load_case(ill.proto, request.data, request.criterion)
    return fix(case, request.settings, Silent())


@pytest.mark.parametrize(
    ("at", "left_out"), [("", set()), ("sum", {"sum"}), ("second", {"second", "sum"})]
)
def test_a_residual_sum_is_left_out_if_it_hurts_or_its_convolution_does(at, left_out):
    fixed = residual_run(at)
    space, kept = int8_of(fixed), fixed.rungs[1].result.kept
    assert space.choices == names("first", "second", "sum", "next", "head")
    assert fixed.rungs[1].result.passed
    assert kept == left_out
    for tried in (kept, names("sum"), names("second")):
        tried_and_written(space, tried)
    alone = space.quantisation.alone
    assert alone(space.choices - names("second")) == names("sum")
    assert alone(space.choices - kept) == NONE


def test_a_residual_costs_less_in_int8_and_nothing_beside_a_convolution_left_out():
    space = int8_of(residual_run(""))
    costs = {n: space.cost(names(*n.split())) for n in ("first", "sum", "second", "second sum")}
    all_int8 = space.cost(NONE)
    assert all_int8 is not None
    assert costs["sum"] is not None
    assert all_int8 < costs["sum"]
    assert costs["second"] == costs["second sum"]


@pytest.mark.parametrize(("at", "beside"), [("sum", None), ("second", "second")])
def test_of_a_sum_it_tells_whether_the_convolution_is_the_reason(at, beside):
    plan = residual_run(at).rungs[1].plan
    told = {kept.node: kept for kept in explain_left_out(plan.left_out)}[min(names("sum"))]
    assert told.because is not None
    assert told.because.beside == beside
    assert ("convolution second is left out" in told.reason) is (at == "second")


def test_a_sum_beside_a_convolution_that_is_held_in_fp32_says_so():
    fixed = residual_run("")
    held = holding(int8_of(fixed), "second")
    result = held.find()
    below, plan = fixed.rungs[0].plan, held.plan(result.kept)
    (told,) = int8_plan_of(below, held, plan, result, NONE, 0).left_out
    assert told.because is not None
    assert (told.node, told.because.beside) == ("sum", "second")


def test_a_run_goes_on_to_int8_and_tells_both_rungs():
    fixed = found(outlier(), **TO_INT8)
    plan, below = fixed.plan, fixed.rungs[0].plan
    assert fixed.verdict.passed
    assert fixed.verdict.unseen
    assert (plan.low, plan.keep, below.int8) == ("fp16", (), ())
    assert plan.int8 == ("product0", "product1", "product3")
    assert [(k.node, k.op, k.precision) for k in plan.left_out] == [("product2", "MatMul", "fp16")]
    assert (plan.left_out[0].error_without or 0) > 1
    assert plan.minimal
    assert plan.casts == fixed.rewritten.casts > 0
    assert (INT8.cost(names("product2")) or 9) < (LOW.cost(NONE) or 0)
    assert fixed.curve.nodes == ("product0", "product1", "product2", "product3")
    assert fixed.rungs[1].plan == plan


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
    result = api.ladder(ill.proto, dict(ill.inputs), to="int8", snr_db=25, allow_random=True)
    assert result.run.verdict is not None
    assert result.run.verdict.passed
    assert result.run.plan is not None
    assert result.run.plan.int8 == ()
    rungs = {rung.rung: rung for rung in result.run.rungs}
    assert (rungs["int8"].passed, rungs["fp16"].passed) == (False, True)
    assert rungs["fp16"].chosen
    assert result.mixed is not None
    assert not any(node.op_type == "QuantizeLinear" for node in result.mixed.graph)


def test_a_quantised_model_is_improved_by_what_is_left_out(tmp_path):
    ill = outlier()
    network = network_from_proto(ill.proto)
    ends = peaks_of(network, Samples(("x",), lambda _: {"x": ill.inputs["x"]}))
    given = quantised(network, quantisable(network), ends)
    ir.save(given.model, tmp_path / "given.onnx")
    start = load_network(tmp_path / "given.onnx")
    fixed = found(ill, start=start, snr_db=25, allow_random=True)
    assert fixed.verdict.passed
    assert [k.node for k in fixed.plan.left_out] == ["product2"]
    assert len(fixed.plan.int8) == 3
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


def test_without_a_product_there_is_nothing_to_quantise():
    listener = Listener()
    fixed = found(models.layer_norm(), listener, to="int8", allow_random=True)
    assert fixed.rungs == ()
    assert any("can be INT8" in note for note in listener.notes)


def test_where_int8_cannot_be_tried_the_plan_below_is_delivered_and_says_why():
    s = Sketch()
    weight = f32(np.random.default_rng(0).standard_normal((8, 8)))
    product = s.op("MatMul", s.input("x", ["n", 8]), weight, name="product")
    end = s.op("Add", product, s.input("z", ["n", 8]), name="sum")
    varied = f32(np.random.default_rng(1).standard_normal((12, 8)))
    ill = models.Ill(s.proto(end), {"x": np.full_like(varied, 0.7), "z": varied}, set())
    fixed = found(ill, to="int8", allow_random=True)
    assert fixed.verdict.passed
    assert fixed.rungs == ()
    (why,) = (r for r in fixed.plan.remarks if r.kind == "int8-untried")
    assert "a single value, or no finite one" in remark(why)


def test_a_run_with_int8_tells_what_the_next_starts_from(tmp_path):
    ill = outlier()
    run = api.fix(ill.proto, dict(ill.inputs), out=tmp_path / "run", **TO_INT8).run
    assert run.plan is not None
    again = found(ill, start=run, **TO_INT8)
    (start,) = (r for r in again.search.remarks if r.kind == "start-int8")
    assert remark(start) == "The starting plan leaves 1 node out of INT8, and passes."
    assert again.plan.left_out[0].node == "product2"
    assert again.evaluations < run.cost.evaluations
