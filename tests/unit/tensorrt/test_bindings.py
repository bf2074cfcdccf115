"""The worker touches nothing that a version of TensorRT lacks.

Its source is read, and its operations run against modules that have exactly what the real bindings
of a version have (`tests/bindings`). Nothing here computes: what engines give is tested elsewhere.
"""

import ast
import contextlib
import ctypes
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from halfwise.tensorrt import worker
from tests.bindings.api import VERSIONS, load
from tests.bindings.reading import complaints
from tests.bindings.standin import Module

SOURCE = Path(worker.__file__).read_text(encoding="utf-8")
APIS = [load(version) for version in VERSIONS]
WEAK = [v for v in VERSIONS if "FP16" in load(v).members("BuilderFlag")]
STRONG = [
    v for v in VERSIONS if "STRONGLY_TYPED" in load(v).members("NetworkDefinitionCreationFlag")
]
NEW = ("1.7.1.116", "11.4.0.106")
PROMISES = {
    # `_constrain` asks for nothing in strong typing, and weak typing needs the flag.
    "pinned": "BuilderFlag.FP16",
}


def check(source: str) -> list[str]:
    return complaints(source, APIS, PROMISES)


# ------------------------------------------------------------------------------------ the source


def test_every_attribute_is_there_or_guarded() -> None:
    assert check(SOURCE) == []


def test_every_promise_is_needed() -> None:
    for text in PROMISES:
        assert complaints(SOURCE, APIS, {k: v for k, v in PROMISES.items() if k != text}), text


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            "config.set_flag(trt.BuilderFlag.STRICT_TYPES)",
            "BuilderFlag.STRICT_TYPES is not in 1.7.1.116, 10.0.1",
        ),
        ("config.set_flagg(1)", "set_flagg is not in any version"),
        ("trt.BuildFlag", "BuildFlag is not in any version"),
        ("config.progress_monitor = None", "progress_monitor is not in 8.6.1"),
        ("engine.device_memory_size", "device_memory_size is not in 1.7.1.116, 11.4.0.106"),
        ("context.execute_async_v2([], 0)", "execute_async_v2 is not in 1.7.1.116, 10.0.1"),
        (
            "flags = trt.BuilderFlag\n    flags.FP16",
            "FP16 is not in 1.7.1.116, 11.4.0.106",
        ),
        (
            "flags, n = self.trt.BuilderFlag, 1\n    flags.BF16",
            "BuilderFlag.BF16 is not in 1.7.1.116, 8.6.1, 11.4",
        ),
        ("hasattr(trt, 'IProgresMonitor')", "no version has IProgresMonitor"),
        (
            "if hasattr(x, 'mark_debug'):\n        pass\n    x.mark_debug(1)",
            "mark_debug is not in 8.6.1",
        ),
        ("if not hasattr(x, 'mark_debug'):\n        x.mark_debug(1)", "mark_debug is not in 8.6.1"),
        ("hasattr(x, 'mark_debug') or x.mark_debug(1)", "mark_debug is not in 8.6.1"),
        ("lambda: g(trt)\ndef g(trt):\n    trt.IDebugListener", "IDebugListener is not in 8.6.1"),
        (
            "class P(trt.IProfiler):\n        def report_time(self, name, ms):\n            pass",
            "nobody calls IProfiler.report_time",
        ),
    ],
)
def test_what_a_version_lacks_is_refused(line: str, complaint: str) -> None:
    added = check(f"{SOURCE}\n\ndef f(self, trt, config, engine, context, x):\n    {line}\n")
    assert len(added) == 1
    assert complaint in added[0]


@pytest.mark.parametrize(
    "line",
    [
        "if hasattr(x, 'mark_debug'):\n        x.mark_debug(1)",
        "if not hasattr(x, 'mark_debug'):\n        return\n    x.mark_debug(1)",
        "return hasattr(x, 'mark_debug') and x.mark_debug(1)",
        "return x.mark_debug(1) if hasattr(x, 'mark_debug') else None",
        "if not hasattr(x, 'mark_debug') or x.mark_debug(1):\n        return",
        "f = getattr(trt.DataType, 'BF16', None)\n    if f is not None:\n        trt.DataType.BF16",
        "if hasattr(trt, 'IDebugListener'):\n        g(trt)\ndef g(trt):\n    trt.IDebugListener",
        "getattr(engine, 'device_memory_size', 0)",
        "x.precision if hasattr(trt.BuilderFlag, 'FP16') else None",
    ],
)
def test_what_is_guarded_is_not(line: str) -> None:
    assert check(f"{SOURCE}\n\ndef f(self, trt, engine, x):\n    {line}\n") == []


