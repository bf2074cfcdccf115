"""`reduce`: the smallest part of a model that still fails, with the numbers that it reads.

Like Polygraphy's `debug reduce`, but what is cut off is replaced by the values that it computed, so
that a fault of numbers stays too.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Unpack

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import CPU, Case, Sample
from halfwise.declarations import Inputs, Options
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.fixing.bench import Tolerance
from halfwise.formats import FP16
from halfwise.graph.aside import ending_in_ifs, remove_nodes, resolve
from halfwise.graph.casts import rewrite
from halfwise.graph.dataflow import giving_out, varying_tensors
from halfwise.graph.model import Network, add_constant, node_name, tensor_name, with_bodies
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import save
from halfwise.judging.reference import check
from halfwise.metrics import Outputs
from halfwise.options.loading import branches_of, load_asked
from halfwise.options.options import Model, bounded, understand
from halfwise.progress import Silent, Watcher
from halfwise.records import Criterion, NodeName, Record, TensorName, replace
from halfwise.reporting.parts import Lines, Report
from halfwise.reporting.verdict import allowed
from halfwise.scratch import scratch
from halfwise.wording import clean, count, listed, number

MOST = 60
"""Checks of one reduction: ten to cut each end of 1,000 nodes, the rest for what remains."""
_RUN = (
    "import sys, numpy, onnxruntime as o; s = o.InferenceSession(sys.argv[1]); "
    "s.run(None, dict(numpy.load(sys.argv[2])))"
)

Fails = Callable[[Network, Mapping[str, NDArray[np.generic]]], bool]
"""Returns whether a model fails on a sample."""


class Reduction(Record):
    """The smallest part found.

    Attributes:
        model: The file written.
        data: Its inputs, beside it.
        check: What fails.
        sample: The sample on which it fails.
        before: Number of nodes of the whole main graph.
        nodes: The nodes that remain, in order.
        ops: Their operators.
        checks: How many parts were checked.
        criterion: What the check "verdict" allows of the part; None for other checks.
        error: The part's error over what is allowed, above 1; None likewise.
        finished: Whether no smaller part was left to check.
    """

    model: str
    data: str
    check: str
    sample: str
    before: int
    nodes: tuple[NodeName, ...]
    ops: tuple[str, ...]
    checks: int
    finished: bool
    criterion: Criterion | None = None
    error: float | None = None


@bounded
def reduce(
    model: Model,
    inputs: Inputs,
    *,
    fails: str,
    out: str | Path,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Reduction:
    """Write the smallest part of a model that still fails, and its inputs as NPZ beside it.

    Args:
        model: The model: path or proto.
        inputs: Samples, as for `fix`; the first that fails counts.
        fails: "verdict": with everything in FP16, some output is out of tolerance or NaN, by the
            question of `fix`; "run": ONNX Runtime fails or crashes; or a command with {model}, and
            {inputs} if it needs them, which fails if it does not exit with 0.
        out: The ONNX file to write.
        watcher: Receives progress.
        options: See `Options`: those of data, thresholds, and where to run. Values inside the
            model, which parts give out, are held to the thresholds or their default.

    Raises:
        CaseError: the whole model does not fail.
        UsageError: `fails` is none of these.
    """
    watcher = watcher or Silent()
    judged, request = fails == "verdict", understand(inputs, options).by_use
    command = None if judged else _check(fails)
    # What is not run here may be what fails in another program.
    case = load_asked(model, request, watcher, split=False, whole=not judged)
    network, verdict = case.network, None if command else _Verdict(case)
    failing: Fails = command or _Verdict(case)
    if verdict is not None:
        check(network)
    watcher.stage("reduce")
    read = {v.name or "" for v in network.graph.inputs}
    each = ({n: array for n, array in one.items() if n in read} for one in case.calibration)
    samples = zip(case.calibration.ids, each, strict=True)
    found = next(((name, s) for name, s in samples if failing(network, s)), None)
    if found is None:
        raise CaseError(
            f"The model does not fail on any of {count(len(case.calibration), 'sample')}: {fails}"
            f"{f', allowed: {allowed(case.criterion)}' if verdict else ''}.",
            "Give the inputs on which it fails, or another --fails.",
        )
    reads = fails in ("verdict", "run") or "{inputs}" in fails
    inlined = _without_ifs(network, found[1], failing)
    search = Search(inlined, found[1], failing, reads=reads, progress=watcher.step)
    nodes = search.smallest()
    path = Path(out)
    data = path.with_suffix(".npz")
    part, sample = search.part(nodes)
    save(part.model, path)
    np.savez(data, **sample)  # type: ignore[arg-type]
    return Reduction(
        model=str(path),
        data=str(data),
        check=fails,
        sample=found[0],
        before=sum(1 for _ in network.nodes()),
        nodes=tuple(node_name(n) for n in nodes),
        ops=tuple(n.op_type for n in nodes),
        checks=search.checks,
        finished=search.checks < MOST,
        criterion=None if verdict is None else verdict.tolerance(part).criterion,
        error=None if verdict is None else verdict.error(part, sample),
    )


def _without_ifs(network: Network, sample: Sample, failing: Fails) -> Network:
    """Return a network with the branches that a sample takes in the place of its outermost Ifs.

    If it fails like that too; else unchanged.
    """
    ending = ending_in_ifs(network)
    with suppress(CaseError, RunFailed):
        if branches := branches_of(ending, [[sample]], CPU):
            inlined, _ = resolve(ending, branches)
            return inlined if failing(inlined, sample) else network
    return network


class Search(Struct, dict=True):
    """Looks for the smallest part of a model that fails, by bisection of both ends, then by halves.

    Attributes:
        network: The model.
        sample: A sample on which it fails.
        failing: The check.
        reads: Whether the check reads inputs; else a part may read what cannot be computed.
        most: Checks allowed.
        progress: Receives the number of checks done, and of all.
        checks: Checks so far.
    """

    network: Network
    sample: Sample
    failing: Fails
    reads: bool = True
    most: int = MOST
    progress: Callable[[int, int, str], None] = lambda _done, _total, _what: None
    checks: int = 0

    @cached_property
    def nodes(self) -> list[ir.Node]:
        """The nodes of the main graph."""
        return list(self.network.nodes())

    @cached_property
    def _varying(self) -> frozenset[TensorName]:
        return varying_tensors(self.network)

    def smallest(self) -> list[ir.Node]:
        """Return the nodes of the smallest part found, in order."""
        last = self._bisected(len(self.nodes), lambda length: self.nodes[:length])
        length = self._bisected(last, lambda length: self.nodes[last - length : last])
        part = self.nodes[last - length : last]
        size = max(1, len(part) // 2)
        while size and self.checks < self.most:
            for start in range(0, len(part), size)[::-1]:
                rest = [*part[:start], *part[start + size :]]
                if rest and self._fails(rest):
                    part = rest
            size = 0 if size == 1 else size // 2
        return part

    def _bisected(self, high: int, part: Callable[[int], list[ir.Node]]) -> int:
        """Return the smallest length whose part fails, if longer ones do too, as `high` does."""
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fails(part(middle)) else (middle, high)
        return high

    def _fails(self, nodes: Sequence[ir.Node]) -> bool:
        if self.checks >= self.most:
            return False
        self.checks += 1
        self.progress(self.checks, self.most, "checks")
        try:
            part, sample = self.part(nodes)
        except (CaseError, RunFailed):
            return False
        return self.failing(part, sample)

    def part(self, nodes: Sequence[ir.Node]) -> tuple[Network, Sample]:
        """Return a model of these nodes alone, and the numbers that it reads.

        Values that follow only from shapes become constants, as do integers and Booleans from
        outside: builders refuse many of these as inputs.

        Raises:
            CaseError: it would read what is no tensor.
        """
        names = frozenset(map(node_name, nodes))
        model = self.network.copy()
        graph = model.graph
        inside = {inner for n in graph if node_name(n) in names for inner in with_bodies(n)}
        outside = [n for n in graph if n not in inside]
        ends = [v for n in graph if n in inside for v in n.outputs if _ends(v, inside)]
        graph.outputs[:] = ends
        given = []
        for value in [v for n in outside for v in n.outputs if v.name]:
            if any(use.node in inside for use in value.uses()):
                name, value.name = value.name, None
                kind = value.type or ir.TensorType(ir.DataType.FLOAT)
                if not isinstance(kind, ir.TensorType):
                    raise CaseError(f"{name} is not a tensor, so it cannot be given.")
                start = ir.Value(name=name, type=kind, shape=value.shape)
                value.replace_all_uses_with(start)
                given.append(start)
        remove_nodes(graph, outside)
        graph.inputs[:] = [*(v for v in graph.inputs if v.uses()), *given]
        numbers = self._recorded([tensor_name(v) for v in given])
        sample = {v.name or "": self.sample[v.name or ""] for v in graph.inputs if v not in given}
        for value in [v for v in given if tensor_name(v) in numbers]:
            name = tensor_name(value)
            if name in self._varying and value.dtype and value.dtype.is_floating_point():
                value.shape, sample[name] = ir.Shape(numbers[name].shape), numbers[name]
            else:
                graph.inputs.remove(value)
                constant = add_constant(graph, f"{name}::constant", numbers[name])
                value.replace_all_uses_with(constant)
        return replace(self.network, model=model), sample

    def _recorded(self, names: Sequence[TensorName]) -> Outputs:
        """Return what the whole model computes; nothing if it cannot run and nothing reads it."""
        if not names:
            return {}
        try:
            return Session(giving_out(self.network.model, names)).run(self.sample, names)
        except (CaseError, RunFailed):
            if self.reads:
                raise
            return {}


def _ends(value: ir.Value, inside: set[ir.Node]) -> bool:
    """Return whether a value is a result of a part: something else reads it, or nothing at all."""
    users = [use.node for use in value.uses()]
    read_outside = not users or not all(user in inside for user in users)
    return bool(value.name) and (value.is_graph_output() or read_outside)


def _check(fails: str) -> Fails:
    words = [sys.executable, "-c", _RUN, "{model}", "{inputs}"]
    if fails != "run":
        words = shlex.split(fails)
        if not any("{model}" in word for word in words):
            raise UsageError(
                f"--fails is {fails!r}; expected verdict, run, or a command with {{model}} in it.",
                "For example: --fails 'trtexec --onnx={model} --fp16'.",
            )

    def failing(network: Network, sample: Sample) -> bool:
        with scratch() as folder:
            model, data = folder / "model.onnx", folder / "inputs.npz"
            save(network.model, model)
            np.savez(data, **sample)  # type: ignore[arg-type]
            places = {"{model}": str(model), "{inputs}": str(data)}
            command = words
            for name, path in places.items():
                command = [word.replace(name, path) for word in command]
            return subprocess.run(command, capture_output=True, check=False).returncode != 0

    return failing


class _Verdict(Struct, frozen=True):
    """Whether everything in FP16 is out of tolerance on a sample where FP32 is not."""

    case: Case

    def __call__(self, network: Network, sample: Mapping[str, NDArray[np.generic]]) -> bool:
        return self.error(network, sample) > 1

    def tolerance(self, network: Network) -> Tolerance:
        """Return what a model may use; a metric judges only the outputs of the whole one."""
        asked = Tolerance(self.case.criterion, self.case.metric)
        outputs, whole = (
            {tensor_name(v) for v in each.graph.outputs} for each in (network, self.case.network)
        )
        return asked if outputs == whole else Tolerance(asked.of_samples)

    def error(self, network: Network, sample: Mapping[str, NDArray[np.generic]]) -> float:
        """Return the error over what a model may use; inf for new NaN, 0 if it cannot run."""
        low = rewrite(network, roles_of(network), frozenset(), FP16).model
        try:
            reference = Session(network.model).run(sample)
            result = Session(emulate_typed(low)).run(sample)
        except (CaseError, RunFailed):
            return 0.0
        return self.tolerance(network).of_one(reference, result)


def reduced(record: Reduction) -> Report:
    """Return the report on a reduction."""
    pairs = zip(record.nodes, record.ops, strict=True)
    remaining = [f"{clean(name)} ({op})" for name, op in pairs]
    lines = [
        f"Still fails: {clean(record.check)}, on {clean(record.sample)}.",
        f"What remains: {listed(remaining)}.",
        f"Inputs: {clean(record.data)}, as the whole model computes them.",
    ]
    if record.criterion is not None and record.error is not None:
        much = f"{number(record.error)} times" if isfinite(record.error) else "infinitely beyond"
        lines.insert(1, f"Its error is {much} what is allowed: {allowed(record.criterion)}.")
    if not record.finished:
        lines.append(f"Not finished after {MOST} checks: reduce {clean(record.model)} again.")
    title = f"{count(len(record.nodes), 'node')} of {record.before}"
    about = f"{clean(record.model)} · {count(record.checks, 'check')}"
    return Report(title, True, about, (Lines("Result", tuple(lines)),))
