import json
import shlex

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from halfwise import api
from halfwise.errors import BuildFailed, CaseError, UsageError
from halfwise.fixing import command as module
from halfwise.store import read_run
from halfwise.tensorrt.worker.transfer import model_files
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.unit.fixing.engines.test_run import wide


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

    def step(self, done, total=None):
        assert total is None or done <= total

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


def test_fix_with_a_folder_gives_the_same(ill, tmp_path):
    folder = tmp_path / "run"
    result = api.fix(ill.proto, dict(ill.inputs), out=folder)
    assert result.folder == folder
    assert result.model == onnx.load(folder / "model.onnx")
    assert json.loads((folder / "run.json").read_text()) == json.loads(result.run.model_dump_json())
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
        *("load", "reference", "observe", "emulate", "baseline", "search", "judge", "certify"),
        "curve",
    ]
    assert any("8 samples" in note for note in listener.notes)
    assert any("expected" in note for note in listener.notes)


def test_a_failed_verdict_is_no_error(ill):
    run = api.fix(ill.proto, dict(ill.inputs), lower=["matmul"]).run
    assert not run.verdict.passed
    assert run.verdict.reasons


def test_errors_come_before_any_work(tmp_path):
    with pytest.raises(UsageError, match="exists"):
        api.fix("absent.onnx", "absent.npz", out=tmp_path)
    with pytest.raises(UsageError, match="rel-max"):
        api.fix("absent.onnx", "absent.npz", rel_max=-1)
    with pytest.raises(CaseError, match="not a file"):
        api.fix("absent.onnx", "absent.npz")


def test_a_failure_leaves_no_folder(ill, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("halfwise.fixing.command.write_observations", interrupted)
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


BLOCK = ("square", "variance", "eps", "root", "divide")


@pytest.fixture
def fix(fake_worker):
    def fix(ill, out=None, *, options=None, version="8.6.1", **knobs):
        given = {"builds": 1, "max_builds": 1, **(options or {})}
        command = shlex.join(fake_worker(version, **knobs))
        return api.fix(
            ill.proto, dict(ill.inputs), out=out, target="tensorrt", trt_command=command, **given
        )

    return fix


def test_without_a_folder_the_engine_stays_where_it_was_built(fix, tmp_path):
    result = fix(models.layer_norm())
    delivered = result.run.engines.delivered
    assert delivered.side == "worker"
    assert (tmp_path / "worker-cache" / "files" / delivered.sha256).exists()
    assert result.folder is None
    assert result.model is not None
    assert result.run.next_step == ()


def test_what_the_engine_does_not_need_is_dropped(fix, tmp_path):
    result = fix(models.layer_norm(), tmp_path / "run", fused=[BLOCK])
    run = result.run
    assert run.verdict.passed
    assert run.plan.keep == run.engines.keep == ()
    assert run.plan.minimal
    assert any("does not need 4 nodes of the 4" in note for note in run.plan.notes)
    assert [row.name for row in run.engines.results][-1] == "FP16"
    assert read_run(tmp_path / "run") == run


def test_what_the_engine_needs_besides_is_kept_and_told(fix):
    run = fix(models.layer_norm(), options={"max_builds": 4}, lossy={"gamma": 1.5}).run
    assert run.verdict.passed
    kept = {entry.node: entry.reason for entry in run.plan.keep}
    assert kept.keys() > models.layer_norm().kept
    assert "the engine needs it" in kept["gamma"]
    assert any("beyond those of the emulation" in note for note in run.plan.notes)


def test_a_plan_that_the_engine_did_not_shrink_is_not_called_minimal(fix):
    run = fix(models.layer_norm(), version="10.0.1").run
    assert run.verdict.passed
    assert not run.plan.minimal
    assert any("By the emulation none" in note for note in run.plan.notes)


def test_held_out_samples_that_joined_are_on_record(fix):
    run = fix(wide(), options={"max_builds": 6, "max_abs": 0.06}, lossy={"scale": 1.01}).run
    assert run.verdict.passed
    assert run.search.joined == ("inputs[3]",)
    assert "inputs[3]" in run.search.calibration
    assert "inputs[3]" not in run.verdict.samples


def test_the_timing_cache_goes_with_the_run(fix, tmp_path):
    cache = tmp_path / "t.cache"
    run = fix(models.layer_norm(), tmp_path / "run", options={"timing_cache": cache}).run
    assert run.engines.timing_cache == module.TIMING_CACHE_FILE
    copy = (tmp_path / "run" / module.TIMING_CACHE_FILE).read_bytes()
    assert copy == cache.read_bytes() != b""


def test_a_timing_cache_that_is_not_taken_is_kept(fix, tmp_path):
    cache = tmp_path / "t.cache"
    cache.write_bytes(b"of another GPU")
    run = fix(models.layer_norm(), options={"timing_cache": cache}).run
    assert (tmp_path / "t.cache.old").read_bytes() == b"of another GPU"
    assert not (tmp_path / "t.cache.old2").exists()
    assert cache.read_bytes().startswith(b"faketiming")
    told = [line for build in run.engines.builds for line in build.log if "t.cache.old now" in line]
    assert len(told) == 1


def test_the_fp32_model_is_the_one_that_was_built(fix, tmp_path):
    run = fix(models.layer_norm(), tmp_path / "run").run
    sha256 = model_files(tmp_path / "run" / "model.fp32.onnx").sha256
    assert {build.config.model_sha256 for build in run.engines.builds} == {sha256}


def test_a_journal_with_crashes_stays_until_it_is_decided_about(fix, tmp_path):
    out, journal = tmp_path / "run", tmp_path / "run.journal.jsonl"
    crash = {"faults": [Fault("build", "segv", on=(1,))]}
    with pytest.raises(BuildFailed, match="by SIGSEGV"):
        fix(models.layer_norm(), out, **crash)
    assert journal.exists()
    with pytest.raises(UsageError, match="run that ended early"):
        fix(models.layer_norm(), out, **crash)
    with pytest.raises(BuildFailed, match="not tried again"):
        fix(models.layer_norm(), out, options={"resume": True}, **crash)
    journal.unlink()
    assert fix(models.layer_norm(), out, **crash).run.verdict.passed
    assert not journal.exists()


def test_a_connection_that_is_lost_in_two_runs_is_not_tried_a_third_time(fix, tmp_path):
    losing = {"faults": [Fault("build", "disconnect")]}
    for _ in range(2):
        with pytest.raises(BuildFailed, match="is lost"):
            fix(models.small(), tmp_path / "run", options={"resume": True}, **losing)
    with pytest.raises(BuildFailed, match="2 runs in a row had no result"):
        fix(models.small(), tmp_path / "run", options={"resume": True}, **losing)


def test_a_journal_that_cannot_be_written_is_told(fix, tmp_path):
    (tmp_path / "run.journal.jsonl").mkdir()
    with pytest.raises(UsageError, match="is a folder, and only regular files are replaced"):
        fix(models.layer_norm(), tmp_path / "run", options={"resume": True})


def test_a_journal_without_crashes_goes(fix, tmp_path):
    with pytest.raises(BuildFailed):
        fix(models.layer_norm(), tmp_path / "run", faults=[Fault("build", "memory")])
    assert not (tmp_path / "run.journal.jsonl").exists()


def test_bf16(fix):
    run = fix(models.small(), options={"to": "bf16", "rel_max": 0.1}, version="10.0.1").run
    assert run.verdict.passed
    assert run.engines.results[-1].name == "BF16"
