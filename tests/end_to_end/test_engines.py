"""`fix --target tensorrt` through the command line, on the stand-in for TensorRT."""

import hashlib
import json
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from examples.digits import vit
from halfwise.fixing.engines.device import Fetched
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import EngineFailed
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.start import once_only
from tests.models import Ill
from tests.unit.graph.sketch import Sketch

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
TABLE = ["FP32, TF32 off", "FP32, TF32 on", "FP16", "mixed"]


def rows(ended):
    return {row["name"]: row for row in ended.record["engines"]["results"]}


def told(ended):
    return " ".join(ended.out.split())


def test_a_vision_transformer(call, fake_worker, tmp_path):
    weights = vit.random_weights(
        0, dim=16, depth=1, heads=2, patch=2, image=8, classes=10, channels=1
    )
    model = vit.build_vit(vit.rescale_residual(weights, 600.0), heads=2, patch=2, image=8)
    onnx.save(model, tmp_path / "vit.onnx")
    for name in ("inputs", "heldout"):
        np.savez(tmp_path / f"{name}.npz", images=np.load(DIGITS / f"{name}.npz")["images"][:3])
    ended = call(
        *("fix", "vit.onnx", "--inputs", "inputs.npz", "--require", "max-abs=0.05"),
        *("--heldout", "heldout.npz", "-o", "run", "--budget", "builds=2", "--engine", "repeat=2"),
        *("--target", "tensorrt", "--trt-command", shlex.join(fake_worker())),
    )
    assert ended.code == 0, ended.err
    assert {p.name for p in ended.folder.iterdir()} == {
        *("model.engine", "model.fp32.onnx", "model.onnx", "observations.json"),
        *("model.built.onnx", "run.json", "evidence.json", "report.html"),
    }
    found = ended.record["engines"]
    engine = (ended.folder / "model.engine").read_bytes()
    assert found["delivered"]["sha256"] == hashlib.sha256(engine).hexdigest()
    assert found["delivered"]["side"] == "here"
    assert [row["name"] for row in found["results"]][:3] == TABLE[:3]
    samples = {tuple(row["verdict"]["samples"]) for row in found["results"]}
    assert len(samples) == 1
    shapes = [json.dumps(row["latency"]["shapes"]) for row in found["results"]]
    assert len(set(shapes)) == 1
    assert (found["confirmed"], len(found["spread"])) == (2, 2)
    assert found["keep"] == [entry["node"] for entry in ended.record["plan"]["keep"]]
    assert ended.record["verdict"]["level"] == "engine"
    assert ended.record["verdict"]["outputs"]["logits"]["max_abs"] <= 0.05
    purposes = [build["purpose"] for build in found["builds"]]
    assert purposes[:2] == TABLE[:2]
    onnx.checker.check_model(ended.folder / "model.fp32.onnx")
    again = call("report", "run")
    assert (again.code, again.out) == (0, ended.out)
    assert "was held to SNR ≥ 60 dB" in told(ended)


def test_engines_that_are_not_delivered_are_forgotten(engines, tmp_path):
    ended = engines(models.layer_norm())
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    built = {build["engine"]["sha256"] for build in found["builds"]}
    there = {path.name for path in (tmp_path / "worker-cache" / "files").iterdir()}
    assert built & there == {found["delivered"]["sha256"]}


def test_without_tensorrt_the_command_says_what_is_missing(refused, saved):
    model, inputs = saved(models.layer_norm())
    said = refused(
        4,
        *("fix", model, "--inputs", inputs, "-o", "run", "--target", "tensorrt"),
        *("--trt-command", shlex.quote("/usr/bin/python3")),
    )
    assert "cannot use TensorRT" in said or "does not answer" in said
    assert "halfwise doctor" in said


def test_a_wrong_fp32_engine_is_not_a_precision_problem(engines, call):
    ended = engines(models.layer_norm(), broken={"square": 1.5})
    assert ended.code == 10
    assert "precision is not the problem" in told(ended)
    assert "optimization-level" in told(ended)
    words = ended.record["next_step"][0]["command"]
    assert shlex.join(words) in ended.out
    assert words[-2:] == ["-o", "run.diagnosis"]
    assert {"--target", "--trt-command", "--inputs"} <= set(words)
    diagnosed = call(*words[1:], folder="run.diagnosis")
    assert diagnosed.code == 10, diagnosed.err
    assert "square" in diagnosed.out
    found = ended.record["engines"]
    assert [row["name"] for row in found["results"]] == TABLE[:1]
    assert len(found["builds"]) == 1
    assert found["delivered"] is None
    assert ended.record["plan"] is None
    assert call("report", "run").out == ended.out


