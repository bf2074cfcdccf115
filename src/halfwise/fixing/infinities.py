"""Whether a passing plan is infinite inside, and what must be FP32 to avoid it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Samples
from halfwise.emulation.probe import ElementProbe, View
from halfwise.emulation.runner import Nonfinite
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.attribute import Infinity, attribute_inside
from halfwise.fixing.plan.reasons import LEADING_TO_INFINITY
from halfwise.fixing.planner import Planner
from halfwise.formats import Format
from halfwise.graph.casts import Rewritten, converted
from halfwise.graph.model import Network, constant_array, node_name, tensor_name
from halfwise.graph.roles import Roles, is_float
from halfwise.graph.saturating import (
    MASK_SHARE,
    End,
    Fate,
    activations,
    fates,
    masked_by_constants,
    original,
)
from halfwise.judging.inside import emulate, lacking_in
from halfwise.judging.judge import Judged
from halfwise.records import Failure, Guard, NodeName, Observations, TensorName, Verdict
from halfwise.reporting.reasons import with_failures

SATURATED = 2.0**-10
"""The reference counts as at its limit within this: FP16's spacing at 1 (IEEE 754-2019)."""
LOOKED_AT = 8
"""Samples with infinities whose reference is compared with the limits."""
AT_ONCE = 4
"""Bounds memory: number of readers compared together, each with its inputs and outputs."""


def judge_infinities(
    candidate: ir.Model,
    network: Network,
    roles: Roles,
    observations: Observations,
    fmt: Format,
    inside: Mapping[TensorName, Nonfinite],
    samples: Samples,
    *,
    keeping: Callable[[frozenset[NodeName]], ir.Model | None] = lambda _: None,
    accumulate: str = "fp32",
    runtime: Runtime = CPU,
) -> dict[TensorName, Fate]:
    """Return the fate of each tensor that is infinite inside `candidate` and not in FP32.

    An infinity is harmless under two conditions. Every reader, directly or through data movement,
    has a finite limit that larger inputs keep (tanh, a clip, a comparison with a constant, a
    reciprocal that nothing multiplies) or is a Softmax that reads masks. And the reference is at
    that limit at those very elements (`SATURATED`), on the samples checked; or the candidate is
    there too if the infinite tensors, then finite, and those readers are in FP32: then the values
    are wrong for another reason, which the outputs show. A NaN is never harmless.

    Args:
        candidate: The mixed model made from `network`.
        network: The FP32 model.
        roles: Roles of its nodes.
        observations: Of its tensors, with details.
        fmt: The low format.
        inside: Tensors of the candidate with new NaN or infinities.
        samples: The samples that `inside` indexes.
        keeping: Returns the candidate with further nodes in FP32; None if a rule forbids that.
        accumulate: Format of running sums inside low ops.
        runtime: Where to run.

    Returns:
        The fate of each tensor in `inside`; limits that the data refute count as harmful readers.
    """
    seen = {o.tensor: o for o in observations.tensors}
    own = {node_name(n): n for n in network.nodes()}
    computed = (v for n in own.values() for v in n.outputs)
    values = {v.name: v for v in (*network.graph.inputs, *computed)}

    def masked(value: ir.Value) -> bool:
        root = values.get(original(value, own).name)
        return root is not None and masked_by_constants(root, roles, seen, MASK_SHARE * fmt.max)

    gates = activations(network)
    found = fates(candidate.graph, inside, own=own, gates=gates, masked=masked)
    ends = list(dict.fromkeys(e for f in found.values() if f.is_harmless for e in f.ends))
    if not ends:
        return found
    with_some = dict.fromkeys(i for e in ends for i in inside[e.tensor].samples[:LOOKED_AT])
    chosen = samples.select(list(with_some)[:LOOKED_AT])
    emulated = partial(emulate_typed, accumulate=accumulate)
    low, reference = (
        ElementProbe(m, runtime=runtime) for m in (emulated(candidate), network.model)
    )
    check = _Check({e.reader: own[e.reader] for e in ends}, fmt)
    check.run(ends, low, reference, chosen)
    refuted = check.refuted
    computed = (v for n in candidate.graph for v in n.outputs if v.name in found)
    infinite = {
        original(v, own) for v in computed if found[tensor_name(v)].ends.keys() & refuted.keys()
    }
    nodes = {node_name(n) for v in infinite if (n := v.producer()) is not None}
    kept = keeping(frozenset(nodes.union(e.reader for e in refuted))) if nodes else None
    if kept is not None:
        again = _Check({e.reader: own[e.reader] for e in refuted}, fmt)
        again.run([*refuted], low, ElementProbe(emulated(kept), runtime=runtime), chosen)
        left = emulate(kept, chosen, accumulate=accumulate, runtime=runtime).nonfinite
        refuted = refuted if any(v.name in left for v in infinite) else again.refuted
    for fate in found.values():
        fate.harmful |= {e.reader: None for e in fate.ends if e in refuted}
        fate.wrong = bool(fate.ends.keys() & check.refuted.keys())
        fate.seen = bool(fate.ends) and fate.ends.keys() <= check.confirmed and not fate.wrong
    return found


