"""Memory to fix a model above 2 GB: a transformer with three planted faults.

It ends in a logarithm, so that the effect of rounding before it is measured too.

python bench/large.py MEGABYTES measures another size, for development; only above
134 are weights kept in files.

python bench/large.py KIND MEGABYTES [OPTIONS OF fix …] makes a decoder, a diffusion transformer or
a vision tower with one overflow, times one inference and one `fix`: for 10 GB on a GPU,
python bench/large.py decoder 10000 --device cuda --no-repair
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.figures import Figure, Result, at_most, equal, reported, table
from bench.runs import FINISHED, ROOT, CommandFailed, Workbench
from halfwise import report

MEGABYTES = 2300
PEAK = 3.0
"""Peak memory over the size of the weights, mapped pages of files included."""
KIND_PEAK = 1.5
"""The same for the three kinds."""
KIND_TIME = 10.0
"""The time of `fix` over that of a process that only loads the model and runs it."""
WIDTH, TOKENS, SAMPLES = 1280, 16, 8
BLOCK_MEGABYTES = 4 * 12 * WIDTH**2 / 1e6
NORM_SCALE = 500.0
"""Factor by which squares in the faulty LayerNorms leave FP16; their result does not change."""
FFN_SCALE = 4e4
"""Factor that takes the hidden values of the faulty FFN out of FP16's range, and back."""
POLL_SECONDS = 0.02


@dataclass
class _Writer:
    """A model under construction: the graph in memory, its weights in a file."""

    data: Path
    width: int = WIDTH
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def op(self, op: str, *inputs: str, name: str, keep: bool = False, **attributes: Any) -> str:
        """Append a node; its output has its name. With `keep`, FP16 breaks it."""
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        if keep:
            self.kept.append(name)
        return name

    def constant(self, name: str, array: ArrayLike) -> str:
        """Append a small constant."""
        self.initializers.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def weight(self, name: str, *shape: int, scale: float = 1.0) -> str:
        """Append f32[*shape] of normal numbers to the file, scaled to keep variances."""
        array = np.random.default_rng(len(self.initializers)).standard_normal(shape, np.float32)
        array *= scale / np.sqrt(shape[0])
        with self.data.open("ab") as stream:
            offset = stream.tell()
            array.tofile(stream)
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", self.data.name),
            ("offset", offset),
            ("length", array.nbytes),
        ):
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        return name

    def norm(self, x: str, prefix: str, *, faulty: bool) -> str:
        """Append a LayerNorm; if `faulty`, a written-out one with squares beyond FP16."""
        if not faulty:
            ones = self.constant(f"{prefix}_gamma", np.ones(self.width))
            return self.op("LayerNormalization", x, ones, name=prefix)
        scale = self.constant(f"{prefix}_scale", NORM_SCALE)
        x = self.op("Mul", x, scale, name=f"{prefix}_scaled")
        mean = self.op("ReduceMean", x, name=f"{prefix}_mean", axes=[-1])
        centred = self.op("Sub", x, mean, name=f"{prefix}_centre")
        two, eps = self.constant(f"{prefix}_2", 2.0), self.constant(f"{prefix}_e", 1e-5)
        square = self.op("Pow", centred, two, name=f"{prefix}_square", keep=True)
        mean = self.op("ReduceMean", square, name=f"{prefix}_var", axes=[-1], keep=True)
        root = self.op("Add", mean, eps, name=f"{prefix}_eps", keep=True)
        root = self.op("Sqrt", root, name=f"{prefix}_root", keep=True)
        return self.op("Div", centred, root, name=prefix)

    def softplus(self, x: str, name: str) -> str:
        """Append Log(1 + Exp(x))."""
        power = self.op("Exp", x, name=f"{name}_exp")
        more = self.op("Add", power, self.constant(f"{name}_1", 1.0), name=f"{name}_add")
        return self.op("Log", more, name=name)

    def attention(self, x: str, prefix: str) -> str:
        """Append attention with one head."""
        q, k, v = (
            self.op(
                "MatMul",
                x,
                self.weight(f"{prefix}_w{n}", self.width, self.width),
                name=f"{prefix}_{n}",
            )
            for n in "qkv"
        )
        k = self.op("Transpose", k, name=f"{prefix}_kt", perm=[0, 2, 1])
        scores = self.op("MatMul", q, k, name=f"{prefix}_scores")
        root = self.constant(f"{prefix}_sqrt", self.width**0.5)
        scores = self.op("Div", scores, root, name=f"{prefix}_scaled")
        share = self.op("Softmax", scores, name=f"{prefix}_softmax", axis=-1)
        mixed = self.op("MatMul", share, v, name=f"{prefix}_mixed")
        return self.op(
            "MatMul", mixed, self.weight(f"{prefix}_wo", self.width, self.width), name=prefix
        )

    def modulate(self, x: str, time: str, prefix: str) -> str:
        """Append x · (1 + scale) + shift, both computed from the embedded time."""
        scale, shift = (
            self.op(
                "MatMul",
                time,
                self.weight(f"{prefix}_{n}_w", self.width, self.width, scale=0.1),
                name=f"{prefix}_{n}",
            )
            for n in ("scale", "shift")
        )
        one = self.op("Add", scale, self.constant(f"{prefix}_1", 1.0), name=f"{prefix}_more")
        return self.op("Add", self.op("Mul", x, one, name=f"{prefix}_by"), shift, name=prefix)

    def feed_forward(self, x: str, prefix: str, *, faulty: bool) -> str:
        """Append the two layers; if `faulty`, with hidden values beyond FP16."""
        scale = FFN_SCALE if faulty else 1.0
        up = self.weight(f"{prefix}_up_w", self.width, 4 * self.width, scale=scale)
        hidden = self.op("MatMul", x, up, name=f"{prefix}_up", keep=faulty)
        hidden = self.op("Relu", hidden, name=f"{prefix}_relu", keep=faulty)
        down = self.weight(f"{prefix}_down_w", 4 * self.width, self.width, scale=1 / scale)
        return self.op("MatMul", hidden, down, name=prefix, keep=faulty)