def test_a_crash_is_recorded_and_the_run_goes_on(engines):
    ended = engines(
        models.layer_norm(),
        *("--no-repair", "--budget", "builds=3"),
        faults=[Fault("build", "segv", on=(3,))],
    )
    assert ended.code == 0, ended.err
    crashed = [b for b in ended.record["engines"]["builds"] if b["status"] != "built"]
    assert [(b["status"], b["signal"]) for b in crashed] == [("crashed", "SIGSEGV")]
    assert "SIGSEGV" in told(ended)


def container(folder, command):
    """Return a command that is as `command` in a container: its files are gone when it ends."""
    return shlex.join(["sh", "-c", 'rm -rf "$0"; exec "$@"', str(folder), *command])


LAST = {"tf32": True, "low": None}
"""The engine with TF32, which is built last."""


@pytest.mark.parametrize(
    ("fault", "lost", "without"),
    [
        (Fault("build", "disconnect", on=(1, 5)), [1, 5], []),
        (Fault("deserialise", "disconnect", when=LAST), [], ["FP32, TF32 on"]),
    ],
)
def test_a_container_that_ends_takes_no_engine_along_that_passed(
    call, saved, fake_worker, tmp_path, fault, lost, without
):
    cache = tmp_path / "worker-cache" / "files"
    model, inputs = saved(models.layer_norm())
    ended = call(
        *("fix", model, "--inputs", inputs, "-o", "run", "--target", "tensorrt"),
        *("--engine", "repeat=1", "--budget", "builds=1", "--no-repair"),
        *("--trt-command", container(cache, fake_worker(faults=[fault]))),
    )
    assert ended.code == 0, ended.err + ended.out
    found = ended.record["engines"]
    engine = (ended.folder / "model.engine").read_bytes()
    assert found["delivered"]["sha256"] == hashlib.sha256(engine).hexdigest()
    assert [row["name"] for row in found["results"]] == TABLE
    assert [row["name"] for row in found["results"] if not row["verdict"]] == without
    assert [b["number"] for b in builds(ended, "lost")] == lost


def test_an_engine_that_cannot_be_fetched_leaves_a_run_without_it(
    engines, call, monkeypatch, tmp_path
):
    def gone(*_):
        raise EngineFailed("The connection to worker fake is lost.", status="lost")

    monkeypatch.setattr(Fetched, "keep", lambda *_: None)
    monkeypatch.setattr(Worker, "fetch", gone)
    ended = engines(models.layer_norm(), "--no-repair")
    assert ended.code == 10
    assert "The engine passed, but cannot be fetched from" in told(ended)
    assert "The connection to worker fake is lost." in told(ended)
    assert "No engine is delivered: the verdict says why." in told(ended)
    assert not (ended.folder / "model.engine").exists()
    assert ended.model.exists()
    found = ended.record["engines"]
    assert found["delivered"] is None
    # It stays there: what hinders it may be mended.
    there = {path.name for path in (tmp_path / "worker-cache" / "files").iterdir()}
    assert found["results"][-1]["build"]["engine"]["sha256"] in there
    assert found["results"][-1]["verdict"]["passed"]
    assert call("report", "run").out == ended.out


def test_engines_that_cannot_be_read_are_on_record(engines):
    fault = Fault("deserialise", "device", when={"low": "fp16"})
    ended = engines(models.layer_norm(), faults=[fault])
    assert ended.code == 0, ended.err
    assert "cannot read the engine" in told(ended)
    assert "in FP32 without TF32, because no FP16 engine runs to the end" in told(ended)
    assert rows(ended)["FP32, TF32 on"]["verdict"]["passed"]


