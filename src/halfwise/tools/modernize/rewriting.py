"""Raise the opset, fold constants and fuse patterns into single operators, proving each step."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.double import DoubleSession
from halfwise.emulation.folding import fold_constants
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, node_name
from halfwise.graph.one_node import (
    FIRST_OPSET,
    Candidate,
    Replaced,
    Replacement,
    alone,
    candidates,
    replace_all,
)
from halfwise.metrics import relative_error
from halfwise.records import LeftAlone, NodeName, Rewriting
from halfwise.wording import number

TOLERANCE = 1e-5
"""Error over a tensor's largest magnitude: FP32 sums in another order differ by about 1e-6."""

_FIRST, _MOST = 8, 256
"""Candidates compared at first, to learn how large their tensors are; and most at a time."""
_TENSORS_BYTES = 1 << 28
"""Bytes of their tensors in memory at a time: each time loads and runs the whole model."""
_MOST_ELEMENTS = 1 << 22
"""Largest size of a random tensor in elements: more would show nothing new."""


@dataclass(frozen=True)
class Proven:
    """A model proven to compute the same function.

    Attributes:
        network: The model.
        rewritings: Rewritings kept.
        left: Candidates left alone or undone.
        folded: Nodes replaced by constants.
        error: Largest error of an output, over its largest magnitude.
        notes: Failed attempts.
    """

    network: Network
    rewritings: tuple[Rewriting, ...]
    left: tuple[LeftAlone, ...]
    folded: tuple[NodeName, ...]
    error: float
    notes: tuple[str, ...]


