import pytest

from halfwise.records import Repeated, Repetition
from tests.unit.reporting.engine_runs import build
from tests.unit.reporting.runs import verdict, verification


def test_verify(call, answer):
    calls = answer("verify", verification(verdict=verdict(passed=False)))
    code, out, _ = call("verify", "m.onnx", "c.onnx", "--inputs", "x.npz", "--max-abs", "0.5")
    assert code == 10
    assert out.startswith("FAILED")
    (arguments, options) = calls[0]
    assert [str(a) for a in arguments] == ["m.onnx", "c.onnx", "x.npz"]
    assert (options["out"], options["max_abs"], options["runner"]) == (None, 0.5, None)


def test_a_runner_is_handed_on(call, answer):
    calls = answer("verify", verification())
    call("verify", "m.onnx", "o.json", "--inputs", "i.json", "--runner", "trt")
    assert calls[0][1]["runner"] == "trt"


def test_one_worker_for_an_engine(call, answer):
    calls = answer("verify", verification())
    call("verify", "m.onnx", "e.engine", "--inputs", "x.npz", "--trt-command", "ssh a python3")
    assert calls[0][1]["trt_command"] == "ssh a python3"
    code, _, err = call(
        "verify", "m.onnx", "e.engine", "--inputs", "x.npz",
        *("--trt-worker", "a", "--trt-worker", "b"),
    )  # fmt: skip
    assert code == 2
    assert "2 workers are named" in err


def test_several_workers_for_a_run(call, answer):
    row = Repeated(name="a", worker=None, what="rebuilt", verdict=verdict())
    calls = answer("verify_run", Repetition(run="run", samples=3, rows=(row,)))
    line = ("verify", "run", "--target", "tensorrt", "--inputs", "x.npz")
    workers = ("--trt-worker", "a", "--trt-worker", "b", "--trt-command", "ssh c python3")
    code, out, _ = call(*line, *workers, "--build-timeout", "9", "--seed", "1")
    assert code == 0
    assert out.startswith("PASSED: 1 of 1 engine passed")
    options = calls[0][1]
    assert options.pop("watcher")
    assert options == {
        "trt_worker": ["a", "b"],
        "trt_command": ["ssh c python3"],
        "build_timeout": 9.0,
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"verdict": verdict(passed=False)}, 10),
        ({"failure": "It does not answer."}, 4),
        ({"failure": "It crashed.", "build": build(1, "x", status="crashed", engine=None)}, 10),
    ],
)
def test_exit_codes_of_repetitions(call, answer, row, code):
    rows = (Repeated(name="a", worker=None, what="rebuilt", **row),)
    answer("verify_run", Repetition(run="run", samples=3, rows=rows))
    assert call("verify", "run", "--target", "tensorrt", "--inputs", "x.npz")[0] == code
