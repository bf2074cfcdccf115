"""Memory to fix a model above 2 GB: a transformer with three planted faults.

It ends in a logarithm, so that the effect of rounding before it is measured too.

python bench/large.py MEGABYTES measures another size, for development; only above
1074 are weights kept in files.
"""

from __future__ import annotations

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
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from bench.figures import Figure, Result, at_most, equal, reported, table
from bench.runs import FINISHED, ROOT, CommandFailed, Workbench
from halfwise import report

MEGABYTES = 2300
PEAK = 3.0
"""Peak memory over the size of the weights, mapped pages of files included."""
WIDTH, HIDDEN, TOKENS, SAMPLES = 1280, 5120, 16, 8
BLOCK_MEGABYTES = 4 * (4 * WIDTH**2 + 2 * WIDTH * HIDDEN) / 1e6
NORM_SCALE = 500.0
"""Factor by which squares in the faulty LayerNorms leave FP16; their result does not change."""
FFN_SCALE = 4e4
"""Factor that takes the hidden values of the faulty FFN out of FP16's range, and back."""
POLL_SECONDS = 0.02


@dataclass
class _Writer:
    """A model under construction: the graph in memory, its weights in a file."""

    data: Path
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
            ones = self.constant(f"{prefix}_gamma", np.ones(WIDTH))
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
            self.op("MatMul", x, self.weight(f"{prefix}_w{n}", WIDTH, WIDTH), name=f"{prefix}_{n}")
            for n in "qkv"
        )
        k = self.op("Transpose", k, name=f"{prefix}_kt", perm=[0, 2, 1])
        scores = self.op("MatMul", q, k, name=f"{prefix}_scores")
        root = self.constant(f"{prefix}_sqrt", WIDTH**0.5)
        scores = self.op("Div", scores, root, name=f"{prefix}_scaled")
        share = self.op("Softmax", scores, name=f"{prefix}_softmax", axis=-1)
        mixed = self.op("MatMul", share, v, name=f"{prefix}_mixed")
        return self.op("MatMul", mixed, self.weight(f"{prefix}_wo", WIDTH, WIDTH), name=prefix)

    def feed_forward(self, x: str, prefix: str, *, faulty: bool) -> str:
        """Append the two layers; if `faulty`, with hidden values beyond FP16."""
        scale = FFN_SCALE if faulty else 1.0
        up = self.weight(f"{prefix}_up_w", WIDTH, HIDDEN, scale=scale)
        hidden = self.op("MatMul", x, up, name=f"{prefix}_up", keep=faulty)
        hidden = self.op("Relu", hidden, name=f"{prefix}_relu", keep=faulty)
        down = self.weight(f"{prefix}_down_w", HIDDEN, WIDTH, scale=1 / scale)
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
        found = costs(Path(temporary), int(sys.argv[1]))
    print(table([Result("large", "", found, None)]))