def test_the_source_is_python_3_8() -> None:
    ast.parse(SOURCE, feature_version=(3, 8))
    interpreter = next(Path.home().glob(".pyenv/versions/3.8.*/bin/python"), None)
    if interpreter is not None:
        compiling = "import sys; compile(sys.stdin.read(), 'worker.py', 'exec')"
        subprocess.run([interpreter, "-c", compiling], input=SOURCE, text=True, check=True)


# -------------------------------------------------------------------------------------- its runs


class HostCuda(worker.Cuda):
    """A driver whose device is the host."""

    def __init__(self):
        self.device, self.stream = ctypes.c_int(), ctypes.c_void_p(1)
        self.blocks: list[ctypes.Array[ctypes.c_char]] = []

    def call(self, name, *arguments, **_how):
        if name in {"cuMemAlloc_v2", "cuMemAllocHost_v2"}:
            address, size = arguments
            self.blocks.append(ctypes.create_string_buffer(size.value))
            address._obj.value = ctypes.addressof(self.blocks[-1])


class Scene:
    """A network, an engine and what TensorRT calls back, on a stand-in of a version."""

    def __init__(self, version: str, **answers: object) -> None:
        self.told: dict[str, list[object]] = {
            "flags": [],
            "pinned": [],
            "profiles": [],
        }
        found = {**self.network(), **self.engine(), **answers}
        self.trt = Module(load(version), found)
        self.shape = lambda *sizes: self.trt.make("Dims", sizes=sizes)
        members = {name for api in APIS for name in api.raw["classes"]}
        for key in found:
            owner, _, name = key.rpartition(".")
            assert owner in members
            assert any(name in api.members(owner) for api in APIS if owner in api.raw["classes"]), (
                key
            )

    def tensor(self, name: str, dtype: str, *sizes: int, **values: object):
        kind = self.trt.DataType[dtype]
        inside = {"is_shape_tensor": False, "is_network_output": False, **values}
        return self.trt.make("ITensor", name=name, dtype=kind, shape=self.shape(*sizes), **inside)

    def layers(self):
        low, whole = self.tensor("h", "FLOAT", -1, 4), self.tensor("n", "INT32", 2)
        kinds = (("MATRIX_MULTIPLY", low), ("CAST", low), ("SHAPE", whole), ("IDENTITY", low))
        return [
            self.trt.make(
                "ILayer",
                name=f"layer {number}",
                type=self.trt.LayerType[kind],
                metadata=f"[ONNX Layer: node {number}]",
                num_outputs=1,
                outputs=[output],
            )
            for number, (kind, output) in enumerate(kinds)
        ]

    def network(self):
        def inputs(_this, index):
            return (
                self.tensor("x", "FLOAT", -1, 4),
                self.tensor("s", "INT32", 2, is_shape_tensor=True),
            )[index]

        def output_type(this, _index, _dtype):
            self.told["pinned"].append(this.name)

        return {
            "INetworkDefinition.num_layers": 4,
            "INetworkDefinition.get_layer": lambda _this, index: self.layers()[index],
            "INetworkDefinition.num_inputs": 2,
            "INetworkDefinition.get_input": inputs,
            "ILayer.get_output": lambda this, index: this._values["outputs"][index],
            "ILayer.get_input": lambda this, index: this._values["outputs"][index],
            "ILayer.set_output_type": output_type,
            "IBuilderConfig.set_flag": lambda _this, flag: self.told["flags"].append(flag.name),
            "IOptimizationProfile.set_shape": lambda _this, *a: self.told["profiles"].append(a),
            "IOptimizationProfile.set_shape_input": lambda _this, *a: self.told["profiles"].append(
                a
            ),
            "Builder.__init__": lambda this, logger: this._values.update(logger=logger),
            "Builder.build_serialized_network": self.build,
            "ITimingCache.serialize": lambda _this: self.trt.make("IHostMemory", data=b"cache"),
            "Dims.__getitem__": lambda this, index: this._values["sizes"][index],
            "Dims.__len__": lambda this: len(this._values["sizes"]),
        }

    def build(self, builder, _network, _config):
        builder.logger.log(self.trt.ILogger.WARNING, "a warning")
        return self.trt.make("IHostMemory", data=b"engine")

    def engine(self):
        names = ["x", "s", "y", "z"]
        limits = [[1, 4], [2, 4], [8, 4]]

        def of(values):
            return lambda _this, name: values()[names.index(name)]

        return {
            "ICudaEngine.num_io_tensors": 4,
            "ICudaEngine.num_optimization_profiles": 2,
            "ICudaEngine.get_tensor_name": lambda _this, index: names[index],
            "ICudaEngine.get_tensor_mode": of(
                lambda: [self.trt.TensorIOMode[n] for n in ("INPUT", "INPUT", "OUTPUT", "OUTPUT")]
            ),
            "ICudaEngine.is_shape_inference_io": of(lambda: [False, True, False, False]),
            "ICudaEngine.get_tensor_dtype": of(
                lambda: [self.trt.DataType[n] for n in ("FLOAT", "INT32", "HALF", "FLOAT")]
            ),
            "ICudaEngine.get_tensor_location": of(
                lambda: [self.trt.TensorLocation[n] for n in ("DEVICE", "HOST", "DEVICE", "DEVICE")]
            ),
            "ICudaEngine.get_tensor_format": of(lambda: [self.trt.TensorFormat.LINEAR] * 4),
            "ICudaEngine.get_tensor_shape": of(lambda: [self.shape(-1, 4), self.shape(2)] * 2),
            "ICudaEngine.get_tensor_profile_shape": lambda *_: [
                self.shape(*sizes) for sizes in limits
            ],
            "ICudaEngine.get_tensor_profile_values": limits,
            "ICudaEngine.get_profile_shape_input": limits,
            "IExecutionContext.infer_shapes": [],
            "IExecutionContext.get_tensor_shape": of(
                lambda: [self.shape(2, 4), self.shape(2), self.shape(2, 4), self.shape(-1)]
            ),
            "IExecutionContext.set_output_allocator": self.remember("allocator"),
            "IExecutionContext.execute_async_v3": self.execute,
        }

    @staticmethod
    def remember(what):
        def method(this, *arguments):
            this._values[what] = arguments[-1]
            return True

        return method

    def execute(self, context, stream):
        values, trt = context._values, self.trt
        allocator = values["allocator"]
        new = "reallocate_output_async" in load(trt.__version__).overridable("IOutputAllocator")
        extra = (stream,) if new else ()
        reallocate = getattr(allocator, "reallocate_output" + "_async" * new)
        assert isinstance(reallocate("z", 0, 12, 256, *extra), int)
        allocator.notify_shape("z", self.shape(3))
        return True


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """A function that gives a service on a scene."""
    monkeypatch.setenv("HALFWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(worker, "Cuda", HostCuda)
    with contextlib.ExitStack() as stack:

        def make(scene: Scene) -> worker.Service:
            monkeypatch.setitem(sys.modules, "tensorrt", scene.trt)
            requests, answers = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)
            stack.callback(os.close, requests)
            stack.callback(os.close, answers)
            return worker.Service(requests, answers, bytearray(worker.NUMBER.size))

        yield make


