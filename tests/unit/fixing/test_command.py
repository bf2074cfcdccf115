import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from halfwise import api
from halfwise.case import Samples
from halfwise.errors import CaseError, UsageError
from halfwise.fixing.command import judge_sizes
from halfwise.judging.judge import judge
from halfwise.judging.reference import inspected_reference
from halfwise.options.loading import load_case, load_model
from halfwise.options.options import understand
from halfwise.records import replace
from halfwise.reporting.remarks import reasons
from tests import models

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture
def ill():
    return models.tiny_weights()


class Listener:
    """Remembers what it is told."""

    def __init__(self):
        self.stages: list[str] = []
        self.notes: list[str] = []

    def stage(self, name, total=None):
        assert total is None or total > 0
        self.stages.append(name)

    def step(self, done, total=None, of=""):
        assert total is None or done <= total
        assert of == of.strip()

    def note(self, line):
        self.notes.append(line)


def test_fix_in_memory_writes_nothing(ill, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = api.fix(ill.proto, dict(ill.inputs))
    assert result.run.verdict.passed
    assert result.folder is None
    assert list(tmp_path.iterdir()) == []
    assert result.model is not None
    onnx.checker.check_model(result.model, full_check=True)
    session = onnxruntime.InferenceSession(
        result.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, ill.sample(0))
    np.testing.assert_allclose(y, _expected(ill), rtol=2e-3)


def _expected(ill):
    (weight,) = (onnx.numpy_helper.to_array(t) for t in ill.proto.graph.initializer)
    return np.tanh(ill.sample(0)["x"]) @ weight


@pytest.mark.parametrize(
    "text", ['{"version":1,"repairs":[{"rule":"scale","nodes":null}]}', "1e999"]
)
def test_an_unreadable_entry_on_repairs_is_refused(ill, text):
    proto = onnx.ModelProto.FromString(ill.proto.SerializeToString())
    proto.metadata_props.add(key="halfwise.repairs", value=text)
    with pytest.raises(CaseError, match="not a list of repairs") as refused:
        api.fix(proto, dict(ill.inputs))
    assert "remove the entry halfwise.repairs" in refused.value.hint


def test_fix_with_a_folder_gives_the_same(ill, tmp_path):
    folder = tmp_path / "run"
    result = api.fix(ill.proto, dict(ill.inputs), out=folder)
    assert result.folder == folder
    assert result.model == onnx.load(folder / "model.onnx")
    assert json.loads((folder / "run.json").read_text()) == json.loads(result.run.to_json())
    assert (folder / "observations.json").is_file()
    assert api.report(folder) == result.run
    assert api.report(str(folder)) == result.run


def test_weights_in_a_file_of_their_own_come_along(ill, tmp_path):
    """The model given back needs no file beside the user's."""
    proto = onnx.ModelProto()
    proto.CopyFrom(ill.proto)
    onnx.save(
        proto,
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    result = api.fix(tmp_path / "model.onnx", dict(ill.inputs))
    (tmp_path / "weights.bin").unlink()
    assert result.model is not None
    assert not any(t.external_data for t in result.model.graph.initializer)


def test_samples_may_be_a_list(ill):
    whole = api.fix(ill.proto, dict(ill.inputs)).run
    single = api.fix(ill.proto, [ill.sample(i) for i in range(models.COUNT)]).run
    assert single.plan == whole.plan
    assert single.provenance.inputs_sha256 == whole.provenance.inputs_sha256


def test_the_users_arrays_and_model_stay_as_they_are(ill):
    before = {name: array.copy() for name, array in ill.inputs.items()}
    proto = ill.proto.SerializeToString()
    api.fix(ill.proto, dict(ill.inputs))
    assert ill.proto.SerializeToString() == proto
    for name, array in ill.inputs.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_watcher_hears_every_stage_in_order(ill):
    listener = Listener()
    api.fix(ill.proto, dict(ill.inputs), watcher=listener)
    assert listener.stages == [
        *("load", "reference", "observe", "emulate", "baseline", "search", "judge"),
        *("curve", "store"),
    ]
    assert any("8 samples" in note for note in listener.notes)


def test_a_failed_verdict_is_no_error(ill):
    run = api.fix(ill.proto, dict(ill.inputs), lower=["matmul"]).run
    assert not run.verdict.passed
    assert reasons(run.verdict.failures)


def test_errors_come_before_any_work(tmp_path):
    with pytest.raises(UsageError, match="exists"):
        api.fix("absent.onnx", "absent.npz", out=tmp_path)
    with pytest.raises(UsageError, match="rel-max"):
        api.fix("absent.onnx", "absent.npz", rel_max=-1)
    with pytest.raises(CaseError, match="no file"):
        api.fix("absent.onnx", "absent.npz")


def test_a_failure_leaves_no_folder(ill, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("halfwise.page.finish.write_observations", interrupted)
    with pytest.raises(KeyboardInterrupt):
        api.fix(ill.proto, dict(ill.inputs), out=tmp_path / "runs" / "one")
    assert [p for p in tmp_path.rglob("*") if p.name != "runs"] == []


def behind_gelu(dtype):
    """A custom operator without a known type, and a square behind it that FP16 cannot hold."""
    nodes = [
        helper.make_node("FastGelu", ["x"], ["h"], "gelu", domain="com.microsoft"),
        helper.make_node("Mul", ["h", "h"], ["s"], "square"),
        helper.make_node("Sqrt", ["s"], ["y"], "root"),
    ]
    x, y = (helper.make_tensor_value_info(name, dtype, [4]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_what_lies_behind_a_custom_operator_is_rounded(tmp_path):
    reference, low = (behind_gelu(t) for t in (TensorProto.FLOAT, TensorProto.FLOAT16))
    samples = {"x": np.arange(1000, 1016, dtype=np.float32).reshape(4, 4)}
    assert not api.verify(reference, low, samples).run.verdict.passed
    onnx.save(low, tmp_path / "low.onnx")
    run = api.fix(reference, samples, start_from=tmp_path / "low.onnx").run
    assert run.verdict.passed
    assert run.plan is not None
    assert {k.node for k in run.plan.keep} == {"square", "root"}


RNG = np.random.default_rng(0)


def parsed(text):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


def judged(reference, candidate, x, **options):
    """Return the verdict on all samples, sizes included."""
    request = understand({"x": x}, options)
    case = load_case(reference, request.data, request.criterion, split=False)
    references, _ = inspected_reference(case.network, case.calibration)
    model = load_model(candidate).model
    samples = case.calibration
    alone = judge(model, samples, references, case.criterion, case.metric).verdict
    return alone, judge_sizes(alone, case, model, samples, references, request.settings)


SCALED = "(float[n, 4] x) => (float[n, 4] y) <float[1] w = {3}> { y = Mul(x, w) }"
X = RNG.uniform(1, 2, (12, 1, 4)).astype(np.float32)


def test_few_samples_are_put_together():
    alone, verdict = judged(parsed(SCALED), parsed(SCALED), X)
    assert verdict.batch is not None
    assert len(verdict.batch.samples) == 4
    assert replace(verdict, batch=None, axes=()) == alone


def test_errors_count_against_the_values_of_all_samples():
    """Four small samples alone would be out of the tolerance that all of them have together."""
    x = X.copy()
    x[4:] *= 1000
    shifted = SCALED.replace("<", "<float[1] b = {0.5}, ").replace(
        "y = Mul(x, w)", "m = Mul(x, w) y = Add(m, b)"
    )
    alone, verdict = judged(parsed(SCALED), parsed(shifted), x)
    assert alone.passed
    assert verdict.passed
    assert verdict.batch is not None
    assert verdict.batch.passed


def test_a_metric_judges_more_of_them():
    x = RNG.uniform(1, 2, (80, 1, 4)).astype(np.float32)
    _, verdict = judged(parsed(SCALED), parsed(SCALED), x, metric="top1")
    assert verdict.batch is not None
    assert len(verdict.batch.samples) == 16


def test_samples_of_two_batch_sizes_need_no_more():
    ones = [{"x": x} for x in X]
    twos = [{"x": np.concatenate([x, x])} for x in X[:3]]
    request = understand({"x": X}, {})
    case = load_case(parsed(SCALED), request.data, request.criterion, split=False)
    both = [*ones, *twos]
    samples = Samples(tuple(map(str, range(15))), both.__getitem__)
    references, _ = inspected_reference(case.network, samples)
    model = case.network.model
    alone = judge(model, samples, references, case.criterion, None).verdict
    verdict = judge_sizes(alone, case, model, samples, references, request.settings)
    assert verdict.batch is None
    assert [axis.sizes for axis in verdict.axes] == [(1, 2)]


def test_batches_leave_out_samples_that_may_fail():
    """Each row is compared with the reference of its own sample."""
    x = X.copy()
    x[0] = 1e5
    low = parsed(
        """(float[n, 4] x) => (float[n, 4] y) <float[1] w = {3}>
        { h = Cast <to = 10> (x) f = Cast <to = 1> (h) y = Mul(f, w) }"""
    )
    request = understand({"x": x}, {"failing": 0.5})
    case = load_case(parsed(SCALED), request.data, request.criterion, split=False)
    references, _ = inspected_reference(case.network, case.calibration)
    model, samples = load_model(low).model, case.calibration
    alone = judge(model, samples, references, case.criterion, None).verdict
    assert alone.failure_bound is not None
    assert alone.failure_bound.samples == samples.ids[:1]
    verdict = judge_sizes(alone, case, model, samples, references, request.settings)
    assert verdict.batch is not None
    assert verdict.batch.passed


def test_axes_of_one_symbol_are_one():
    text = """(float[n, t] x, float[t] z) => (float[n, t] y) { y = Mul(x, z) }"""
    request = understand({"x": X, "z": np.ones((12, 4), np.float32)}, {})
    case = load_case(parsed(text), request.data, request.criterion, split=False)
    references, _ = inspected_reference(case.network, case.calibration)
    model = case.network.model
    alone = judge(model, case.calibration, references, case.criterion, None).verdict
    verdict = judge_sizes(alone, case, model, case.calibration, references, request.settings)
    assert [(axis.inputs, axis.symbol) for axis in verdict.axes] == [
        ({"x": 0}, "n"),
        ({"x": 1, "z": 0}, "t"),
    ]


def test_a_static_model_keeps_its_verdict():
    still = parsed(SCALED.replace("n, 4", "1, 4"))
    alone, verdict = judged(still, still, X)
    assert verdict is alone


def test_whole_batches_of_a_model_that_mixes_samples():
    text = """(float[n, 4] x) => (float[n, 4] y)
    <float[4] s = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0},
     float[4] m = {0, 0, 0, 0}, float[4] v = {1, 1, 1, 1}>
    { y, mean, variance = BatchNormalization <training_mode = 1> (x, s, b, m, v) }"""
    alone, verdict = judged(parsed(text), parsed(text), RNG.normal(size=(12, 3, 4)).astype("f4"))
    assert alone.passed
    assert verdict.batch is not None
    assert (verdict.batch.whole, verdict.batch.passed, verdict.batch.size) == (True, True, 6)
    assert verdict.batch.samples == tuple(f"inputs[{i}]" for i in range(4))


def sized(text, **x):
    request = understand(x, {})
    case = load_case(parsed(text), request.data, request.criterion, split=False)
    references, _ = inspected_reference(case.network, case.calibration)
    model, samples = case.network.model, case.calibration
    alone = judge(model, samples, references, case.criterion, None).verdict
    verdict = judge_sizes(alone, case, model, samples, references, request.settings)
    return [(axis.inputs, axis.sizes) for axis in verdict.axes]


def test_a_symbol_that_stands_for_two_sizes_of_a_sample_is_no_one_size():
    """Exporters write one placeholder on every axis that they do not know."""
    one = "(float[1, s, s] x) => (float[1, s, s] y) { y = Neg(x) }"
    x = np.ones((12, 1, 3, 5), np.float32)
    assert sized(one, x=x) == [({"x": 1}, (3,)), ({"x": 2}, (5,))]
    two = (
        "(float[1, s] x, float[1, s] z) => (float[1, s] y, float[1, s] v) { y = Neg(x) v = Neg(z)}"
    )
    data = {"x": np.ones((12, 1, 3), np.float32), "z": np.ones((12, 1, 5), np.float32)}
    assert sized(two, **data) == [({"x": 1}, (3,)), ({"z": 1}, (5,))]