def test_where_every_low_build_crashes_the_exact_engine_is_delivered(engines, call):
    ended = engines(
        models.layer_norm(),
        *("--budget", "builds=2"),
        faults=[Fault("build", "segv", when={"low": "fp16"})],
        pace={"fp32": 1.0, "low": 0.5, "tf32": 0.7},
    )
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    engine = (ended.folder / "model.engine").read_bytes()
    judged = next(r for r in found["results"] if r["rung"] == found["rung"])
    sha256 = hashlib.sha256(engine).hexdigest()
    assert sha256 == found["delivered"]["sha256"] == judged["build"]["engine"]["sha256"]
    said = told(ended)
    assert "because the builder crashed in 4 of 4 FP16 builds (SIGSEGV)" in said
    assert "SIGSEGV" in said
    for what in ("opset 17", "optimization-level", "another TensorRT version"):
        assert what in said
    assert "tolerance fits" not in said
    assert "to blame" not in said
    assert call("report", "run").out == ended.out
    recipe = call("export", "run", "--as", "json")
    assert json.loads(recipe.out)["low"] is None
    assert json.loads(recipe.out)["constraints"] == []


def test_a_plan_whose_build_crashes_is_replaced(engines):
    kept = sorted(models.layer_norm().kept)
    ended = engines(
        models.layer_norm(),
        *("--no-repair", "--budget", "builds=3"),
        faults=[Fault("build", "segv", on=(4,), when={"kept": kept})],
    )
    assert ended.code == 0, ended.err
    assert any(r["measured"] is None for r in ended.record["engines"]["rounds"])
    assert ended.kept >= models.layer_norm().kept


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_a_run_that_delivers_fp32_is_exported_as_fp32(engines, call, version):
    ended = engines(models.layer_norm(), "--no-repair", lossy={"gamma": 1.5}, version=version)
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    assert (found["rung"], found["keep"]) == ("fp32", [])
    # No engine without that kernel alone was built, so nothing shows that it is to blame.
    assert [cause["kind"] for cause in found["causes"]] == ["unknown"]
    assert "Why the engines are off is unknown" in told(ended)
    recipe = json.loads(call("export", "run", "--as", "json").out)
    assert recipe["model"].endswith("run/model.fp32.onnx")
    assert recipe["low"] is None


def test_what_is_fp32_in_truth_is_told(engines):
    """No free node is computed in FP16, whatever was allowed, and FP32 is off by little."""
    ended = engines(models.layer_norm(), "--no-repair", vary=(1.0, 1), broken={"gamma": 1.000003})
    assert ended.code == 0, ended.err
    low = [row for row in ended.record["engines"]["results"] if row["rung"] == "fp16"]
    assert {frozenset(row["proof"]["node_share"]) for row in low} == {frozenset({"fp32"})}
    assert "The engine computes nothing in FP16, although that was requested" in told(ended)


def test_a_machine_that_is_gone_for_good_leaves_the_exact_engine(
    call, saved, fake_worker, tmp_path
):
    worker = fake_worker(faults=[Fault("build", "disconnect", on=(2,))])
    model, inputs = saved(models.layer_norm())
    ended = call(
        *("fix", model, "--inputs", inputs, "-o", "run", "--target", "tensorrt"),
        *("--trt-command", shlex.join(once_only(worker, tmp_path / "started"))),
        *("--engine", "repeat=1", "--budget", "builds=2"),
    )
    assert ended.code == 0, ended.err
    assert (ended.folder / "model.engine").is_file()
    assert ended.record["engines"]["rung"] == "fp32"
    assert {b["status"] for b in ended.record["engines"]["builds"][1:]} == {"lost"}


def test_a_hanging_build_times_out(engines):
    ended = engines(
        models.layer_norm(),
        *("--budget", "build-timeout=10", "--budget", "builds=2"),
        faults=[Fault("build", "hang", on=(3,))],
    )
    assert ended.code == 0, ended.err
    statuses = [b["status"] for b in ended.record["engines"]["builds"]]
    assert statuses.count("timeout") == 1
    assert "took longer than 10 s and was ended" in told(ended)


def test_an_engine_that_crashes_when_it_runs_is_told(engines):
    ended = engines(models.layer_norm(), faults=[Fault("run", "segv", when={"low": "fp16"})])
    assert ended.code == 0, ended.err
    assert "FP16: no engine runs to the end" in told(ended)
    assert rows(ended).keys() == {"FP32, TF32 off", "FP32, TF32 on", "FP16"}


