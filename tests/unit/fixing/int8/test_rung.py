"""From FP16 to INT8 in one run of `fix`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from halfwise.api import fix, ladder
from halfwise.case import CPU, Samples
from halfwise.errors import CaseError
from halfwise.fixing import command
from halfwise.fixing.int8.placing import quantisable, quantised
from halfwise.fixing.int8.ranges import calibrate
from halfwise.fixing.int8.rung import _best as best
from halfwise.graph.model import load_network, network_from_proto
from halfwise.progress import Silent
from halfwise.records import Failure
from halfwise.reporting.remarks import remark, with_failures
from tests import models
from tests.unit.casing import prepare
from tests.unit.fixing.int8.products import outlier
from tests.unit.fixing.test_loop import found
from tests.unit.graph.quantisation import qdq
from tests.unit.graph.sketch import Sketch, f32


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
