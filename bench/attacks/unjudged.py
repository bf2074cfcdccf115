"""Verdicts that could not fail: tolerances, labels, metrics and data that test nothing.

The candidate is broken, or the part that would show a fault never ran, so "passed" is wrong.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.attacks.attack import Attack, Command
from bench.attacks.layouts import LAYOUTS, Array, Layout
from bench.attacks.layouts import save as save_layout
from bench.attacks.lies import SAMPLES, changes, samples
from bench.attacks.models import drawn, save

_VERIFY = ("verify", "model.onnx", "candidate.onnx", "--inputs", "x.npz")
_NOT_PASSED = (2, 3, 10)


def _broken(folder: Path, name: str, what: str | None = None) -> None:
    """Write a layout's model, a copy with its first part broken, and inputs."""
    layout: Layout = LAYOUTS[name]
    found = dict(changes(layout.parts[0]))
    save_layout(folder / "model.onnx", layout)
    part = found[what] if what else next(iter(found.values()))
    save_layout(folder / "candidate.onnx", layout, {0: part})
    np.savez(folder / "x.npz", x=samples(SAMPLES))


def _with(layout: str, options: Sequence[str], labels: Any = None, *, metric: str = "") -> Attack:
    def make(folder: Path) -> Command:
        _broken(folder, layout)
        further = list(options)
        if labels is not None:
            text = json.dumps(labels)
            (folder / "labels.json").write_text(text, encoding="utf-8")
            further += ["--labels", "labels.json"]
        if metric:
            (folder / "user.py").write_text(f"import numpy as np\n{metric}\n", encoding="utf-8")
            further += ["--metric", "user.py:f", "--metric-drop", "0"]
        return Command([*_VERIFY, *further])

    told = " ".join(options) or metric.replace("\n", ";")
    told = f"{layout}, {told}" + ("" if labels is None else f", labels {str(labels)[:60]}")
    return Attack(told, make, _NOT_PASSED, broken=True)


TOLERANCES = (
    *(("classifier", ["--rel-max", value]) for value in ("1e308", "1e30", "10", "1", "inf", "nan")),
    *(
        ("classifier", ["--require", f"max-abs={value}"])
        for value in ("1e308", "1e30", "1e6", "inf", "nan")
    ),
    *(
        ("classifier", ["--require", f"snr-db={value}"])
        for value in ("-1000", "-1", "0", "-inf", "nan")
    ),
    *(("classifier", ["--require", f"cosine={value}"]) for value in ("-1", "-2", "0", "nan")),
    *(("class map", ["--require", f"agreement={value}"]) for value in ("0", "-1", "nan", "0.001")),
    *(("classifier", ["--metric", "top1", "--metric-drop", value]) for value in ("1", "2", "inf")),
    *(("DeepLab", ["--metric", "mask-iou", "--metric-drop", value]) for value in ("1", "9", "nan")),
    *(("depth", ["--metric", "psnr", "--metric-drop", value]) for value in ("200", "1e9", "inf")),
    *(("optical flow", ["--metric", "epe", "--metric-drop", value]) for value in ("1e9", "inf")),
    ("classifier", ["--rel-max", "1e308", "--require", "snr-db=-1000"]),
)
"""Options that let everything pass."""

LABELS: Iterable[Any] = (
    [10**6] * SAMPLES,
    [-1] * SAMPLES,
    [100] * SAMPLES,
    [float("nan")] * SAMPLES,
    [0.5] * SAMPLES,
    [101 + i for i in range(SAMPLES)],
    [None] * SAMPLES,
    ["cat"] * SAMPLES,
    [True] * SAMPLES,
    [10**30] * SAMPLES,
    [1] * (SAMPLES - 1),
)
"""Labels that do not belong to a classifier of 100 classes."""

