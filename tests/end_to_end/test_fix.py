"""`halfwise fix` from the command line to the run folder."""

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import halfwise
from tests import models
from tests.end_to_end.soundness import assert_minimal, assert_valid, spared
from tests.processes import end
from tests.unit.graph.sketch import Sketch


def test_from_a_shell(saved, tmp_path, environment):
    ill = models.layer_norm()
    model, inputs = saved(ill)
    command = [sys.executable, "-m", "halfwise", "fix", model, "--inputs", inputs, "-o", "run"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "PASSED in emulation" in ended.stdout
    assert "trtexec --onnx=run/model.onnx --stronglyTyped" in ended.stdout
    assert "proven" not in ended.stdout
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert names == [
        *("evidence.json", "model.onnx", "observations.json", "report.html", "run.json")
    ]
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o777 & ~_umask(environment)


def _umask(environment) -> int:
    shown = subprocess.run(
        ["sh", "-c", "umask"], env=environment, capture_output=True, text=True, check=True
    )
    return int(shown.stdout, 8)


def test_json_prints_the_record_alone(saved, tmp_path, environment):
    model, inputs = saved(models.layer_norm())
    command = [sys.executable, "-m", "halfwise", "fix", model, "--inputs", inputs, "-o", "run"]
    ended = subprocess.run(
        [*command, "--json"], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert ended.stdout == (tmp_path / "run" / "run.json").read_bytes()


def test_ctrl_c_leaves_nothing(saved, tmp_path, environment):
    # 300 layers and a tolerance that many roundings exceed together: seconds of search.
    model, inputs = saved(models.deep(layers=300))
    before = sorted(tmp_path.iterdir())
    command = [sys.executable, "-m", "halfwise", "fix", model, "--inputs", inputs]
    process = subprocess.Popen(
        [*command, "-o", "runs/one", "--rel-max", "0.0005"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.strip() == "observe":  # no plan is known yet
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    finally:
        end(process)
    assert process.returncode == 130, err
    assert err.endswith("interrupted before there was a result; nothing was written\n")
    assert "Traceback" not in err
    assert out == ""
    assert sorted(tmp_path.iterdir()) == before


def test_a_search_that_its_budget_ends_says_so(fix):
    ended = fix(models.deep(), "--rel-max", "0.0005", "--budget", "inferences=30")
    assert ended.code == 0, ended.err
    search = ended.record["search"]
    assert (search["budget"], search["ended_by"], search["exhausted"]) == (30, ["work"], True)
    assert "minimal: the budget of 30 inferences over the data was spent." in ended.out
    assert "another run may give" not in " ".join(ended.out.split())


def test_ctrl_c_keeps_the_best_plan(fix, pressed):
    pressed(1)
    ended = fix(models.deep(), "--rel-max", "0.001")
    assert ended.code == 0, ended.err
    search = ended.record["search"]
    assert search["ended_by"] == ["interrupt"]
    assert search["exhausted"]
    assert 0 < len(ended.kept) <= 10
    assert_valid(ended, models.deep())
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_the_advice_of_an_interrupted_run_goes_on_from_its_plan(fix, call, pressed):
    pressed(1)
    ended = fix(models.deep(), "--rel-max", "0.001", "--budget", "inferences=900")
    step = next(s for s in ended.record["next_step"] if s["kind"] == "keep-less")
    halfwise, *words = step["command"]
    assert (halfwise, {"--budget", "0.001"} <= {*words}) == ("halfwise", True)
    on = call(*words, folder="run.on")
    assert on.code == 0, on.err
    assert "run.on" in words
    assert on.record["search"]["ended_by"] == []
    assert on.kept <= ended.kept


def test_ctrl_c_again_ends_at_once(fix, pressed, tmp_path):
    pressed(2)
    ended = fix(models.deep(), "--rel-max", "0.001")
    assert ended.code == 130
    assert ended.err.strip().endswith("interrupted")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.npz", "model.onnx"]


def test_the_library_does_what_the_command_does(fix):
    ill = models.layer_norm()
    ended = fix(ill)
    result = halfwise.fix(ill.proto, dict(ill.inputs))
    made, record = json.loads(result.run.to_json()), ended.record
    assert result.folder is None
    assert result.model == onnx.load(ended.model)
    assert made["plan"] == json.loads(json.dumps(record["plan"]).replace("model.npz", "inputs"))
    for name, output in record["verdict"]["outputs"].items():
        assert made["verdict"]["outputs"][name] | {"worst_sample": ""} == output | {
            "worst_sample": ""
        }


def test_the_same_run_again_gives_the_same(fix, call):
    ill = models.layer_norm()
    first = fix(ill)
    folder = first.folder.parent
    again = call(
        *("fix", folder / "model.onnx", "--inputs", folder / "model.npz", "-o", "again"),
        folder="again",
    )
    assert again.model.read_bytes() == first.model.read_bytes()
    for part in ("plan", "verdict", "baseline", "guards", "search"):
        assert again.record[part] == first.record[part]


def test_report_shows_a_run_again(fix, call):
    ended = fix(models.layer_norm())
    assert call("report", "run").out == ended.out
    assert call("report", "run").code == 0
    assert json.loads(call("report", "run", "--json").out) == ended.record


def test_report_of_a_failed_run_exits_as_the_run_did(fix, call):
    ended = fix(models.layer_norm(), "--no-repair", "--lower", "square")
    assert (ended.code, call("report", "run").code) == (10, 10)
    assert call("report", "run").out == ended.out


def test_observe_lists_what_reaches_the_limit(call, saved):
    model, inputs = saved(models.layer_norm())
    seen = call("observe", model, "--inputs", inputs, "--limit", "1000000")
    assert seen.code == 0
    listed = {line.split()[0] for line in seen.out.splitlines() if "model.npz[" in line}
    assert listed == {"square", "variance", "eps"}
    assert "  root " in call("observe", model, "--inputs", inputs, "--limit", 100).out
    record = json.loads(call("observe", model, "--inputs", inputs, "--json").out)
    found = {o["tensor"]: o for o in record["tensors"]}
    x = np.load(inputs)["x"]
    assert found["x"]["absmax"] == np.abs(x).max()
    squares = np.square(x - x.mean(axis=-1, keepdims=True, dtype=np.float64))
    assert found["square_out"]["absmax"] == pytest.approx(squares.max(), rel=1e-5)
    worst = record["samples"][found["square_out"]["worst_sample"]]
    assert {o["tensor"]: o["op"] for o in record["tensors"]}["square_out"] in ("Pow", "Mul")
    assert worst == f"model.npz[{squares.max(axis=(1, 2, 3)).argmax()}]"


def test_rules_are_followed_and_told(fix):
    ill = models.layer_norm()
    ended = fix(ill, "--no-repair", "--keep", "gamma", "--keep-op", "Div")
    assert ended.code == 0
    assert ended.kept == ill.kept | {"gamma", "divide"}
    reasons = {entry["node"]: entry["reason"] for entry in ended.record["plan"]["keep"]}
    assert "--keep gamma" in reasons["gamma"]
    assert "--keep-op Div" in reasons["divide"]
    assert_valid(ended, ill)
    # Nobody needs these two, and the check of minimality sees that.
    assert spared(ended, ill) == {"divide", "gamma"}


def test_keep_op_finds_written_out_forms(fix):
    ended = fix(models.layer_norm(peak=5), "--keep-op", "LayerNormalization")
    assert ended.code == 0
    assert ended.kept >= {"square", "variance", "eps", "root", "divide"}


def test_keep_outputs(fix):
    ended = fix(models.small(), "--keep", "outputs")
    assert ended.kept == {"relu"}


def test_a_lowered_node_that_is_needed_fails_the_verdict(fix):
    ill = models.layer_norm()
    ended = fix(ill, "--no-repair", "--lower", "squ.*")
    assert ended.code == 10
    assert "square" not in ended.kept
    assert any(f["kind"] == "tolerance" for f in ended.record["verdict"]["failures"])
    assert_valid(ended, ill)


def test_without_time_the_best_passing_plan_counts(fix):
    ill = models.layer_norm()
    ended = fix(ill, "--budget", "time=0")
    assert ended.code == 0, ended.err
    assert ended.kept >= ill.kept
    assert not ended.record["plan"]["minimal"]
    search = ended.record["search"]
    assert search["exhausted"]
    assert search["cut"] == [
        *("observe", "emulate", "search", "repair", "sums", "curve"),
    ]
    assert "The time budget of 0 s was spent: operators and" in " ".join(ended.out.split())
    assert ended.record["verdict"]["unseen"]
    assert_valid(ended, ill)


@pytest.mark.parametrize(
    "options",
    [
        ("--require", "max-abs=0.02"),
        ("--require", "snr-db=55"),
        ("--require", "cosine=0.99999"),
        ("--rel-max", "0.01", "--require", "snr-db=50"),
        ("--accumulate", "fp16"),
        ("--require", "margin=0.5"),
    ],
)
def test_other_ways_to_judge(fix, options):
    ill = models.layer_norm()
    ended = fix(ill, "--no-repair", *options)
    assert ended.code == 0, ended.out
    assert ended.kept >= ill.kept
    assert ended.record["plan"]["minimal"]
    if str(options[1]).startswith("max-abs"):
        assert_minimal(ended, ill)


def test_half_precision_inputs_and_outputs(fix):
    ill = models.layer_norm()
    ended = fix(ill, "--io", "fp16")
    assert ended.code == 0
    session = onnxruntime.InferenceSession(ended.model, providers=["CPUExecutionProvider"])
    types = {i.type for i in (*session.get_inputs(), *session.get_outputs())}
    assert types == {"tensor(float16)"}


def test_the_verdict_says_what_its_samples_can_show(fix):
    ended = fix(models.layer_norm())
    verdict = ended.record["verdict"]
    judged = len(verdict["samples"])
    assert verdict["failure_bound"]["judged"] == judged
    assert verdict["failure_bound"]["upper"] == pytest.approx(1 - 0.05 ** (1 / judged))
    told = " ".join(ended.out.split())
    assert f"{judged} of {judged} held-out samples" in told
    assert f"at least {math.floor(100 * 0.05 ** (1 / judged))} % of inputs" in told
    assert ended.record["baseline"]["failure_bound"]["failing"] > 0


def test_a_metric_decides_alone(fix, tmp_path):
    classes = 4
    sketch = Sketch()
    x = sketch.input("x", [1, 16])
    scores = sketch.op("MatMul", x, models.weights(16, classes, seed=1, scale=1e6), name="scores")
    inputs = {"x": models.signals(1, 16, seed=2)}
    ill = models.Ill(sketch.proto(scores), inputs)
    exact = inputs["x"][:, 0] @ models.weights(16, classes, seed=1, scale=1e6)
    (tmp_path / "labels.json").write_text(json.dumps(exact.argmax(axis=1).tolist()))
    ended = fix(ill, "--metric", "top1", "--labels", "labels.json")
    assert ended.code == 0, ended.err
    metric = ended.record["verdict"]["metric"]
    assert metric["name"] == "top1"
    assert metric["reference"] == metric["candidate"] == 1.0


def test_a_metric_that_any_rounding_moves_keeps_no_node_for_that(fix):
    sketch = Sketch()
    x = sketch.input("x", [1, 16])
    scores = sketch.op("MatMul", x, models.weights(16, 4096, seed=1, scale=0.1), name="scores")
    mask = sketch.op("Sigmoid", sketch.op("Reshape", scores, np.array([1, 1, 64, 64])))
    ended = fix(
        models.Ill(sketch.proto(mask), {"x": models.signals(1, 16, seed=2)}), "--metric", "mask-iou"
    )
    assert ended.code == 0, ended.out
    assert not ended.kept
    metric = ended.record["verdict"]["metric"]
    assert 0.99 <= metric["candidate"] < 1
    assert metric["allowed_drop"] == 0.01
    assert "may fall by 0.01 by default (MLPerf" in " ".join(ended.out.split())


def test_a_metric_of_the_users(fix, tmp_path):
    (tmp_path / "score.py").write_text(
        "def score(reference, candidate, labels):\n"
        "    assert labels is None\n"
        "    return -max(abs(r['gamma_out'] - c['gamma_out']).max()\n"
        "                for r, c in zip(reference, candidate))\n"
    )
    ill = models.layer_norm()
    ended = fix(ill, "--no-repair", "--metric", "score.py:score", "--metric-drop", 0.01)
    assert ended.code == 0, ended.out
    assert ended.kept == ill.kept
    metric = ended.record["verdict"]["metric"]
    assert metric["reference"] == 0
    assert -0.01 <= metric["candidate"] < 0


def test_nodes_without_names_get_some_and_the_map_is_kept(fix):
    ill = models.layer_norm()
    for node in ill.proto.graph.node:
        node.name = ""
    ended = fix(ill, "--no-repair")
    assert ended.code == 0
    assert len(ended.kept) == 4
    assert "" not in ended.kept
    assert ended.kept <= ended.record["original_names"].keys()


def test_everything_under_a_folder_that_does_not_exist_yet(saved, call, tmp_path):
    model, inputs = saved(models.small())
    ended = call(*("fix", model, "--inputs", inputs, "-o", "a/b/run"), folder="a/b/run")
    assert ended.code == 0
    assert sorted(p.name for p in Path(tmp_path, "a", "b").iterdir()) == ["run"]
    onnx.checker.check_model(str(ended.model), full_check=True)
    assert ended.record["verdict"]["passed"]
