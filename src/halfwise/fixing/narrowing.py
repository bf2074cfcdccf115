"""For which kept nodes a type narrower than FP32 suffices: BF16 or TF32.

Both have the range of FP32; BF16 has 8 significant bits, and TF32, in which products read their
factors, has 11. The search weighs them. The cost of an untried plan assumes them wherever nodes may
have them; a plan that passes in FP32 is then tried with them, and its cost follows from the result.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from halfwise.emulation.ort import Session
from halfwise.emulation.tf32 import tf32_nodes
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError
from halfwise.fixing.plan.halving import lowered
from halfwise.fixing.types import FP32_ALONE, Types
from halfwise.graph.model import node_name
from halfwise.graph.movement import may_have_bf16
from halfwise.records import NodeName, Precision

if TYPE_CHECKING:
    from halfwise.case import Sample
    from halfwise.emulation.runner import Switching
    from halfwise.fixing.planner import Planner
    from halfwise.metrics import Outputs

MOST = 24
"""Maximum number of models tried if not all nodes of a plan can be BF16; each is written and run on
all samples of the calibration."""

Assignment = frozenset[NodeName]
NONE: Assignment = frozenset()


class Narrowing:
    """The plans of one planner that use BF16 or TF32.

    Attributes:
        known: Plans that passed, by their kept nodes, with the types these have in place of FP32;
            for plans that were tried, or would not be the cheapest even so.
    """

    def __init__(self, planner: Planner) -> None:
        """Take what writes and tries plans.

        Raises:
            CaseError: BF16 is allowed, but the opset lacks it.
        """
        self._planner = planner
        self.known: dict[Assignment, Types] = {}
        self._taken: set[Assignment] = set()
        self._may, self._needy, self._least = NONE, NONE, inf
        self._products, self._needs_bits = NONE, False
        if "bf16" in planner.settings.allow:
            may = may_have_bf16(planner.case.network, planner.roles)
            self._may = may - frozenset(planner.forced.kept) - planner.islands
        if "tf32" in planner.settings.allow:
            self._products = planner.choices.intersection(tf32_nodes(planner.case.network))

    def clear(self) -> None:
        """Forget everything: samples or ranges changed."""
        self.known.clear()
        self._taken.clear()
        self._needy, self._least, self._needs_bits = NONE, inf, False

    def take(self, kept: Assignment, types: Types) -> None:
        """Give a plan what it has on record; it is not settled anew."""
        self.known[kept] = types
        self._taken.add(kept)

    def may_have_bf16(self, kept: Assignment) -> Assignment:
        """Return which nodes of a plan may have BF16."""
        return kept & self._may

    def foreseen(self, kept: Assignment) -> Types:
        """Return the types of a plan's nodes, or those they may have if it is untried.

        With every node kept, all stay FP32: that is the original, not a plan.
        """
        if (known := self.known.get(kept)) is not None or not (self._may or self._products):
            return known or FP32_ALONE
        whole = kept >= self._planner.choices - frozenset(self._planner.forced.lowered)
        return FP32_ALONE if whole else self._possible(kept)

    def precisions(self, kept: Assignment) -> dict[NodeName, Precision]:
        """Return the type of each kept node of a plan."""
        types = self.known.get(kept, FP32_ALONE)
        found: dict[NodeName, Precision] = dict.fromkeys(kept, "fp32")
        found |= dict.fromkeys(self._products & kept if types.tf32 else (), "tf32")
        return found | dict.fromkeys(types.bf16, "bf16")

    def look(self, kept: Assignment, error: float) -> float:
        """Try BF16 and TF32 for a passing plan if they may make it the cheapest so far.

        If the first plan fails with BF16, its nodes that need more bits stay FP32 in later plans;
        if TF32 does not suffice for one plan, no later plan has it.

        Args:
            kept: Its kept nodes.
            error: In FP32, relative to what a trial may use.

        Returns:
            The error with its types from then on.

        Raises:
            OutOfTime: inside a block whose budget is spent.
        """
        planner, price = self._planner, self._price
        if kept in self.known or not (self._may or self._products):
            return error
        free = self.foreseen(kept)
        self.known[kept] = FP32_ALONE
        if free == FP32_ALONE or planner.budget.is_spent:
            return error
        if price(kept, free) < min(self._least, price(kept, FP32_ALONE)):
            self._try(kept, free)
        self._least = min(self._least, price(kept, self.known[kept]))
        exact = planner.trials.exact(kept) if self.known[kept] != FP32_ALONE else None
        return error if exact is None else exact

    def _try(self, kept: Assignment, free: Types) -> None:
        if self._passes(kept, free):
            return
        if free.tf32 and (not free.bf16 or self._passes(kept, Types(free.bf16))):
            self._needs_bits = True
            return
        if not self._needy:
            self._needy = free.bf16 - self._halved(kept, failed=free.bf16)
        if free.tf32:
            self._with_tf32(kept)

    def _with_tf32(self, kept: Assignment) -> None:
        """Try TF32 in addition to a plan's BF16; if it fails, the plan stays as it was."""
        before = self.known.get(kept, FP32_ALONE)
        with_it = Types(before.bf16, tf32=bool(self._products & kept - before.bf16))
        cheaper = self._price(kept, with_it) < self._price(kept, before)
        if not with_it.tf32 or before.tf32 or not cheaper:
            return
        if not self._passes(kept, with_it):
            self.known[kept], self._needs_bits = before, True

    def settle(self, kept: Assignment) -> None:
        """Give a passing plan the BF16 and TF32 that still pass and cost less.

        BF16 is tried for all eligible nodes, then for halves, in graph order: at most `MOST`
        trials, within the budget. Casts count as cost, so a single node seldom gains. TF32 is for
        all products or for none.
        """
        if kept in self._taken:
            return
        within = self._planner.budget.within
        if self._may & kept and self.known.get(kept, FP32_ALONE) == FP32_ALONE:
            within("search", lambda: self._halved(kept), NONE)
        if self._products & kept:
            within("search", lambda: self._with_tf32(kept), None)

    def over(self, switched: Switching) -> Switching:
        """Run plans with BF16 or TF32 as they are written, others as `switched`."""
        return _Runner(self._planner, switched) if self._may or self._products else switched

    def _possible(self, kept: Assignment) -> Types:
        bf16 = kept & self._may - self._needy
        products = NONE if self._needs_bits else self._products
        return Types(bf16, tf32=bool(products & kept - bf16))

    def _price(self, kept: Assignment, types: Types) -> float:
        prices = self._planner.prices
        if prices is None:
            return -float(len(types.bf16) + types.tf32)
        return prices.of(kept, types)

    def _halved(self, kept: Assignment, failed: Assignment = NONE) -> Assignment:
        """Return the nodes of a plan that are BF16 now; `failed` is not tried again."""
        tried, best = {kept - failed}, NONE

        def passes(fp32: Assignment) -> bool:
            nonlocal best
            bf16 = kept - fp32
            dearer = self._price(kept, Types(bf16)) >= self._price(kept, Types(best))
            if len(tried) == MOST or fp32 in tried or dearer:
                return False
            self._planner.budget.check()
            tried.add(fp32)
            passed = self._passes(kept, Types(bf16))
            best = bf16 if passed else best
            return passed

        free = self._may & kept
        order = [n for n in map(node_name, self._planner.case.network.nodes()) if n in free]
        try:
            lowered(kept, [free] if free else [], passes, split=order)
        finally:
            self.known[kept] = Types(best)
        return best

    def _passes(self, kept: Assignment, types: Types) -> bool:
        """Return whether a plan passes with types, and record them; else FP32 alone."""
        trials, passed = self._planner.trials, False
        self.known[kept] = types
        try:
            excess = trials.excess_of(trials.results(kept))
            if passed := excess <= 1:
                trials.learn(kept, excess)
        except CaseError:  # its opset or a custom operator lacks the type
            return False
        finally:
            if not passed:
                self.known[kept] = FP32_ALONE
        return passed


