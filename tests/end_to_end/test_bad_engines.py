"""What is wrong with a worker, an engine or a model ends with one clear message and its exit code.

Messages of the fake are those that TensorRT 8.6.0 gave on an H200, or that its issues report.
"""

import shlex
import sys

import onnx
import pytest

from tests.engines import ODD, save_squares, worker
from tests.fake_tensorrt.faults import Fault

SHAPES = ("--engine", "optShapes=x:2x4")


@pytest.fixture(autouse=True)
def squares(tmp_path):
    """The model and its inputs in the working directory."""
    return save_squares(tmp_path)


@pytest.fixture
def engine(call, fake_worker, tmp_path):
    ended = call("build", "m.onnx", "-o", "e.engine", *SHAPES, *worker(fake_worker()))
    assert ended.code == 0, ended.err
    return tmp_path / "e.engine"


def building(*options):
    return ("build", "m.onnx", "-o", "new.engine", *SHAPES, *options)


def test_no_tensorrt(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    bare = worker(["env", f"PYTHONPATH={tmp_path / 'empty'}", sys.executable, "-I"])
    message = refused(4, *building(*bare))
    assert "cannot import tensorrt" in message
    assert "--trt-command" in message


@pytest.mark.parametrize("version", ["8.4.1", "12.0.0"])
def test_a_version_outside_the_range(refused, tmp_path, version):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "tensorrt.py").write_text(f"__version__ = {version!r}\n")
    command = worker(["env", f"PYTHONPATH={tmp_path / 'there'}", sys.executable])
    message = refused(4, *building(*command))
    assert f"TensorRT {version} is not supported; TensorRT 8.5 to 11.4" in message


def test_a_python_that_is_too_old(refused, tmp_path):
    old = tmp_path / "python3.6"
    code = "import sys; sys.version_info = (3, 6, 9); sys.version = '3.6.9 (old)'"
    run = shlex.quote(f"{code}; exec(sys.argv[2])")
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c {run} "$@"\n')
    old.chmod(0o755)
    message = refused(4, *building("--trt-command", str(old)))
    assert "needs Python 3.8 or later there; this is Python 3.6.9" in message


def test_no_gpu(refused, fake_worker):
    assert "driver here shows no GPU" in refused(4, *building(*worker(fake_worker(gpus=0))))
    absent = fake_worker(environment={"HALFWISE_CUDA_LIBRARY": "absent.so"})
    assert "There is no NVIDIA driver here" in refused(4, *building(*worker(absent)))


def test_an_engine_runs_in_no_other_target(refused, engine, fake_worker):
    targets = ("--target", "tensorrt", "--target", "webgpu", *worker(fake_worker()))
    message = refused(2, "verify", "m.onnx", engine, "--inputs", "x.npz", *targets)
    assert "--target does not apply to an engine" in message


def test_an_engine_of_another_version(refused, engine, fake_worker):
    message = refused(7, "inspect", engine, *worker(fake_worker("10.0.1")))
    assert "The engine was built by TensorRT 8.6.1; this is TensorRT 10.0.1." in message


def test_an_engine_of_another_gpu(refused, engine, fake_worker):
    other = worker(fake_worker(faults=[Fault("deserialise", "device")]))
    message = refused(7, "verify", "m.onnx", engine, "--inputs", "x.npz", *other)
    assert "built for compute capability 9.0; this GPU has 8.6" in message
    assert "Build on the GPU that runs the engine." in message


def test_a_truncated_engine(refused, engine, fake_worker, tmp_path):
    (tmp_path / "t.engine").write_bytes(engine.read_bytes()[:-40])
    message = refused(7, "inspect", "t.engine", *worker(fake_worker()))
    assert "The engine file is damaged or truncated, or is not an engine." in message
    assert "assertion" not in message


def test_what_is_no_engine(refused, fake_worker, tmp_path):
    (tmp_path / "o.engine").write_bytes((tmp_path / "m.onnx").read_bytes())
    (tmp_path / "empty.engine").write_bytes(b"")
    (tmp_path / "u.engine").write_bytes(b"\x10\0\0\0" + b'{"task": "seg"}.' + b"ftrt")
    option = worker(fake_worker())
    assert "has no valid engine header" in refused(7, "inspect", "o.engine", *option)
    assert "is empty" in refused(3, "inspect", "empty.engine", *option)
    assert "There is no engine absent.engine" in refused(3, "inspect", "absent.engine", *option)
    message = refused(3, "verify", "m.onnx", "u.engine", "--inputs", "x.npz", *option)
    assert "Ultralytics' metadata" in message
    assert "tail -c +21" in message