METRICS = (
    "def f(a, b, c): return 1.0",
    "def f(a, b, c): return float('inf')",
    "def f(a, b, c): return float('-inf')",
    "def f(a, b, c): return float('nan')",
    "def f(a, b, c): return len(b)",
    "def f(a, b, c): return float(a[0][next(iter(a[0]))].sum())",
    "def f(a, b, c): return float(sum(v.size for o in b for v in o.values()))",
    "n = 0\ndef f(a, b, c):\n global n; n += 1; return n",
    "n = 9\ndef f(a, b, c):\n global n; n -= 1; return n",
    "import random\ndef f(a, b, c): return random.random()",
    "import time\ndef f(a, b, c): return time.time()",
    "def f(a, b, c):\n for o in b:\n  for v in o.values(): v[...] = 0\n"
    " for o in a:\n  for v in o.values(): v[...] = 0\n"
    " return -abs(sum(v.sum() for v in b[0].values()))",
    "def f(a, b, c):\n b[:] = a\n return -float(np.abs(a[0]['out0'] - b[0]['out0']).max())",
    "def f(a, b, c): return -float(np.abs(a[0].popitem()[1] - a[0].popitem()[1]).max())",
    "def f(a, b, c): return 10 ** 400",
    "def f(a, b, c): return a is not None",
    "def f(a, b, c): return 0 * float(b[0][next(iter(b[0]))].sum())",
)
"""Metrics that say nothing about the candidate, or change what they judge."""


def _pair(
    name: str,
    model: str,
    candidate: str,
    inputs: Callable[[], Array],
    weights: Callable[[], dict[str, Array]] = dict,
    options: Sequence[str] = (),
    files: Callable[[Path], None] | None = None,
) -> Attack:
    def make(folder: Path) -> Command:
        save(folder / "model.onnx", model, weights())
        save(folder / "candidate.onnx", candidate, weights())
        np.savez(folder / "x.npz", x=inputs())
        if files is not None:
            files(folder)
        return Command([*_VERIFY, *options])

    return Attack(name, make, _NOT_PASSED, broken=True)


_BRANCH = """g (float[1, 4] x) => (float[1, 4] y) {
    s = ReduceSum <keepdims = 0> (x)
    c = Constant <value = float {1e6}> ()
    f = Greater(s, c)
    y = If (f) <
        then_branch = t () => (float[1, 4] a) { %s },
        else_branch = e () => (float[1, 4] b) { b = Relu(x) }
    >
}"""
_LOOP = """g (float[1, 4] x) => (float[1, 4] y) {
    s = ReduceSum <keepdims = 0> (x)
    c = Constant <value = float {1e6}> ()
    f = Greater(s, c)
    n = Cast <to = 7> (f)
    t = Constant <value = bool {1}> ()
    z = Relu(x)
    y = Loop (n, t, z) <
        body = l (int64 i, bool k, float[1, 4] a) => (bool k2, float[1, 4] b)
            { k2 = Identity(k) %s }
    >
}"""
_FEW = """g (float[1, 400] x) => (bool[1, 400] y) {
    c = Constant <value = float {%s}> ()
    y = Greater(x, c)
}"""


def _idle(kind: str, sign: str) -> str:
    """Return a model that is zero for every input below 100, and differs by `sign` above."""
    return (
        f"g (float[{kind}] x) => (float[{kind}] y) {{ c = Constant <value = float {{100.0}}> () "
        f"s = {sign}(x) z = Sub(s, c) y = Relu(z) }}"
    )


def _few() -> Array:
    values = -np.abs(drawn(SAMPLES, 1, 400)) - 1
    values[:, :, 7:9] = 1.5  # two positives among 400
    return values


def _mask(threshold: bool) -> Callable[[], Array]:
    return lambda: -np.abs(drawn(SAMPLES, 1, 1, 8, 8)) - (1 if threshold else 0)


_MAP = "float[1, 1, 8, 8]"
_IMAGE = f"g ({_MAP} x) => ({_MAP} y) {{ y = %s(x) }}"