class _Check:
    """Compares the reference with the limits of a few readers, sample by sample."""

    def __init__(self, readers: Mapping[NodeName, ir.Node], fmt: Format) -> None:
        """Take the readers in the reference, and the low format."""
        self._names = {name: tensor_name(node.outputs[0]) for name, node in readers.items()}
        self._bounds = {name: _constants(node) for name, node in readers.items()}
        self._max = fmt.max
        self.refuted: dict[End, None] = {}
        self.confirmed: set[End] = set()
        self._limits: dict[tuple[End, int], tuple[NDArray[np.bool_], NDArray[np.generic]]] = {}

    def run(
        self, ends: Sequence[End], low: ElementProbe, reference: ElementProbe, samples: Samples
    ) -> None:
        """Run the low side first, then the reference, for a few ends at a time."""
        for start in range(0, len(ends), AT_ONCE):
            few = ends[start : start + AT_ONCE]
            low.run(samples, [View((e.tensor, e.result), partial(self._limit, e)) for e in few], {})
            names = {e: (self._names[e.reader],) for e in few}
            reference.run(
                samples, [View(n, partial(self._compare, e)) for e, n in names.items()], {}
            )
            self._limits.clear()

    def _limit(
        self, end: End, sample: int, read: NDArray[np.float32], result: NDArray[np.generic]
    ) -> None:
        if np.isnan(read).any():
            self.refuted[end] = None
            return
        with suppress(ValueError):  # a maximum along an axis has no element of its own
            there = np.broadcast_to(np.isinf(read), result.shape)
            self._limits[end, sample] = there, result[there]

    def _compare(self, end: End, sample: int, result: NDArray[np.generic]) -> None:
        there, limit = self._limits.get((end, sample), (None, None))
        if there is None or limit is None:
            return
        bounds = self._bounds[end.reader]
        if there.shape != result.shape or not self._equal(result[there], limit, bounds):
            self.refuted[end] = None
        elif limit.size:
            self.confirmed.add(end)

    def _equal(
        self,
        expected: NDArray[np.generic],
        actual: NDArray[np.generic],
        bounds: NDArray[np.float64],
    ) -> bool:
        if expected.dtype.kind != "f":
            return bool((expected == actual).all())
        true = expected.astype(np.float64)
        # A clamp at -3.4e38, say, is stored as the last value in range.
        true = np.where(np.isin(true, bounds), np.clip(true, -self._max, self._max), true)
        apart = np.abs(true - actual.astype(np.float64))
        return bool((apart <= SATURATED * np.maximum(1.0, np.abs(true))).all())


def _constants(node: ir.Node) -> NDArray[np.float64]:
    """Return the elements of the float constants that a node reads: f64[n]."""
    read = (v for v in node.inputs if v is not None and v.const_value is not None and is_float(v))
    return np.concatenate([[], *(np.ravel(constant_array(v)).astype(np.float64) for v in read)])


MOST_TOLD = 3
"""Infinite tensors named in a failed verdict."""


