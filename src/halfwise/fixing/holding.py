"""Whether a plan that passes holds otherwise too: inside, and without rounding each value."""

from collections.abc import Sequence

from halfwise.case import Samples
from halfwise.fixing.decisions import Decisions
from halfwise.fixing.infinities import Infinities
from halfwise.fixing.plan.search import Found
from halfwise.fixing.planner import Planner
from halfwise.graph.casts import Rewritten
from halfwise.judging.judge import Judged
from halfwise.metrics import Outputs
from halfwise.records import Verdict
from halfwise.wording import count


class Holding:
    """Looks at the plans of one run beyond the emulation in which they were searched."""

    def __init__(self, planner: Planner) -> None:
        """Take the planner that holds nodes where a plan does not."""
        self._planner = planner
        self._inside, self._decisions = Infinities(planner), Decisions(planner)

    def marked(self, judged: Judged, rewritten: Rewritten, samples: Samples) -> Verdict:
        """Return a verdict with the harmless infinities marked, whatever it says of the outputs."""
        return self._inside.marked(judged, rewritten, samples)

    def holds(self, found: Found, rewritten: Rewritten) -> bool:
        """Return whether a plan holds on the calibration samples; if not, more nodes are held now.

        Of plans that do not pass, or that a rule about ranges made, nothing is asked.
        """
        planner = self._planner
        if not found.passed or planner.settings.keep_above is not None:
            return True
        infinite = self._inside.guards(rewritten)
        guards = infinite or self._decisions.guards(found.kept, rewritten)
        if not guards:
            return True
        planner.hold(guards)
        why = "infinite" if infinite else "decided otherwise without rounding between nodes"
        planner.watcher.note(
            f"{why} inside, although the outputs pass: "
            f"{count(len(guards), 'tensor' if infinite else 'decision')}; "
            f"{count(len(planner.held_nodes), 'node')} held in FP32 in all"
        )
        return False

    def told(
        self, judged: Judged, rewritten: Rewritten, samples: Samples, references: Sequence[Outputs]
    ) -> Judged:
        """Return the verdict with what the held-out samples show of both; each may fail it."""
        judged = self._inside.told(judged, rewritten, samples)
        return self._decisions.told(judged, rewritten, samples, references)
