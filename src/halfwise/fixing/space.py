"""The plans of one search: sets of nodes that keep a type with more bits than the others."""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from math import inf
from typing import Self

from msgspec import Struct, field

from halfwise.case import Chosen, Samples
from halfwise.emulation.budget import Budget
from halfwise.errors import CaseError
from halfwise.fixing.attribute import Attribution
from halfwise.fixing.bench import Bench, Outcome
from halfwise.fixing.evidence import Observed
from halfwise.fixing.int8.placing import QuantisedModel, peaks, quantisable, quantised
from halfwise.fixing.plan.plan import NONE, Nodes, Plan, Quantisation, Variant, union
from halfwise.fixing.plan.rules import Start
from halfwise.fixing.plan.search import Search, SearchResult
from halfwise.graph.model import node_name
from halfwise.graph.roles import Role
from halfwise.metrics import Outputs
from halfwise.progress import Watcher, interruption
from halfwise.records import Guard, Remark, Repair, replace
from halfwise.reporting.remarks import remark
from halfwise.wording import ratio

LEFT_OUT = "left out of INT8"
WELL_WITHIN = 0.5
"""Up to this share of the tolerance, an error is no concern. Our choice."""


class Best:
    """Reports plans that pass, each much cheaper than the one before."""

    def __init__(self) -> None:
        """Begin with none."""
        self._interruption = interruption()
        self._extra: float | None = None

    def passed(self, space: "Space", kept: Nodes, error: float) -> None:
        """Report a plan that passes on all samples of the search if it is clearly better.

        It then costs at most half as much above everything low: a long search takes few lines.

        Args:
            space: The plans.
            kept: What it keeps.
            error: Relative to what is allowed.
        """
        if len(kept) >= len(space.choices):
            return
        self._interruption.offer()
        price, fp32 = space.cost(kept), space.cost(space.choices)
        if price is not None and fp32 is not None and price >= fp32:
            return  # all of FP32 is better
        least = min(1.0, space.cost(NONE) or 1.0)
        extra = float(len(kept)) if price is None else price - least
        # An empty plan ends the search, which reports it itself.
        if not kept or (self._extra is not None and extra > self._extra / 2):
            return
        self._extra = extra
        cost = "" if price is None else f", {ratio(price)} the cost of everything low"
        space.watcher.note(
            f"best plan so far: {len(kept)} of {len(space.choices)} nodes "
            f"{space.form or 'in FP32'}{cost}, error {ratio(error)} what is allowed"
        )


