"""Tries the worker on a real TensorRT and keeps all its answers, for reading.

    python -m bench.gpu.probe --out DIR --trt-python PYTHON [--models DIR] [--only NAME …]

No figure depends on it. It writes `DIR/summary.json` (facts by step, also printed on the way) and a
folder per step: `build.json` (layers, inputs, outputs), `log.txt`, the raw `inspector.txt`.
It needs numpy, onnx and onnxruntime, and of halfwise only the worker's file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from bench.gpu import models
from bench.gpu.pipe import Answer, Pipe, Refused, shape_profile
from bench.gpu.resnet import PLANTED

TACTIC_SOURCES = "EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS"
LAYER_NORM = ("Pow", "ReduceMean_1", "Add", "Sqrt")
"""Nodes of a written-out LayerNorm that leave FP16's range."""
PLANTED_NODES = ("conv1", "relu1", "conv2", "relu2", "conv3")
"""Nodes of the planted bottleneck that read or write values beyond FP16's range."""
MAGIKA = slice(70, 74)
"""The nodes of magika whose sum of squares leaves FP16's range."""

Arrays = Mapping[str, np.ndarray]


@dataclass
class Probe:
    """Where results go.

    Attributes:
        out: The folder.
        pipe: The worker.
        summary: Facts by step.
    """

    out: Path
    pipe: Pipe
    summary: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Collect the facts of one step, including any error in it."""
        facts: dict[str, Any] = {}
        self.summary[name] = facts
        started = time.monotonic()
        try:
            yield facts
        except Refused as refused:
            facts["refused"] = {k: v for k, v in refused.answer.items() if k != "logs"}
        except Exception:  # noqa: BLE001 - the next step may still give results
            facts["exception"] = traceback.format_exc()[-1500:]
        facts["wall_seconds"] = round(time.monotonic() - started, 2)
        if self.pipe.logs:
            self.keep(name, "log.txt", "\n".join(map(_line, self.pipe.logs)))
        print(name, json.dumps(facts, default=str)[:900], flush=True)
        text = json.dumps(self.summary, indent=1, default=str)
        (self.out / "summary.json").write_text(text, encoding="utf-8")

    def keep(self, step: str, name: str, content: str | bytes) -> None:
        """Write a file of a step, compressed if above a megabyte."""
        folder = self.out / step.replace("/", ".")
        folder.mkdir(parents=True, exist_ok=True)
        data = content.encode(errors="replace") if isinstance(content, str) else content
        if len(data) > 1 << 20:
            name, data = f"{name}.gz", gzip.compress(data)
        (folder / name).write_bytes(data)


def _line(log: Mapping[str, Any]) -> str:
    if log.get("kind") == "log":
        return f"[{log.get('severity')}] {log.get('text')}"
    return f"<{log.get('kind')}> " + json.dumps({k: v for k, v in log.items() if k != "kind"})


@dataclass(frozen=True)
class Subject:
    """A model to build in several ways.

    Attributes:
        name: Its name.
        model: The file's bytes.
        inputs: Arrays at the shapes to run.
        profiles: Optimization profiles.
        kept: Sets of nodes to constrain to FP32, by name.
    """

    name: str
    model: bytes
    inputs: Arrays
    profiles: Sequence[Mapping[str, Any]] = ()
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _frozen(model: onnx.ModelProto, batch: int) -> bytes:
    """Return the model with every symbolic first axis set to `batch`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in (*copy.graph.input, *copy.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return bytes(copy.SerializeToString())


def _dynamic(model: onnx.ModelProto) -> bytes:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in (*copy.graph.input, *copy.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return bytes(copy.SerializeToString())


def _batches(arrays: Arrays, sizes: Sequence[int]) -> dict[str, Any]:
    return shape_profile({n: [(b, *a.shape[1:]) for b in sizes] for n, a in arrays.items()})


def small_conv() -> list[Subject]:
    """A convolutional net, static and dynamic."""
    made = models.small_conv()
    inputs = {n: a[0] for n, a in made.heldout.items()}
    kept = {"conv2": ["conv2"], "conv2_relu2_add": ["conv2", "relu2", "add"]}
    static = Subject("conv_static", made.model.SerializeToString(), inputs, (), kept)
    profile = _batches(inputs, (1, 4, 16))
    return [static, Subject("conv_dynamic", _dynamic(made.model), inputs, (profile,), kept)]


def digits() -> list[Subject]:
    """The bundled transformer, dynamic and static."""
    made = models.digits()
    nodes = [n.name for n in made.model.graph.node]
    norms = [n for n in nodes if "/norm" in n]
    kept = {
        "norm_core": [n for n in norms if n.rpartition("/")[2] in LAYER_NORM],
        "norm_whole": norms,
        "first_200": nodes[:200],
        "blocks_0_1": [n for n in nodes if n.startswith(("/blocks.0", "/blocks.1"))],
        "everything": nodes,
    }
    return _both("digits", made, kept)


def digits_ffn() -> list[Subject]:
    """Its variant with one FFN × 30000, dynamic and static."""
    made = models.digits_ffn()
    block = [n.name for n in made.model.graph.node if n.name.startswith("/blocks.2/mlp")]
    core = [n for n in block if n.endswith(("act/Mul_1", "fc2/MatMul"))]
    return _both("digits_ffn", made, {"ffn_core": core, "ffn_whole": block})


def _both(name: str, made: models.Made, kept: Mapping[str, Sequence[str]]) -> list[Subject]:
    inputs = {n: a.reshape(-1, *a.shape[2:]) for n, a in made.heldout.items()}
    batch = next(iter(inputs.values())).shape[0]
    profile = _batches(inputs, (1, batch, batch))
    model = made.model.SerializeToString()
    return [
        Subject(f"{name}_dynamic", model, inputs, (profile,), kept),
        Subject(f"{name}_static", _frozen(made.model, batch), inputs, (), kept),
    ]


def published(folder: Path | None) -> list[Subject]:
    """Magika, all files in one batch."""
    if folder is None:
        return []
    path = folder / "magika" / "model.onnx"
    inputs = dict(np.load(folder / "magika" / "inputs.npz"))
    inputs = {n: a.reshape(-1, *a.shape[2:]) for n, a in inputs.items()}
    nodes = [n.name for n in onnx.load(path).graph.node]
    kept = {"sum_of_squares": nodes[MAGIKA]}
    return [Subject("magika", path.read_bytes(), inputs, (_batches(inputs, (1, 64, 64)),), kept)]


def large() -> list[Subject]:
    """The models whose speed is judged, at batch 32, with the nodes known to overflow kept."""
    found = []
    for name, make in (("resnet50", models.resnet50), ("vit_b", models.vit_b16)):
        made = make()
        inputs = {n: np.resize(a, (32, *a.shape[2:])) for n, a in made.inputs.items()}
        nodes = [n.name for n in made.model.graph.node]
        norms = [n for n in nodes if "/norm" in n]
        kept = (
            {
                "planted": [
                    n for n in nodes if n.startswith(f"{PLANTED}.") and n[-5:] in PLANTED_NODES
                ]
            }
            if name == "resnet50"
            else {
                "norm_core": [n for n in norms if n.rpartition("/")[2] in LAYER_NORM],
                "norm_whole": norms,
            }
        )
        profile = _batches(inputs, (1, 32, 32))
        found.append(Subject(name, made.model.SerializeToString(), inputs, (profile,), kept))
    return found


def examine(probe: Probe, subject: Subject) -> None:
    """Build a model in every way; run, time and inspect each engine."""
    session = ort.InferenceSession(subject.model, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    reference = dict(zip(names, session.run(names, dict(subject.inputs)), strict=True))
    ways: dict[str, dict[str, Any]] = {"fp32": {}, "tf32": {"tf32": True}, "fp16": {"low": "fp16"}}
    for name, nodes in subject.kept.items():
        ways[f"fp16_keep_{name}"] = {"low": "fp16", "keep": list(nodes)}
        ways.setdefault("fp16_tf32_keep_first", {"low": "fp16", "tf32": True, "keep": list(nodes)})
    for way, config in ways.items():
        with probe.step(f"{subject.name}/{way}") as facts:
            how = {"profiles": list(subject.profiles), "cached": True, **config}
            answer = probe.pipe.build(subject.model, **how)
            _built(probe, f"{subject.name}/{way}", answer, facts)
            engine = answer.header["engine"]["sha256"]
            outputs = probe.pipe.run(engine, subject.inputs)
            facts["errors"] = {n: _difference(reference[n], outputs[n]) for n in names}
            asked = {"seconds": 1.0, "iterations": 200, "warmup": 0.3}
            timed = probe.pipe.on_arrays("time", engine, subject.inputs, **asked)
            facts["time"] = {k: v for k, v in timed.header.items() if k not in ("id", "kind")}
            _inspect(probe, f"{subject.name}/{way}", engine, subject.inputs)
    with probe.step(f"{subject.name}/fp32_again_with_timing_cache") as facts:
        cached: dict[str, Any] = {"profiles": list(subject.profiles), "cached": True}
        facts["build_seconds"] = probe.pipe.build(subject.model, **cached).header["seconds"]
    with probe.step(f"{subject.name}/fp16_again") as facts:
        again: dict[str, Any] = {"profiles": list(subject.profiles), "low": "fp16"}
        engine = probe.pipe.build(subject.model, **again).header["engine"]["sha256"]
        outputs = probe.pipe.run(engine, subject.inputs)
        facts["errors"] = {n: _difference(reference[n], outputs[n]) for n in names}


def _built(probe: Probe, step: str, answer: Answer, facts: dict[str, Any]) -> None:
    header = answer.header
    facts["build_seconds"] = header["seconds"]
    facts["engine_bytes"] = header["engine"]["bytes"]
    facts["layers"] = len(header["layers"])
    facts["constrained"] = sum(bool(layer[3]) for layer in header["layers"])
    facts["unconstrained"] = header.get("unconstrained")
    lines = [log for log in answer.logs if log.get("severity", "info") not in ("info", "verbose")]
    facts["warnings"] = [_line(log)[:200] for log in lines][:12]
    probe.keep(step, "build.json", json.dumps(header, indent=1))


def _inspect(probe: Probe, step: str, engine: str, inputs: Arrays) -> None:
    log = probe.pipe.logs
    described = probe.pipe.ask("describe", engine=engine).header
    probe.keep(step, "describe.json", json.dumps(described, indent=1))
    inspected = probe.pipe.on_arrays("inspect", engine, inputs)
    probe.keep(step, "inspector.txt", inspected.payload)
    probe.pipe.logs = log


def _difference(reference: np.ndarray, output: np.ndarray) -> dict[str, Any]:
    if reference.shape != output.shape:
        return {"shapes": [reference.shape, output.shape]}
    a, b = reference.astype(np.float64), output.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(a - b)
    return {
        "dtype": str(output.dtype),
        "max": float(np.nanmax(error)) if np.isfinite(error).any() else None,
        "nonfinite": int((~np.isfinite(b)).sum() - (~np.isfinite(a)).sum()),
        "largest_reference": float(np.abs(a).max()),
        "snr_db": float(10 * np.log10((a**2).sum() / max(float((error**2).sum()), 1e-300))),
        "same_argmax": float((a.argmax(-1) == b.argmax(-1)).mean()) if a.ndim > 1 else None,
    }


def _io_model() -> dict[str, tuple[bytes, dict[str, np.ndarray]]]:
    """Return tiny models with one unusual kind of input or output each."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4)).astype(np.float32)
    f, i, b, h = (getattr(TensorProto, t) for t in ("FLOAT", "INT64", "BOOL", "FLOAT16"))

    def one(nodes: list[onnx.NodeProto], ends: Sequence[tuple[str, int, Any]], out: int) -> bytes:
        made = [helper.make_tensor_value_info(n, t, s) for n, t, s in ends]
        zero = numpy_helper.from_array(np.zeros(1, np.float32), "zero")
        graph = helper.make_graph(nodes, "io", made[:out], made[out:], [zero])
        opset = [helper.make_opsetid("", 17)]
        return bytes(
            helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
        )

    node = helper.make_node
    xs: tuple[str, int, Any] = ("x", f, ["batch", 4])
    big = np.array([2**40, 1, 2], np.int64)
    gather = one(
        [node("Gather", ["x", "i"], ["y"], "g", axis=1)],
        [xs, ("i", i, [3]), ("y", f, ["batch", 3])],
        2,
    )
    passed = one([node("Add", ["i", "i"], ["y"], "a")], [("i", i, [3]), ("y", i, [3])], 1)
    return {
        "int64_in": (gather, {"x": x, "i": np.array([2, 0, 1], np.int64)}),
        "int64_too_large": (passed, {"i": big}),
        "int64_out": (passed, {"i": np.array([5, 6, 7], np.int64)}),
        "bool_out": (
            one([node("Greater", ["x", "zero"], ["y"], "g")], [xs, ("y", b, ["batch", 4])], 1),
            {"x": x},
        ),
        "bool_in": (
            one(
                [node("Where", ["c", "x", "zero"], ["y"], "w")],
                [xs, ("c", b, ["batch", 4]), ("y", f, ["batch", 4])],
                2,
            ),
            {"x": x, "c": x > 0},
        ),
        "fp16_io": (
            one(
                [node("Relu", ["x"], ["y"], "r")],
                [("x", h, ["batch", 4]), ("y", h, ["batch", 4])],
                1,
            ),
            {"x": x.astype(np.float16)},
        ),
        "data_dependent": (
            one([node("NonZero", ["x"], ["y"], "n")], [xs, ("y", i, [2, "found"])], 1),
            {"x": np.maximum(x, 0)},
        ),
        "shape_tensor": (
            one(
                [node("Reshape", ["x", "i"], ["y"], "r")],
                [xs, ("i", i, [2]), ("y", f, ["a", "b"])],
                2,
            ),
            {"x": x, "i": np.array([4, 2], np.int64)},
        ),
        "two_outputs_scalar": (
            one(
                [node("ReduceMax", ["x"], ["y"], "m", keepdims=0), node("Abs", ["x"], ["z"], "a")],
                [xs, ("y", f, []), ("z", f, ["batch", 4])],
                1,
            ),
            {"x": x},
        ),
    }


def unusual_io(probe: Probe) -> None:
    """Run every dtype and kind of shape through an engine and compare."""
    for name, (model, inputs) in _io_model().items():
        with probe.step(f"io/{name}") as facts:
            session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
            names = [o.name for o in session.get_outputs()]
            reference = dict(zip(names, session.run(names, inputs), strict=True))
            profile: dict[str, Any] = {"shapes": {}, "values": {}}
            if "x" in inputs:
                profile = _batches({n: a for n, a in inputs.items() if n in "xc"}, (1, 2, 4))
            if name == "shape_tensor":
                profile["values"] = {"i": {"min": [1, 1], "opt": [4, 2], "max": [16, 16]}}
            engine = probe.pipe.build(model, profiles=[profile] if "x" in inputs else [])
            sha256 = engine.header["engine"]["sha256"]
            facts["io"] = probe.pipe.ask("describe", engine=sha256).header["io"]
            outputs = probe.pipe.run(sha256, inputs)
            facts["dtypes"] = {n: [str(reference[n].dtype), str(outputs[n].dtype)] for n in names}
            facts["equal"] = {
                n: reference[n].shape == outputs[n].shape
                and bool((reference[n] == outputs[n]).all())
                for n in names
            }


def mistakes(probe: Probe) -> None:
    """Make impossible requests: the worker must answer, and survive."""
    made = models.small_conv()
    model, pipe = made.model.SerializeToString(), probe.pipe
    inputs = {n: a[0] for n, a in made.heldout.items()}
    profile = _batches(inputs, (1, 4, 16))
    engine = ""
    with probe.step("mistake/good_engine") as facts:
        answer = pipe.build(_dynamic(made.model), profiles=[profile])
        engine = answer.header["engine"]["sha256"]
        data = pipe.get(engine)
        facts["bytes"] = len(data)
    if not engine:
        return
    x = inputs["images"]
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    bad_profile = shape_profile({"images": [(8, 3, 32, 32), (4, 3, 32, 32), (2, 3, 32, 32)]})
    unsupported = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Det", ["x"], ["y"], "the_det"),
                helper.make_node("Relu", ["y"], ["z"]),
            ],
            "unsupported",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 3])],
            [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    ).SerializeToString()
    tries: dict[str, Callable[[], Any]] = {
        "wrong_rank": lambda: pipe.run(engine, {"images": x[0]}),
        "wrong_channels": lambda: pipe.run(engine, {"images": x[:, :2]}),
        "above_max": lambda: pipe.run(engine, {"images": np.repeat(x, 8, 0)}),
        "batch_zero": lambda: pipe.run(engine, {"images": x[:0]}),
        "wrong_dtype": lambda: pipe.run(engine, {"images": x.astype(np.float64)}),
        "missing_input": lambda: pipe.run(engine, {}),
        "unknown_input": lambda: pipe.run(engine, {"pictures": x}),
        "profile_number": lambda: pipe.run(engine, {"images": x}, profile=3),
        "unknown_engine": lambda: pipe.run("0" * 64, {"images": x}),
        "truncated_engine": lambda: pipe.run(pipe.put(data[: len(data) // 2]), {"images": x}),
        "short_engine": lambda: pipe.run(pipe.put(data[:20]), {"images": x}),
        "flipped_engine": lambda: pipe.run(pipe.put(bytes(flipped)), {"images": x}),
        "onnx_as_engine": lambda: pipe.run(pipe.put(model), {"images": x}),
        "garbage_model": lambda: pipe.build(b"not a model at all" * 10),
        "empty_model": lambda: pipe.build(b""),
        "truncated_model": lambda: pipe.build(model[: len(model) // 2]),
        "unsupported_operator": lambda: pipe.build(unsupported),
        "missing_profile": lambda: pipe.build(_dynamic(made.model)),
        "profile_min_above_max": lambda: pipe.build(_dynamic(made.model), profiles=[bad_profile]),
        "profile_unknown_input": lambda: pipe.build(
            _dynamic(made.model), profiles=[shape_profile({"pictures": [(1,), (1,), (1,)]})]
        ),
        "keep_unknown_node": lambda: pipe.build(model, low="fp16", keep=["nobody"]).header[
            "unconstrained"
        ],
        "bf16": lambda: pipe.build(model, low="bf16"),
        "strong": lambda: pipe.build(model, typing="strong"),
        "unknown_tactic_source": lambda: pipe.build(model, tactic_sources=["CUBLAS_TOO"]),
        "no_such_plugin": lambda: pipe.build(model, plugins=["/nowhere/plugin.so"]),
        "workspace_of_1_KiB": lambda: pipe.build(model, workspace_bytes=1024).header["seconds"],
        "optimization_level_9": lambda: pipe.build(model, optimization_level=9).header["seconds"],
        "debug_tensor": lambda: pipe.build(model, debug=["relu1.y"]).header["seconds"],
        "timeout_of_a_second": lambda: pipe.build(_slow(), timeout=1.0).header["seconds"],
    }
    for name, attempt in tries.items():
        with probe.step(f"mistake/{name}") as facts:
            answer = attempt()
            shapes = isinstance(answer, dict) and {
                n: list(a.shape) for n, a in answer.items() if isinstance(a, np.ndarray)
            }
            facts["answer"] = shapes or str(answer)[:500]
    with probe.step("mistake/alive_afterwards") as facts:
        facts["outputs"] = {n: list(a.shape) for n, a in pipe.run(engine, inputs).items()}


def _slow() -> bytes:
    return _frozen(models.digits().model, 16)


def localise(probe: Probe) -> None:
    """Mark inner tensors of the digits model as outputs: do they change the result, or help?"""
    subject = digits()[1]
    nodes = onnx.load_from_string(subject.model).graph.node
    tensors = [n.output[0] for n in nodes if n.name.endswith(("norm1/Pow", "attn/proj/Add"))]
    for count in (1, 4, len(tensors)):
        with probe.step(f"localise/{count}_outputs") as facts:
            marked = tensors[:count]
            built = probe.pipe.build(subject.model, low="fp16", outputs=marked)
            facts["build_seconds"] = built.header["seconds"]
            outputs = probe.pipe.run(built.header["engine"]["sha256"], subject.inputs)
            facts["outputs"] = {
                n: [list(a.shape), str(a.dtype), float(np.abs(a.astype(np.float64)).max())]
                for n, a in outputs.items()
            }


def verbose(probe: Probe) -> None:
    """Keep one verbose log each of a fused and an unfused network."""
    for subject in (small_conv()[0], digits()[1]):
        with probe.step(f"verbose/{subject.name}") as facts:
            keep = next(iter(subject.kept.values()))
            asked: dict[str, Any] = {"low": "fp16", "keep": list(keep), "severity": "verbose"}
            answer = probe.pipe.build(subject.model, **asked)
            facts["lines"] = len(answer.logs)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trt-python", required=True, help="interpreter that imports tensorrt")
    parser.add_argument("--tactic-sources", default=TACTIC_SOURCES, help="'' for the default")
    parser.add_argument("--models", type=Path, help="folder with magika/")
    parser.add_argument("--minutes", type=float, default=8.5, help="begin nothing after these")
    parser.add_argument("--only", nargs="*", help="steps to run; without: all but large")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    sources = given.tactic_sources.split(",") if given.tactic_sources else None
    with Pipe([given.trt_python], sources) as pipe:
        pipe.end = time.monotonic() + 60 * given.minutes
        probe = Probe(given.out, pipe)
        with probe.step("hello") as facts:
            facts.update(pipe.ask("hello", timeout=60.0).header)

        def all_of(subjects: Sequence[Subject]) -> None:
            for subject in subjects:
                examine(probe, subject)

        steps: dict[str, Callable[[], None]] = {
            "conv": lambda: all_of(small_conv()),
            "io": lambda: unusual_io(probe),
            "mistakes": lambda: mistakes(probe),
            "digits": lambda: all_of(digits()),
            "verbose": lambda: verbose(probe),
            "localise": lambda: localise(probe),
            "magika": lambda: all_of(published(given.models)),
            "digits_ffn": lambda: all_of(digits_ffn()),
            "large": lambda: all_of(large()),
        }
        for name in given.only or [n for n in steps if n != "large"]:
            steps[name]()


if __name__ == "__main__":
    main()