class Modernizer:
    """Changes a network step by step, keeping only steps that preserve the function."""

    def __init__(
        self,
        network: Network,
        samples: Samples,
        *,
        runtime: Runtime = CPU,
        progress: Callable[[int, int, str], None] = lambda _done, _total, _of: None,
    ) -> None:
        """Run the original on the samples.

        Args:
            network: FP32 model.
            samples: At least one.
            runtime: Where to run.
            progress: Receives the number of rewritings compared, and of all.

        Raises:
            CaseError, RunFailed: the original does not run.
        """
        self.network = network
        self._samples = samples
        self._runtime, self._progress = runtime, progress
        session = Session(network.model, runtime=self._runtime)
        self._references = [session.run(sample) for sample in samples]
        self._notes: list[str] = []
        self._error = 0.0
        self._folded: list[NodeName] = []
        self._inexact: dict[Candidate, tuple[float, float]] = {}

    def run(self, opset: int, available: Collection[str], *, transposes: bool = False) -> Proven:
        """Return the modernized network.

        Args:
            opset: The highest opset that the target reads.
            available: The target's operators.
            transposes: Whether to add Transposes around norms over other axes than the last.
        """
        self._raise(opset)
        self._fold()
        found = candidates(self.network, available, transposes=transposes)
        left = [LeftAlone(op=c.op, nodes=c.nodes, reason=c.reason) for c in found if c.reason]
        errors = dict(self._local_errors([c for c in found if c.replacement is not None]))
        wrong = [c for c, error in errors.items() if error > TOLERANCE]
        left += [_undone(c, self._difference(c, errors.pop(c))) for c in wrong]
        done, undone = self._replace(errors)
        rewritings = tuple(
            Rewriting(
                op=candidate.op,
                output=_replacement(candidate).output,
                removed=replaced.removed,
                added=replaced.added,
                error=errors[candidate],
            )
            for candidate, replaced in done.items()
        )
        return Proven(
            self.network,
            rewritings,
            (*left, *undone),
            tuple(self._folded),
            self._error,
            tuple(self._notes),
        )

    def _raise(self, opset: int) -> None:
        """Raise the opset to the highest, up to `opset`, that preserves the function."""
        steps = {opset, *(first for first in FIRST_OPSET.values() if first < opset)}
        for step in sorted(steps, reverse=True):
            if not self.network.opset < step <= opset:
                continue
            try:
                raised = raise_opset(self.network, step)
                error = self._whole_error(raised)
            except (CaseError, RunFailed) as failure:
                self._notes.append(f"not raised to opset {step}: {failure.message}")
                continue
            if error <= TOLERANCE:
                self.network, self._error = raised, error
                return
            self._notes.append(f"not raised to opset {step}: outputs differ by {number(error)}")

    def _fold(self) -> None:
        model = self.network.copy()
        # Declared inner sizes may be those of one export; infer them again from the inputs.
        for value in (v for n in model.graph for v in n.outputs if not v.is_graph_output()):
            value.shape = None
        try:
            fresh = self._normal(model)
            model = fresh.copy()
            folded = fold_constants(model)
            network = self._normal(model) if folded else fresh
            error = self._whole_error(network)
        except (CaseError, RunFailed) as failure:
            self._notes.append(f"constants are not folded: {failure.message}")
            return
        if error > TOLERANCE:
            self._notes.append(f"constants are not folded: outputs differ by {number(error)}")
            return
        self.network, self._error, self._folded = network, error, folded

    def _replace(
        self, errors: dict[Candidate, float]
    ) -> tuple[dict[Candidate, Replaced], list[LeftAlone]]:
        """Make all replacements; undo them one by one, worst first, until outputs agree."""
        standing = list(errors)
        undone: list[LeftAlone] = []
        while standing:
            model = self.network.copy()
            done = replace_all(model, [_replacement(c) for c in standing])
            try:
                network = self._normal(model)
                error = self._whole_error(network)
                reason = f"an output differs by {number(error)}"
            except (CaseError, RunFailed) as failure:
                error, reason = inf, failure.message
            if error <= TOLERANCE:
                self.network, self._error = network, error
                return dict(zip(standing, done, strict=True)), undone
            worst = max(standing, key=errors.__getitem__)
            standing.remove(worst)
            undone.append(_undone(worst, f"with all replacements made, {reason}"))
        return {}, undone

    def _normal(self, model: ir.Model) -> Network:
        network = normalise(model, path=self.network.path, sha256=self.network.sha256)
        kept = {node_name(n) for n in network.model.graph.all_nodes()}
        names = {n: old for n, old in self.network.original_names.items() if n in kept}
        return Network(network.model, self.network.path, self.network.sha256, names)

    def _whole_error(self, network: Network) -> float:
        session = Session(network.model, runtime=self._runtime)
        outputs = (
            (before, session.run(s))
            for before, s in zip(self._references, self._samples, strict=True)
        )
        return max(
            max((relative_error(a, after[name]) for name, a in before.items()), default=0.0)
            for before, after in outputs
        )

    def _local_errors(self, found: list[Candidate]) -> Iterator[tuple[Candidate, float]]:
        """Yield each replacement's own error, on the samples and on random numbers."""
        values = {v.name: v for n in self.network.nodes() for v in n.outputs}
        values |= {v.name: v for v in self.network.graph.inputs}
        start, size, largest = 0, _FIRST, 1
        while start < len(found):
            self._progress(start, len(found), "rewritings")
            chunk = found[start : start + size]
            errors, most = self._chunk_errors(chunk, values)
            yield from errors.items()
            largest = max(largest, most)
            start, size = start + size, min(_MOST, max(_FIRST, _TENSORS_BYTES // largest))

    def _chunk_errors(
        self,
        chunk: list[Candidate],
        values: dict[str | None, ir.Value],
    ) -> tuple[dict[Candidate, float], int]:
        """Return the error of each candidate, and the bytes of the largest one's tensors."""
        made = {c: _replacement(c) for c in chunk}
        session = Session(self._probe(made.values()), runtime=self._runtime)
        new = {c: alone(made[c], values[made[c].x], self.network.model) for c in chunk}
        sessions = {c: Session(model, runtime=self._runtime) for c, model in new.items()}
        errors = {c: self._random_error(c, sessions[c], values) for c in chunk}
        largest = 0
        for sample in self._samples:
            seen = {**sample, **session.run(sample)}
            for c in chunk:
                before = seen[made[c].output]
                after = sessions[c].run({made[c].x: seen[made[c].x]})[made[c].output]
                error = relative_error(before, after)
                if error > max(errors[c], TOLERANCE):
                    self._compare_exactly(c, new[c], seen, after)
                errors[c] = max(errors[c], error)
                largest = max(largest, seen[made[c].x].nbytes + before.nbytes)
        return errors, largest

    def _probe(self, some: Iterable[Replacement]) -> ir.Model:
        """Return the network with the inputs and outputs of some replacements as outputs."""
        probe = self.network.copy()
        ends = {name for made in some for name in (made.x, made.output)}
        ends -= {v.name for v in (*probe.graph.outputs, *probe.graph.inputs)}
        probe.graph.outputs.extend(v for n in probe.graph for v in n.outputs if v.name in ends)
        return probe

    def _compare_exactly(
        self,
        candidate: Candidate,
        new: ir.Model,
        seen: Mapping[str, NDArray[Any]],
        after: NDArray[Any],
    ) -> None:
        """Record the error of the original and the new node against FP64: either may be wrong."""
        made = _replacement(candidate)
        try:
            truth = DoubleSession(new).run({made.x: seen[made.x]})[made.output]
        except RunFailed:
            return
        both = (np.asarray(a, np.float64) for a in (seen[made.output], after))
        before, error = (relative_error(truth, a) for a in both)
        self._inexact[candidate] = (before, error)

    def _difference(self, candidate: Candidate, error: float) -> str:
        if candidate not in self._inexact:
            return f"it differs by {number(error)}"
        before, new = self._inexact[candidate]
        return (
            f"it differs by {number(error)}; from FP64 the original is off by {number(before)}, "
            "the new "
            f"node by {number(new)}"
        )

    def _random_error(
        self,
        candidate: Candidate,
        session: Session,
        values: dict[str | None, ir.Value],
    ) -> float:
        """Return the error on random numbers, 0 if the old nodes do not run alone."""
        made = _replacement(candidate)
        x, output = values[made.x], values[made.output]
        try:
            graph = ir.convenience.extract(self.network.graph, [x], [output])
            old = Session(ir.Model(graph, ir_version=self.network.model.ir_version))
        except (CaseError, ValueError):  # the second where they read something else, too
            return 0.0
        error = 0.0
        for trial in range(2):
            drawn = _drawn(x, trial)
            if drawn is None:
                continue
            try:
                before = old.run({made.x: drawn})[made.output]
            except RunFailed:
                continue
            error = max(error, relative_error(before, session.run({made.x: drawn})[made.output]))
        return error


def _drawn(x: ir.Value, trial: int) -> NDArray[np.float32] | None:
    """Return random numbers in the shape of `x`, with new sizes of dynamic axes in each trial.

    Normal with mean 0.5 and deviation 1.5, so that mean and sign matter.
    """
    assert x.shape is not None
    sizes = [s if isinstance(s, int) else 2 + axis + trial for axis, s in enumerate(x.shape)]
    if np.prod(sizes, dtype=np.float64) > _MOST_ELEMENTS:
        return None
    generator = np.random.default_rng(trial)
    return (generator.standard_normal(sizes) * 1.5 + 0.5).astype(np.float32)


def _replacement(candidate: Candidate) -> Replacement:
    assert candidate.replacement is not None
    return candidate.replacement


def _undone(candidate: Candidate, reason: str) -> LeftAlone:
    return LeftAlone(op=candidate.op, nodes=candidate.nodes, reason=f"undone: {reason}")
