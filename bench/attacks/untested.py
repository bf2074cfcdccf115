"""Cases in which nothing is tested, so that a broken candidate compares well; and sound twins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.attacks.attack import Attack, Command
from bench.attacks.models import drawn, save

ANY = "(float[n, 4] x) => (float[n, 4] y)"
SAMPLES = 12
NOT_JUDGED = "not judged: "

OUTPUTS: Mapping[str, tuple[str, str, str]] = {
    "logarithms of what is below 0": (
        f"g {ANY} {{ a = Abs(x) b = Neg(a) y = Log(b) }}",
        f"g {ANY} {{ a = Exp(x) b = Neg(a) y = Log(b) }}",
        "non-finite",
    ),
    "quotients by 0": (
        f"g {ANY} {{ z = Mul(x, zero) a = Exp(x) y = Div(a, z) }}",
        f"g {ANY} {{ z = Mul(x, zero) a = Abs(x) y = Div(a, z) }}",
        "non-finite",
    ),
    "activations that never fire": (
        f"g {ANY} {{ a = Exp(x) b = Neg(a) y = Relu(b) }}",
        f"g {ANY} {{ a = Abs(x) b = Neg(a) y = Relu(b) }}",
        "zeros",
    ),
    "no detection": (
        "g (float[n, 4] x) => (float[m] y) "
        "{ f = Reshape(x, flat) k = Greater(f, high) e = Exp(f) y = Compress(e, k) }",
        "g (float[n, 4] x) => (float[m] y) "
        "{ f = Reshape(x, flat) k = Greater(f, high) y = Compress(f, k) }",
        "empty",
    ),
    "a mask that is never set": (
        "g (float[n, 4] x) => (bool[n, 4] y) { y = Greater(x, high) }",
        "g (float[n, 4] x) => (bool[n, 4] y) { y = Less(high, x) }",
        "zeros",
    ),
    "no candidate beside scores": (
        "g (float[n, 4] x) => (float[n, 4] y, float[m] z) "
        "{ y = Tanh(x) f = Reshape(x, flat) k = Greater(f, high) z = Compress(f, k) }",
        "g (float[n, 4] x) => (float[n, 4] y, float[m] z) "
        "{ y = Tanh(x) f = Reshape(y, flat) k = Greater(f, high) z = Compress(f, k) }",
        "empty",
    ),
}
"""The FP32 model, a candidate that computes something else, and the kind to be reported."""

BODIES: Mapping[str, tuple[str, str]] = {
    "a branch that is never taken": (
        "y = If (always) <then_branch = t () => (float[n, 4] a) {{ a = Tanh(x) }}, "
        "else_branch = e () => (float[n, 4] b) {{ b = {0}(x) }}>",
        "else_branch never ran",
    ),
    "a branch within a branch": (
        "y = If (always) <then_branch = t () => (float[n, 4] a) {{ a = If (always) "
        "<then_branch = u () => (float[n, 4] c) {{ c = Tanh(x) }}, "
        "else_branch = v () => (float[n, 4] d) {{ d = {0}(x) }}> }}, "
        "else_branch = e () => (float[n, 4] b) {{ b = Identity(x) }}>",
        "else_branch never ran",
    ),
    "a loop without a step": (
        "s = Loop (none, yes, x) <body = l (int64 i, bool go, float[n, 4] state) => "
        "(bool on, float[n, 4] next) {{ on = Identity(go) next = {0}(state) }}> y = Tanh(s)",
        "body never ran",
    ),
}
"""Nodes of a model whose operator `{0}` runs on no sample, and the expected message."""
HEAD = "g (float[n, 4] x) => (float[n, 4] y) { t = ReduceMax<keepdims = 0>(x) "
HEAD += "always = Less(t, high) no = Cast<to = 7>(always) none = Sub(no, no) yes = Identity(always)"

METRICS: Mapping[str, str] = {
    "a constant": "1.0",
    "an infinity": "float('inf')",
    "minus infinity": "-float('inf')",
    "text": "'1.0'",
    "a count of its calls": "f.__dict__.setdefault('n', []).append(0) or float(len(f.n))",
    "a number at random": "float(np.random.default_rng().random())",
    "whether there is an output": "float(len(b) > 0)",
    "whether outputs are finite": "float(all(np.isfinite(o['y']).all() for o in b))",
    "shapes alone": "float(all(o['y'].shape == p['y'].shape for o, p in zip(a, b)))",
    "the reference alone": "float(a[0]['y'].mean())",
    "a candidate that it overwrites": "[o['y'].fill(0) for o in b] and 1.0",
    "a reference that it overwrites": "[o['y'].__imul__(0) for o in a] and 1.0",
}
"""Results of metrics that see nothing of the candidate."""

TOLERANCES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "a relative error of 1": (("--rel-max", "1"), 2),
    "any relative error": (("--rel-max", "1e308"), 2),
    "any absolute error": (("--require", "max-abs=1e30"), 10),
    "an absolute error above the range": (("--require", "max-abs=1.5"), 10),
    "a ratio of 0 dB": (("--require", "snr-db=0"), 2),
    "a ratio of -1000 dB": (("--require", "snr-db=-1000"), 2),
    "any cosine": (("--require", "cosine=-1"), 2),
    "a cosine of 0": (("--require", "cosine=0"), 2),
    "no agreement": (("--require", "agreement=0"), 2),
    "all of an accuracy": (("--metric", "top1", "--metric-drop", "1"), 2),
    "all of an overlap": (("--metric", "mask-iou", "--metric-drop", "7"), 2),
    "all of a ratio": (("--metric", "snr", "--metric-drop", "1e9"), 10),
}
"""Options that allow everything, and the exit code."""

LABELS: Mapping[str, tuple[Sequence[float], int]] = {
    "from 1": ((1, 2, 3, 4), 3),
    "from 1, of some classes": ((1, 2, 3, 3), 10),
    "below 0": ((-1, 0, 1, 2), 3),
    "out of range": ((0, 1, 2, 1000), 3),
    "without numbers": ((0, 1, 2, float("nan")), 3),
    "infinite": ((0, 1, 2, float("inf")), 3),
    "between classes": ((0.5, 1.5, 2.5, 0.5), 3),
    "of other classes": ((2, 3, 0, 1), 10),
}
"""Labels by the class that is right, and the exit code."""


def _verify(folder: Path, other: str, options: Sequence[str], **inputs: object) -> Command:
    given = {"x": drawn(SAMPLES, 1, 4), **inputs}
    np.savez(folder / "x.npz", **given)  # type: ignore[arg-type]
    arguments = ["verify", "model.onnx", other, "--inputs", "x.npz", *options, "--json"]
    return Command(arguments)


CONSTANTS = {
    "zero": np.zeros(1, np.float32),
    "high": np.array(100, np.float32),
    "flat": np.array([-1]),
}


def _outputs(what: str) -> Attack:
    good, bad, kind = OUTPUTS[what]

    def make(folder: Path) -> Command:
        save(folder / "model.onnx", good, CONSTANTS)
        save(folder / "bad.onnx", bad, CONSTANTS)
        return _verify(folder, "bad.onnx", ())

    says = (f'"kind": "{kind}"',)
    return Attack(f"output: {what}", make, (10,), broken=True, says=says, quick=False)


def _body(what: str) -> Attack:
    nodes, told = BODIES[what]

    def make(folder: Path) -> Command:
        for name, op in (("model.onnx", "Sin"), ("bad.onnx", "Exp")):
            save(folder / name, f"{HEAD} {nodes.format(op)} }}", CONSTANTS)
        return _verify(folder, "bad.onnx", ())

    return Attack(f"body: {what}", make, (10,), broken=True, says=(NOT_JUDGED, told), quick=False)


def _classes(folder: Path, bad: str) -> None:
    """Write a model whose outputs rank classes, and a candidate that computes something else."""
    save(folder / "model.onnx", f"g {ANY} {{ y = Tanh(x) }}")
    save(folder / "bad.onnx", f"g {ANY} {{ y = {bad}(x) }}")


def _metric(what: str) -> Attack:
    def make(folder: Path) -> Command:
        _classes(folder, "Sin")
        text = (
            f"import numpy as np\n\ndef f(a, b, c):\n    print('a')\n    return {METRICS[what]}\n"
        )
        (folder / "user.py").write_text(text)
        return _verify(folder, "bad.onnx", ("--metric", "user.py:f", "--metric-drop", "0.1"))

    return Attack(f"metric: {what}", make, (3, 10), broken=True, noise=1 << 10, quick=False)


def _tolerance(what: str) -> Attack:
    options, code = TOLERANCES[what]

    def make(folder: Path) -> Command:
        _classes(folder, "Neg")
        return _verify(folder, "bad.onnx", options)

    return Attack(f"tolerance: {what}", make, (code,), broken=True, quick=False)


def _labels(what: str) -> Attack:
    named, code = LABELS[what]

    def make(folder: Path) -> Command:
        _classes(folder, "Neg")
        x = np.eye(4, dtype=np.float32)[np.arange(SAMPLES) % 4][:, None] + drawn(SAMPLES, 1, 4) / 9
        np.save(folder / "labels.npy", np.array(named)[np.arange(SAMPLES) % 4])
        options = ("--metric", "top1", "--labels", "labels.npy")
        return _verify(folder, "bad.onnx", options, x=x)

    return Attack(f"labels: {what}", make, (code,), broken=True, quick=False)


def _again() -> Attack:
    """A search and a verdict on the same data."""

    def make(folder: Path) -> Command:
        _classes(folder, "Tanh")
        for name in ("x.npz", "y.npz"):
            np.savez(folder / name, x=drawn(SAMPLES, 1, 4))
        data = ["--inputs", "x.npz", "--heldout", "y.npz"]
        return Command(["fix", "model.onnx", *data, "-o", "run", "--json"])

    return Attack("held out: the same", make, (10,), broken=True, quick=False)


def _twin(what: str, options: Sequence[str]) -> Attack:
    """A sound candidate, judged by a criterion that can tell."""

    def make(folder: Path) -> Command:
        _classes(folder, "Tanh")
        x = drawn(SAMPLES, 1, 4)
        np.save(folder / "labels.npy", x[:, 0].argmax(-1))
        (folder / "user.py").write_text(
            "import numpy as np\n\ndef f(a, b, c):\n"
            "    return -float(np.mean([np.abs(o['y'] - p['y']).max() for o, p in zip(a, b)]))\n"
        )
        return _verify(folder, "bad.onnx", options)

    return Attack(f"sound: {what}", make, (0,), quick=False)


ATTACKS = [
    *map(_outputs, OUTPUTS),
    *map(_body, BODIES),
    *map(_metric, METRICS),
    *map(_tolerance, TOLERANCES),
    *map(_labels, LABELS),
    _again(),
    _twin("the default", ()),
    _twin("a tolerance", ("--require", "max-abs=0.1", "--require", "snr-db=20")),
    _twin("top1", ("--metric", "top1")),
    _twin("top1 with labels", ("--metric", "top1", "--labels", "labels.npy")),
    _twin("snr", ("--metric", "snr")),
    _twin("masks", ("--metric", "mask-iou")),
    _twin("a metric of the user's", ("--metric", "user.py:f", "--metric-drop", "0.1")),
]