@pytest.mark.parametrize("fails", ["some", "any"])
def test_a_norm_without_a_kernel_is_kept_whole_or_made_one_node(engines, fails):
    """The builder refuses it in part, or wherever any of it is constrained."""
    nodes = ("square", "variance", "eps", "root", "divide")
    fault = Fault("build", "foreign", nodes=nodes, fails=fails)
    ended = engines(models.layer_norm(), "--no-repair", "--budget", "builds=6", faults=[fault])
    assert ended.code == 0, ended.err
    assert any("ForeignNode" in b["message"] + " ".join(b["log"]) for b in builds(ended, "failed"))
    found, next_ = ended.record["engines"], [s["kind"] for s in ended.record["next_step"]]
    if fails == "some":
        assert found["rung"] == "fp16"
        assert set(nodes) <= set(found["keep"])
    else:
        assert found["rung"] in ("fp32", "tf32")
        assert "reexport" in next_


def builds(ended, status):
    return [b for b in ended.record["engines"]["builds"] if b["status"] == status]


def test_a_constraint_that_is_not_honoured_is_told(engines):
    ended = engines(models.layer_norm(), "--no-repair", ignored=["square"])
    assert ended.code == 0, ended.err
    assert ended.record["engines"]["rung"] == "fp32"
    causes = {cause["kind"]: cause for cause in ended.record["engines"]["causes"]}
    assert causes["ignored"]["nodes"] == ["square"]
    assert "The builder ignored constraints: the inspector shows square" in told(ended)
    assert "Not as requested" in ended.out


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_a_lossy_kernel_is_found_and_kept(engines, version):
    ended = engines(
        models.layer_norm(),
        "--no-repair",
        "--budget",
        "builds=6",
        lossy={"gamma": 1.5},
        version=version,
    )
    assert ended.code == 0, ended.err
    assert "gamma" in ended.record["engines"]["keep"]
    rounds = ended.record["engines"]["rounds"]
    right = next(r for r in rounds if r["passed"])
    assert any(r["predicted"] < 1 < r["measured"] for r in rounds)
    assert right["measured"] <= 2 * right["predicted"]
    kept = {k["node"]: k for k in ended.record["plan"]["keep"]}
    assert kept["gamma"]["kept_by"] == "engine"


def test_plans_that_pass_by_luck_are_not_delivered(engines):
    ended = engines(
        models.layer_norm(), "--no-repair", "--engine", "repeat=3", vary=(0.5, 4), memory=None
    )
    found = ended.record["engines"]
    assert ended.code == 0, ended.err
    assert set(found["keep"]) >= models.layer_norm().kept
    assert found["confirmed"] == len(found["spread"]) == 3


@pytest.mark.parametrize("version", ["10.0.1", "11.4.0"])
def test_strong_typing(engines, version):
    ended = engines(models.layer_norm(), "--no-repair", version=version)
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    assert found["typing"] == "strong"
    assert [row["name"] for row in found["results"]] == TABLE
    assert rows(ended)["mixed"]["proof"]["findings"] == []


def test_tf32_on_request(engines):
    ended = engines(
        models.conv_chain(), "--engine", "tf32", "--require", "snr-db=30", "--rel-max", 0.1
    )
    assert ended.code == 0, ended.err
    on = {b["purpose"]: b["config"]["tf32"] for b in ended.record["engines"]["builds"]}
    assert not on.pop("FP32, TF32 off")
    assert all(on.values())


def test_tf32_where_the_plan_has_it(engines):
    ended = engines(models.busy_product(), "--no-repair", "--allow", "tf32", "--budget", "builds=4")
    assert ended.code == 0, ended.err
    assert [k["precision"] for k in ended.record["plan"]["keep"]] == ["tf32"]
    built = {b["purpose"]: b["config"] for b in ended.record["engines"]["builds"]}
    assert not built["FP32, TF32 off"]["tf32"]
    kept = [config["tf32"] for config in built.values() if config["keep"]]
    assert kept
    assert all(kept)
    marked = {n.name for n in onnx.load(ended.model).graph.node if n.metadata_props}
    assert marked == ended.kept


