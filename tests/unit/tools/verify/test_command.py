import shlex

import numpy as np
import onnx
import pytest

from halfwise import api, verify
from halfwise.case import EngineSettings
from halfwise.errors import CaseError, UsageError
from halfwise.fixing.engines.device import Builds
from halfwise.graph.loading import network_from_proto
from halfwise.graph.weights import save
from halfwise.inputs import load_inputs
from halfwise.judging.reference import demand_same_inputs
from halfwise.options.loading import input_specs, load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from halfwise.records import NodeName, TensorName
from halfwise.reporting.remarks import note_text, reasons
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.ports import profiles_from_data
from halfwise.tools.verify.candidate import shared_outputs
from halfwise.tools.verify.command import understand_verify
from tests import models
from tests.engines import SQUARES
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
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {"evidence.json", "report.html", "run.json"}


def test_the_time_covers_every_stage_before_the_record(ill, monkeypatch):
    class Clock(Silent):
        passed = 0

        def stage(self, *_):
            self.passed += 1

        def monotonic(self):
            return float(self.passed)

    clock = Clock()
    monkeypatch.setattr("halfwise.tools.verify.command.time", clock)
    found = api.verify(ill.proto, ill.proto, dict(ill.inputs), watcher=clock)
    assert found.run.cost.seconds == clock.passed > 1


def test_a_model_that_fails_is_compared_or_fixed_next(tmp_path):
    ill = models.layer_norm()
    low = api.fix(ill.proto, dict(ill.inputs), no_repair=True, lower=".*").model
    assert low is not None
    onnx.save(low, tmp_path / "low.onnx")
    result = api.verify(ill.proto, tmp_path / "low.onnx", dict(ill.inputs), out=tmp_path / "run")
    assert not result.run.verdict.passed
    assert [step.kind for step in result.run.next_step] == ["compare", "fix"]


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
    assert (
        note_text(more.notes[-1])
        == "warning: not judged, since only the candidate has them as outputs: c"
    )


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
    demand_same_inputs(case.network, case.network.model, "m.onnx")
    with pytest.raises(CaseError, match=r"The inputs of m\.onnx are 'z', the model's 'x'"):
        demand_same_inputs(case.network, other.model, "m.onnx")


X = {"x": np.linspace(1, 2, 24, dtype=np.float32).reshape(6, 4)}


@pytest.fixture
def command(fake_worker):
    return shlex.join(fake_worker())


@pytest.fixture
def engine(tmp_path, fake_worker):
    """An engine in FP16 with two nodes constrained to FP32."""
    network = network_from_proto(SQUARES)
    samples = load_inputs(X, input_specs(network)).samples
    settings = EngineSettings(profiles=profiles_from_data(network, samples))
    save(network.model, tmp_path / "squares.onnx")
    with Worker("fake", fake_worker()) as worker:
        builds, keep = Builds(worker, settings, "weak", Silent()), ("square", "root")
        made = builds.build(tmp_path / "squares.onnx", "", low="fp16", keep=map(NodeName, keep))
        assert made.engine is not None
        worker.fetch(made.engine, tmp_path / "e.engine")
    return tmp_path / "e.engine"


def test_an_engine_is_judged_by_its_own_outputs(engine, command):
    run = verify(SQUARES, engine, X, trt_command=command).run
    assert (run.verdict.passed, run.verdict.level) == (True, "engine")
    assert len(run.verdict.samples) == 6
    assert run.given_engine is not None
    assert run.given_engine.engine.path == str(engine)
    assert run.given_engine.profiles[0].shapes[TensorName("x")].opt == (1, 4)
    assert 0 < run.verdict.outputs["y"].max_abs < 1
    strict = verify(SQUARES, engine, X, trt_command=command, max_abs=1e-6).run
    assert not strict.verdict.passed


def test_random_inputs_do_not_pass(engine, command):
    run = verify(SQUARES, engine, "random", trt_command=command).run
    assert not run.verdict.passed
    assert "random" in reasons(run.verdict.failures)[-1]


def test_engines_of_other_models(engine, command):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] z) => (float[n, 4] y)
    { y = Abs(z) }"""
    other = onnx.parser.parse_model(text)
    with pytest.raises(CaseError, match="inputs are 'x', the model's 'z'"):
        verify(other, engine, {"z": X["x"]}, trt_command=command)


def test_options_of_workers_stand_apart():
    request, target = understand_verify("x.npz", {"trt_command": "/p", "max_abs": 1.0})
    assert target.workers[0].command == ("/p",)
    assert request.given == {"max_abs": "1.0"}
    with pytest.raises(UsageError, match="each name a worker"):
        understand_verify("x.npz", {"trt_worker": "/p", "trt_command": "q"})


@pytest.mark.parametrize(
    ("ill", "options"),
    [
        (models.conv_chain(), {}),
        (models.conv_chain(), {"to": "int8"}),
        (models.conv_chain(), {"to": "bf16", "io": "bf16"}),
        (models.huge_weights(), {"allow_bf16": True, "no_repair": True}),
        (models.busy_product(), {"allow_tf32": True, "no_repair": True}),
    ],
    ids=["repaired", "int8", "bf16", "beside", "tf32"],
)
def test_verify_says_the_cost_of_what_fix_wrote(ill, options, tmp_path):
    run = api.fix(ill.proto, ill.inputs, out=tmp_path / "run", **options).run
    found = api.verify(ill.proto, tmp_path / "run" / "model.onnx", ill.inputs).run.worth
    assert run.plan is not None
    assert run.worth is not None
    assert found is not None
    assert found.cost == pytest.approx(run.worth.cost)
    assert found.fp32 == pytest.approx(run.worth.fp32)
    assert found.low == run.plan.low
