"""A plan, and the network with its repairs that it is a plan of."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import Literal

import onnx_ir as ir
from msgspec import Struct

from halfwise.case import Case, Settings
from halfwise.emulation.runner import Shapes, seen_shapes
from halfwise.emulation.typed import tf32_nodes
from halfwise.fixing.cost import Prices, cost_model
from halfwise.fixing.plan.rules import Forced, apply_rules, lowered_by
from halfwise.fixing.repair.making import repaired
from halfwise.fixing.rewrite import rewrite
from halfwise.graph.casts import Rewritten, low_type
from halfwise.graph.model import Network, node_name
from halfwise.graph.movement import Carrying, carried, may_have_bf16
from halfwise.graph.quantised import pairs_read, quantised_nodes, residuals
from halfwise.graph.roles import Role, Roles, float_io, roles_of
from halfwise.graph.weights import LowWeights
from halfwise.records import (
    Guard,
    NodeName,
    Repair,
    TensorName,
    replace,
)

Nodes = frozenset[NodeName]
NONE: Nodes = frozenset()


def union(groups: Iterable[Nodes]) -> Nodes:
    """Return everything in any of some groups."""
    return NONE.union(*groups)


Written = tuple[Rewritten, Nodes]
"""A mixed model, and all its FP32 nodes, data movement included."""


class Plan(Struct, frozen=True):
    """A type for every compute node of a network with its repairs.

    Attributes:
        of: That network.
        kept: Nodes that have a type with more bits than the low one: FP32 unless in `bf16`.
        bf16: Those of them that are BF16.
        tf32: Whether all FP32 products are TF32: engines have one switch for all.
        int8: Nodes in INT8, none of them kept.
        quantisation: What puts nodes in INT8; None without INT8.
    """

    of: "Variant"
    kept: Nodes = NONE
    bf16: Nodes = NONE
    tf32: bool = False
    int8: Nodes = NONE
    quantisation: "Quantisation | None" = None

    @property
    def is_typed(self) -> bool:
        """Whether kept nodes have other types than FP32."""
        return bool(self.bf16) or self.tf32

    def precision(self, node: NodeName) -> Literal["fp32", "tf32", "bf16"]:
        """Return the type of a kept node."""
        if node in self.bf16:
            return "bf16"
        return "tf32" if self.tf32 and node in self.of.products else "fp32"


class Quantisation(Struct, frozen=True, eq=False, dict=True):
    """What puts nodes of a network in INT8.

    Attributes:
        place: Returns the network in FP32 with pairs of Q and DQ in front of some nodes.
        candidates: The nodes that can be INT8.
    """

    place: Callable[[Nodes], Network]
    candidates: Nodes

    @cached_property
    def _whole(self) -> Network:
        return self.place(self.candidates)

    @cached_property
    def nodes(self) -> Nodes:
        """The candidates that read pairs once placed."""
        return frozenset(quantised_nodes(self._whole)) & self.candidates

    @cached_property
    def slots(self) -> dict[NodeName, dict[int, ir.Value]]:
        """What each node reads through pairs, by input slot."""
        read, nodes = pairs_read(self._whole), {node_name(n): n for n in self._whole.nodes()}
        return {
            name: {slot: value for slot in read[name] if (value := nodes[name].inputs[slot])}
            for name in self.nodes
        }

    @cached_property
    def sums(self) -> dict[NodeName, NodeName]:
        """The convolution whose kernel adds, by residual sum that can be INT8."""
        sums = residuals(self._whole, self.nodes)
        return {name: one.product for name, one in sums.items() if name in self.nodes}

    def alone(self, int8: Nodes) -> Nodes:
        """Return the sums in INT8 whose convolution is not: no kernel comes from their pairs."""
        return frozenset(n for n, product in self.sums.items() if n in int8 and product not in int8)


class Variant(Struct, frozen=True, eq=False, dict=True):
    """The network with some repairs: the roles of its nodes, and what a plan of it is and costs.

    Attributes:
        case: The case, with that network and its repairs.
        settings: The low format, the user's rules, and where to run.
        original: The network without repairs, whose cost everything low is the base of costs; None
            if this is it.
    """

    case: Case
    settings: Settings
    original: "Variant | None" = None

    @cached_property
    def roles(self) -> Roles:
        """Roles of its nodes."""
        return self.roles_in(self.case.network)

    def roles_in(self, network: Network) -> Roles:
        """Return the roles of nodes, those of custom domains included."""
        lowered = lowered_by(self.settings.rules, network)
        return roles_of(network, low_type(self.settings.fmt), lowered=lowered)

    @property
    def computing(self) -> Nodes:
        """All compute nodes."""
        return self.roles.computing

    @cached_property
    def of_file(self) -> Nodes:
        """Compute nodes that the user's file has in FP32 among lower ones: a start."""
        return self.case.stored.islands & self.computing

    @cached_property
    def islands(self) -> Nodes:
        """Those of them that stay so, as the user asks for."""
        return self.of_file if self.settings.keep_islands else NONE

    @cached_property
    def forced(self) -> Forced:
        """What rules and the file demand.

        Raises:
            UsageError, CaseError: a rule does not fit the network.
        """
        return apply_rules(self.case.network, self.roles, self.settings.rules, self.islands)

    @cached_property
    def lowered(self) -> Nodes:
        """Nodes that rules lower."""
        return frozenset(self.forced.lowered)

    @cached_property
    def ruled(self) -> Nodes:
        """Compute nodes that rules keep."""
        return self.computing & frozenset(self.forced.kept)

    @cached_property
    def products(self) -> Nodes:
        """Compute nodes whose products TF32 may compute."""
        return self.computing.intersection(tf32_nodes(self.case.network))

    def holdable(self, guard: Guard) -> Nodes:
        """Return the nodes of a guard, without those that a rule lowers."""
        return frozenset(guard.nodes) - self.lowered

    @property
    def is_free(self) -> bool:
        """Whether a plan in FP32 is FP32 throughout: no option lowers any part of it."""
        return not (self.lowered or self.low_io)

    @property
    def is_safe(self) -> bool:
        """Whether a plan in FP32 is the original model, and so certain to pass."""
        return self.is_free and not (self.case.repairs or self.case.restored)

    @cached_property
    def low_io(self) -> frozenset[TensorName]:
        """Float graph inputs and outputs of the low type."""
        ends, settings = float_io(self.case.network), self.settings
        if settings.io != "fp32":
            return ends
        low = low_type(settings.fmt)
        return ends & frozenset(n for n, dtype in self.case.stored.io.items() if dtype == low)

    @cached_property
    def weights(self) -> LowWeights:
        """Its weights in the low format."""
        settings, shared = self.settings, self.original.weights if self.original else None
        most = settings.large_from
        return LowWeights(self.case.network.model, settings.fmt, large_from=most, shared=shared)

    def with_repairs(self, repairs: Sequence[Repair]) -> "Variant":
        """Return the network without repairs with these ones.

        Raises:
            CaseError: they cannot be made.
            UsageError: a user's rule names a node that they remove.
        """
        first = self.original or self
        network = repaired(first.case.network, repairs)
        case = replace(first.case, network=network, repairs=tuple(repairs))
        made = Variant(case, self.settings, first)
        assert made.forced is not None  # or it does not fit the rules
        return made

    @cached_property
    def may_have_bf16(self) -> Nodes:
        """Compute nodes that may be BF16 where they are kept; none if that is not allowed.

        Raises:
            CaseError: it is allowed, but the opset lacks it.
        """
        if "bf16" not in self.settings.allow:
            return NONE
        may = may_have_bf16(self.case.network, self.roles)
        return may - frozenset(self.forced.kept) - self.islands

    @cached_property
    def may_have_tf32(self) -> Nodes:
        """Compute nodes that may be TF32 where they are kept; none if that is not allowed."""
        return self.products if "tf32" in self.settings.allow else NONE

    # --- what a plan is ------------------------------------------------------------------------

    @cached_property
    def _carrying(self) -> Carrying:
        return Carrying(self.case.network, self.roles, self.low_io)

    def plan(self, kept: Nodes) -> Plan:
        """Return the plan that keeps nodes in FP32."""
        return Plan(self, kept)

    def resolve(self, kept: Nodes) -> Nodes:
        """Return all FP32 nodes: kept ones, data movement between them, and what rules keep."""
        moves = frozenset(n for n in self.forced.kept if self.roles[n].role is Role.MOVEMENT)
        return (kept | moves | self._carrying(kept)) - self.lowered

    def assignment(self, plan: Plan) -> Nodes:
        """Return all nodes that a plan's file computes in FP32, those in INT8 included."""
        return self.resolve(plan.kept | plan.int8) | plan.int8

    def network_of(self, plan: Plan) -> Network:
        """Return the network in FP32, with pairs in front of what a plan has in INT8."""
        if plan.quantisation is None:
            return self.case.network
        return plan.quantisation.place(plan.int8)

    @cached_property
    def _latest(self) -> dict[Plan, Written]:
        return {}

    def write(self, plan: Plan) -> Written:
        """Return the mixed model of a plan, and all its FP32 nodes; the last one is held."""
        if plan not in self._latest:
            self._latest.clear()  # two at once would need more memory
            self._latest[plan] = self._written(plan)
        return self._latest[plan]

    def _written(self, plan: Plan) -> Written:
        network, settings = self.network_of(plan), self.settings
        roles, weights, fp32 = self.roles, self.weights, self.assignment(plan)
        if plan.quantisation is not None:
            roles = self.roles_in(network)
            weights = LowWeights(network.model, settings.fmt, large_from=settings.large_from)
            # In a user's quantised file, data movement may be behind a pair.
            fp32 = frozenset(name for name in fp32 if name in roles)
            fp32 |= carried(network, roles, fp32, low_io=self.low_io) - self.lowered
        ruled = (*self.forced.kept, *self.forced.lowered)
        made = rewrite(
            network,
            roles,
            fp32,
            settings.fmt,
            fixed=frozenset(n for n in ruled if self.roles[n].role is Role.MOVEMENT),
            low_io=self.low_io,
            weights=weights,
            bf16=plan.bf16,
            tf32=plan.tf32,
        )
        return made, fp32

    # --- what it costs -------------------------------------------------------------------------

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of its tensors on the first sample of the calibration, see `seen_shapes`.

        Repairs do not change the shape of what they leave.
        """
        network, sample = self.case.network, self.case.calibration[0]
        known = self.original.shapes if self.original else {}
        return seen_shapes(network, sample, runtime=self.settings.runtime, known=known)

    @cached_property
    def prices(self) -> Prices | None:
        """What costs are relative to; None if shapes are unknown or nothing costs anything."""
        case, settings = self.case, self.settings
        model = cost_model(case, settings, self.roles, self.low_io, lambda: self.shapes)
        if model is None:
            return None
        if self.original and self.original.prices:
            return replace(self.original.prices, model=model)
        # What remains FP32 if neither rules nor a search keep any.
        low = model.cost(self._carrying(NONE) - self.lowered)
        fp32, tf32 = (model.cost(frozenset(self.roles), tf32=tf32) / low for tf32 in (False, True))
        return Prices(model, low, fp32, tf32)

    def cost(self, plan: Plan, traffic: int | None = None) -> float | None:
        """Return the predicted cost of a plan relative to everything low; None if unknown.

        Args:
            plan: The plan.
            traffic: The bytes that a builder's kernels move, in the place of the predicted ones:
                no list of kernels shows the arithmetic that takes longer.
        """
        if self.prices is None:
            return None
        if traffic is None:
            return self._cost(plan)
        predicted = self.prices.model.traffic(*self._computed(plan))
        return self._cost(plan) + (traffic - predicted) / self.prices.least

    def _computed(self, plan: Plan) -> tuple[Nodes, Nodes, Nodes]:
        """Return the nodes that count as FP32, BF16 and INT8 in the cost of a plan."""
        # Builders move a Q in front of data movement, so nothing moves in FP32 between INT8 nodes.
        fp32 = self.resolve(plan.kept)
        int8 = plan.int8
        if plan.quantisation is not None:
            int8 -= plan.quantisation.alone(int8)
        return fp32, plan.bf16, int8

    @cached_property
    def _cost(self) -> Callable[[Plan], float]:
        @cache
        def cost(plan: Plan) -> float:
            assert self.prices is not None
            cost = self.prices.model.cost(*self._computed(plan), tf32=plan.tf32)
            return cost / self.prices.least

        return cost