class _Runner:
    """Runs plans with BF16 or TF32 in typed emulation of the written model, made per plan."""

    def __init__(self, planner: Planner, switched: Switching) -> None:
        self._planner, self._switched = planner, switched
        self._loaded: tuple[Assignment, Types, Session] | None = None

    def prepare(self, changed: Assignment, /) -> None:
        """Load the session of an assignment."""
        if self._types(changed) != FP32_ALONE:
            self._session(changed)
        else:
            self._loaded = None
            self._switched.prepare(changed)

    def release(self) -> None:
        """Release it and its memory."""
        self._loaded = None
        self._switched.release()

    def run(self, sample: Sample, changed: Assignment, /) -> Outputs:
        """Return the outputs of an assignment."""
        if self._types(changed) != FP32_ALONE:
            return self._session(changed).run(sample)
        return self._switched.run(sample, changed)

    def _kept(self, changed: Assignment) -> Assignment:
        return changed & self._planner.roles.computing

    def _types(self, changed: Assignment) -> Types:
        return self._planner.types_of(self._kept(changed))

    def _session(self, changed: Assignment) -> Session:
        kept, types = self._kept(changed), self._types(changed)
        if self._loaded is None or self._loaded[:2] != (kept, types):
            self._loaded = None
            settings, model = self._planner.settings, self._planner.rewrite(kept)[0].model
            typed = emulate_typed(model, accumulate=settings.accumulate)
            self._loaded = kept, types, Session(typed, runtime=settings.runtime)
        return self._loaded[2]
