"""A network, its roles, samples and reference outputs, made of a tiny model."""

from dataclasses import dataclass

from halfwise.case import Samples
from halfwise.emulation.switched import SwitchedRunner, emulate_switched
from halfwise.fixing.trial import Trials
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.movement import carried
from halfwise.graph.roles import Roles, roles_of
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import Metric, Outputs
from halfwise.records import Criterion, NodeName
from tests.models import Ill


@dataclass(frozen=True)
class Prepared:
    """What the stages take."""

    network: Network
    roles: Roles
    samples: Samples
    references: list[Outputs]

    def trials(
        self, criterion: Criterion | None = None, metric: Metric | None = None, factor: float = 1.0
    ) -> Trials:
        """Return trials on all samples, nothing tried yet."""
        switched = emulate_switched(self.network, self.roles, FP16)
        return Trials(
            runner=SwitchedRunner(lambda: switched),
            samples=self.samples,
            references=list(self.references),
            criterion=criterion or Criterion(),
            factor=factor,
            metric=metric,
            resolve=lambda kept: kept | carried(self.network, self.roles, kept),
        )


def prepare(ill: Ill, *, labels: tuple[int, ...] | None = None) -> Prepared:
    """Return the network of a model and its reference outputs."""
    network = network_from_proto(ill.proto)
    count = len(next(iter(ill.inputs.values())))
    samples = Samples(tuple(f"s{i}" for i in range(count)), ill.sample, labels)
    references = inspected_reference(network, samples)[0]
    return Prepared(network, roles_of(network), samples, references)


def names(*of: str) -> frozenset[NodeName]:
    """Return node names."""
    return frozenset(map(NodeName, of))