class Space(Struct, frozen=True, eq=False):
    """Plans by what they keep in FP32, on the samples of one bench.

    At the end it is BF16 or TF32 if that is allowed and cheaper.

    Attributes:
        variant: The network that they are plans of.
        bench: Evaluates them.
        observed: The evidence for each network.
        budget: Limits all optional work of the run.
        watcher: Receives progress.
        held: Guards whose nodes every plan keeps in FP32, whatever the outputs show.
        deciding: Guards on decisions that files make otherwise.
        repairs: The repairs of the network, with what was measured of them.
        undone: Remarks on repairs that were not made, or were undone.
        start: A plan to start from.
        original: The plans of the network without repairs; None if these are they.
        best: Reports plans that pass.
    """

    variant: Variant
    bench: Bench[Plan]
    observed: Observed
    budget: Budget
    watcher: Watcher
    held: tuple[Guard, ...] = ()
    deciding: tuple[Guard, ...] = ()
    repairs: tuple[Repair, ...] = ()
    undone: tuple[Remark, ...] = ()
    start: Start = Start(NONE)
    original: "Space | None" = None
    best: Best = field(default_factory=Best)

    def repaired(self, repairs: Sequence[Repair], variant: Variant | None = None) -> "Space":
        """Return the plans of the network with repairs instead.

        Args:
            repairs: The repairs.
            variant: The network with them, if it was made already.

        Raises:
            CaseError: they cannot be made, or the result cannot run.
            RunFailed: likewise.
            UsageError: a user's rule names a node that they remove.
        """
        variant = variant or self.variant.with_repairs(repairs)
        if self.observed.get(variant) is None:
            self.observed.look(variant, self.bench.samples)
        return Space(
            variant,
            *(self.bench, self.observed, self.budget, self.watcher),
            original=self.original or self,
            repairs=tuple(repairs),
        )

    # --- what a set of kept nodes is -----------------------------------------------------------

    @property
    def choices(self) -> Nodes:
        """All compute nodes."""
        return self.variant.computing

    @property
    def ruled(self) -> Nodes:
        """Compute nodes that rules keep."""
        return self.variant.ruled

    @property
    def islands(self) -> Nodes:
        """Compute nodes that the user's file has in FP32 among lower ones."""
        return self.variant.islands

    def plan(self, kept: Nodes) -> Plan:
        """Return the plan that keeps nodes in FP32."""
        return Plan(self.variant, kept)

    def kept(self, plan: Plan) -> Nodes | None:
        """Return the kept nodes of a plan, whatever types they have."""
        belongs = plan.of is self.variant and plan.quantisation is None
        return plan.kept if belongs else None

    def typed(self, kept: Nodes) -> Plan:
        """Return the cheapest plan that passes with BF16, TF32 or both in place of FP32, if any.

        Each for all nodes that may have it: Casts count as cost, so a few seldom gain, and engines
        have one switch for TF32. With every node kept, all stay FP32: that is the original, not a
        plan. A chosen plan has its types.
        """
        variant, fp32 = self.variant, self.plan(kept)
        if self.chosen is not None:
            return replace(fp32, bf16=self.chosen.bf16, tf32=self.chosen.tf32)
        if kept >= self.choices - variant.lowered:
            return fp32
        plans = {
            replace(fp32, bf16=bf16, tf32=tf32)
            for bf16 in (NONE, kept & variant.may_have_bf16)
            for tf32 in (False, bool((kept - bf16) & variant.may_have_tf32))
        }
        costs = {plan: variant.cost(plan) or 0.0 for plan in plans}
        most = costs.pop(fp32) or inf
        cheaper = sorted((plan for plan in costs if costs[plan] < most), key=costs.__getitem__)
        return self.budget.within("search", lambda: next(filter(self._holds, cheaper), fp32), fp32)

    def _holds(self, plan: Plan) -> bool:
        self.budget.check()
        with suppress(CaseError):  # its opset or a custom operator lacks the type
            return self.bench.evaluate(plan).passed
        return False

    @property
    def chosen(self) -> Chosen | None:
        """The plan to take instead of searching, and the user's request."""
        return self.variant.settings.chosen

    @property
    def form(self) -> str:
        """What a kept node is called; "" for FP32."""
        return ""

    @property
    def searches(self) -> bool:
        """Whether the plan is searched for, and not chosen."""
        return self.chosen is None

    @property
    def evidence(self) -> Attribution:
        """What the samples show."""
        return self.observed[self.variant]

    @property
    def held_nodes(self) -> Nodes:
        """Nodes that are held."""
        return union([*map(self.variant.holdable, self.held)])

    @property
    def guards(self) -> tuple[Guard, ...]:
        """All guards: from the evidence and from files, and those that are held."""
        return (*self.evidence.guards, *self.deciding, *self.held)

    @property
    def suspects(self) -> list[Guard]:
        """Guards that may name what to keep, most severe first."""
        guards = (*self.evidence.guards, *self.deciding)
        return sorted(guards, key=lambda guard: -guard.severity)

    @property
    def is_safe(self) -> bool:
        """Whether everything in FP32 is the original."""
        return self.variant.is_safe

    @property
    def forced(self) -> Nodes:
        """What every plan keeps: what rules keep, and what is held."""
        return (self.ruled | self.held_nodes) & self.choices - self.variant.lowered

    def seeds(self, start: Nodes = NONE) -> list[Nodes]:
        """Return plans with nothing kept, a start, that and what certainly loses precision, or all.

        Args:
            start: A plan to start from; that of the user or of the file if it keeps nothing.
        """
        start = start or self.start.kept or self.variant.of_file
        certain = union(frozenset(g.nodes) for g in self.suspects if g.severity >= 1)
        every = union(frozenset(g.nodes) for g in self.suspects)
        guesses = (NONE, start, start | certain, start | every)
        free = self.choices - self.variant.lowered
        return list(dict.fromkeys(some & free | self.forced for some in guesses))

    @property
    def explained(self) -> Nodes:
        """Nodes that a guard names, a rule keeps, or that are held."""
        named = union([frozenset(guard.nodes) for guard in (*self.suspects, *self.held)])
        return named - self.variant.lowered | frozenset(self.variant.forced.kept)

    def cost(self, kept: Nodes) -> float | None:
        """Return the predicted cost of a plan relative to all low; None if unknown."""
        return self.variant.cost(self.plan(kept))

    def holding(self, guards: Sequence[Guard]) -> Self:
        """Return the plans that keep the nodes of `guards` too."""
        return replace(self, held=(*self.held, *guards))

    # --- what is known of it -------------------------------------------------------------------

    def evaluate(self, kept: Nodes) -> Outcome:
        """Return whether a plan passes on the samples; one that does is reported."""
        outcome = self.bench.evaluate(self.plan(kept))
        if outcome.passed and self.searches:
            self.best.passed(self, kept, outcome.excess * self.bench.tolerance.factor)
        return outcome

    def probe(self, kept: Nodes) -> Outcome:
        """Return whether a plan passes on the samples that are asked first, see `Bench.probe`.

        It is not reported: it may fail on the others.
        """
        return self.bench.probe(self.plan(kept))

    def excess(self, kept: Nodes) -> float:
        """Return the error of a plan on all samples, relative to what a trial may use."""
        return self.bench.excess(self.plan(kept))

    def tried(self) -> dict[Nodes, Outcome]:
        """Return the latest outcome of each plan that was evaluated, in order."""
        outcomes = ((self.kept(plan), plan, one) for plan, one in self.bench.tried().items())
        return {kept: one for kept, plan, one in outcomes if kept is not None and not plan.is_typed}

    def join(self, samples: Samples, references: Sequence[Outputs]) -> None:
        """Add samples to those of the search, and look at them."""
        self.bench.join(samples, references)
        self.observed.catch_up(self.variant, self.bench.samples)

    def starting(self, start: Start) -> Self:
        """Return the same with a plan to start from, which says whether it passes."""
        kept = start.kept - self.variant.lowered
        passed = self.evaluate(kept | self.ruled).passed
        assert start.note is not None
        names = {**start.note.names, "ends": "passes" if passed else "fails"}
        numbers = {**start.note.numbers, "kept": len(kept)}
        note = replace(start.note, names=names, numbers=numbers)
        self.watcher.note(remark(note))
        return replace(self, start=Start(kept, note))

    def survey(self, kept: Nodes) -> None:
        """Run every sample with a plan, and order later trials by its error, if time is left."""

        def surveyed() -> None:
            self.bench.survey(self.plan(kept), self.watcher)
            self.evaluate(kept)

        self.budget.within("emulate", surveyed, None)

    # --- the search ----------------------------------------------------------------------------

    def find(self, before: SearchResult | None = None) -> SearchResult:
        """Return the cheapest plan found, starting from what was found before samples joined."""
        before = before or SearchResult()
        steps = before.steps or ((self.start.note,) if self.start.note else ())
        if self.chosen is not None:
            step = Remark(kind="chosen", names={"rule": self.chosen.rule})
            kept = self.chosen.kept
            return SearchResult(kept, self.evaluate(kept).passed, steps=(*steps, step))
        return self._search(before.kept, steps).run()

    def _search(self, before: Nodes, steps: Sequence[Remark]) -> Search:
        nodes = map(node_name, self.variant.case.network.all_nodes())
        free = self.choices - self.variant.lowered
        return Search(
            nodes=[name for name in nodes if name in free],
            forced=self.forced,
            suspects=[free & frozenset(guard.nodes) for guard in self.suspects],
            seeds=self.seeds(before),
            evaluate=self.evaluate,
            probe=self.probe,
            contribution=lambda kept, most: self.bench.contribution(self.plan(kept), most),
            harmless=None if self.bench.tolerance.metric else WELL_WITHIN,
            budget=self.budget,
            safe=self.is_safe,
            watcher=self.watcher,
            price=self.cost,
            form=self.form,
            steps=[*steps],
            earlier=[kept for kept, outcome in self.tried().items() if outcome.passed],
        )


