"""What the FP32 reference shows on the calibration samples, and what to suspect for it."""

from collections.abc import Callable
from dataclasses import dataclass

from halfwise.case import Samples, Settings
from halfwise.emulation.deadlines import TimeBudget
from halfwise.fixing.attribute import attribute
from halfwise.fixing.plan.ranges import headroom_limits
from halfwise.graph.model import Network
from halfwise.graph.roles import Roles
from halfwise.metrics import Outputs
from halfwise.observing import observe
from halfwise.records import Guard, NodeName, Observations, TensorName


@dataclass(frozen=True)
class Evidence:
    """Evidence from one set of samples.

    Attributes:
        observations: Ranges and inner numbers.
        references: Outputs of each sample.
        guards: Suspicions, gravest first.
        limits: Smaller ranges of tensors that would overflow within the headroom.
    """

    observations: Observations
    references: list[Outputs]
    guards: tuple[Guard, ...]
    limits: dict[TensorName, float]

    @property
    def nonfinite(self) -> frozenset[TensorName]:
        """Tensors that are not finite in FP32 either."""
        return frozenset(o.tensor for o in self.observations.tensors if o.nonfinite)

    @property
    def suspected(self) -> frozenset[NodeName]:
        """Nodes that some guard names."""
        return frozenset(n for guard in self.guards for n in guard.nodes)

    @property
    def certain(self) -> list[frozenset[NodeName]]:
        """Groups of nodes that are certain to lose precision."""
        return [frozenset(guard.nodes) for guard in self.guards if guard.severity >= 1]


def gather(
    network: Network,
    roles: Roles,
    samples: Samples,
    settings: Settings,
    progress: Callable[[int, int], None],
    budget: TimeBudget | None = None,
) -> Evidence:
    """Return the evidence that `samples` give, less where the budget ends: see `observe`."""
    observations, references = observe(
        network,
        samples,
        settings.fmt,
        roles=roles,
        runtime=settings.runtime,
        progress=progress,
        budget=budget,
    )
    guards = attribute(
        network,
        roles,
        observations,
        settings.fmt,
        headroom=settings.headroom,
        accumulate=settings.accumulate,
    )
    limits = headroom_limits(network, roles, observations, settings.fmt, settings.headroom)
    return Evidence(observations, list(references), guards, limits)
