"""User functions that fail in every way: inputs, preprocessing, pipelines, metrics."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from bench.attacks.attack import Attack, Command
from bench.attacks.models import drawn, small

FILE = "user.py"
HEAD = "import sys, os, numpy as np\n"
"""The first line of each file; the fault is in line 3."""
_NOISE = 1 << 20

RAISED: Mapping[str, str] = {
    "an error": "raise ValueError('no')",
    "an error without words": "raise ValueError",
    "an exit": "raise SystemExit(0)",
    "an exit with a text": "raise SystemExit('bye')",
    "an end of a generator": "raise GeneratorExit",
    "an end of an iterator": "raise StopIteration",
    "the root of all errors": "raise BaseException('root')",
    "no memory": "raise MemoryError",
    "a full disk": "raise OSError(28, 'No space left on device')",
    "a broken pipe": "raise BrokenPipeError(32, 'x')",
    "recursion without end": "g = lambda: g(); g()",
    "an assertion": "assert not 1",
    "a group": "raise ExceptionGroup('g', [ValueError('a'), TypeError('b')])",
    "colours": "raise ValueError('\\x1b[31m' + 'red' + '\\x1b[2J')",
    "many lines": "raise ValueError('a\\n' * 10000)",
    "a long line": "raise ValueError('a' * 100000)",
    "half a character": "raise ValueError('\\ud800')",
    "an error that cannot be told": "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})",
    "an error told as a number": "raise type('E', (Exception,), {'__str__': lambda s: 7})",
    "an exit while it is told": "raise type('E', (Exception,), {'__str__': lambda s: sys.exit()})",
    "an error with a long name": "raise type('E' * 9999, (Exception,), {})",
    "an error of halfwise's": "from halfwise.errors import BuildFailed; raise BuildFailed('x')",
    "a wrong syntax error": "raise SyntaxError('x', (7, 'y', 1, 'z'))",
    "another folder, then an error": "os.chdir('/'); raise ValueError",
}
"""Errors that functions of every kind raise."""
_QUICK = ("an end of", "root", "cannot be told", "long name", "full disk")

QUIET: Mapping[str, str] = {
    "prints": "print('noise' * 1000)",
    "prints below Python": "os.write(1, b'noise' * 1000)",
    "prints from another process": "os.system('echo noise')",
    "puts files in place of the streams": "import io; sys.stdout = sys.stderr = io.StringIO()",
    "logs": "import logging; logging.basicConfig(); logging.warning('noise')",
    "lets NumPy raise": "np.seterr(all='raise')",
    "makes errors of warnings": "import warnings; warnings.simplefilter('error')",
    "draws numbers": "np.random.seed(0)",
    "ignores Ctrl-C": "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
}
"""Harmless acts; a result follows."""

NO_SAMPLE: Mapping[str, str] = {
    "nothing": "None",
    "a number": "3",
    "a text": "'abc'",
    "bytes": "b'abc'",
    "a class": "int",
    "a function": "len",
    "a set": "{1, 2}",
    "a generator": "(i for i in range(3))",
    "a ragged list": "[[1, 2], [3]]",
    "objects": "np.array([object()])",
    "texts": "np.array(['a', 'b', 'c', 'd'])",
    "dates": "np.array(['2020-01-01'] * 4, 'M8[D]')",
    "records": "np.zeros(4, 'f4,f4')",
    "complex numbers": "np.zeros((1, 4), complex)",
    "no numbers": "np.zeros((0, 4), 'f')",
    "other axes": "np.zeros((2, 3, 5, 7), 'f')",
    "numbers beyond float": "np.full((1, 4), 1e300)",
    "NaN": "np.full((1, 4), np.nan, 'f')",
    "infinities": "np.full((1, 4), np.inf, 'f')",
    "what raises as an array": "type('A', (), {'__array__': lambda s, *a, **k: 1 / 0})()",
    "what exits as an array": "type('A', (), {'__array__': lambda s, *a, **k: sys.exit()})()",
    "itself within itself": "[r := [], r.append(r)][0]",
}
"""Expressions that are not a sample of a model with one input f32[n, 4], whatever its name."""

MAPPINGS: Mapping[str, str] = {
    "an empty dictionary": "{}",
    "numbers as names": "{1: np.zeros((1, 4), 'f')}",
    "names that cannot be shown": "{type('K', (), {'__repr__': lambda s: 1 / 0})(): 1}",
    "no array": "{'x': None}",
    "a dictionary within": "{'x': {'x': 1}}",
    "too many inputs": "{'x': np.zeros((1, 4), 'f'), 'z': np.zeros((1, 4), 'f')}",
    "a dictionary that raises": "type('D', (dict,), {'items': lambda s: 1 / 0})(x=1)",
    "a dictionary without end": "type('D', (dict,), {'__len__': lambda s: -1})(x=1)",
}
"""Expressions that are dictionaries, but not samples either."""

NO_SCORE: Mapping[str, str] = {
    "nothing": "None",
    "a text": "'high'",
    "a list": "[1, 2]",
    "an array": "np.ones(3)",
    "a complex number": "1j",
    "a dictionary": "{}",
    "a number beyond float": "10 ** 400",
    "what raises as a number": "type('F', (), {'__float__': lambda s: 1 / 0})()",
    "what exits as a number": "type('F', (), {'__float__': lambda s: sys.exit()})()",
}
"""Expressions that are not a number."""


def _write(folder: Path, head: str, body: str, result: str) -> str:
    text = f"{HEAD}{head}\n {body}\n {result}\n"
    (folder / FILE).write_bytes(text.encode("utf-8", "surrogatepass"))
    return f"{FILE}:f"


def _inputs(folder: Path, body: str, result: str | None) -> Command:
    made = result or "np.float32([[i, 1, 2, 3]])"
    one = made if made in MAPPINGS.values() else f"dict(x={made})"
    name = _write(folder, "def f():", body, f"return [{one} for i in range(4)]")
    return Command(["verify", "model.onnx", "model.onnx", "--inputs", name, "--json"])


def _pictures(folder: Path, body: str, result: str | None) -> tuple[str, list[str]]:
    """Write a preprocessing function and pictures; return its name and the options of the data."""
    made = result or "np.float32([[ord(str(path)[-5]), 1, 2, 3]])"
    name = _write(folder, "def f(path):", body, f"return {made}")
    pictures = folder / "pictures"
    pictures.mkdir()
    for letter in "abcd":
        (pictures / f"{letter}.png").write_bytes(b"")
    return name, ["--inputs", "pictures", "--json"]


def _preprocess(folder: Path, body: str, result: str | None) -> Command:
    name, data = _pictures(folder, body, result)
    return Command(["verify", "model.onnx", "model.onnx", *data, "--preprocess", name])


def _pipeline(folder: Path, body: str, result: str | None) -> Command:
    name, data = _pictures(folder, body, result)
    first = "import numpy as np\ndef f(path):\n return np.float32([[0, 1, 2, 3]])\n"
    (folder / "first.py").write_text(first, encoding="utf-8")
    functions = ["--preprocess", "first.py:f", "--preprocess-b", name]
    return Command(["diagnose", "model.onnx", *data, *functions, "-o", "run"])


def _metric(folder: Path, body: str, result: str | None) -> Command:
    score = result or "-float(np.abs(a[0]['y'] - b[0]['y']).max())"
    name = _write(folder, "def f(a, b, c):", body, f"return {score}")
    np.savez(folder / "x.npz", x=drawn(8, 1, 4))
    arguments = ["--inputs", "x.npz", "--metric", name, "--metric-drop", "0", "--json"]
    return Command(["verify", "model.onnx", "model.onnx", *arguments])


Kind = Callable[[Path, str, str | None], Command]
KINDS: Mapping[str, Kind] = {
    "inputs": _inputs,
    "preprocessing": _preprocess,
    "pipeline": _pipeline,
    "metric": _metric,
}


def _attack(
    kind: str,
    what: str,
    body: str,
    result: str | None,
    *,
    codes: tuple[int, ...] = (3,),
    says: tuple[str, ...] = (),
    quick: bool = False,
    noise: int = 0,
    limited: int = 0,
) -> Attack:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limited, limited))

    def make(folder: Path) -> Command:
        small(folder)
        made = KINDS[kind](folder, body, result)
        return Command(made.arguments, before=limit if limited else None)

    name = f"{kind} function: {what}"
    return Attack(name, make, codes, says=says, quick=quick, noise=noise)


def _is_quick(what: str, kind: str) -> bool:
    return kind == "inputs" and any(word in what for word in _QUICK)


def _at_import(what: str, body: str) -> Attack:
    def make(folder: Path) -> Command:
        small(folder)
        made = _inputs(folder, "pass", None)
        text = f"{HEAD}\n{body}\n".encode("utf-8", "surrogatepass")
        (folder / FILE).write_bytes(text)
        return made

    return Attack(
        f"file: {what}", make, (3,), says=(f"{FILE}, line 3",), quick=_is_quick(what, "inputs")
    )


_ODD = {
    "a generator without end": ("inputs", "while 1: yield {'x': np.zeros((1, 4), 'f')}", (3,)),
    "an iterator without end": (
        "inputs",
        "return iter(lambda: {'x': np.zeros((1, 4), 'f')}, 1)",
        (3,),
    ),
    "a generator that raises late": (
        "inputs",
        "yield {'x': np.zeros((1, 4), 'f')}; raise GeneratorExit",
        (3,),
    ),
    "a generator of nothing": ("inputs", "yield from ()", (3,)),
    "a generator of itself": ("inputs", "g = (g for _ in [1]); yield g", (3,)),
    "a coroutine": ("inputs", "return (lambda: (yield))", (3,)),
    "other arrays each time": (
        "preprocessing",
        "return np.random.default_rng().random((1, 4), 'f')",
        (3,),
    ),
    "a flip now and then": (
        "preprocessing",
        "return np.arange(4, dtype='f')[None, ::np.random.default_rng().choice([-1, 1])]",
        (3,),
    ),
    "other arrays from a pipeline": (
        "pipeline",
        "return np.random.default_rng().random((1, 4), 'f')",
        (3,),
    ),
    "other names each time": (
        "preprocessing",
        "f.n = getattr(f, 'n', 0) + 1; return {f'x{f.n}': np.zeros((1, 4), 'f') + f.n}",
        (3,),
    ),
}

ATTACKS = [
    *(
        _attack(kind, what, body, None, says=(f"{FILE}, line 3",), quick=_is_quick(what, kind))
        for kind in KINDS
        for what, body in RAISED.items()
    ),
    *(_at_import(what, body) for what, body in RAISED.items()),
    *(
        _attack(kind, what, body, None, codes=(0, 10), noise=_NOISE, quick=kind == "metric")
        for kind in KINDS
        for what, body in QUIET.items()
    ),
    *(
        _attack(kind, f"returns {what}", "pass", result, quick="exits" in what)
        for kind in ("inputs", "preprocessing", "pipeline")
        for what, result in {**NO_SAMPLE, **MAPPINGS}.items()
    ),
    *(
        _attack("metric", f"returns {what}", "pass", result, quick=True)
        for what, result in NO_SCORE.items()
    ),
    *(
        _attack(kind, what, body, None, codes=codes, quick="without end" not in what)
        for what, (kind, body, codes) in _ODD.items()
    ),
    _attack(
        "inputs",
        "large arrays without end",
        "while 1: yield {'x': np.zeros((1000000, 4), 'f')}",
        None,
        limited=800 << 20,
        quick=True,
    ),
    *(
        _attack(
            kind,
            "terabytes",
            "pass",
            "np.broadcast_to(np.float32(0), (10 ** 12, 4))",
            limited=800 << 20,
            quick=True,
        )
        for kind in ("inputs", "preprocessing", "pipeline")
    ),
]