class Int8Space(Space, frozen=True, eq=False, dict=True, kw_only=True):
    """Plans with INT8: what they keep is left out of INT8, and has the low format.

    What the plan below keeps stays kept, all in FP32.

    Attributes:
        below: The plans in the low format.
        extended: What the one of them keeps that these extend.
        quantisation: What puts nodes in INT8.
    """

    below: Space
    extended: Nodes
    quantisation: Quantisation

    @staticmethod
    def above(low: Space, kept: Nodes, source: QuantisedModel | None) -> "Int8Space | None":
        """Return the plans with INT8 of which one in the low format passes; None if there are none.

        Args:
            low: The plans in the low format.
            kept: What the passing plan keeps in FP32, which stays so.
            source: The quantised model to leave nodes out of; without it, ranges are those
                observed.

        Raises:
            CaseError: no product has a range.
        """
        variant, bench = low.variant, low.bench
        network, place = variant.case.network, None if source is None else source.place
        names = quantisable(network) if source is None else source.pairs
        able = frozenset(n for n in names if variant.roles[n].role is Role.COMPUTE) - kept
        if not able:
            low.watcher.note("no node in the low format can be INT8")
            return None
        if place is None:
            place = partial(quantised, network, peaks=peaks(low.evidence.observations))
        quantisation, settings = Quantisation(place, able), variant.settings
        if not quantisation.nodes:
            raise CaseError(
                "Every product that could be INT8 reads a tensor that has a single value, or no "
                "finite one, on the calibration samples, so there is no range.",
                "Give real samples with varying values.",
            )
        budget = Budget(settings.time_budget, work=settings.budget * len(variant.case.calibration))
        budget.took_in(low.budget)
        question, spend = (bench.samples, bench.references, bench.tolerance), budget.spend
        return Int8Space(
            variant,
            Bench(bench.judge, *question, lambda: spend("trial")),
            *(low.observed, budget, low.watcher),
            repairs=low.repairs,
            below=low,
            extended=kept,
            quantisation=quantisation,
        )

    @cached_property
    def fp32(self) -> Nodes:
        """Compute nodes that are FP32 in every plan."""
        return self.extended | self.held_nodes

    @cached_property
    def choices(self) -> Nodes:
        """The nodes that are INT8 or left out."""
        return self.quantisation.nodes - self.held_nodes

    def plan(self, kept: Nodes) -> Plan:
        """Return the plan that leaves nodes out of INT8."""
        int8 = self.choices - kept
        return Plan(self.variant, self.fp32, int8=int8, quantisation=self.quantisation)

    def kept(self, plan: Plan) -> Nodes | None:
        """Return what a plan with the same FP32 nodes leaves out."""
        belongs = plan.quantisation is self.quantisation and plan.kept == self.fp32
        return self.choices - plan.int8 if belongs else None

    def typed(self, kept: Nodes) -> Plan:
        """Return the plan: none with INT8 has BF16 or TF32."""
        return self.plan(kept)

    @property
    def form(self) -> str:
        """What a kept node is called."""
        return LEFT_OUT

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The held guards: those of the low format explain nothing here."""
        return self.held

    @property
    def suspects(self) -> list[Guard]:
        """None: no guard shows where INT8 loses accuracy."""
        return []

    @property
    def is_safe(self) -> bool:
        """False: everything left out is the plan below, not the original."""
        return False

    @property
    def passes_below(self) -> bool:
        """Whether the plan below was seen to pass on all samples, except those that joined."""
        exact = self.below.bench.exact(self.below.plan(self.fp32))
        return exact is not None and exact <= 1

    def find(self, before: SearchResult | None = None) -> SearchResult:
        """Return the cheapest plan; sums whose convolution is left out are too, if that passes."""
        result = super().find(before)
        kept = result.kept | self.quantisation.alone(self.choices - result.kept)
        if kept != result.kept and self.evaluate(kept).passed:
            return replace(result, kept=kept)
        return result

    def _search(self, before: Nodes, steps: Sequence[Remark]) -> Search:
        return replace(super()._search(before, steps), safe=self.passes_below, contribution=None)
