"""What a build is told in addition to which nodes are FP32."""

from dataclasses import dataclass, replace

from halfwise.fixing.planner import Planner
from halfwise.fixing.types import Types
from halfwise.graph.model import Network
from halfwise.graph.roles import Role, Roles
from halfwise.records import NodeName
from halfwise.tensorrt.constrain import constraints
from halfwise.tensorrt.layers import rim

Assignment = frozenset[NodeName]


@dataclass(frozen=True)
class Terms:
    """What a build is told in addition to the run's settings.

    Attributes:
        tf32: Whether TF32 is allowed for FP32 nodes.
        level: The optimization level; None for the one in the settings.
        computing: Nodes of which only compute nodes are constrained, not data movement. In weak
            typing only, as `border`.
        border: Nodes of which only those next to a low node are constrained.
        rewritten: Nodes with another form in the built model; see `equivalent`.
        unrepaired: Whether it is built from the model without repairs.
        int8: Whether it is a plan with INT8: what it "keeps" is left out of INT8, and is low.
        free: Whether nothing is constrained: the builder decides what is FP32. In weak typing only.
    """

    tf32: bool = False
    level: int | None = None
    computing: Assignment = frozenset()
    border: Assignment = frozenset()
    rewritten: Assignment = frozenset()
    unrepaired: bool = False
    int8: bool = False
    free: bool = False

    def of(self, planner: Planner) -> Planner:
        """Return the planner of the built model."""
        if self.int8 and planner.int8 is not None:
            return planner.int8
        return planner.original if self.unrepaired and planner.original else planner

    def types_of(self, planner: Planner, keep: Assignment) -> Types:
        """Return the types of kept nodes in the engine; TF32 also where only the terms allow it."""
        types = self.of(planner).types_of(keep)
        return replace(types, tf32=self.tf32 or types.tf32)

    @property
    def loose(self) -> bool:
        """Whether some kept nodes may still be low."""
        return bool(self.computing or self.border) or self.free

    def constrained(self, network: Network, roles: Roles, fp32: Assignment) -> tuple[NodeName, ...]:
        """Return the nodes to constrain in weak typing so that `fp32` are FP32."""
        free = {n for n in fp32 & self.computing if roles[n].role is not Role.COMPUTE}
        free |= (fp32 & self.border) - rim(network, roles, fp32)
        return constraints(network, roles, fp32 - free)


USUAL = Terms()
"""Nothing in addition to the run's settings."""
WITH_TF32 = Terms(tf32=True)
UNREPAIRED = Terms(unrepaired=True)
INT8 = Terms(int8=True)
FREE_INT8 = Terms(int8=True, free=True)