class Infinities:
    """Looks for new NaN and infinities inside the mixed models of a run."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self._met = False
        self._left: frozenset[TensorName] = frozenset()

    def guards(self, rewritten: Rewritten) -> tuple[Guard, ...]:
        """Return what to keep so that no harmful infinity occurs on the calibration samples.

        Empty if no guard leads to infinities, and if the rest is unavoidable: a user's rule lowers
        it, or its operators have to be low.
        """
        planner, settings = self.planner, self.planner.settings
        self._met |= any(g.kind in LEADING_TO_INFINITY for g in planner.evidence.guards)
        if not self._met:
            return ()
        samples, known = planner.trials.samples, planner.evidence.nonfinite
        emulated = emulate(
            rewritten.model,
            samples,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )
        inside = lacking_in(known, rewritten.model, emulated.nonfinite)
        harmful = self._harmful(rewritten, inside, self._fates(rewritten, inside, samples))
        found = attribute_inside(
            planner.case.network,
            planner.roles,
            planner.evidence.observations,
            settings.fmt,
            harmful,
            planner.evidence.guards,
            planner.held_nodes,
        )
        found = tuple(g for g in found if self._may_help(g))
        self._left = frozenset() if found else frozenset(harmful)
        return found

    def _may_help(self, guard: Guard) -> bool:
        """Return whether holding the nodes of a guard would change anything.

        It would not if they are held or chosen already, nor if a rule lowers a node next to a
        tensor that itself exceeds the range: that is infinite whatever the other nodes are.
        """
        planner, chosen = self.planner, self.planner.settings.chosen
        kept = planner.held_nodes | (chosen.kept if chosen else frozenset())
        if planner.holdable(guard) <= kept:
            return False
        limit = planner.settings.fmt.overflow_threshold
        seen = {o.tensor: o.absmax for o in planner.evidence.observations.tensors}
        is_beyond = guard.tensor is not None and seen.get(guard.tensor, 0.0) >= limit
        return not is_beyond or planner.holdable(guard) == frozenset(guard.nodes)

    def told(self, judged: Judged, rewritten: Rewritten, samples: Samples) -> Judged:
        """Mark harmless infinities in a verdict; new harmful ones fail it.

        Infinities left on the calibration samples do not fail it.
        """
        fates = self._fates(rewritten, judged.inside, samples)
        verdict = _marked(judged.verdict, rewritten.model, fates)
        harmful = self._harmful(rewritten, judged.inside, fates)
        new = [t for t in harmful if t not in self._left]
        if not new or not verdict.passed:
            return replace(judged, verdict=verdict)
        self._met = True
        failing = dict.fromkeys(i for t in new for i in harmful[t].samples)
        first = {tensor: samples.ids[harmful[tensor].samples[0]] for tensor in new[:MOST_TOLD]}
        failures = (
            Failure(kind="infinite", names={"tensor": tensor, "sample": sample})
            for tensor, sample in first.items()
        )
        return replace(judged, verdict=with_failures(verdict, failures), failing=tuple(failing))

    def marked(self, judged: Judged, rewritten: Rewritten, samples: Samples) -> Verdict:
        """Mark harmless infinities in a verdict."""
        fates = self._fates(rewritten, judged.inside, samples)
        return _marked(judged.verdict, rewritten.model, fates)

    def _harmful(
        self,
        rewritten: Rewritten,
        inside: Mapping[TensorName, Nonfinite],
        fates: Mapping[TensorName, Fate],
    ) -> dict[TensorName, Infinity]:
        """Return harmful infinities by tensor of the network."""
        own = {node_name(n) for n in self.planner.case.network.nodes()}
        values = {v.name: v for n in rewritten.model.graph for v in n.outputs}
        found: dict[TensorName, Infinity] = {}
        for tensor, fate in fates.items():
            if not fate.is_harmless:
                root = tensor_name(original(values[tensor], own))
                before = found.get(root, Infinity(0, (), ()))
                found[root] = Infinity(
                    max(before.elements, inside[tensor].elements),
                    tuple(dict.fromkeys((*before.harmful, *fate.harmful))),
                    tuple(sorted({*before.samples, *inside[tensor].samples})),
                )
        return found

    def _fates(
        self, rewritten: Rewritten, inside: Mapping[TensorName, Nonfinite], samples: Samples
    ) -> dict[TensorName, Fate]:
        if not inside:
            return {}
        planner, settings = self.planner, self.planner.settings

        def keeping(nodes: frozenset[NodeName]) -> ir.Model | None:
            made = planner.rewrite(rewritten.fp32 | nodes)[0]
            return made.model if nodes <= made.fp32 else None

        return judge_infinities(
            rewritten.model,
            planner.case.network,
            planner.roles,
            planner.evidence.observations,
            settings.fmt,
            inside,
            samples,
            keeping=keeping,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )


def _marked(verdict: Verdict, candidate: ir.Model, fates: Mapping[TensorName, Fate]) -> Verdict:
    names = converted(candidate.graph)
    by_name: dict[TensorName, list[Fate]] = {}
    for tensor, fate in fates.items():
        by_name.setdefault(names.get(tensor, tensor), []).append(fate)
    marked = tuple(
        i.model_copy(update=_fate(by_name[i.tensor])) for i in verdict.intermediate_nonfinite
    )
    return verdict.model_copy(update={"intermediate_nonfinite": marked})


def _fate(fates: Sequence[Fate]) -> dict[str, object]:
    """Return the record of one tensor, from its fates in each of its types."""
    harmless = all(f.is_harmless for f in fates)
    if not harmless:
        return {"harmless": False}
    ending = [f for f in fates if f.ends]
    seen = "limit" if all(f.seen for f in ending) else "unseen"
    seen = "wrong" if any(f.wrong for f in ending) else seen
    return {"harmless": True, "ends": seen if ending else "unread"}
