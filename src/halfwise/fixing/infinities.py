"""Whether a plan that passes is infinite inside, and what has to be FP32 so that it is not."""

from collections.abc import Mapping
from dataclasses import replace

from halfwise.case import Samples
from halfwise.emulation.tensors import Nonfinite
from halfwise.fixing.attribute import Infinity, attribute_inside
from halfwise.fixing.nonfinite import judge_infinities
from halfwise.fixing.plan.reasons import LEADING_TO_INFINITY
from halfwise.fixing.planner import Planner
from halfwise.graph.casts import Rewritten
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.saturating import Fate, original
from halfwise.judging.judge import Judged, inspect
from halfwise.records import Guard, TensorName, Verdict

MOST_TOLD = 3
"""Infinite tensors that a failed verdict names."""


class Infinities:
    """Looks for new NaN and infinities inside the mixed models of one run."""

    def __init__(self, planner: Planner) -> None:
        """Take the planner whose plans are looked at."""
        self.planner = planner
        self._met = False
        self._left: frozenset[TensorName] = frozenset()

    def guards(self, rewritten: Rewritten) -> tuple[Guard, ...]:
        """Return what to keep so that nothing harmful is infinite on the calibration samples.

        Nothing where no suspicion leads to infinities, and where what is left cannot be avoided:
        a rule of the user's lowers it, or the operators that make it have to be low.
        """
        planner, settings = self.planner, self.planner.settings
        self._met |= any(g.kind in LEADING_TO_INFINITY for g in planner.evidence.guards)
        if not self._met:
            return ()
        samples, known = planner.trials.samples, planner.evidence.nonfinite
        inside = inspect(
            rewritten.model,
            samples,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )[1]
        inside = {t: found for t, found in inside.items() if t not in known}
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
        """Return whether holding the nodes of a guard changes anything.

        Not where they are held already, and not where a rule lowers one of those around a tensor
        that is beyond the range itself: it is infinite then, whatever the others are.
        """
        planner = self.planner
        if planner.holdable(guard) <= planner.held_nodes:
            return False
        limit = planner.settings.fmt.overflow_threshold
        seen = {o.tensor: o.absmax for o in planner.evidence.observations.tensors}
        is_beyond = guard.tensor is not None and seen.get(guard.tensor, 0.0) >= limit
        return not is_beyond or planner.holdable(guard) == frozenset(guard.nodes)

    def told(self, judged: Judged, rewritten: Rewritten, samples: Samples) -> Judged:
        """Return what was judged with the harmless infinities marked; new harmful ones fail.

        Those that were left on the calibration samples are no reason to fail.
        """
        fates = self._fates(rewritten, judged.inside, samples)
        verdict = _marked(judged.verdict, fates)
        harmful = self._harmful(rewritten, judged.inside, fates)
        new = [t for t in harmful if t not in self._left]
        if not new or not verdict.passed:
            return replace(judged, verdict=verdict)
        self._met = True
        failing = dict.fromkeys(i for t in new for i in harmful[t].samples)
        reasons = tuple(
            f"{tensor} is infinite inside on {samples.ids[harmful[tensor].samples[0]]}, and what "
            "reads it has no finite limit there"
            for tensor in new[:MOST_TOLD]
        )
        verdict = verdict.model_copy(update={"passed": False, "reasons": reasons})
        return replace(judged, verdict=verdict, failing=tuple(failing))

    def marked(self, judged: Judged, rewritten: Rewritten, samples: Samples) -> Verdict:
        """Return the verdict with the harmless infinities marked."""
        return _marked(judged.verdict, self._fates(rewritten, judged.inside, samples))

    def _harmful(
        self,
        rewritten: Rewritten,
        inside: Mapping[TensorName, Nonfinite],
        fates: Mapping[TensorName, Fate],
    ) -> dict[TensorName, Infinity]:
        """Return the harmful infinities by tensor of the network."""
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
        return judge_infinities(
            rewritten.model,
            planner.case.network,
            planner.roles,
            planner.evidence.observations,
            settings.fmt,
            inside,
            samples,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
        )


def _marked(verdict: Verdict, fates: Mapping[TensorName, Fate]) -> Verdict:
    marked = tuple(
        i.model_copy(update={"harmless": fates[i.tensor].is_harmless})
        for i in verdict.intermediate_nonfinite
    )
    return verdict.model_copy(update={"intermediate_nonfinite": marked})
