"""Quantised models from other tools: a verdict for each, from every command.

* ONNX's own backend tests of operators that quantise, dequantise or compute with integers.
* What onnxruntime.quantization makes of a small network with drawn weights, in every format that it
  writes, and one of these with FP16 around Q and DQ.
* Files with Q and DQ under `intake` in the folder that HALFWISE_BENCH_MODELS names; where the model
  before is not known, that without the pairs stands for it.
* `NAME_qdq.onnx` beside `NAME.onnx` in the folder that HALFWISE_BENCH_CASES names.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfwise.records import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnxruntime import quantization as ort
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

from bench import onnx_cases
from bench.figures import Figure, equal, reported
from bench.intake import FOLDER, runnable
from bench.onnx_backend import some
from bench.plans import CASES, CASES_VARIABLE
from bench.runs import Workbench
from halfwise import api
from halfwise.errors import HalfwiseError
from halfwise.graph.excluding import excluding
from halfwise.graph.loading import load_network
from halfwise.graph.model import QUANTISED
from halfwise.graph.quantised import census, pairs_read

OPSET, IR_VERSION = 25, 13
"""Opsets that this ONNX Runtime supports; newer tests are converted to them if ONNX allows it."""
SAMPLES, SIZE = 16, 12
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class File:
    """A quantised file.

    Attributes:
        name: What it is.
        path: Where it lies.
        original: The model before.
        inputs: Samples.
        options: How it is judged.
    """

    name: str
    path: Path
    original: Path
    inputs: Any
    options: Mapping[str, Any]


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the figures over all files."""
    tests = [onnx_cases.examine(case) for case in _tests()]
    run = [one for one in tests if one.code is not None]
    unsound = [f"{one.name}: {one.code} {one.message}" for one in run if not one.sound]
    with contextlib.redirect_stdout(io.StringIO()):
        files = [*_formats(bench.folder), *_intake(bench), *_cases()]
    outcomes = {file.name: dict(_commands(file, bench.folder)) for file in files}
    wrong = [
        f"{name}: {command} ended with {end}"
        for name, ends in outcomes.items()
        for command, end in ends.items()
        if end not in _ENDS and _NOTHING not in end
    ]
    bench.details["quantised_files"] = outcomes
    counts = Counter(str(one.code) for one in run)
    missing = [v for v in ("HALFWISE_BENCH_MODELS", CASES_VARIABLE) if not os.environ.get(v)]
    return [
        reported("backend tests", len(tests), f"{len(run)} of them run by ONNX Runtime"),
        *(reported(f"end with {code}", n) for code, n in sorted(counts.items())),
        equal(
            "those that end otherwise, or differ in a bit in FP32", len(unsound), 0, some(unsound)
        ),
        reported("quantised files", len(files)),
        equal("commands on them without a verdict", len(wrong), 0, some(wrong)),
        *(reported(f"verify {name}", ends["verify"]) for name, ends in outcomes.items()),
    ], f"{', '.join(missing)} not set" if missing else None


def _tests() -> Iterator[TestCase]:
    """Yield the backend tests with quantised operators, at an opset that ONNX Runtime takes."""
    for case in onnx_cases.cases():
        model = case.model
        if model is None or not any(n.op_type.startswith(QUANTISED) for n in model.graph.node):
            continue
        model.ir_version = min(model.ir_version, IR_VERSION)
        for opset in model.opset_import:
            opset.version = min(opset.version, OPSET)
        yield _with_codes(case, model)


def _with_codes(case: TestCase, model: onnx.ModelProto) -> TestCase:
    """Return a test with constants in place of inputs that NumPy has no type for."""
    (given, expected), *_ = case.data_sets or [([], [])]
    named: list[tuple[str, Any]] = [
        (value.name, code) for value, code in zip(model.graph.input, given, strict=False)
    ]
    for name, tensor in named:
        if not isinstance(tensor, onnx.TensorProto):
            continue
        tensor.name = name
        model.graph.initializer.append(tensor)
        model.graph.input.remove(next(v for v in model.graph.input if v.name == name))
    rest = [value for value in given if not isinstance(value, onnx.TensorProto)]
    return replace(case, model=model, data_sets=[(rest, expected)])