def put(service, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    service.op_put({"sha256": sha256, "offset": 0, "last": True}, data)
    return sha256


def build(service, typing, **config):
    """Ask for a build with every option at once."""
    ranges = {"min": [1, 4], "opt": [2, 4], "max": [8, 4]}
    asked = {
        "typing": typing,
        "low": "fp16" if typing == "weak" else None,
        "tf32": False,
        "keep": ["node 0", "node 1", "node 2", "node 3", "gone"] if typing == "weak" else [],
        "profiles": [{"shapes": {"x": ranges}, "values": {"s": ranges}}],
        "workspace_bytes": 1 << 20,
        "optimization_level": 3,
        "tactic_sources": ["EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"],
        "plugins": [],
    }
    request = {
        "model": {
            "files": [{"name": "model.onnx", "sha256": put(service, b"model")}],
            "main": "model.onnx",
        },
        "config": {**asked, **config},
        "cached": True,
    }
    return service.op_build(request, b"")[0]


def running(service):
    inputs = [
        {"name": "x", "dtype": "float32", "shape": [2, 4]},
        {"name": "s", "dtype": "int32", "shape": [2]},
    ]
    return {"engine": put(service, b"engine"), "profile": 1, "inputs": inputs}, bytes(40)


def refused(code: str):
    return pytest.raises(worker.Refused, check=lambda error: error.answer["code"] == code)


def test_hello_tells_what_the_version_has(version, serve) -> None:
    found = serve(Scene(version)).op_hello({}, b"")[0]
    assert found["tensorrt"] == version
    assert ("weak" in found["typing"], "strong" in found["typing"]) == (
        version in WEAK,
        version in STRONG,
    )
    assert "import_error" not in found
    assert "cuda_error" not in found


@pytest.mark.parametrize("low", ["fp16", None])
@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("weak", WEAK)
def test_weak_builds_use_what_the_version_has(weak, tf32, low, serve) -> None:
    scene = Scene(weak)
    built = build(serve(scene), "weak", tf32=tf32, low=low)
    assert scene.told["pinned"] == ["layer 0", "layer 3"]
    wanted = [*["TF32"] * tf32, *["FP16"] * (low is not None), "OBEY_PRECISION_CONSTRAINTS"]
    assert scene.told["flags"] == wanted
    assert set(built["unconstrained"]) == {"node 1", "node 2", "gone"}
    assert len(scene.told["profiles"]) == 2
    assert built["engine"]["bytes"] == len(b"engine")


@pytest.mark.parametrize("strong", STRONG)
def test_strong_builds_use_what_the_version_has(strong, serve) -> None:
    scene = Scene(strong)
    build(serve(scene), "strong", tf32=True)
    assert scene.told["flags"] == ["TF32"]
    assert scene.told["pinned"] == []


def test_builds_refuse_what_the_version_lacks(version, serve) -> None:
    service = serve(Scene(version))
    typing = "weak" if version in WEAK else "strong"
    with refused("typing") if version == "8.6.1" else contextlib.nullcontext():
        build(service, typing, low="bf16" if typing == "weak" else None)
    with refused("option"):
        build(service, typing, tactic_sources=["CUBLAS_XL"])
    with refused("option") if version in NEW else contextlib.nullcontext():
        build(service, typing, tactic_sources=["CUDNN"])


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"OnnxParser.parse_from_file": False}, "parse"),
        ({"Builder.build_serialized_network": None}, "build"),
        ({"IBuilderConfig.add_optimization_profile": -1}, "profile"),
    ],
)
def test_failing_builds_are_refused_alike_everywhere(version, answers, code, serve) -> None:
    with refused(code):
        build(serve(Scene(version, **answers)), "weak" if version in WEAK else "strong")


