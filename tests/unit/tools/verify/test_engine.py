import shlex

import numpy as np
import onnx
import pytest

from halfwise import build, verify
from halfwise.errors import CaseError, UsageError
from halfwise.records import TensorName
from halfwise.tools.verify.engine import understand_verify
from tests.engines import SQUARES

X = {"x": np.linspace(1, 2, 24, dtype=np.float32).reshape(6, 4)}


@pytest.fixture
def command(fake_worker):
    return shlex.join(fake_worker())


@pytest.fixture
def engine(tmp_path, command):
    out, keep = tmp_path / "e.engine", ["square", "root"]
    build(SQUARES, out, inputs=X, trt_command=command, to="fp16", keep=keep)
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
    assert "random" in run.verdict.reasons[-1]


def test_engines_of_other_models(engine, command):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] z) => (float[n, 4] y)
    { y = Abs(z) }"""
    other = onnx.parser.parse_model(text)
    with pytest.raises(CaseError, match="inputs are 'x', the model's 'z'"):
        verify(other, engine, {"z": X["x"]}, trt_command=command)


def test_options_of_workers_stand_apart():
    request, target = understand_verify("x.npz", {"trt_python": "/p", "max_abs": 1.0})
    assert target.workers[0].command == ("/p",)
    assert request.given == {"max_abs": "1.0"}
    with pytest.raises(UsageError, match="each name a worker"):
        understand_verify("x.npz", {"trt_python": "/p", "trt_command": "q"})
