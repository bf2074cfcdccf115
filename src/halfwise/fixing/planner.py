"""From evidence to a plan: applies the rules, then tries plans on the switched emulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from math import inf

from halfwise.case import Case, Sample, Samples, Settings
from halfwise.emulation.budget import Budget
from halfwise.emulation.forms import Slots
from halfwise.emulation.late_start import cuts_for
from halfwise.emulation.ort import Session
from halfwise.emulation.rounding import FUSED, Fusion
from halfwise.emulation.runner import Switching
from halfwise.emulation.switched import Layout, SwitchedRunner, emulate_switched
from halfwise.emulation.typed import emulate_typed, tf32_nodes
from halfwise.errors import CaseError
from halfwise.fixing.cost import Prices, cost_model
from halfwise.fixing.plan.found import FP32_ALONE, Found, Types, not_yet_alone, with_each_lowered
from halfwise.fixing.plan.guide import lowered
from halfwise.fixing.plan.rules import Start, apply_rules, custom_roles
from halfwise.fixing.plan.search import Search
from halfwise.fixing.rewrite import rewrite
from halfwise.fixing.stages import Best
from halfwise.fixing.trial import Evidence, Trials, gather
from halfwise.graph.casts import Rewritten, low_type
from halfwise.graph.fusions import repeated
from halfwise.graph.model import node_name
from halfwise.graph.movement import Carrying, may_have_bf16
from halfwise.graph.roles import Role, Roles, float_io, roles_of
from halfwise.graph.weights import LowWeights
from halfwise.metrics import Outputs
from halfwise.progress import Watcher
from halfwise.records import Guard, NodeName, Precision, Remark, TensorName
from halfwise.reporting.remarks import remark

Assignment = frozenset[NodeName]

Fused = frozenset[TensorName]


class Planner:
    """Finds plans for one case; samples can join the calibration later.

    Attributes:
        budget: Limits the optional work of the run.
        best: Reports plans that pass.
        slots: INT8 inputs of the nodes that a plan keeps.
        int8: The planner that chose which nodes to leave out of INT8; None if none did.
        unit: Work of one pass over the data: the current number of calibration samples.
    """

    def __init__(
        self,
        case: Case,
        settings: Settings,
        roles: Roles,
        watcher: Watcher,
        original: Planner | None = None,
    ) -> None:
        """Apply the rules; `begin` builds the emulation.

        For a network with repairs, `original` is the planner without them; it supplies the budget
        and the base of costs.
        """
        self.case, self.settings = case, settings
        self.roles, self.watcher = roles, watcher
        self.islands = case.stored.islands & roles.computing
        self.forced = apply_rules(case.network, roles, settings.rules, self.islands)
        fmt, most, held = settings.fmt, settings.large_from, original.weights if original else None
        self.weights: LowWeights = LowWeights(case.network.model, fmt, large_from=most, shared=held)
        same = (n for n, dtype in case.stored.io.items() if dtype == low_type(settings.fmt))
        self.low_io = float_io(case.network)
        if settings.io == "fp32":
            self.low_io &= frozenset(same)
        self._carrying = cache(partial(Carrying, case.network, roles))
        self._classes = cache(partial(repeated, case.network, roles))
        self.steps: list[Remark] = []
        self.passing: list[Assignment] = [frozenset()]  # tried even if no time is left to search
        self.start = Start(frozenset())
        self.held: list[Guard] = []
        self.slots: Mapping[NodeName, Slots] = {}
        self.int8: Planner | None = None
        self.narrowing = Narrowing(self)
        self.best = Best(watcher, roles.computing, self.cost)
        self.unit = len(case.calibration)
        self.original = original
        whole = settings.time_budget, settings.budget * self.unit
        self.budget: Budget = original.budget if original else Budget(whole[0], work=whole[1])
        self.budget.told = watcher.left

    def beside(self, case: Case, watcher: Watcher) -> Planner:
        """Return a planner for a repaired network; it shares this one's budget and cost base.

        Raises:
            UsageError: a rule names a node that repairs removed.
        """
        settings, network = self.settings, case.network
        custom = custom_roles(network, settings.rules, settings.fmt)
        roles = roles_of(network, low_type(settings.fmt), custom=custom)
        return Planner(case, settings, roles, watcher, original=self)

    def holdable(self, guard: Guard) -> Assignment:
        """Return the nodes of a guard, without those that a rule lowers."""
        return frozenset(guard.nodes) - frozenset(self.forced.lowered)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All guards, as a run records them: from the evidence, and those that are held."""
        return (*self.evidence.guards, *self.held)

    @property
    def held_nodes(self) -> Assignment:
        """Nodes held in FP32 although the outputs may pass without them: see `hold`."""
        return frozenset[NodeName]().union(*map(self.holdable, self.held))

    @property
    def choices(self) -> Assignment:
        """Nodes that a plan may keep."""
        return self.roles.computing

    @property
    def guesses(self) -> tuple[Assignment, ...]:
        """First guesses at what to keep: nothing, what certainly loses precision, all suspects."""
        certain = frozenset[NodeName]().union(*self.evidence.certain)
        return frozenset(), certain, self.evidence.suspected

    @property
    def ruled(self) -> Assignment:
        """Compute nodes that rules keep."""
        return self.roles.computing & frozenset(self.forced.kept)

    @property
    def is_safe(self) -> bool:
        """Whether an all-FP32 plan is the original model, and therefore certain to pass."""
        return self.is_free and not (self.case.repairs or self.case.restored)

    @property
    def is_free(self) -> bool:
        """Whether a plan in FP32 is FP32 throughout: no option lowers any part of it."""
        return not (self.forced.lowered or self.low_io)

    @property
    def explained(self) -> Assignment:
        """Nodes that a guard names, a rule keeps, or that are held."""
        return self.evidence.suspected | frozenset(self.forced.kept) | self.held_nodes

    @cached_property
    def prices(self) -> Prices | None:
        """Costs of assignments; None if shapes are unknown or nothing costs anything."""
        model = cost_model(self.case, self.settings, self.roles, self.low_io)
        least = 0.0 if model is None else model.cost(self.all_low())
        if model is None or least == 0:
            return None
        resolve = partial(self.resolve, low_io=self.low_io)
        base = self.original.prices if self.original is not None else None
        return Prices(model, least, self.case.network, self.roles, resolve, base)

    def price(self, kept: Assignment) -> float | None:
        """Return the cost of an assignment relative to all low, with the types foreseen for it."""
        return None if self.prices is None else self.prices.of(kept, self.narrowing.foreseen(kept))

    def cost(self, kept: Assignment) -> float | None:
        """Return the predicted cost of an assignment relative to all low; None if unknown."""
        return None if self.prices is None else self.prices.of(kept, self.types_of(kept))

    def hold(self, guards: Sequence[Guard]) -> None:
        """Keep the nodes of `guards` in every later plan, whatever the outputs show."""
        self.held += guards

    def begin(self, evidence: Evidence, references: list[Outputs] | None = None) -> None:
        """Build the emulation; order the samples by their error with everything low.

        Args:
            evidence: From the case's samples.
            references: Outputs to compare with; None for those of the network itself.
        """
        if references is not None:
            evidence = replace(evidence, references=references)
        self.evidence = evidence
        self.trials = Trials(
            runner=self._emulation(),
            samples=self.case.calibration,
            references=evidence.references,
            criterion=self.case.criterion,
            factor=1.0 if self.case.metric else self.settings.margin,
            metric=self.case.metric,
            resolve=self.resolve,
            spend=lambda: self.budget.spend("trial"),
            passed=self._passed,
        )
        survey = partial(self.trials.survey, self.islands, self.watcher)
        self.budget.within("emulate", survey, None)

    def _passed(self, kept: Assignment, excess: float) -> None:
        if self.settings.searches:
            excess = self.narrowing.look(kept, excess)
            error = None if self.case.metric else excess * self.trials.factor
            self.best.passed(kept, error)

    def gather(self, samples: Samples, *, first: bool = False) -> Evidence:
        """Return the evidence from `samples`; incomplete if the budget ends."""
        given = self.case.network, self.roles, samples, self.settings
        return gather(*given, partial(self.watcher.step, of="ranges"), self.budget, first=first)

    def step(self, done: int, total: int) -> None:
        """Report progress of work within the budget; raise `OutOfTime` once it is spent."""
        self.budget.check()
        self.watcher.step(done, total)

    def give_up(self) -> None:
        """Forget every plan that could be the result when time runs out, except all of FP32."""
        self.passing.clear()
        self.start = replace(self.start, kept=frozenset())

    def start_from(self, start: Start) -> None:
        """Start the search from a plan, and report whether it passes; call it after `begin`."""
        kept = start.kept - frozenset(self.forced.lowered)
        passed = self.trials.evaluate(kept | self.ruled).passed
        assert start.note is not None
        names = {**start.note.names, "ends": "passes" if passed else "fails"}
        numbers = {**start.note.numbers, "kept": len(kept)}
        note = start.note.model_copy(update={"names": names, "numbers": numbers})
        self.start = Start(kept, note)
        self.watcher.note(remark(note))
        self.steps.append(note)

    def join(self, samples: Samples, references: Sequence[Outputs], evidence: Evidence) -> None:
        """Add samples to the calibration; `evidence` covers all samples."""
        self.narrowing.clear()
        self.trials.join(samples, references)
        self.learn(evidence)

    def learn(self, evidence: Evidence) -> None:
        """Replace the evidence for the current samples."""
        changed = evidence.limits != self.evidence.limits
        self.evidence = replace(evidence, references=self.trials.references)
        if changed:
            self.trials.runner = self._emulation()

    def find(self, previous: Assignment, *, certify: bool = True) -> Found:
        """Return the smallest set of kept nodes found, starting from `previous`."""
        if (chosen := self.settings.chosen) is not None:
            return self._given(chosen.kept, Remark(kind="chosen", names={"rule": chosen.rule}))
        found = self._search().run(previous, certify=certify)
        alone = not_yet_alone(found, self.held_nodes) - frozenset(self.forced.kept)
        if not (certify and alone) or found.exhausted:
            return found
        return with_each_lowered(found, alone, self.trials.evaluate, self.budget)

    def _search(self) -> Search:
        free = self.choices - frozenset(self.forced.lowered)
        return Search(
            nodes=[name for name in map(node_name, self.case.network.nodes()) if name in free],
            forced=free & (self.ruled | self.held_nodes),
            suspects=[frozenset(guard.nodes) for guard in self.evidence.guards],
            certain=len(self.evidence.certain),
            classes=self._classes,
            evaluate=self.trials.evaluate,
            contribution=self.trials.contribution,
            harmless=None if self.case.metric else 0.5,
            budget=self.budget,
            start=self.start.kept,
            safe=self.is_safe,
            watcher=self.watcher,
            steps=self.steps,
            passing=self.passing,
            price=self.price,
            guide=self.prices.guide if self.prices else None,
            serving=self.best.serving,
        )

    def engine_trials(self, fusion: Fusion = "usual", accumulate: str = "") -> Trials:
        """Return trials on an emulation that predicts engines.

        They use no margin: it exists for plans, not for engines. `accumulate` is as in
        `emulate_switched`; "" takes the one from the settings.
        """
        return self.trials.on(self._emulation(FUSED[fusion](self.case.network), accumulate))

    def resolve(
        self, kept: Assignment, *, low_io: frozenset[TensorName] = frozenset()
    ) -> Assignment:
        """Return all FP32 nodes: kept ones, data movement between them, and what rules keep.

        `low_io` leaves out those that are FP32 only for these ends: no value depends on them.
        """
        moves = frozenset(n for n in self.forced.kept if self.roles[n].role is Role.MOVEMENT)
        return (kept | moves | self._carrying(low_io)(kept)) - frozenset(self.forced.lowered)

    def all_low(self) -> Assignment:
        """Return the FP32 nodes that remain if neither rules nor search keep any."""
        return self._carrying(self.low_io)(frozenset()) - frozenset(self.forced.lowered)

    def rewrite(self, kept: Assignment) -> tuple[Rewritten, Assignment]:
        """Return the mixed model that keeps `kept`, and all its FP32 nodes."""
        ruled = (*self.forced.kept, *self.forced.lowered)
        return rewrite(
            self.case.network,
            self.roles,
            self.resolve(kept),
            self.settings.fmt,
            fixed=frozenset(n for n in ruled if self.roles[n].role is Role.MOVEMENT),
            low_io=self.low_io,
            weights=self.weights,
            types=self.types_of(kept),
        )

    def types_of(self, kept: Assignment) -> Types:
        """Return the types that kept nodes have in place of FP32 in the plan that keeps them."""
        return self.narrowing.known.get(kept, FP32_ALONE)

    def _emulation(self, fused: Fused | None = None, accumulate: str = "") -> Switching:
        switched = partial(
            emulate_switched,
            *(self.case.network, self.roles, self.settings.fmt),
            accumulate=accumulate or self.settings.accumulate,
            limits={} if fused is not None else self.evidence.limits,
            low_io=self.low_io,
            weights=self.weights,
            fused=fused or frozenset(),
            quantised=self.slots,
        )
        whole = Layout(apart=self.evidence.suspected, cuts=cuts_for(self.case, self.settings))
        # If some node must be kept, a search follows, and it needs the whole of it.
        first = whole if self.evidence.certain else replace(whole, alike=True, cuts=0)
        made = [partial(switched, layout=layout) for layout in (first, whole)]
        runner = SwitchedRunner(*made, runtime=self.settings.runtime)
        return runner if fused is not None else self.narrowing.over(runner)

    def _given(self, kept: Assignment, step: Remark) -> Found:
        passed = self.trials.evaluate(kept).passed
        return Found(kept, passed, False, {}, frozenset(), {}, False, (step,))


MOST = 24
"""Maximum number of models tried if not all nodes of a plan can be BF16; each is written and run on
all samples of the calibration."""

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
            lowered(kept, order, passes)
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
