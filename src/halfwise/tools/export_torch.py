"""Export a PyTorch module, and check that the file computes the same."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.graph.model import Network, load_network
from halfwise.inputs import load_function
from halfwise.metrics import relative_error
from halfwise.progress import Silent, Watcher
from halfwise.records import Exported, ParityCheck
from halfwise.reporting.parts import MOST_ROWS, Column, Lines, Report, Table, present
from halfwise.store import file_named, new_file
from halfwise.tools.pytorch import (
    LEAST_DYNAMO_OPSET,
    LEAST_OPSET,
    DynamicAxis,
    Exporter,
    Module,
    demand_torch,
    export,
)
from halfwise.wording import clean, count, number, sentence

TOLERANCE = 1e-4
"""Error over the largest magnitude: PyTorch and ONNX Runtime differ only in summation order."""

Arrays = dict[str, NDArray[Any]]
_AXIS = re.compile(r"(?P<name>\w+):(?P<axis>\d+)(?:=(?P<symbol>[A-Za-z_]\w*))?")


def export_torch(
    factory: str,
    out: str | Path,
    inputs: str | Path | Mapping[str, NDArray[Any]] | None = None,
    *,
    dynamic: Sequence[str] = (),
    sizes: Sequence[str] = (),
    exporter: Exporter = "dynamo",
    opset: int | None = None,
    fold: bool = True,
    tolerance: float = TOLERANCE,
    watcher: Watcher | None = None,
) -> Exported:
    """Write `factory`'s module as an ONNX file, and compare both.

    Args:
        factory: `file.py:function` that returns a torch.nn.Module, or one and example inputs.
        out: ONNX file to write, even if it differs; must not exist.
        inputs: Arrays of one call by parameter of forward: .npz, .npy, `file.py:function` that
            yields dictionaries, or a mapping. None: the factory's example inputs.
        dynamic: Dynamic axes: "x:0=batch", "ids:1".
        sizes: Sizes to compare at: "batch=1,4". Default: the inputs' size and one more.
        exporter: PyTorch's exporter.
        opset: At least 17 (dynamo: 18), the default.
        fold: Whether the exporter folds constants.
        tolerance: Largest error over the largest magnitude of an output.
        watcher: Receives progress.

    Raises:
        HalfwiseError: PyTorch is not installed, something cannot be used, or the exporter fails.
    """
    watcher = watcher or Silent()
    demand_torch()
    how: dict[str, Any] = {"exporter": exporter, "opset": _opset(opset, exporter), "fold": fold}
    with new_file(file_named(out, ".onnx")) as path:
        watcher.stage("load")
        module = Module(load_function(factory)(), factory)
        arrays = _inputs(inputs, module)
        axes = [_axis(text, arrays) for text in dynamic]
        trials = _trials(axes, _sizes(sizes, axes), arrays)
        watcher.stage("export")
        traced = _traceable(arrays, axes, trials)
        module.run(traced)
        warned = export(module, traced, path, dynamic=axes, **how)
        network = load_network(path)
        watcher.stage("compare")
        checks = tuple(_compared(module, network, arrays, axes, trials))
    return Exported(
        module=factory,
        model=str(out),
        exporter=exporter,
        opset=network.opset,
        nodes=sum(1 for _ in network.nodes()),
        inputs=tuple(f"{v.name} {'×'.join(map(str, v.shape or ()))}" for v in network.graph.inputs),
        outputs=tuple(str(v.name) for v in network.graph.outputs),
        tolerance=tolerance,
        checks=checks,
        passed=all(check.error <= tolerance for check in checks),
        traced=warned,
    )


def _opset(given: int | None, exporter: Exporter) -> int:
    least = LEAST_DYNAMO_OPSET if exporter == "dynamo" else LEAST_OPSET
    if given is not None and given < least:
        raise UsageError(
            f"--opset is {given}; the {exporter} exporter needs at least {least} here.",
            "Leave it out; `halfwise modernize` can raise an opset, but nothing lowers one.",
        )
    return given or least


def _inputs(source: str | Path | Mapping[str, NDArray[Any]] | None, module: Module) -> Arrays:
    if source is None:
        if module.example is None:
            raise UsageError(
                f"{module.source} returns no example inputs, and --inputs is not given.",
                "Give --inputs DATA, or return (module, example inputs).",
            )
        return module.example
    if isinstance(source, Mapping):
        return module.named(source)
    if str(source).rpartition(":")[0].endswith(".py"):
        first = next(iter(load_function(str(source)).stream()), None)
        if not isinstance(first, Mapping):
            raise CaseError(f"{source} yields no dictionary of arrays.", "Yield {name: array}.")
        return module.named({str(name): np.asarray(array) for name, array in first.items()})
    return module.named(_read(Path(source)))


def _read(path: Path) -> Arrays:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {path.stem: loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError) as error:
        raise CaseError(
            f"{path} cannot be read as arrays: {error}",
            "Give a .npz with one array for each parameter of forward, or a .npy for a single one.",
        ) from error


def _axis(text: str, arrays: Arrays) -> DynamicAxis:
    match = _AXIS.fullmatch(text)
    if match is None:
        raise UsageError(f"--dynamic is {text!r}; expected NAME:AXIS or NAME:AXIS=SYMBOL.")
    name, axis = match["name"], int(match["axis"])
    if name not in arrays or axis >= arrays[name].ndim:
        shapes = ", ".join(f"{n} with {a.ndim} axes" for n, a in arrays.items())
        raise UsageError(f"--dynamic {text} names no axis.", f"Inputs are {shapes}.")
    return DynamicAxis(name, axis, match["symbol"] or f"{name}_{axis}")


def _sizes(given: Sequence[str], axes: Sequence[DynamicAxis]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for text in given:
        symbol, _, numbers = text.partition("=")
        if symbol not in {a.symbol for a in axes}:
            raise UsageError(f"--sizes {text} names no symbol of --dynamic.")
        if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)+", numbers):
            raise UsageError(f"--sizes is {text!r}; expected two sizes or more: {symbol}=1,4.")
        found[symbol] = [int(number) for number in numbers.split(",")]
    return found


def _trials(
    axes: Sequence[DynamicAxis], given: Mapping[str, list[int]], arrays: Arrays
) -> dict[str, list[int]]:
    trials: dict[str, list[int]] = {}
    for axis in axes:
        size = arrays[axis.name].shape[axis.axis]
        trials.setdefault(axis.symbol, given.get(axis.symbol, [size, size + 1]))
    return trials


def _resized(arrays: Arrays, axes: Sequence[DynamicAxis], sizes: Mapping[str, int]) -> Arrays:
    """Return the arrays resized along dynamic axes, by repeating or dropping elements."""
    resized = dict(arrays)
    for axis in axes:
        if axis.symbol in sizes:
            array = resized[axis.name]
            places = np.arange(sizes[axis.symbol]) % array.shape[axis.axis]
            resized[axis.name] = np.take(array, places, axis.axis)
    return resized


def _traceable(
    arrays: Arrays, axes: Sequence[DynamicAxis], trials: Mapping[str, list[int]]
) -> Arrays:
    """Return arrays for tracing: an axis of size 1 would be specialised."""
    return _resized(arrays, axes, {a.symbol: max(2, *trials[a.symbol]) for a in axes})


def _compared(
    module: Module,
    network: Network,
    arrays: Arrays,
    axes: Sequence[DynamicAxis],
    trials: Mapping[str, list[int]],
) -> Iterator[ParityCheck]:
    session = Session(network.model)
    own = {a.symbol: trials[a.symbol][0] for a in axes}
    wanted = [{**own, symbol: size} for symbol, some in trials.items() for size in some]
    names = [v.name for v in network.graph.inputs]
    for sizes in [s for i, s in enumerate(wanted or [own]) if s not in wanted[:i]]:
        given = _resized(arrays, axes, sizes)
        expected = module.run(given)
        try:
            results = list(session.run({n: given[n] for n in given if n in names}).values())
        except RunFailed as error:
            yield ParityCheck(sizes=sizes, error=inf, problem=error.message)
            continue
        if len(results) != len(expected):
            problem = f"the export has {len(results)} outputs, the module {len(expected)}"
            yield ParityCheck(sizes=sizes, error=inf, problem=problem)
            continue
        error_found = max(map(relative_error, expected, results), default=0.0)
        yield ParityCheck(sizes=sizes, error=error_found)


def exported(record: Exported) -> Report:
    """Return the report: whether module and export agree, at which sizes."""
    problems = tuple(sentence(c.problem) for c in record.checks if c.problem)
    traced = tuple(map(sentence, record.traced[:MOST_ROWS]))
    rows = ((*map(str, check.sizes.values()), number(check.error)) for check in record.checks)
    parts = [
        Table("Module against export, in FP32", _columns(record), tuple(rows)),
        Lines("Problems", problems) if problems else None,
        Lines("Traced as constants: other inputs may compute something else", traced)
        if traced
        else None,
        Lines("Inputs", tuple(map(clean, record.inputs))),
    ]
    worst = max((check.error for check in record.checks), default=0.0)
    result = "computes the same" if record.passed else "COMPUTES SOMETHING ELSE"
    return Report(
        f"{clean(record.model)} {result}: off by at most {number(worst)} of the largest value",
        record.passed,
        f"{sentence(record.module)} · {record.exporter} exporter · opset {record.opset} · "
        f"{count(record.nodes, 'node')} · {number(record.tolerance)} is allowed",
        present(*parts),
    )


def _columns(record: Exported) -> tuple[Column, ...]:
    symbols = record.checks[0].sizes if record.checks else ()
    return (*(Column(clean(symbol), "right") for symbol in symbols), Column("error", "right"))