def _nothing() -> Iterator[Attack]:
    """Yield cases in which the part that would show the fault is never computed."""

    def usual() -> Array:
        return drawn(SAMPLES, 1, 4)

    low = "h = Cast <to = 10> (%s) m = %s(h) %s = Cast <to = 1> (m)"
    for op in ("Exp", "Neg", "Softplus"):
        branch, loop = f"a = {op}(x)", f"b = {op}(a)"
        lower, lower_loop = low % ("x", op, "a"), low % ("a", op, "b")
        yield _pair(f"a branch never taken, {op}", _BRANCH % branch, _BRANCH % lower, usual)
        yield _pair(f"a loop that never runs, {op}", _LOOP % loop, _LOOP % lower_loop, usual)
    branches, loops = (_BRANCH, "a = %s(x)"), (_LOOP, "b = %s(a)")
    for kind, (text, body) in (("branch", branches), ("loop", loops)):
        other = f"another {kind} in FP32 that never runs"
        yield _pair(other, text % (body % "Neg"), text % (body % "Sin"), usual)
    negative = "g (float[1, 4] x) => (float[1, 4] y) { a = Abs(x) n = Neg(a) y = %s(n) }"
    yield _pair("a reference of NaN alone", negative % "Log", negative % "Sqrt", usual)
    zero = "g (float[1, 4] x) => (float[1, 4] y) { z = Sub(x, x) y = %s(z) }"
    yield _pair("a reference of infinities alone", zero % "Reciprocal", zero % "Reciprocal", usual)
    nan = """g (float[1, 4] x) => (float[1, 4] y, float[1, 4] v) {
        a = Abs(x) n = Neg(a) y = Log(n) v = Relu(x) }"""
    yield _pair(
        "one of two outputs NaN everywhere", nan, nan.replace("y = Log(n)", "y = Sqrt(n)"), usual
    )
    for metric in ("", "top1", "psnr", "mask-iou", "epe"):
        kind = {"": "1, 4", "top1": "1, 4", "epe": "1, 2, 4, 4"}.get(metric, "1, 1, 8, 8")
        shape = [int(length) for length in kind.split(",")]
        yield _pair(
            f"a reference that is zero everywhere, {metric or 'no metric'}",
            _idle(kind, "Identity"),
            _idle(kind, "Neg"),
            functools.partial(drawn, SAMPLES, *shape),
            options=("--metric", metric) if metric else (),
        )
    empty = """g (float[1, 4] x) => (int64[2, n] y, float[1, 4] v) {
        c = Constant <value = float {1e6}> () f = %s(x, c) y = NonZero(f) v = Relu(x) }"""
    yield _pair("empty outputs", empty % "Greater", empty % "GreaterOrEqual", usual)
    only = """g (float[1, 4] x) => (int64[2, n] y) {
        c = Constant <value = float {1e6}> () f = Greater(x, c) y = NonZero(f) }"""
    yield _pair("empty outputs alone", only, only.replace("1e6", "1e5"), usual)
    yield _pair("two positives of 400 lost", _FEW % "1.0", _FEW % "2.0", _few)
    yield _pair("no positive at all", _FEW % "100.0", _FEW % "200.0", _few)
    counts = _FEW.replace("y = Greater(x, c)", "b = Greater(x, c) y = Cast<to = 7>(b)")
    counts = counts.replace("bool[1, 400] y", "int64[1, 400] y")
    yield _pair("two ones of 400 integers lost", counts % "1.0", counts % "2.0", _few)
    iou = ("--metric", "mask-iou")
    yield _pair(
        "masks without a positive", _IMAGE % "Identity", _IMAGE % "Ceil", _mask(True), options=iou
    )


def _heldout(name: str, change: Callable[[Array], Array]) -> Attack:
    def make(folder: Path) -> Command:
        save_layout(folder / "model.onnx", LAYOUTS["classifier"])
        inputs = samples(SAMPLES)
        np.savez(folder / "x.npz", x=inputs)
        np.savez(folder / "heldout.npz", x=change(inputs).astype(np.float32))
        arguments = ["fix", "model.onnx", "--inputs", "x.npz", "--heldout", "heldout.npz"]
        return Command(arguments)

    return Attack(f"held-out data that are {name}", make, _NOT_PASSED, broken=True)


_EACH = 4
_ALL = [
    *(_with(layout, options) for layout, options in TOLERANCES),
    *(_with("classifier", ["--metric", "top1"], labels) for labels in LABELS),
    *(_with("classifier", [], metric=metric) for metric in METRICS),
    *_nothing(),
    _heldout("the calibration's", lambda x: x),
    _heldout("the calibration's in another order", lambda x: x[::-1]),
    _heldout("one unit in the last place away", lambda x: np.nextafter(x, np.float32(9))),
    _heldout("a millionth larger", lambda x: x * (1 + 1e-6)),
    _heldout("the calibration's with little noise", lambda x: x + 1e-5 * drawn(*x.shape)),
    _heldout("a part of the calibration's", lambda x: x[:4]),
]
ATTACKS = [replace(one, quick=not number % _EACH) for number, one in enumerate(_ALL)]
