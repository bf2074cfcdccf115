"""Client, worker and the stand-in for TensorRT together; the processes are real."""

import numpy as np
import onnx
import pytest

from halfwise.errors import BackendMissing, CaseError, RecordMismatch
from halfwise.records import BuildConfig, NodeName, Profile, ShapeRange, TensorName
from halfwise.tensorrt.client import Worker
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.link import model_files
from tests.fake_tensorrt.faults import Fault

SQUARES = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] x) => (float[n, 4] y)
    <float[1] w = {300}> { [mul] a = Mul(x, w) [square] b = Mul(a, a) [root] y = Sqrt(b) }"""
)
"""FP16 overflows in the square."""
X = {"x": np.full((2, 4), 1.5, np.float32)}
SHAPES = {TensorName("x"): ShapeRange(min=(1, 4), opt=(2, 4), max=(3, 4))}


@pytest.fixture
def model(tmp_path):
    onnx.save(SQUARES, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def build(worker, model, *, keep=(), timeout=None, **further):
    config = BuildConfig(
        model_sha256=model_files(model).sha256,
        typing="weak",
        low="fp16",
        keep=tuple(map(NodeName, keep)),
        profiles=(Profile(shapes=SHAPES),),
    )
    return worker.build(model, config, number=1, purpose="test", timeout=timeout, **further)


def test_an_engine_there_and_back(fake_worker, model, tmp_path):
    with Worker("fake", fake_worker("8.6.1")) as worker:
        worker.demand_usable()
        plain = build(worker, model, cached=True)
        assert np.isinf(worker.run(plain.engine, 0, X)["y"]).all()
        mixed = build(worker, model, keep=["square", "root", "absent"], cached=True)
        assert mixed.unconstrained.keys() == {"absent"}
        assert [layer.nodes for layer in mixed.layers if layer.constrained] == [
            ("square",),
            ("root",),
        ]
        np.testing.assert_allclose(worker.run(mixed.engine, 0, X)["y"], 450, rtol=1e-3)
        timed = worker.time(mixed.engine, 0, X, iterations=5, seconds=0.01, warmup=0.01)
        assert timed.iterations >= 5
        assert "square" in worker.inspect(mixed.engine, 0, X)
        fetched = worker.fetch(mixed.engine, tmp_path / "e.engine")
        with pytest.raises(CaseError, match=r"has shape \[5, 4\].*\[1, 4\] to \[3, 4\]"):
            worker.run(mixed.engine, 0, {"x": np.zeros((5, 4), np.float32)})
    with Worker("again", fake_worker("8.6.1")) as worker:
        engine = worker.upload(tmp_path / "e.engine")
        assert engine.sha256 == fetched.sha256
        assert worker.describe(engine).tensors[0].limits == (SHAPES[TensorName("x")],)
        np.testing.assert_allclose(worker.run(engine, 0, X)["y"], 450, rtol=1e-3)
    with Worker("newer", fake_worker("10.0.1")) as worker:
        engine = worker.upload(tmp_path / "e.engine")
        with pytest.raises(RecordMismatch, match="cannot read the engine") as mismatch:
            worker.run(engine, 0, X)
        assert "the TensorRT version and kind of GPU" in mismatch.value.hint


@pytest.mark.parametrize(
    ("at", "do", "status", "name"),
    [
        ("build", "segv", "crashed", "SIGSEGV"),
        ("run", "segv", "crashed", "SIGSEGV"),
        ("build", "abort", "crashed", "SIGABRT"),
        ("run", "kill", "crashed", "SIGKILL"),
        ("build", "exit", "crashed", None),
        ("run", "hang", "timeout", None),
        ("build", "disconnect", "lost", None),
        ("run", "disconnect", "lost", None),
        ("build", "memory", "failed", None),
        ("run", "raise", "failed", None),
    ],
)
def test_every_end_is_an_outcome_and_the_next_request_works(
    fake_worker, model, at, do, status, name
):
    # Enough to come to the fault, where it hangs: a time-out before it would leave it to the next.
    timeout = 5.0 if do == "hang" else None
    with Worker("fake", fake_worker(faults=[Fault(at, do, on=(1,))])) as worker:
        first = build(worker, model)
        if at == "build":
            assert (first.status, first.signal) == (status, name)
            assert first.message.endswith(".")
            first = build(worker, model)
        elif status != "lost":  # then it is asked again
            worker.describe(first.engine)
            with pytest.raises(EngineFailed) as failed:
                worker.run(first.engine, 0, X, timeout)
            assert (failed.value.status, failed.value.signal) == (status, name)
        assert first.status == "built"
        assert worker.run(first.engine, 0, X).keys() == {"y"}


def test_what_is_missing(fake_worker, model, tmp_path):
    with Worker("none", fake_worker(gpus=0)) as worker:
        assert "The NVIDIA driver here shows no GPU" in worker.info.trouble
        with pytest.raises(BackendMissing):
            build(worker, model)
    command = fake_worker(environment={"HALFWISE_CUDA_LIBRARY": str(tmp_path / "absent.so")})
    with Worker("none", command) as worker:
        assert "There is no NVIDIA driver here" in worker.info.trouble


def test_a_crash_on_import_is_told(fake_worker):
    command = fake_worker(faults=[Fault("import", "segv")])
    with pytest.raises(BackendMissing, match="Importing TensorRT ended with SIGSEGV"):
        Worker("fake", command).__enter__()
