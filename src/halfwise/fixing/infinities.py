"""Whether a passing plan is infinite inside, and what must be FP32 to avoid it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from halfwise.case import Samples
from halfwise.emulation.runner import Nonfinite
from halfwise.fixing.attribute import Infinity, attribute_inside
from halfwise.fixing.plan.reasons import LEADING_TO_INFINITY
from halfwise.fixing.planner import Planner
from halfwise.graph.casts import Rewritten, converted
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.saturating import Fate, original
from halfwise.judging.at_limits import judge_infinities
from halfwise.judging.inside import emulate, lacking_in
from halfwise.judging.judge import Judged
from halfwise.metrics import Computed
from halfwise.records import Failure, Guard, NodeName, TensorName, Verdict
from halfwise.reporting.remarks import with_failures

Assignment = frozenset[NodeName]

MOST_TOLD = 3
"""Infinite tensors named in a failed verdict."""


@dataclass(frozen=True)
class _Seen:
    """What a plan must keep because of harmful infinities inside, or which of them cannot go."""

    guards: tuple[Guard, ...]
    left: frozenset[TensorName]


class Infinities:
    """Looks for new NaN and infinities inside the mixed models of a run, in each once."""

    def __init__(
        self,
        planner: Planner,
        ran: Callable[[Assignment, Sequence[Computed]], None] = lambda _kept, _results: None,
    ) -> None:
        """Take what runs plans.

        Args:
            planner: Makes their models.
            ran: Receives the outputs of all calibration samples for each plan that is run.
        """
        self.planner, self._ran = planner, ran
        self._met = False
        self._seen: dict[object, _Seen] = {}
        self._latest = _Seen((), frozenset())

    def guards(self, kept: Assignment, rewritten: Rewritten) -> tuple[Guard, ...]:
        """Return what a plan must keep so that no harmful infinity occurs on calibration samples.

        Empty if no guard leads to infinities, and if the rest is unavoidable: a user's rule lowers
        it, or its operators have to be low.

        Args:
            kept: The plan.
            rewritten: Its model.
        """
        self._met |= any(g.kind in LEADING_TO_INFINITY for g in self.planner.evidence.guards)
        here = self._here(kept)
        if here not in self._seen:
            self._seen[here] = self._look(kept, rewritten) if self._met else _Seen((), frozenset())
        self._latest = self._seen[here]
        return self._latest.guards

    def known(self, kept: Assignment) -> tuple[Guard, ...] | None:
        """Return what `guards` returned, if it was called for this plan; else None."""
        seen = self._seen.get(self._here(kept))
        return None if seen is None else seen.guards

    def _here(self, kept: Assignment) -> object:
        planner = self.planner
        held, samples = planner.held_nodes, planner.trials.samples.ids
        return kept, planner.types_of(kept), held, samples, self._met

    def _look(self, kept: Assignment, rewritten: Rewritten) -> _Seen:
        planner, settings = self.planner, self.planner.settings
        samples, known = planner.trials.samples, planner.evidence.nonfinite
        emulated = emulate(
            rewritten.model,
            samples,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )
        self._ran(kept, emulated.results)
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
        return _Seen(found, frozenset() if found else frozenset(harmful))

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

    def told(
        self, judged: Judged, kept: Assignment, rewritten: Rewritten, samples: Samples
    ) -> Judged:
        """Mark harmless infinities in the verdict of a plan; new harmful ones fail it.

        Infinities left on the calibration samples do not fail it.
        """
        fates = self._fates(rewritten, judged.inside, samples)
        verdict = _marked(judged.verdict, rewritten.model, fates)
        harmful = self._harmful(rewritten, judged.inside, fates)
        left = self._seen.get(self._here(kept), self._latest).left
        new = [t for t in harmful if t not in left]
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
