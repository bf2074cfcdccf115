"""The worker as it is, a process of its own; TensorRT and the GPU are those of `fake_tensorrt`."""

import hashlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from halfwise.tensorrt.transport import Frame, Unpacker
from halfwise.tensorrt.worker import pack
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.start import worker_command
from tests.processes import children_of, is_running, wait_for
from tests.unit.tensorrt.pipe import CONFIG, Answer, Gone, Pipe, arrays, engine_file

VERSIONS = ("8.6.1", "10.0.1", "11.4.0")
Command = Callable[..., list[str]]


def model(text: str, opset: int = 17) -> onnx.ModelProto:
    """Parse a graph, given as ONNX's own text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')


SQUARES = model(
    """(float[n, 4] x) => (float[n, 4] y) <float[1] w = {300}>
    { [mul] a = Mul(x, w) [square] b = Mul(a, a) [root] y = Sqrt(b) }"""
)
"""FP16 overflows in the square of 450 and more than 255."""
LARGE = np.full((2, 4), 1.5, np.float32)


def profile(**limits: tuple[tuple[int, ...], ...]) -> list[dict[str, Any]]:
    """A profile of shapes."""
    shapes = {n: dict(zip(("min", "opt", "max"), v, strict=True)) for n, v in limits.items()}
    return [{"shapes": shapes, "values": {}}]


PROFILE = profile(x=((1, 4), (2, 4), (3, 4)))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, cuda_library: Path) -> Iterator[Pipe]:
    """A worker of 8.6.1 without faults, one for all tests, in an interpreter that starts anew."""
    with Pipe(worker_command(tmp_path_factory.mktemp("worker"), cuda_library)) as pipe:
        yield pipe


def built(answer: Answer) -> str:
    """The engine of a build that must have worked."""
    assert answer["kind"] == "result", answer
    return str(answer["engine"]["sha256"])


def refused(answer: Answer, code: str) -> str:
    """The message of a request that must have been refused."""
    assert (answer["kind"], answer.get("code")) == ("error", code), answer
    return str(answer["message"])


# Frames.


def test_frames_are_found_between_noise() -> None:
    data = b"Welcome!\n" + pack({"a": 1}, b"xyz") + b"half \x00\xff" + pack({"b": 2})
    unpacker, found, noise = Unpacker(), list[Frame](), b""
    for byte in data:
        frames, between = unpacker.feed(bytes([byte]))
        found, noise = found + frames, noise + between
    assert found == [({"a": 1}, b"xyz"), ({"b": 2}, b"")]
    assert noise == b"Welcome!\nhalf \x00\xff"


# What is here.


@pytest.mark.parametrize(
    ("version", "typing"),
    [("8.6.1", ["weak"]), ("10.0.1", ["strong", "weak"]), ("11.4.0", ["strong"])],
)
def test_hello(fake_worker: Command, version: str, typing: list[str]) -> None:
    with Pipe(fake_worker(version)) as pipe:
        hello = pipe.ask("hello")
    assert (hello["tensorrt"], hello["typing"]) == (version, typing)
    assert hello["gpus"][0]["name"] == "Fake GPU"
    assert hello["gpus"][0]["compute_capability"] == "9.0"
    assert hello["gpus"][0]["memory"] == 8 << 30


def test_hello_without_tensorrt_or_gpu(fake_worker: Command) -> None:
    with Pipe(fake_worker(environment={"PYTHONPATH": ""}, gpus=0)) as pipe:
        hello = pipe.ask("hello")
        assert hello["import_error"]["code"] == "tensorrt-missing"
        assert hello["cuda_error"]["code"] == "gpu-missing"
        assert "cannot import tensorrt" in refused(pipe.build(SQUARES), "tensorrt-missing")


def test_hello_without_a_driver(fake_worker: Command) -> None:
    command = fake_worker(environment={"HALFWISE_CUDA_LIBRARY": "no-such-library.so"})
    with Pipe(command) as pipe:
        assert "no-such-library.so" in pipe.ask("hello")["cuda_error"]["message"]
        refused(pipe.build(SQUARES, profiles=PROFILE), "gpu-missing")


@pytest.mark.parametrize("version", ["7.2.3", "12.0.0"])
def test_versions_out_of_range_are_refused(
    fake_worker: Command, tmp_path: Path, version: str
) -> None:
    (tmp_path / "tensorrt.py").write_text(f"__version__ = {version!r}\n")
    with Pipe(fake_worker(environment={"PYTHONPATH": str(tmp_path)})) as pipe:
        assert version in refused(pipe.build(SQUARES), "tensorrt-version")


def test_unknown_operation(worker: Pipe) -> None:
    assert "op_dance" in refused(worker.ask("dance"), "internal")


# Files.


def test_files_travel_once_in_pieces(worker: Pipe) -> None:
    data = os.urandom(3000)
    sha256 = hashlib.sha256(data).hexdigest()
    assert worker.ask("have", hashes=[sha256])["missing"] == [sha256]
    for start in range(0, 3000, 1000):
        piece = data[start : start + 1000]
        worker.ask("put", piece, sha256=sha256, offset=start, last=start == 2000)
    assert worker.ask("have", hashes=[sha256])["missing"] == []
    answer = worker.ask("get", sha256=sha256, offset=500, length=1000)
    assert (answer["total"], answer.payload) == (3000, data[500:1500])
    worker.ask("forget", sha256=sha256)
    assert worker.ask("have", hashes=[sha256])["missing"] == [sha256]
    assert worker.ask("forget", sha256=sha256)["kind"] == "result"
    refused(worker.ask("get", sha256=sha256, offset=0, length=1), "internal")


# Builds and runs.


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_is_built_and_run(fake_worker: Command, version: str) -> None:
    typing = "strong" if version.startswith("11") else "weak"
    with Pipe(fake_worker(version)) as pipe:
        answer = pipe.build(SQUARES, profiles=PROFILE, typing=typing)
        engine = built(answer)
        names = [(name, nodes) for name, _, nodes, _ in answer["layers"]]
        assert names == [("w", []), *((n, [n]) for n in ("mul", "square", "root"))]
        found = arrays(pipe.run(engine, x=LARGE))
        data = pipe.ask("get", sha256=engine, offset=0, length=1 << 20).payload
    np.testing.assert_allclose(found["y"], LARGE * 300, rtol=1e-6)
    assert hashlib.sha256(data).hexdigest() == engine


def test_overflow_overflows_and_a_constraint_helps(worker: Pipe) -> None:
    low = built(worker.build(SQUARES, profiles=PROFILE, low="fp16"))
    answer = worker.build(SQUARES, profiles=PROFILE, low="fp16", keep=["square", "root", "ghost"])
    assert np.isinf(arrays(worker.run(low, x=LARGE))["y"]).all()
    assert (arrays(worker.run(built(answer), x=LARGE))["y"] == 450).all()
    assert [layer[3] for layer in answer["layers"]] == [False, False, True, True]
    assert answer["unconstrained"] == {"ghost": "no layer of the network names it"}


def test_weak_typing_ignores_casts_and_strong_typing_obeys_them(fake_worker: Command) -> None:
    casts = model(
        """(float[2, 4] x) => (float[2, 4] y) <float[1] w = {300}>
        { [mul] a = Mul(x, w) [down] h = Cast<to = 10>(a) [square] b = Mul(h, h)
          [up] c = Cast<to = 1>(b) [root] y = Sqrt(c) }"""
    )
    with Pipe(fake_worker("10.0.1")) as pipe:
        weak = pipe.build(casts, typing="weak")
        strong = pipe.build(casts, typing="strong")
        assert (arrays(pipe.run(built(weak), x=LARGE))["y"] == 450).all()
        assert np.isinf(arrays(pipe.run(built(strong), x=LARGE))["y"]).all()


def test_builds_differ_by_chance(fake_worker: Command) -> None:
    with Pipe(fake_worker(vary=(0.5, 1))) as pipe:
        how: dict[str, Any] = {"profiles": PROFILE, "low": "fp16"}
        engines = [built(pipe.build(SQUARES, **how)) for _ in range(8)]
        found = [np.isinf(arrays(pipe.run(engine, x=LARGE))["y"]).all() for engine in engines]
    assert len(set(engines)) == 8
    assert len(set(found)) == 2


def test_the_builder_tells_of_weights(worker: Pipe) -> None:
    scaled = model(
        """(float[2] x) => (float[2] y)
        <float[1] large = {100000}, float[1] small = {1e-6}, float[1] eps = {1e-12}>
        { [a] z = Mul(x, small) [b] v = Mul(z, large) [c] y = Add(v, eps) }"""
    )
    assert worker.build(scaled).lines("warning") == []
    lines = worker.build(scaled, low="fp16").lines("warning")
    assert lines[0].startswith("TensorRT encountered issues when converting weights")
    assert [line for line in lines if "- 1 weights are affected" in line] == lines[1:4]
    engine = built(worker.build(scaled, low="fp16"))
    smallest = arrays(worker.run(engine, x=np.zeros(2, np.float32)))["y"]
    assert smallest.tolist() == [2.0**-24] * 2


def test_several_profiles(worker: Pipe) -> None:
    other = profile(x=((8, 4), (9, 4), (10, 4)))
    engine = built(worker.build(SQUARES, profiles=PROFILE + other))
    described = worker.ask("describe", engine=engine)
    assert described["profiles"] == 2
    assert [p["max"] for p in described["io"][0]["profiles"]] == [[3, 4], [10, 4]]
    nine = np.ones((9, 4), np.float32)
    refused(worker.run(engine, x=nine), "shape")
    told = [{"name": "x", "dtype": "float32", "shape": [9, 4]}]
    answer = worker.ask("run", nine.tobytes(), engine=engine, profile=1, inputs=told)
    assert arrays(answer)["y"].shape == (9, 4)


def test_casts_and_integers_take_no_constraint(worker: Pipe) -> None:
    moving = model(
        """(float[2, 4] x) => (float[2, 4] y, int64[2] s) <float[1] w = {2}>
        { [shape] s = Shape(x) [cast] c = Cast<to = 1>(s) [total] t = ReduceSum<keepdims = 0>(c)
          [mul] y = Mul(x, t) }"""
    )
    answer = worker.build(moving, low="fp16", keep=["shape", "cast", "mul"])
    built(answer)
    assert [layer[0] for layer in answer["layers"] if layer[3]] == ["mul"]
    assert set(answer["unconstrained"]) == {"shape", "cast"}


def test_tf32_rounds_products(worker: Pipe) -> None:
    product = model("(float[2, 4] x, float[4, 2] w) => (float[2, 2] y) { [p] y = MatMul(x, w) }")
    sample = {"x": LARGE, "w": np.full((4, 2), 1 + 2**-12, np.float32)}
    exact = worker.run(built(worker.build(product)), **sample)
    rounded = worker.run(built(worker.build(product, tf32=True)), **sample)
    assert (arrays(exact)["y"] == 6 * (1 + 2**-12)).all()
    assert (arrays(rounded)["y"] == 6).all()


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1"])
def test_every_type_of_input_and_output(fake_worker: Command, version: str) -> None:
    kinds = model(
        """(float16[3] h, int64[3] i, int32[3] j, bool[3] b, float[3] f)
        => (float16[3] h2, int64[3] i2, int32[3] j2, bool[3] b2, float[3] f2) {
        [a] h2 = Add(h, h) [c] i2 = Add(i, i) [d] j2 = Mul(j, j) [e] b2 = Not(b)
        [g] f2 = Add(f, f) }"""
    )
    wide = np.int64 if version == "10.0.1" else np.int32
    sample = {
        "h": np.array([1, 2.5, 40000], np.float16),
        "i": np.array([1, -2, 3], wide),
        "j": np.array([4, 5, -6], np.int32),
        "b": np.array([True, False, True]),
        "f": np.array([1e-30, 2, 3], np.float32),
    }
    with Pipe(fake_worker(version)) as pipe:
        engine = built(pipe.build(kinds, typing="weak"))
        io = {entry["name"]: entry for entry in pipe.ask("describe", engine=engine)["io"]}
        found = arrays(pipe.run(engine, **sample))
    assert io["i"]["dtype"] == np.dtype(wide).name
    assert {name: a.dtype for name, a in found.items()} == {
        "h2": np.float16,
        "i2": wide,
        "j2": np.int32,
        "b2": np.bool_,
        "f2": np.float32,
    }
    np.testing.assert_array_equal(found["h2"], np.array([2, 5, np.inf], np.float16))
    np.testing.assert_array_equal(found["i2"], [2, -4, 6])
    np.testing.assert_array_equal(found["j2"], [16, 25, 36])
    np.testing.assert_array_equal(found["b2"], [False, True, False])
    np.testing.assert_array_equal(found["f2"], sample["f"] * 2)


@pytest.mark.parametrize("version", VERSIONS)
def test_shapes_that_depend_on_data(fake_worker: Command, version: str) -> None:
    finding = model(
        "(float[2, 4] x) => (int64[2, m] y, float[2, 4] z) { [f] y = NonZero(x) [r] z = Relu(x) }"
    )
    with Pipe(fake_worker(version)) as pipe:
        typing = pipe.ask("hello")["typing"][0]
        engine = built(pipe.build(finding, typing=typing))
        for count in (3, 0, 8):
            x = (np.arange(8) < count).astype(np.float32).reshape(2, 4)
            found = arrays(pipe.run(engine, x=x))
            np.testing.assert_array_equal(found["y"], np.nonzero(x))
            np.testing.assert_array_equal(found["z"], x)


@pytest.mark.parametrize("version", VERSIONS)
def test_shape_tensors(fake_worker: Command, version: str) -> None:
    shaped = model("(float[2, 4] x, int64[2] s) => (float[a, b] y) { [r] y = Reshape(x, s) }")
    limits = {"min": [1, 1], "opt": [2, 4], "max": [8, 8]}
    wide = np.int32 if version == "8.6.1" else np.int64
    with Pipe(fake_worker(version)) as pipe:
        typing = pipe.ask("hello")["typing"][0]
        profiles = [{"shapes": {}, "values": {"s": limits}}]
        engine = built(pipe.build(shaped, typing=typing, profiles=profiles))
        io = {entry["name"]: entry for entry in pipe.ask("describe", engine=engine)["io"]}
        assert (io["s"]["shape_tensor"], io["s"]["location"]) == (True, "host")
        assert io["s"]["profiles"] == [limits]
        found = arrays(pipe.run(engine, x=LARGE, s=np.array([8, 1], wide)))
    assert found["y"].shape == (8, 1)


def test_external_data(worker: Pipe, tmp_path: Path) -> None:
    weights = np.arange(4096, dtype=np.float32).reshape(64, 64)
    product = model("(float[1, 64] x) => (float[1, 64] y) { [p] y = MatMul(x, w) }")
    product.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(product, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    files = [
        {"name": name, "sha256": worker.put((tmp_path / name).read_bytes())}
        for name in ("m.onnx", "m.data")
    ]
    answer = worker.ask("build", model={"files": files, "main": "m.onnx"}, config=CONFIG)
    x = np.eye(1, 64, 3, dtype=np.float32)
    np.testing.assert_array_equal(arrays(worker.run(built(answer), x=x))["y"], weights[3:4])


def test_timing(worker: Pipe) -> None:
    engine = built(worker.build(SQUARES, profiles=PROFILE))
    told = [{"name": "x", "dtype": "float32", "shape": [2, 4]}]
    found = worker.ask(
        "time", LARGE.tobytes(), engine=engine, inputs=told, seconds=0.1, iterations=20, warmup=0.0
    )
    assert found["iterations"] >= 20
    assert 0 < found["median_ms"] <= found["p99_ms"]
    assert found["device_bytes"] > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_inspection(fake_worker: Command, version: str) -> None:
    with Pipe(fake_worker(version, fused=[["mul", "square"]])) as pipe:
        typing = pipe.ask("hello")["typing"][0]
        engine = built(pipe.build(SQUARES, profiles=PROFILE, typing=typing))
        answer = pipe.run(engine, "inspect", x=LARGE)
    layers = json.loads(answer.payload, strict=False)["Layers"]
    assert [layer["Name"] for layer in layers] == ["{ForeignNode[mul...square]}", "root"]
    assert (b"\x1e" in answer.payload) == (version == "8.6.1")
    assert layers[1]["Outputs"][0]["Dimensions"] == [2, 4]


def test_the_timings_of_a_gpu_are_kept(fake_worker: Command) -> None:
    other = model("(float[1] x) => (float[1] y) { [other] y = Relu(x) }")
    with Pipe(fake_worker()) as pipe:
        for proto, profiles in ((SQUARES, PROFILE), (other, [])):
            request = pipe.build_request(proto, profiles=profiles) | {"cached": True}
            built(pipe.ask("build", **request))
        (cache,) = Path(pipe.ask("hello")["cache"]).glob("timing/*.cache")
        assert all(name in cache.read_bytes() for name in (b"square", b"other"))
        cache.write_bytes(b"garbage" * 9)
        built(pipe.ask("build", **request))
        assert b"other" in cache.read_bytes()


# What cannot be done.


def test_unparsable_models(worker: Pipe) -> None:
    assert "cannot parse" in refused(worker.build(b"not ONNX at all"), "parse")
    custom = model("(float[1] x) => (float[1] y) { [mine] y = my.Op(x) }")
    custom.graph.node[0].domain = "my.domain"
    custom.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    answer = worker.build(custom)
    refused(answer, "parse")
    assert "Plugin not found" in answer["errors"][0]["text"]
    assert any("While parsing node" in line for line in answer.lines("error"))
    unknown = worker.build(model("(float[2, 2] x) => (float[] y) { [area] y = Det(x) }"))
    refused(unknown, "parse")
    assert "(Det)" in unknown["errors"][0]["text"]


def test_profiles_that_cannot_be(worker: Pipe) -> None:
    assert "x" in refused(worker.build(SQUARES), "profile")
    wrong = profile(x=((3, 4), (2, 4), (1, 4)))
    refused(worker.build(SQUARES, profiles=wrong), "profile")
    other = profile(z=((1, 4), (2, 4), (3, 4)))
    assert "no shapes of input x" in refused(worker.build(SQUARES, profiles=other), "profile")
    ranks = profile(x=((1, 4), (2, 4, 1), (3, 4)))
    refused(worker.build(SQUARES, profiles=ranks), "profile")


def test_shapes_outside_the_profile(worker: Pipe) -> None:
    engine = built(worker.build(SQUARES, profiles=PROFILE))
    answer = worker.run(engine, x=np.zeros((4, 4), np.float32))
    assert "[1, 4] to [3, 4]" in refused(answer, "shape")
    refused(worker.run(engine, x=np.zeros((2, 5), np.float32)), "shape")
    refused(worker.run(engine, x=np.zeros(4, np.float32)), "shape")
    assert worker.run(engine, z=LARGE)["kind"] == "error"
    refused(worker.ask("run", b"", engine=engine, inputs=[]), "shape")
    answer = worker.ask("run", LARGE.tobytes(), engine=engine, profile=1, inputs=[])
    refused(answer, "profile")


@pytest.mark.parametrize(
    "damage", [lambda d: d[:-7], lambda d: d[:12], lambda _: b"", lambda d: b"\0" + d[1:]]
)
def test_damaged_engines(worker: Pipe, damage: Callable[[bytes], bytes]) -> None:
    engine = built(worker.build(SQUARES, profiles=PROFILE))
    data = worker.ask("get", sha256=engine, offset=0, length=1 << 20).payload
    answer = worker.run(worker.put(damage(data)), x=LARGE)
    assert "cannot read the engine" in refused(answer, "engine")
    assert answer["log"]
    assert worker.run(engine, x=LARGE)["kind"] == "result"


def test_engines_of_another_version(fake_worker: Command, tmp_path: Path) -> None:
    with Pipe(fake_worker("8.6.1")) as pipe:
        engine = built(pipe.build(SQUARES, profiles=PROFILE))
    assert engine_file(tmp_path, engine).is_file()
    with Pipe(fake_worker("10.0.1")) as pipe:
        answer = pipe.ask("describe", engine=engine)
    refused(answer, "engine")
    assert "got 8.6.1, please rebuild" in " ".join(answer["log"])


def test_plugins_that_are_not_there(worker: Pipe) -> None:
    answer = worker.build(SQUARES, profiles=PROFILE, plugins=["/no/such/libplugin.so"])
    assert "/no/such/libplugin.so" in refused(answer, "plugin")


def test_a_format_that_the_version_lacks(fake_worker: Command) -> None:
    with Pipe(fake_worker("8.6.1")) as pipe:
        answer = pipe.build(SQUARES, profiles=PROFILE, low="bf16")
        assert "no builder flag BF16" in refused(answer, "typing")


def test_no_implementation_for_a_fused_block(fake_worker: Command) -> None:
    block = Fault("build", "foreign", nodes=("mul", "square", "root"))
    with Pipe(fake_worker(faults=[block])) as pipe:
        how: dict[str, Any] = {"profiles": PROFILE, "low": "fp16"}
        answer = pipe.build(SQUARES, keep=["square"], **how)
        refused(answer, "build")
        assert "{ForeignNode[mul...root]}" in " ".join(answer["log"])
        built(pipe.build(SQUARES, keep=["mul", "square", "root"], **how))
        built(pipe.build(SQUARES, keep=[], **how))


def test_faults_of_some_configurations_only(fake_worker: Command) -> None:
    fault = Fault("build", "abort", when={"low": "fp16", "kept": ["root"]})
    with Pipe(fake_worker(faults=[fault])) as pipe:
        built(pipe.build(SQUARES, profiles=PROFILE))
        built(pipe.build(SQUARES, profiles=PROFILE, low="fp16", keep=["square"]))
        answer = pipe.build(SQUARES, profiles=PROFILE, low="fp16", keep=["root"])
        assert answer["signal"] == "SIGABRT"


def test_out_of_memory(fake_worker: Command) -> None:
    with Pipe(fake_worker(memory=1 << 12)) as pipe:
        engine = built(pipe.build(SQUARES, profiles=profile(x=((1, 4), (2, 4), (4096, 4)))))
        refused(pipe.run(engine, x=np.zeros((4096, 4), np.float32)), "memory")
        assert pipe.run(engine, x=LARGE)["kind"] == "result"
    faults = [Fault("build", "memory", on=(2,)), Fault("context", "memory"), Fault("run", "memory")]
    with Pipe(fake_worker(faults=faults)) as pipe:
        answer = pipe.build(SQUARES, profiles=PROFILE)
        assert "OutOfMemory" in " ".join(answer["log"])
        assert answer["kind"] == "error"
        engine = built(pipe.build(SQUARES, profiles=PROFILE))
        refused(pipe.run(engine, x=LARGE), "memory")


# How the child ends.


DEATHS = {
    "segv": ("SIGSEGV", None),
    "abort": ("SIGABRT", None),
    "kill": ("SIGKILL", None),
    "exit": (None, 3),
    "hang": ("SIGALRM", None),
}


@pytest.mark.parametrize(
    ("at", "do"), [*(("build", do) for do in DEATHS), *((at, "segv") for at in ("import", "parse"))]
)
def test_deaths_in_builds_are_told_and_survived(fake_worker: Command, at: str, do: str) -> None:
    with Pipe(fake_worker(faults=[Fault(at, do)])) as pipe:
        answer = pipe.build(SQUARES, profiles=PROFILE, timeout=2.0 if do == "hang" else None)
        died(answer, do)
        assert pipe.ask("have", hashes=[])["kind"] == "result"


@pytest.mark.parametrize(
    ("at", "do"),
    [*(("run", do) for do in DEATHS), *((at, "segv") for at in ("deserialise", "context"))],
)
def test_deaths_in_runs_are_told_and_survived(fake_worker: Command, at: str, do: str) -> None:
    with Pipe(fake_worker(faults=[Fault(at, do)])) as pipe:
        engine = built(pipe.build(SQUARES, profiles=PROFILE))
        told = [{"name": "x", "dtype": "float32", "shape": [2, 4]}]
        timeout = 1.0 if do == "hang" else None
        request = {"engine": engine, "profile": 0, "inputs": told, "timeout": timeout}
        died(pipe.ask("run", LARGE.tobytes(), **request), do)
        assert pipe.ask("have", hashes=[engine])["missing"] == []


def died(answer: Answer, do: str) -> None:
    assert answer["kind"] == "died", answer
    assert (answer["signal"], answer["status"]) == DEATHS[do]


def test_exceptions_are_answers(fake_worker: Command) -> None:
    with Pipe(fake_worker(faults=[Fault("build", "raise", on=(1,))])) as pipe:
        answer = pipe.build(SQUARES, profiles=PROFILE)
        assert "an exception out of the bindings" in refused(answer, "internal")


@pytest.mark.parametrize("at", ["build", "run"])
def test_a_lost_context_ends_with_its_process(fake_worker: Command, at: str) -> None:
    """A kernel that reads outside its memory fails, and nothing that comes after it."""
    with Pipe(fake_worker(faults=[Fault("run", "address", on=(1,))])) as pipe:
        engine = built(pipe.build(SQUARES, profiles=PROFILE))
        answer = pipe.run(engine, x=LARGE)
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in refused(answer, "cuda")
        if at == "build":
            built(pipe.build(SQUARES, profiles=PROFILE))
        assert pipe.run(engine, x=LARGE)["kind"] == "result"


def test_folders_that_killed_builds_left_are_removed(fake_worker: Command, tmp_path: Path) -> None:
    with Pipe(fake_worker(faults=[Fault("build", "kill", on=(1,))])) as pipe:
        died(pipe.build(SQUARES, profiles=PROFILE), "kill")
        (left,) = tmp_path.glob("worker-cache/model-*")
    for days, stays in ((13, True), (15, False)):
        then = time.time() - days * 86400
        os.utime(left, (then, then))
        with Pipe(fake_worker()) as pipe:
            built(pipe.build(SQUARES, profiles=PROFILE))
        assert left.exists() is stays


def test_what_libraries_print_does_no_harm(fake_worker: Command) -> None:
    with Pipe(fake_worker(faults=[Fault("build", "garbage")])) as pipe:
        answer = pipe.build(SQUARES, profiles=PROFILE)
        built(answer)
        assert answer.noise == b""
        assert pipe.ask("hello")["kind"] == "result"


def test_a_death_between_requests_goes_unnoticed(worker: Pipe) -> None:
    engine = built(worker.build(SQUARES, profiles=PROFILE))
    (child,) = children_of(worker.process.pid)
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: children_of(worker.process.pid) not in ([], [child]))  # there is another
    assert worker.run(engine, x=LARGE)["kind"] == "result"


def test_a_death_within_an_answer_ends_the_worker(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)  # more than a pipe holds
    sha256 = hashlib.sha256(data).hexdigest()
    with Pipe(worker_command(tmp_path, None)) as pipe:
        pipe.ask("put", data, sha256=sha256, offset=0, last=True)
        (child,) = children_of(pipe.process.pid)
        request = {"op": "get", "id": 9, "sha256": sha256, "offset": 0, "length": len(data)}
        assert pipe.process.stdin is not None
        assert pipe.process.stdout is not None
        pipe.process.stdin.write(pack(request))
        assert select.select([pipe.process.stdout], [], [], 60.0)[0]
        os.kill(child, signal.SIGKILL)
        assert pipe.process.wait(60.0) == 0


def test_what_is_no_request_ends_the_worker(fake_worker: Command) -> None:
    with Pipe(fake_worker()) as pipe:
        assert pipe.ask("have", hashes=[])["kind"] == "result"
        assert pipe.process.stdin is not None
        pipe.process.stdin.write(b"x" * 100)
        with pytest.raises(Gone):
            pipe.ask("have", hashes=[])


def test_the_end_of_input_ends_a_build(fake_worker: Command, tmp_path: Path) -> None:
    pipe = Pipe(fake_worker(faults=[Fault("build", "hang")], interpreter=sys.executable))
    pipe.send("build", **pipe.build_request(SQUARES, profiles=PROFILE))
    wait_for((tmp_path / "worker-counts" / "build").exists)
    children = children_of(pipe.process.pid)
    pipe.close()
    assert children
    wait_for(lambda: not any(map(is_running, children)))


def test_a_lost_supervisor_takes_the_child_with_it(fake_worker: Command) -> None:
    with Pipe(fake_worker(faults=[Fault("build", "disconnect")])) as pipe:
        with pytest.raises(Gone):
            pipe.build(SQUARES, profiles=PROFILE)
        assert pipe.process.wait() == -signal.SIGKILL
