"""Which metric a name stands for, and when it is known."""

import numpy as np
import onnx
import pytest

from halfwise.case import CPU
from halfwise.emulation.probe import ExtremaProbe
from halfwise.errors import CaseError, UsageError
from halfwise.formats import FP16
from halfwise.graph.roles import roles_of
from halfwise.metrics import kinds, resolve
from halfwise.observing.reference import Observer
from halfwise.options.loading import load_case
from halfwise.options.options import Data, named_metric, with_settled_metric, without_outputs
from halfwise.records import Criterion, replace
from tests import models
from tests.unit.graph.sketch import Sketch


@pytest.fixture(scope="module")
def two():
    """A classifier with a second output that is anything."""
    s = Sketch()
    x = s.input("x", [1, 16])
    p = s.op(
        "Softmax", s.op("MatMul", x, models.weights(16, 6, seed=1, scale=0.3), name="m"), name="p"
    )
    h = s.op("MatMul", x, models.weights(16, 7, seed=2, scale=0.3), name="h")
    return s.proto(p, h), {"x": models.signals(1, 16, seed=3)}


def test_a_name_is_a_metric_of_its_own_or_none():
    assert named_metric(Criterion()) is None
    assert named_metric(Criterion(metric="top1")) is resolve("top1")
    with pytest.raises(UsageError, match="Unknown metric 'top2'") as refused:
        named_metric(Criterion(metric="top2"))
    assert "auto" in refused.value.hint


def test_a_metric_that_has_to_see_the_outputs_knows_nothing_before():
    metric = named_metric(Criterion(metric="auto"))
    assert metric is not None
    with pytest.raises(CaseError, match="needs the outputs"):
        metric([], [], None)


def test_what_auto_becomes_is_told_and_kept(two):
    proto, inputs = two
    case = load_case(proto, Data(inputs), Criterion(metric="auto"))
    assert case.criterion.metric == "auto"
    assert [one.metric for one in case.criterion.recognised] == ["top1", "confidence"]
    (note,) = [n for n in case.notes if n.kind == "recognised"]
    assert note.facts["metrics"] == ("top1", "confidence")
    assert (note.facts["kind"], note.facts["evidence"]) == ("class-scores", ("rows-sum",))
    again = load_case(proto, Data(inputs), case.criterion)
    assert again.criterion == case.criterion
    assert not any(note.kind == "recognised" for note in again.notes)
    assert with_settled_metric(again, CPU) is again


def counted(monkeypatch) -> list[object]:
    """Return the samples that probes will have run on."""
    runs, run = list[object](), ExtremaProbe.run

    def counting(probe, sample):
        runs.append(sample)
        return run(probe, sample)

    monkeypatch.setattr(ExtremaProbe, "run", counting)
    return runs


def test_samples_on_which_the_metric_was_settled_are_not_run_again_to_be_observed(two, monkeypatch):
    proto, inputs = two
    monkeypatch.setattr(kinds, "_LOOKED_AT_ELEMENTS", 30)  # 13 elements a sample
    case = load_case(proto, Data(inputs), Criterion(metric="auto"), split=False)
    network, samples, runs = case.network, case.calibration, counted(monkeypatch)
    of = network, samples, FP16, roles_of(network)
    observer = Observer(*of, seen=case.seen)
    assert case.seen is not None
    assert len(runs) == len(samples) - len(case.seen.samples) > 0
    whole = Observer(*of)
    assert observer.records() == whole.records()
    for one, other in zip(observer.outputs, whole.outputs, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in other)
    runs.clear()
    Observer(replace(network, model=network.copy()), *of[1:], seen=case.seen)
    assert len(runs) == len(samples)


def test_fp32_runs_on_the_samples_that_are_looked_at_and_no_others(two, monkeypatch):
    runs = counted(monkeypatch)
    proto, inputs = two
    monkeypatch.setattr(kinds, "_LOOKED_AT_ELEMENTS", 30)  # 13 elements a sample
    case = load_case(proto, Data(inputs), Criterion(metric="auto"), split=False)
    assert case.criterion.recognised
    assert len(runs) == 2 < len(case.calibration)


def test_of_outputs_that_are_no_tensors_nothing_is_decided():
    s = Sketch()
    x = s.input("x", [1, 16])
    proto = s.proto(s.op("SequenceConstruct", s.op("Relu", x, name="r"), name="list"))
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_sequence_value_info("y", 1, None))
    proto.graph.node[-1].output[0] = "y"
    inputs = {"x": models.signals(1, 16, seed=3)}
    case = load_case(proto, Data(inputs), Criterion(metric="auto"))
    assert (case.criterion, case.metric) == (Criterion(), None)


def test_outputs_that_a_candidate_lacks_leave_the_metric_of_the_others(two):
    proto, inputs = two
    case = load_case(proto, Data(inputs), Criterion(metric="auto"))
    (name,) = case.criterion.recognised[0].outputs
    assert without_outputs(case, ["other"]) is case
    with pytest.raises(CaseError, match="which the candidate lacks"):
        without_outputs(case, [name])
    both = replace(case.criterion.recognised[0], outputs=("other",))
    wider = replace(case.criterion, recognised=(*case.criterion.recognised, both))
    left = without_outputs(replace(case, criterion=wider), ["other"])
    assert left.criterion == case.criterion


def test_where_nothing_is_recognised_the_default_tolerance_decides():
    s = Sketch()
    x = s.input("x", [1, 16])
    proto = s.proto(s.op("MatMul", x, models.weights(16, 7, seed=2, scale=0.3), name="h"))
    case = load_case(proto, Data({"x": models.signals(1, 16, seed=3)}), Criterion(metric="auto"))
    assert (case.criterion, case.metric) == (Criterion(), None)
    assert not any(note.kind == "recognised" for note in case.notes)


def test_where_the_model_does_not_run_nothing_is_settled():
    s = Sketch()
    x = s.input("x", [1, None])
    fixed = np.array([1, 16], np.int64)
    y = s.op("Softmax", s.op("Reshape", x, fixed, name="r"), name="p")
    inputs = {"x": np.ones((1, 7), np.float32)}
    case = load_case(s.proto(y), Data(inputs), Criterion(metric="auto"), split=False)
    assert (case.criterion, case.metric) == (Criterion(), None)
