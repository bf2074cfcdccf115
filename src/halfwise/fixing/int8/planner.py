"""From a passing plan to one with INT8: which nodes to leave out.

To the search, an INT8 node is what a low one was before: the cheaper form. What it "keeps" is left
out of INT8 and has the low format; nodes kept by the plan below stay kept, all in FP32: no plan
with INT8 has BF16.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, cached_property, partial

from halfwise.case import Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.cost import Prices
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.int8.placing import (
    FIRST_OPSET,
    Given,
    Ranges,
    calibrate,
    quantisable,
    quantised,
    remark,
    unvarying,
)
from halfwise.fixing.plan.found import Found, kept_nodes, plan_record
from halfwise.fixing.plan.guide import Guide
from halfwise.fixing.plan.rules import Forced, Start, custom_roles
from halfwise.fixing.plan.search import RESERVED, Search
from halfwise.fixing.planner import Planner
from halfwise.fixing.rewrite import rewrite
from halfwise.fixing.stages import Best, Stages
from halfwise.fixing.trial import Evidence
from halfwise.graph.casts import Rewritten, low_type
from halfwise.graph.cut import Terms
from halfwise.graph.model import Network, node_name
from halfwise.graph.movement import carried
from halfwise.graph.quantised import pairs_read, quantised_nodes, residuals
from halfwise.graph.roles import Role, roles_of
from halfwise.graph.weights import LowWeights
from halfwise.metrics import Computed, Excess, totals
from halfwise.progress import Watcher
from halfwise.records import (
    RANGE_METHODS,
    Criterion,
    Guard,
    KeptNode,
    NodeName,
    Plan,
    RangeMethod,
    Remark,
    TensorName,
)
from halfwise.wording import listed, number

Assignment = frozenset[NodeName]

LEFT_OUT = "left out of INT8"
FEW = 10
"""Fewest evaluations of a search: fewer would settle nothing, and such models are small."""


class Int8Planner(Planner):
    """Finds what to leave out of INT8, which is `kept` in all of its methods.

    Attributes:
        below: Planner of the plan in the low format.
        fp32: The nodes that this plan keeps, and nodes held in addition.
        method: How ranges were found; None if they came from a file.
        sums: The convolution whose kernel adds, by residual sum that can be INT8.
        remarks: Remarks on the candidates.
    """

    remarks: tuple[Remark, ...] = ()

    def __init__(
        self,
        below: Planner,
        kept: Assignment,
        place: Callable[[Assignment], Network],
        candidates: Assignment,
        method: RangeMethod | None,
    ) -> None:
        """Take the plan below, and what builds the network with some candidates in INT8."""
        settings = replace(below.settings, allow=below.settings.allow - {"bf16", "tf32"})
        case = replace(below.case, calibration=below.trials.samples)
        super().__init__(case, settings, below.roles, below.watcher)
        self.below, self.kept, self.method = below, kept, method
        self.original = below
        below.int8 = self
        self.budget.took_in(below.budget)
        # The plan below has what rules and the file demand.
        self.forced, self.islands = Forced({}, {}), frozenset[NodeName]()
        self._place = place
        whole = place(candidates)
        read, nodes = pairs_read(whole), {node_name(n): n for n in whole.nodes()}
        self._candidates = frozenset(quantised_nodes(whole)) & candidates
        self.sums = {
            name: found.product
            for name, found in residuals(whole, self._candidates).items()
            if name in self._candidates
        }
        self.slots = {
            name: {slot: value for slot in read[name] if (value := nodes[name].inputs[slot])}
            for name in self._candidates
        }
        self.best = self._telling()

    @property
    def fp32(self) -> Assignment:
        """Compute nodes that are FP32 in every plan."""
        return self.kept | self.held_nodes

    @property
    def choices(self) -> Assignment:
        """The nodes that are INT8 or left out."""
        return self._candidates - self.held_nodes

    @property
    def guesses(self) -> tuple[Assignment, ...]:
        """First guess at what to leave out: nothing, as nothing is known yet."""
        return (frozenset(),)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The held guards: those of the low format explain nothing here."""
        return tuple(self.held)

    @property
    def is_safe(self) -> bool:
        """False: everything left out is the plan below, not the original."""
        return False

    @property
    def passes_below(self) -> bool:
        """Whether the plan below was seen to pass on all samples, except those that joined."""
        known = self.below.trials.exact(self.fp32)
        return known is not None and known <= 1

    @property
    def ration(self) -> int:
        """How many plans may be evaluated: half as many as there are candidates, at least `FEW`."""
        count = len(self._candidates)
        return max(FEW, count // 2)

    @property
    def spare(self) -> int:
        """How many evaluations are left."""
        return max(0, self.ration - self.trials.evaluations)

    @cached_property
    def prices(self) -> Prices | None:
        """Costs of plans, relative to everything low; None if shapes are unknown."""
        if self.below.prices is None:
            return None
        found = copy(self.below.prices)
        model = found.model

        def price(kept: Assignment, _: Assignment = frozenset()) -> float:
            int8 = self.choices - kept - self.alone(kept)
            # Builders move a Q in front of data movement, so nothing moves in FP32 between INT8
            # nodes.
            fp32 = self.below.resolve(self.fp32, low_io=self.low_io)
            return model.cost(fp32, int8=int8) / found.least

        found.guide = Guide([(n,) for n in self.choices], partial(model.int8_terms, self.choices))
        found.of = cache(price)
        return found

    def hold(self, guards: Sequence[Guard]) -> None:
        """Keep the nodes of `guards` in FP32 in every later plan, whatever the outputs show."""
        super().hold(guards)
        self.slots = {name: self.slots[name] for name in self.choices}
        # From here on, a plan's set of nodes means another file.
        self.trials.restart(self._emulation())
        self.passing[:] = [frozenset()]
        self.best = self._telling()
        self.__dict__.pop("prices", None)

    def find(self, previous: Assignment, *, certify: bool = True) -> Found:
        """Return the cheapest set of candidates to leave out, starting from `previous`."""
        found = super().find(previous & self.choices, certify=certify)
        kept = found.kept | self.alone(found.kept)
        if kept != found.kept and self.trials.evaluate(kept).passed:
            return replace(found, kept=kept)
        return found

    def alone(self, kept: Assignment) -> Assignment:
        """Return the sums whose convolution is left out: no kernel comes from their pairs."""
        int8 = self.choices - kept
        return frozenset(n for n, product in self.sums.items() if n in int8 and product not in int8)

    def gather(self, samples: Samples, *, first: bool = False) -> Evidence:  # noqa: ARG002
        """Return the existing evidence: more samples are not examined for the low format."""
        return self.evidence

    def resolve(
        self, kept: Assignment, *, low_io: frozenset[TensorName] = frozenset()
    ) -> Assignment:
        """Return all nodes that the file computes in FP32, INT8 nodes included."""
        int8 = self.choices - kept
        return self.below.resolve(self.fp32 | int8, low_io=low_io) | int8

    def rewrite(self, kept: Assignment) -> tuple[Rewritten, Assignment]:
        """Return the model that leaves `kept` out of INT8, and all its FP32 nodes."""
        settings, below = self.settings, self.below
        network = self.network_of(kept)
        custom = custom_roles(network, settings.rules, settings.fmt)
        roles = roles_of(network, low_type(settings.fmt), custom=custom)
        ruled = (*below.forced.kept, *below.forced.lowered)
        # In a user's quantised file, data movement may be behind a pair.
        fp32 = frozenset(name for name in self.resolve(kept) if name in roles)
        moves = carried(network, roles, fp32) - frozenset(below.forced.lowered)
        return rewrite(
            network,
            roles,
            fp32 | moves,
            settings.fmt,
            fixed=frozenset(n for n in ruled if self.roles[n].role is Role.MOVEMENT),
            low_io=self.low_io,
            weights=LowWeights(network.model, settings.fmt, large_from=settings.large_from),
        )

    def network_of(self, kept: Assignment) -> Network:
        """Return the model in FP32, with pairs in front of everything except `kept`."""
        return self._place(self.choices - kept)

    def _telling(self) -> Best:
        return Best(self.watcher, self.choices, self.price, LEFT_OUT)

    def _search(self) -> Search:
        search = super()._search()
        # A sum that is left out with its convolution takes one more.
        used = lambda: self.trials.evaluations + bool(self.sums)  # noqa: E731
        return replace(
            search,
            suspects=[],  # no guard shows where INT8 loses accuracy
            certain=0,
            form=LEFT_OUT,
            guide=search.guide or Guide([(n,) for n in self.choices], self._counted),
            safe=self.passes_below,
            ration=self.ration,
            used=used,
            reserved=RESERVED if len(self.case.heldout) > 1 else 0.0,
        )

    def _counted(self) -> Terms:
        return Terms(dict.fromkeys(self.choices, 1.0))


def int8_plan_of(
    below: Plan,
    planner: Int8Planner,
    found: Found,
    placed: frozenset[NodeName],
    casts: int,
) -> Plan:
    """Return the record of a plan.

    Args:
        below: The plan in the low format that it extends.
        planner: The planner that found it.
        found: What it leaves out of INT8, and results of trials.
        placed: All nodes that its file computes in FP32.
        casts: Cast nodes in its model.
    """
    network = planner.case.network
    left_out = kept_nodes(
        network,
        planner.roles,
        found.kept & planner.choices,
        (),
        {},
        found.excess_without,
        nonfinite_without=found.nonfinite_without,
        contributions=found.contributions,
    )
    kept = (k.model_copy(update={"precision": "fp32"}) for k in below.keep)
    held = kept_nodes(
        network, planner.roles, planner.held_nodes - planner.kept, (), {}, {}, held=planner.held
    )
    plan = plan_record(
        network,
        planner.roles,
        planner.settings.fmt,
        placed,
        casts,
        keep=(*kept, *held),
        minimal=found.minimal,
        lowered=below.lowered,
        remarks=(*below.remarks, *planner.remarks),
        low_io=planner.low_io,
    )
    int8 = planner.choices - found.kept
    return plan.model_copy(
        update={
            "repairs": below.repairs,
            "ranges": planner.method,
            "int8": tuple(name for name in map(node_name, network.nodes()) if name in int8),
            "left_out": tuple(
                _left_out_with_its_product(kept, below, planner, int8) for kept in left_out
            ),
        }
    )


def _left_out_with_its_product(
    kept: KeptNode, below: Plan, planner: Int8Planner, int8: frozenset[NodeName]
) -> KeptNode:
    """Return a node that is left out; of a sum, with the convolution if that is the reason."""
    kept = kept.model_copy(update={"precision": below.low})
    product = planner.sums.get(kept.node)
    if product is None or product in int8 or kept.error_without is not None or kept.because is None:
        return kept
    because = kept.because.model_copy(update={"beside": product})
    return kept.model_copy(update={"because": because, "unknown": False})


def int8_rung(
    below: Fixed,
    stage: Stages,
    watcher: Watcher,
    given: Given | None = None,
    start: Plan | None = None,
    *,
    is_new: bool = True,
) -> Int8Planner | Fixed:
    """Return the INT8 planner, begun; if it is impossible, `below` with a note on the reason.

    Args:
        below: The planner of the passing plan in the low format.
        stage: Begins a stage of the run.
        watcher: Receives progress.
        given: See `int8_planner`.
        start: A plan to start from, with or without INT8.
        is_new: Whether it is still unknown that the nodes can be INT8.

    Raises:
        CaseError, RunFailed: INT8 cannot be tried, although it was possible before.
    """
    own = below.planner
    start = start if start is not None and start.has_int8 else None
    try:
        with stage("calibrate"):
            planner = int8_planner(own, below.found, watcher, given, start)
        if planner is None or not planner.choices:
            own.int8 = None
            return below
        own.trials.runner.release()
        with stage("emulate"):
            planner.begin(own.evidence)
            if start is not None:
                out = planner.choices & {left.node for left in start.left_out}
                note = Remark(kind="start-int8", numbers={"elements": len(out)})
                planner.start_from(Start(out, note))
    except (CaseError, RunFailed) as error:
        if not is_new:
            raise
        own.int8 = None
        why = Remark(
            kind="int8-untried",
            severity="warning",
            names={"why": error.message},
        )
        watcher.note(f"INT8 was not tried: {error.message}")
        return below.telling(why)
    return planner


def int8_planner(
    below: Planner,
    found: Found,
    watcher: Watcher,
    given: Given | None = None,
    start: Plan | None = None,
) -> Int8Planner | None:
    """Return the INT8 planner; None if no node can be INT8.

    Args:
        below: The planner of the passing plan in the low format.
        found: That plan; what it keeps in FP32 stays so.
        watcher: Receives progress.
        given: The quantised model to leave nodes out of; without it, ranges are computed.
        start: A plan with INT8, whose method of finding ranges is used if none is requested.

    Raises:
        CaseError: see `unvarying`; and with RunFailed, as for `calibrate`.
    """
    network, roles = below.case.network, below.roles
    named = quantisable(network) if given is None else given.pairs
    candidates = frozenset(n for n in named if roles[n].role is Role.COMPUTE) - found.kept
    if given is not None and given.moved:
        why = "they read data with scales along an axis that is moved"
        watcher.note(f"left out of INT8: {listed(given.moved)}, because {why}")
    is_old = given is None and network.opset < FIRST_OPSET
    if not candidates or is_old:
        old = f", at opset {network.opset}" if is_old else ""
        watcher.note(f"no node in the low format can be INT8{old}")
        return None
    if given is not None:
        return Int8Planner(below, found.kept, given.place, candidates, None)
    asked, samples = below.settings.ranges, below.trials.samples
    if asked == "auto" and start is not None and start.ranges is not None:
        asked = start.ranges
    methods = RANGE_METHODS if asked == "auto" else (asked,)
    seen = calibrate(network, samples, methods, below.settings.runtime, watcher)
    still = unvarying(network, candidates, seen[methods[0]])
    candidates -= still.keys()
    method = methods[0] if len(methods) == 1 else _best(below, candidates, seen, watcher)
    place = partial(quantised, network, ranges=seen[method])
    planner = Int8Planner(below, found.kept, place, candidates, method)
    planner.remarks = (remark(still),) if still else ()
    return planner


def _best(
    below: Planner, candidates: Assignment, seen: Mapping[RangeMethod, Ranges], watcher: Watcher
) -> RangeMethod:
    """Return the method with the smallest error with all candidates in INT8 and the rest in FP32.

    If a metric decides, the outputs' own errors break ties.
    """
    trials, runtime = below.trials, below.settings.runtime
    whole = totals(trials.references)
    errors: dict[RangeMethod, tuple[float, float]] = {}
    for method, ranges in seen.items():
        network = quantised(below.case.network, candidates, ranges)
        session = Session(network.model, runtime=runtime)
        below.budget.spend("proof", len(trials.samples))
        results = [_run(session, sample) for sample in trials.samples]
        each = Excess(Criterion(), whole)
        off = sum(map(each.update, trials.references, results))
        errors[method] = trials.excess_of(results), off
    told = [f"{method} {number(error)}" for method, (error, _) in errors.items()]
    watcher.note(
        f"error relative to the limit with everything in INT8, by method of ranges: {listed(told)}"
    )
    return min(errors, key=errors.__getitem__)


def _run(session: Session, sample: Sample) -> Computed:
    try:
        return session.run(sample)
    except RunFailed as failure:
        return failure