def test_an_engine_of_another_model(refused, engine, fake_worker, tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] z)
    { z = Abs(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "other.onnx")
    arguments = ("verify", "other.onnx", engine, "--inputs", "x.npz")
    message = refused(3, *arguments, *worker(fake_worker()))
    assert "The engine's outputs are 'y', the model's 'z'." in message


def test_shapes_outside_the_profile(refused, engine, fake_worker):
    option = worker(fake_worker())
    message = refused(3, "verify", "m.onnx", engine, "--inputs", "x.npz", *option)
    assert "x is 1×4, allowed 2×4 to 2×4" in message
    assert "x is 1×4" in refused(3, *building("--inputs", "x.npz", *option))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("--engine", "minShapes=x:5x4", "--engine", "maxShapes=x:2x4"),
            "minShapes is larger than",
        ),
        (("--engine", "optShapes=z:5x4"), "The model has no input 'z'."),
        (("--engine", "optShapes=x:5x3"), "the model fixes it to 4"),
    ],
)
def test_profiles_that_cannot_be(refused, fake_worker, options, expected):
    arguments = ("build", "m.onnx", "-o", "new.engine", *options)
    assert expected in refused(3, *arguments, *worker(fake_worker()))


def test_sizes_of_dynamic_axes_are_asked_for(refused, fake_worker):
    asked = refused(2, "build", "m.onnx", "-o", "new.engine", *worker(fake_worker()))
    assert "Input 'x' has a dynamic axis" in asked


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_a_model_that_cannot_be_parsed(refused, fake_worker, tmp_path, version):
    onnx.save(ODD, tmp_path / "odd.onnx")
    arguments = ("build", "odd.onnx", "-o", "new.engine", *worker(fake_worker(version)))
    message = refused(5, *arguments)
    assert f"TensorRT {version} cannot parse the model at node odd (Odd):" in message
    assert "no plugin of that name is registered" in message
    assert "hint: even: The parser does not support the operator Even" in message
    assert "Assertion" not in message


def test_a_build_that_crashes(refused, fake_worker):
    command = worker(fake_worker(faults=[Fault("build", "segv")]))
    message = refused(5, *building(*command))
    assert "no engine of this model (crashed by SIGSEGV): The build ended with SIGSEGV." in message


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        (("--typing", "strong"), 2, "TensorRT 8.6.1 has no strong typing."),
        (("--to", "bf16"), 2, "TensorRT 8.6.1 has no BF16."),
        (("--engine", "tactic-sources=CUDNN,FOO"), 2, "TensorRT 8.6.1 has no tactic source FOO."),
        (("--engine", "optimization-level=9"), 2, "--engine optimization-level is 9; expected"),
    ],
)
def test_engines_that_cannot_be_asked_for(refused, fake_worker, options, code, expected):
    assert expected in refused(code, *building(*options, *worker(fake_worker())))


def test_types_have_no_meaning_in_strong_typing(refused, fake_worker):
    ten = worker(fake_worker("10.0.1"))
    assert "--to does not apply with strong typing" in refused(2, *building("--to", "fp16", *ten))


def test_the_engine_exists(refused, fake_worker, tmp_path):
    (tmp_path / "e.engine").write_bytes(b"")
    arguments = ("build", "m.onnx", "-o", "e.engine", *SHAPES)
    assert "The output file e.engine already exists." in refused(
        2, *arguments, *worker(fake_worker())
    )


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("m.onnx", "m.onnx", "--trt-command", "p"), 2, "--trt-command does not apply"),
        (("m.onnx", "e.engine", "--accumulate", "fp16"), 2, "--accumulate does not apply"),
    ],
)
def test_combinations_without_a_meaning(refused, arguments, code, expected):
    assert expected in refused(code, "verify", *arguments, "--inputs", "x.npz")
