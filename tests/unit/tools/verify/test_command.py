import pytest

from halfwise import api
from halfwise.errors import CaseError
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.reporting.notes import told
from halfwise.tools.verify.command import demand_same_inputs, shared_outputs
from tests import models
from tests.models import signals
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def ill():
    return models.tiny_weights()


def test_verify_judges_every_sample(ill, tmp_path):
    fixed = api.fix(ill.proto, dict(ill.inputs))
    assert fixed.model is not None
    result = api.verify(ill.proto, fixed.model, dict(ill.inputs), out=tmp_path / "run")
    assert result.model is None
    assert result.run.kind == "verify"
    assert len(result.run.verdict.samples) == models.COUNT
    assert result.run.verdict.unseen
    assert result.run.verdict.passed
    assert api.report(tmp_path / "run") == result.run
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["run.json"]


def test_verify_demands_the_same_inputs_and_outputs(ill):
    with pytest.raises(CaseError, match="inputs"):
        api.verify(ill.proto, models.mask().proto, dict(ill.inputs))
    with pytest.raises(CaseError, match="outputs"):
        api.verify(ill.proto, models.small().proto, dict(ill.inputs))


@pytest.fixture
def case():
    s = Sketch()
    a = s.op("Mul", s.input("x", [1, 4]), 3.0, name="a")
    proto = s.proto(a, s.op("Add", a, 1.0, name="b"))
    request = understand({"x": signals(1, 4, seed=5)}, {})
    return load_case(proto, request.data, request.criterion)


def outputs(case):
    return [v.name for v in case.network.graph.outputs]


def test_the_same_outputs_change_nothing(case):
    assert shared_outputs(case, {"a_out", "b_out"}, Silent()) is case


def test_what_the_candidate_has_more_is_warned_of(case):
    more = shared_outputs(case, {"a_out", "b_out", "c"}, Silent())
    assert more.network is case.network
    assert told(more.notes[-1]) == "warning: not judged, since only the candidate gives out: c"


def test_inner_tensors_may_be_missing_and_the_model_stays(case):
    fewer = shared_outputs(case, {"b_out"}, Silent())
    assert outputs(fewer) == ["b_out"]
    assert outputs(case) == ["a_out", "b_out"]


@pytest.mark.parametrize("given", [{"a_out"}, {"c"}, set()])
def test_what_no_node_reads_may_not_be_missing(case, given):
    with pytest.raises(CaseError, match="The candidate's outputs"):
        shared_outputs(case, given, Silent())


def test_inputs_have_to_be_the_same(case):
    s = Sketch()
    other = s.network(s.op("Relu", s.input("z", [1, 4])))
    demand_same_inputs(case.network, case.network.model)
    with pytest.raises(CaseError, match="The candidate's inputs"):
        demand_same_inputs(case.network, other.model)
