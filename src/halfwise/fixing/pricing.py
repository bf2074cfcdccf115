"""Predicted costs of a run's assignments, relative to everything low."""

from collections.abc import Callable
from functools import cache

import onnx_ir as ir

from halfwise.case import Case, Settings
from halfwise.emulation.runner import seen_in_bodies, seen_shapes
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.cost import CostModel
from halfwise.fixing.plan.guide import Guide
from halfwise.fixing.plan.sites import sites_of
from halfwise.fixing.types import FP32_ALONE, Types
from halfwise.graph.bodies import bodies_of
from halfwise.graph.model import Network
from halfwise.graph.roles import Roles, bodies
from halfwise.records import NodeName, TensorName

Assignment = frozenset[NodeName]

_SEEN = 4
"""Samples on which runs of bodies are counted: branches may differ between samples."""


def cost_model(
    case: Case,
    settings: Settings,
    roles: Roles,
    low_io: frozenset[TensorName],
    stand_in: ir.Model | None = None,
) -> CostModel | None:
    """Return the cost model, from the shapes seen in a run on the calibration.

    None if shapes are unknown, including those in bodies, and if nothing costs.

    Args:
        case: The network and the samples.
        settings: Where to run.
        roles: Roles of the network's nodes.
        low_io: Float graph inputs and outputs of the low type.
        stand_in: What runs in the place of a network without bodies, and has its tensors.
    """
    graph, calibration = case.network.graph, case.calibration
    if any(len(bodies_of(node)) != len(bodies(node)) for node in graph.all_nodes()):
        return None  # a SequenceMap's body, whose shapes are not seen
    few = [calibration[i] for i in range(min(_SEEN, len(calibration)))]
    try:
        shapes = seen_shapes(case.network, few[0], runtime=settings.runtime, stand_in=stand_in)
        runs, inside = seen_in_bodies(case.network, few, runtime=settings.runtime)
    except (CaseError, RunFailed):
        return None
    model = CostModel(case.network, roles, shapes | inside, low_io=low_io, runs=runs)
    return model if model.cost(frozenset()) > 0 else None


class Prices:
    """Costs of assignments, relative to everything low.

    Attributes:
        least: Cost of everything low, in bytes.
        fp32: Cost of everything in FP32.
        tf32: The same with products in TF32.
        of: Returns the cost of an assignment, given by its kept compute nodes and their types in
            place of FP32; cached.
        guide: Proposes cheap plans.
        model: The cost model.
    """

    def __init__(
        self,
        model: CostModel,
        least: float,
        network: Network,
        roles: Roles,
        resolve: Callable[[Assignment], Assignment],
        original: "Prices | None" = None,
    ) -> None:
        """Take the cost model, the cost of everything low (> 0), and what completes an assignment.

        Costs of a repaired network are relative to `original`, the network without repairs.
        """
        self.model = model
        self.least: float = original.least if original else least
        self.fp32: float = original.fp32 if original else model.cost(frozenset(roles)) / least
        tf32 = model.cost(frozenset(roles), tf32=True) / least
        self.tf32: float = original.tf32 if original else tf32
        self.guide = Guide(sites_of(network, roles), model.terms)
        self._resolve = resolve
        self.of = cache(self._cost)

    def _cost(self, kept: Assignment, types: Types = FP32_ALONE) -> float:
        return self.model.cost(self._resolve(kept), types.bf16, tf32=types.tf32) / self.least