def dynamic() -> Ill:
    """A batch and a length that may vary, and an input of integers."""
    s = Sketch()
    x = s.input("x", ["n", "t", 16])
    ids = s.input("ids", ["n", 2], onnx.TensorProto.INT64)
    big = s.op("Mul", x, 300.0, name="big")
    square = s.op("Mul", big, big, name="square")
    root = s.op("Sqrt", s.op("ReduceMean", square, name="mean", axes=[1], keepdims=0), name="root")
    small = s.op("Cast", ids, name="cast", to=onnx.TensorProto.FLOAT)
    y = s.op("Add", root, s.op("ReduceSum", small, [1], name="sum"), name="add")
    inputs: dict[str, np.ndarray] = {
        "x": np.random.default_rng(0).uniform(1, 4, (8, 1, 3, 16)).astype(np.float32),
        "ids": np.arange(16, dtype=np.int64).reshape(8, 1, 2),
    }
    return Ill(s.proto(y), inputs)


def test_shapes_of_the_options_and_those_that_no_data_have(engines):
    ended = engines(
        dynamic(),
        "--no-repair",
        *("--engine", "minShapes=x:1x3x16,ids:1x2", "--engine", "optShapes=x:2x3x16,ids:2x2"),
        *("--engine", "maxShapes=x:4x7x16,ids:4x2"),
    )
    assert ended.code == 0, ended.err
    judged = {s["at"]: s for s in rows(ended)["mixed"]["shapes"]}
    assert judged.keys() == {"min", "opt", "max"}
    assert judged["min"]["verdict"]["passed"]
    assert judged["opt"]["verdict"]["passed"]
    assert judged["max"]["verdict"] is None
    assert "not judged" in told(ended)
    assert rows(ended)["mixed"]["latency"]["shapes"]["x"] == [2, 3, 16]


def test_profiles_from_the_data(engines):
    ended = engines(dynamic())
    assert ended.code == 0, ended.err
    (profile,) = ended.record["engines"]["profiles"]
    assert profile["shapes"]["x"]["max"] == [1, 3, 16]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "bf16"), "has no BF16"),
        (("--typing", "strong"), "TensorRT 8.6.1 has no strong typing."),
        (
            (
                "--engine",
                "minShapes=x:4x3x16",
                "--engine",
                "optShapes=x:2x3x16",
                "--engine",
                "maxShapes=x:8x3x16",
            ),
            "x",
        ),
    ],
)
def test_what_the_version_or_the_shapes_do_not_allow(refused, saved, fake_worker, options, said):
    model, inputs = saved(dynamic())
    command = shlex.join(fake_worker())
    code = 3 if "minShapes=x:4x3x16" in options else 2
    where = ("--target", "tensorrt", "--trt-command", command)
    text = refused(code, "fix", model, "--inputs", inputs, "-o", "run", *where, *options)
    assert said in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--budget", "builds=3"), "--budget builds"),
        (("--engine", "tf32"), "--engine tf32"),
        (("--trt-command", "python3"), "--trt-command"),
    ],
)
def test_options_of_engines_need_a_target(refused, files, words, named):
    model, inputs = files
    text = refused(2, "fix", model, "--inputs", inputs, "-o", "run", *words)
    assert f"{named} does not apply without --target tensorrt" in text


def integers(factor: int = 1) -> Ill:
    s = Sketch()
    places = s.input("ids", [1, 4], onnx.TensorProto.INT64)
    rows_ = s.op("Gather", s.input("x", [8, 16]), places, name="pick")
    out = s.op("Mul", s.op("Mul", rows_, 300.0, name="big"), 1e-3, name="back")
    last = s.op("Mul", places, np.asarray(factor), name="scaled")
    inputs: dict[str, np.ndarray] = {
        "x": np.random.default_rng(0).uniform(1, 4, (8, 8, 16)).astype(np.float32),
        "ids": (np.arange(32) % 8).reshape(8, 1, 4).astype(np.int64),
    }
    return Ill(s.proto(out, last), inputs)


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_integers_of_fixed_shape(engines, version):
    ended = engines(integers(), version=version)
    assert ended.code == 0, ended.err
    assert ended.record["verdict"]["outputs"]["scaled_out"]["agreement"] == 1