def make(folder: Path, megabytes: int) -> tuple[Path, Path, frozenset[str]]:
    """Write a model of about `megabytes` and its samples; never holds more than one weight.

    Returns:
        The model, the samples, and the nodes that FP16 breaks.
    """
    model, samples = folder / "large.onnx", folder / "large.npz"
    blocks = max(4, round(megabytes / BLOCK_MEGABYTES))
    writer = _Writer(folder / "large.onnx.data")
    x = "x"
    for i in range(blocks):
        faulty = i in (1, blocks - 2)
        normed = writer.norm(x, f"norm_{i}a", faulty=faulty)
        x = writer.op("Add", x, writer.attention(normed, f"attention_{i}"), name=f"mid_{i}")
        normed = writer.norm(x, f"norm_{i}b", faulty=False)
        mixed = writer.feed_forward(normed, f"ffn_{i}", faulty=i == blocks // 2)
        x = writer.op("Add", x, mixed, name=f"out_{i}")
    writer.softplus(writer.norm(x, "last", faulty=False), "y")
    shape = [1, TOKENS, WIDTH]
    ends = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "y"))
    graph = helper.make_graph(
        writer.nodes, "large", [next(ends)], [next(ends)], writer.initializers
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.write_bytes(proto.SerializeToString())
    drawn = np.random.default_rng(0).standard_normal((SAMPLES, *shape), np.float32)
    np.savez(samples, x=drawn)
    return model, samples, frozenset(writer.kept)


KINDS = ("decoder", "diffusion", "vision")
WIDE, WORDS, POSITIONS, CHANNELS, PATCH, SIDE = 4096, 32000, 128, 64, 14, 224
"""Sizes of the three kinds; below 3 GB they have `WIDTH` instead of `WIDE`."""
WIDE_FROM = 3000


def make_kind(
    folder: Path, kind: str, megabytes: int, width: int | None = None
) -> tuple[Path, Path, frozenset[str]]:
    """Write a model of a kind in about `megabytes`, with one overflow; as `make`.

    The decoder reads words i64[1, POSITIONS] and gives logits. The diffusion transformer reads
    latents f32[1, POSITIONS, CHANNELS] and an embedded time f32[1, 1, width] that modulates each
    block. The vision tower reads an image f32[1, 3, SIDE, SIDE] and gives a feature.
    """
    model, samples = folder / "large.onnx", folder / "large.npz"
    width = width or (WIDE if megabytes >= WIDE_FROM else WIDTH)
    writer, rng = _Writer(folder / "large.onnx.data", width), np.random.default_rng(0)
    x, inputs, drawn = _entrance(writer, kind, rng)
    numbers = (14 if kind == "diffusion" else 12) * width**2
    ends = 2 * WORDS * width if kind == "decoder" else 0
    blocks = max(4, round((megabytes * 1e6 / 4 - ends) / numbers))
    for i in range(blocks):
        normed = writer.norm(x, f"norm_{i}a", faulty=False)
        if kind == "diffusion":
            normed = writer.modulate(normed, "t", f"modulate_{i}")
        x = writer.op("Add", x, writer.attention(normed, f"attention_{i}"), name=f"mid_{i}")
        normed = writer.norm(x, f"norm_{i}b", faulty=False)
        mixed = writer.feed_forward(normed, f"ffn_{i}", faulty=i == blocks // 2)
        x = writer.op("Add", x, mixed, name=f"out_{i}")
    x = writer.norm(x, "last", faulty=False)
    if kind == "vision":
        x = writer.op("ReduceMean", x, name="pooled", axes=[1], keepdims=0)
    leaving = {"decoder": WORDS, "diffusion": CHANNELS, "vision": width}[kind]
    writer.op("MatMul", x, writer.weight("head", width, leaving), name="y")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(writer.nodes, kind, inputs, [output], writer.initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.write_bytes(proto.SerializeToString())
    np.savez(samples, **drawn)  # type: ignore[arg-type]
    return model, samples, frozenset(writer.kept)


def _entrance(
    writer: _Writer, kind: str, rng: np.random.Generator
) -> tuple[str, list[onnx.ValueInfoProto], dict[str, NDArray[np.generic]]]:
    """Append what comes before the blocks; return its value, the inputs and their samples."""
    width = writer.width
    if kind == "decoder":
        words = rng.integers(0, WORDS, (SAMPLES, 1, POSITIONS))
        table = writer.weight("embedding", WORDS, width, scale=WORDS**0.5)
        x = writer.op("Gather", table, "words", name="embed")
        ints = helper.make_tensor_value_info("words", TensorProto.INT64, [1, POSITIONS])
        return x, [ints], {"words": words}
    shapes = {"x": [1, POSITIONS, CHANNELS], "t": [1, 1, width]}
    if kind == "vision":
        shapes = {"x": [1, 3, SIDE, SIDE]}
        kernel = writer.weight("patches", width, 3, PATCH, PATCH, scale=(width / 588) ** 0.5)
        x = writer.op("Conv", "x", kernel, name="patch", strides=[PATCH, PATCH])
        rows = numpy_helper.from_array(np.array([1, width, -1]), "rows")
        writer.initializers.append(rows)
        x = writer.op("Reshape", x, "rows", name="flat")
        x = writer.op("Transpose", x, name="embed", perm=[0, 2, 1])
    else:
        x = writer.op("MatMul", "x", writer.weight("embedding", CHANNELS, width), name="embed")
    drawn: dict[str, NDArray[np.generic]] = {
        n: rng.standard_normal((SAMPLES, *s), np.float32) for n, s in shapes.items()
    }
    named = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    return x, named, drawn


def once(folder: Path, kind: str, megabytes: int, options: list[str]) -> list[Figure]:
    """Return the figures of one `fix` of a model of a kind, with further options of `fix`."""
    model, samples, broken = make_kind(folder, kind, megabytes)
    size = model.stat().st_size + model.with_name("large.onnx.data").stat().st_size
    cuda = "cuda" in options
    # In a process of its own, so that its memory is free again before `fix` starts.
    code = "from bench.large import inference; print(*inference(*__import__('sys').argv[1:]))"
    timed = [sys.executable, "-c", code, str(model), str(samples), "CUDA" if cuda else "CPU"]
    started = time.monotonic()
    output = subprocess.run(timed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    whole = time.monotonic() - started
    seconds, plain = map(float, output.split()[-2:])
    given = ["--inputs", str(samples), "--allow", "random", "-o", str(folder / "run")]
    peaks = watched(["fix", str(model), *given, *options])
    run = report(folder / "run")
    assert run.plan is not None
    held = {k.node for k in run.plan.keep}
    mended = {node for repair in run.plan.repairs for node in repair.nodes}
    what = f"{kind}, {size / 1e9:.2f} GB"
    overflowing = next(node for node in sorted(broken) if node.endswith("_up"))
    stages = ", ".join(f"{name} {s:.0f} s" for name, s in run.cost.stage_seconds.items())
    return [
        equal(f"{what}: passed on held-out samples", run.verdict.passed, wanted=True),
        equal(f"{what}: {overflowing} kept or repaired", overflowing in held | mended, wanted=True),
        reported(f"{what}: kept nodes", len(held)),
        reported(f"{what}: one FP32 inference, seconds", seconds),
        reported(f"{what}: fix, seconds", peaks.seconds, stages),
        at_most(
            f"{what}: fix / a process that loads it and infers twice",
            peaks.seconds / whole,
            KIND_TIME,
        ),
        reported(f"{what}: plain inference, peak memory / size of the model", plain / size),
        at_most(f"{what}: fix, peak memory / size of the model", peaks.resident / size, KIND_PEAK),
        reported(f"{what}: fix, anonymous / size of the model", peaks.anonymous / size),
    ]


def inference(model: str, samples: str, provider: str) -> tuple[float, int]:
    """Return the seconds of a second run of the first sample, and the peak memory in bytes."""
    if provider == "CUDA":
        ort.preload_dlls()
    session = ort.InferenceSession(model, providers=[f"{provider}ExecutionProvider"])
    if session.get_providers()[0] != f"{provider}ExecutionProvider":
        raise CommandFailed(f"ONNX Runtime has no {provider}ExecutionProvider")
    with np.load(samples) as arrays:
        sample = {name: arrays[name][0] for name in arrays.files}
    session.run(None, sample)
    started = time.monotonic()
    session.run(None, sample)
    return time.monotonic() - started, _status(os.getpid()).get("VmHWM", 0)


@dataclass(frozen=True)
class Peaks:
    """Memory and time of a command, in bytes and seconds.

    Attributes:
        resident: Peak resident memory, mapped pages of files included (VmHWM).
        anonymous: Peak memory that no file backs (RssAnon), polled.
        seconds: Wall time.
    """

    resident: int
    anonymous: int
    seconds: float


def watched(arguments: list[str]) -> Peaks:
    """Run `halfwise` with `arguments` and watch its memory."""
    started = time.monotonic()
    command = [sys.executable, "-m", "halfwise", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as child:
        resident = anonymous = 0
        while child.poll() is None:
            fields = _status(child.pid)
            resident = max(resident, fields.get("VmHWM", 0))
            anonymous = max(anonymous, fields.get("RssAnon", 0))
            time.sleep(POLL_SECONDS)
    if child.returncode not in FINISHED:
        raise CommandFailed(f"halfwise {arguments[0]} ended with {child.returncode}")
    return Peaks(resident, anonymous, time.monotonic() - started)


def _status(pid: int) -> dict[str, int]:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return {}
    pairs = (line.split() for line in text.splitlines() if line.endswith("kB"))
    return {name.rstrip(":"): int(number) * 1024 for name, number, _ in pairs}


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return the costs of `fix` on the model, and of `verify` on its result."""
    return costs(bench.folder, MEGABYTES), None


def costs(folder: Path, megabytes: int) -> list[Figure]:
    """Return the figures of a model of about `megabytes`, made in `folder`.

    The plan, and what it takes, are those without repairs, which leave nothing to keep.
    """
    model, samples, broken = make(folder, megabytes)
    size = model.stat().st_size + model.with_name("large.onnx.data").stat().st_size
    out, given = folder / "large", ["--inputs", str(samples), "--allow", "random"]
    what = f"{size / 1e9:.2f} GB model"
    repairing = watched(["fix", str(model), *given, "-o", str(folder / "repaired")])
    mended = report(folder / "repaired")
    fixing = watched(["fix", str(model), *given, "--no-repair", "-o", str(out)])
    run = report(out)
    assert run.plan is not None
    assert mended.plan is not None
    kept = frozenset(k.node for k in run.plan.keep)
    verifying = watched(["verify", str(model), str(out / "model.onnx"), *given])
    stages = ", ".join(f"{name} {s:.0f} s" for name, s in run.cost.stage_seconds.items())
    figures = [
        equal(f"{what}: passed on held-out samples", run.verdict.passed, wanted=True),
        equal(f"{what}: kept nodes are the planted ones", kept == broken, wanted=True),
        reported(f"{what}: kept nodes", len(kept), f"{len(broken)} planted"),
        equal(f"{what}: repaired, passed", mended.verdict.passed, wanted=True),
        reported(f"{what}: repaired, kept nodes", len(mended.plan.keep)),
        reported(f"{what}: repaired, peak memory / size of the model", repairing.resident / size),
        reported(f"{what}: repaired, seconds", repairing.seconds),
    ]
    for name, peaks, note in (("fix", fixing, stages), ("verify", verifying, "")):
        figures += [
            at_most(
                f"{what}: {name}, peak memory / size of the model",
                peaks.resident / size,
                PEAK,
                f"{peaks.resident / 1e9:.2f} GB, mapped files included (VmHWM)",
            ),
            reported(f"{what}: {name}, peak of anonymous memory, GB", peaks.anonymous / 1e9),
            reported(f"{what}: {name}, seconds", peaks.seconds, note),
        ]
    return figures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="halfwise-bench-") as temporary:
        if sys.argv[1] in KINDS:
            kind, size, *options = sys.argv[1:]
            found = once(Path(temporary), kind, int(size), options)
        else:
            found = costs(Path(temporary), int(sys.argv[1]))
    print(table([Result("large", "", found, None)]))
