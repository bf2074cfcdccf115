"""A network, its roles, samples and reference outputs, made of a tiny model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from halfwise.case import Sample, Samples
from halfwise.emulation.switched import SwitchedRunner, emulate_switched
from halfwise.fixing.bench import Bench, Tolerance
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.movement import carried
from halfwise.graph.roles import Roles, roles_of
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import Metric, Outputs
from halfwise.records import Criterion, NodeName, TensorName
from tests.models import Ill

Kept = frozenset[NodeName]


@dataclass(frozen=True)
class Emulated:
    """A judge of plans that are sets of nodes in FP32, some tensors with a smaller range."""

    network: Network
    roles: Roles
    limits: Mapping[TensorName, float] = field(default_factory=dict)

    @cached_property
    def _runner(self) -> SwitchedRunner:
        switched = emulate_switched(self.network, self.roles, FP16, limits=self.limits)
        return SwitchedRunner(lambda: switched)

    def prepare(self, kept: Kept, /) -> None:
        """Load the model."""
        self._runner.prepare(self._resolved(kept))

    def run(self, sample: Sample, kept: Kept, /) -> Outputs:
        """Return the outputs of a plan."""
        return self._runner.run(sample, self._resolved(kept))

    def release(self) -> None:
        """Free the session."""
        self.__dict__.pop("_runner", None)

    def _resolved(self, kept: Kept) -> Kept:
        return kept | carried(self.network, self.roles, kept)


@dataclass(frozen=True)
class Prepared:
    """What the stages take."""

    network: Network
    roles: Roles
    samples: Samples
    references: list[Outputs]

    def bench(
        self, criterion: Criterion | None = None, metric: Metric | None = None, factor: float = 1.0
    ) -> Bench[Kept]:
        """Return a bench for all samples, nothing tried yet."""
        tolerance = Tolerance(criterion or Criterion(), metric, factor)
        judge = Emulated(self.network, self.roles)
        return Bench(judge, self.samples, self.references, tolerance)


def prepare(ill: Ill, *, labels: tuple[int, ...] | None = None) -> Prepared:
    """Return the network of a model and its reference outputs."""
    network = network_from_proto(ill.proto)
    count = len(next(iter(ill.inputs.values())))
    samples = Samples(tuple(f"s{i}" for i in range(count)), ill.sample, labels)
    references = inspected_reference(network, samples)[0]
    return Prepared(network, roles_of(network), samples, references)


def names(*of: str) -> Kept:
    """Return node names."""
    return frozenset(map(NodeName, of))