_ENDS = ("passed", "failed", "ended")
_NOTHING = "takes no input"
"""What is true of a model that computes with constants alone."""


def _commands(file: File, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each command with how it ended on a file."""
    path, inputs = file.path, file.inputs
    judged = {"allow_random": True, **file.options}
    out = folder / f"{file.name}-diagnosed"
    commands: Mapping[str, Callable[[], Any]] = {
        "verify": lambda: api.verify(file.original, path, inputs, **judged),
        "compare": lambda: api.compare(file.original, inputs, b=str(path)),
        "compare with itself": lambda: api.compare(path, inputs, b="emulation:fp16"),
        "observe": lambda: api.observe(path, inputs),
        "lint": lambda: api.lint(path),
        "fix": lambda: api.fix(path, inputs, time_budget=30, **judged),
        "diagnose": lambda: api.diagnose(path, inputs, out=out, time_budget=30, **judged),
    }
    for name, command in commands.items():
        try:
            found = command()
        except HalfwiseError as error:
            yield name, f"{error.exit_code}: {error.message}"
        except Exception as error:  # noqa: BLE001 - any traceback is a finding
            yield name, f"{type(error).__name__}: {error}"
        else:
            verdict = getattr(getattr(found, "run", None), "verdict", None)
            yield name, "ended" if verdict is None else "passed" if verdict.passed else "failed"


def _network(opset: int) -> onnx.ModelProto:
    """Two convolutions, one with a norm, and two products: what quantisers rename and fold."""
    generator = np.random.default_rng(0)
    node = helper.make_node

    def drawn(name: str, *shape: int, scale: float = 1.0) -> onnx.TensorProto:
        return numpy_helper.from_array(
            (generator.normal(size=shape) * scale).astype(np.float32), name
        )

    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1] * 4),
        node("BatchNormalization", ["c1", "g", "be", "mu", "va"], ["n1"], name="norm"),
        node("Relu", ["n1"], ["r1"], name="relu1"),
        node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", pads=[1] * 4, strides=[2, 2]),
        node("Sigmoid", ["c2"], ["s2"], name="sigmoid"),
        node("Mul", ["c2", "s2"], ["m2"], name="swish"),
        node("GlobalAveragePool", ["m2"], ["p"], name="pool"),
        node("Flatten", ["p"], ["f"], name="flat"),
        node("Gemm", ["f", "w3", "b3"], ["g3"], name="fc1", transB=1),
        node("Relu", ["g3"], ["r3"], name="relu2"),
        node("MatMul", ["r3", "w4"], ["z"], name="fc2"),
        node("Add", ["z", "b4"], ["logits"], name="bias"),
    ]
    variance = numpy_helper.from_array(generator.uniform(0.5, 2, 8).astype(np.float32), "va")
    constants = [
        *(drawn(name, 8) for name in ("b1", "g", "be", "mu")),
        *(drawn("w1", 8, 3, 3, 3, scale=0.2), drawn("w2", 16, 8, 3, 3, scale=0.1), drawn("b2", 16)),
        *(drawn("w3", 32, 16, scale=0.3), drawn("b3", 32), drawn("w4", 32, 10, scale=0.3)),
        *(drawn("b4", 10), variance),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 10])
    graph = helper.make_graph(nodes, "network", [x], [logits], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


class _Reader(ort.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, data: Array) -> None:
        self._data = iter(data)

    def get_next(self) -> dict[str, Array] | None:
        value = next(self._data, None)
        return None if value is None else {"x": value[None]}


def _formats(folder: Path) -> Iterator[File]:
    """Yield what onnxruntime.quantization makes of the network, in every format."""
    generator = np.random.default_rng(1)
    walks = np.cumsum(generator.normal(size=(SAMPLES, 3, SIZE, SIZE)), axis=-1)
    data = (walks / 4).astype(np.float32)
    types = ort.QuantType
    originals = {opset: folder / f"float{opset}.onnx" for opset in (17, 21)}
    for opset, path in originals.items():
        onnx.save(_network(opset), path)
    prepared = folder / "prepared.onnx"
    quant_pre_process(originals[17], prepared)
    symmetric = {"per_channel": True, "extra_options": {"ActivationSymmetric": True}}
    plain = {"activation_type": types.QInt8, **symmetric}
    wide = {"extra_options": {"UseQDQContribOps": True}}
    static: Mapping[str, tuple[Path, dict[str, Any]]] = {
        "INT8": (originals[17], plain),
        "INT8 after pre-processing": (prepared, plain),
        "UINT8": (originals[17], {"activation_type": types.QUInt8}),
        "INT16": (originals[21], {"activation_type": types.QInt16}),
        "UINT16 in com.microsoft": (originals[17], {"activation_type": types.QUInt16, **wide}),
        "QOperator": (originals[17], {"quant_format": ort.QuantFormat.QOperator}),
        "INT8 for FP16": (originals[21], plain),
        "FP8": (
            originals[21],
            {
                "activation_type": types.QFLOAT8E4M3FN,
                "weight_type": types.QFLOAT8E4M3FN,
                "calibrate_method": ort.CalibrationMethod.Distribution,
            },
        ),
    }
    files = {name: folder / f"{name}.onnx" for name in static}
    for name, (source, options) in static.items():
        weights = {"weight_type": types.QInt8, **options}
        ort.quantize_static(source, files[name], _Reader(data), **weights)
    _halve(files["INT8 for FP16"])
    files["dynamic"] = folder / "dynamic.onnx"
    ort.quantize_dynamic(originals[17], files["dynamic"])
    for quant_format in (ort.QuantFormat.QDQ, ort.QuantFormat.QOperator):
        name = f"INT4 in blocks, {quant_format.name}"
        files[name] = folder / f"{name}.onnx"
        four = MatMulNBitsQuantizer(
            onnx.load(originals[21]),
            bits=4,
            block_size=16,
            is_symmetric=True,
            quant_format=quant_format,
        )
        four.process()
        four.model.save_model_to_file(str(files[name]))
    for name, path in files.items():
        opset = next(o.version for o in onnx.load(path).opset_import if not o.domain)
        original = originals[21 if opset >= 21 and "com" not in name else 17]
        yield File(name, path, original, {"x": data}, {"metric": "top1"})


def _halve(path: Path) -> None:
    """Store the floats of a file in FP16, scales too, as ModelOpt does by default."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            half = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for node in model.graph.node:
        node.input[:] = ["x_half" if name == "x" else name for name in node.input]
        node.output[:] = ["logits_half" if name == "logits" else name for name in node.output]
    cast = helper.make_node
    model.graph.node.insert(0, cast("Cast", ["x"], ["x_half"], to=TensorProto.FLOAT16))
    model.graph.node.append(cast("Cast", ["logits_half"], ["logits"], to=TensorProto.FLOAT))
    del model.graph.value_info[:]
    onnx.save(model, path)


def _intake(bench: Workbench) -> Iterator[File]:
    folder = bench.models and bench.models / FOLDER
    for path in sorted(folder.rglob("*.onnx")) if folder else ():
        try:
            network = load_network(path)
        except HalfwiseError:
            continue
        if census(network).quantised and (samples := runnable(path)) is not None:
            original = bench.folder / f"{path.stem}-without.onnx"
            without = excluding(network, [*pairs_read(network)])
            onnx.save(ir.to_proto(without.model), original)
            yield File(path.stem, path, original, samples, {})


def _cases() -> Iterator[File]:
    given = os.environ.get(CASES_VARIABLE)
    for path in sorted(Path(given).glob("*_qdq.onnx")) if given else ():
        name = path.stem.removesuffix("_qdq")
        inputs = path.with_name(f"{CASES[name]}.npz")
        yield File(path.stem, path, path.with_name(f"{name}.onnx"), inputs, {"metric": "auto"})