def test_a_timing_cache_of_another_device_is_replaced(version, serve) -> None:
    scene = Scene(version, **{"IBuilderConfig.set_timing_cache": False})
    assert build(serve(scene), "weak" if version in WEAK else "strong")["engine"]


def test_engines_are_described(version, serve) -> None:
    service = serve(Scene(version))
    described = service.op_describe({"engine": put(service, b"engine")}, b"")[0]
    assert [io["location"] for io in described["io"]] == ["device", "host", "device", "device"]
    assert [io["dtype"] for io in described["io"]] == ["float32", "int32", "float16", "float32"]
    for io in described["io"][:2]:
        assert io["profiles"] == [{"min": [1, 4], "opt": [2, 4], "max": [8, 4]}] * 2
    assert described["device_bytes"] == 1


def test_engines_run(version, serve) -> None:
    result, payload = (service := serve(Scene(version))).op_run(*running(service))
    assert [output["name"] for output in result["outputs"]] == ["y", "z"]
    assert len(payload) == 16 + 12


def test_engines_are_timed_and_inspected(version, serve) -> None:
    request, payload = running(service := serve(Scene(version)))
    timed = service.op_time({**request, "seconds": 0, "iterations": 2, "warmup": 0}, payload)[0]
    assert timed["iterations"] >= 2
    assert service.op_inspect(request, payload) == ({}, b"text")


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"Runtime.deserialize_cuda_engine": None}, "engine"),
        ({"ICudaEngine.create_execution_context": None}, "memory"),
        ({"IExecutionContext.set_input_shape": False}, "shape"),
        ({"IExecutionContext.infer_shapes": ["s"]}, "shape"),
        (
            {"IExecutionContext.set_optimization_profile_async": False},
            "profile",
        ),
    ],
)
def test_failing_runs_are_refused_alike_everywhere(version, answers, code, serve) -> None:
    service = serve(Scene(version, **answers))
    with refused(code):
        service.op_run(*running(service))


# --------------------------------------------------------------------------------- the stand-ins


def test_standins_are_strict(version) -> None:
    trt = Module(load(version), {})
    builder = trt.Builder(trt.Logger())
    config = builder.create_builder_config()
    with pytest.raises(AttributeError):
        config.not_there  # noqa: B018
    with pytest.raises(AttributeError):
        config.not_there = 1
    with pytest.raises(AttributeError):
        builder.logger = trt.Logger()
    with pytest.raises(TypeError, match=re.escape("IBuilderConfig.set_flag")):
        config.set_flag("FP16")
    with pytest.raises(TypeError, match="does not take"):
        builder.create_network(1, 2)
    with pytest.raises(TypeError, match="No constructor"):
        trt.ILayer()

    class Profiler(trt.IProfiler):  # type: ignore[name-defined,misc]
        def __init__(self):
            """The real one fails without the base's, too."""

    with pytest.raises(TypeError, match="base class"):
        Profiler()
    assert config.builder_optimization_level == 1
    assert builder.create_network(0).get_layer(0).name == "text"
