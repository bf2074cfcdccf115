"""What a network shows on samples: ranges, guards, and ranges reduced for the headroom."""

from dataclasses import dataclass
from functools import partial

from halfwise.case import FEW_SAMPLES, Samples, Settings
from halfwise.emulation.budget import Budget
from halfwise.fixing.attribute import attribute
from halfwise.fixing.plan.plan import Variant
from halfwise.fixing.repair.scale import scaled
from halfwise.formats import Format
from halfwise.graph.model import Network
from halfwise.graph.roles import Roles
from halfwise.graph.sensitivity import selects_constants
from halfwise.metrics import Outputs
from halfwise.observing import Observer
from halfwise.progress import Watcher
from halfwise.records import Guard, NodeName, Observations, TensorName


def headroom_limits(
    network: Network, roles: Roles, observations: Observations, fmt: Format, headroom: float
) -> dict[TensorName, float]:
    """Return a smaller range for tensors that fit, but not at `headroom` times their range.

    The search emulates these tensors with that range: elements beyond max / headroom become
    infinite. The output then shows whether an overflow on larger data would matter. A format with
    FP32's range has none; nor does a tensor whose large values are constants it selects: masks do
    not grow.
    """
    if fmt.has_range_of_fp32:
        return {}
    limit = fmt.overflow_threshold / headroom
    observed = {o.tensor: o for o in observations.tensors}
    near = {n: limit for n, o in observed.items() if limit <= o.absmax < fmt.overflow_threshold}
    computed = [v for n in network.nodes() for v in n.outputs if v.name in near]
    fixed = (v for v in computed if selects_constants(v, roles, observed, limit))
    return {n: near[n] for n in near.keys() - {v.name for v in fixed}}


@dataclass(frozen=True)
class Evidence:
    """Evidence from one set of samples.

    Attributes:
        observations: Ranges and inner numbers.
        references: Outputs of each sample.
        guards: Guards, most severe first.
        limits: Reduced ranges of tensors that would overflow within the headroom.
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


def _concluded(
    network: Network,
    roles: Roles,
    observations: Observations,
    references: list[Outputs],
    settings: Settings,
) -> Evidence:
    guards = attribute(
        network,
        roles,
        observations,
        settings.fmt,
        headroom=settings.headroom,
        accumulate=settings.accumulate,
    )
    limits = headroom_limits(network, roles, observations, settings.fmt, settings.headroom)
    return Evidence(observations, references, guards, limits)


class Observed:
    """The latest evidence for each variant of a network."""

    def __init__(self, budget: Budget, watcher: Watcher) -> None:
        """Take what pays, and what receives progress."""
        self._budget, self._watcher = budget, watcher
        self._latest: dict[Variant, Evidence] = {}

    def __getitem__(self, variant: Variant) -> Evidence:
        """Return the evidence that was gathered last."""
        return self._latest[variant]

    def get(self, variant: Variant) -> Evidence | None:
        """Return the evidence that was gathered last, or follows from that of the original."""
        original = variant.original
        if variant not in self._latest and original is not None:
            before, settings = self._latest[original], variant.settings
            network, roles, repairs = variant.case.network, variant.roles, variant.case.repairs
            of = before.observations, original.case.network, network, repairs, roles, settings.fmt
            if (observations := scaled(*of)) is not None:
                self._latest[variant] = _concluded(
                    network, roles, observations, before.references, settings
                )
        return self._latest.get(variant)

    def look(self, variant: Variant, samples: Samples) -> Evidence:
        """Gather evidence from samples; incomplete if the budget ends, see `Observer`.

        Elements are visited on `FEW_SAMPLES`; extrema cover all samples.
        """
        network, roles, settings = variant.case.network, variant.roles, variant.settings
        observer = Observer(
            network,
            samples,
            settings.fmt,
            roles,
            runtime=settings.runtime,
            progress=partial(self._watcher.step, of="ranges"),
            budget=self._budget,
            # Guards read sums only then: see `sum_guards`.
            few_sums=settings.accumulate != "fp16",
            seen=variant.case.seen,
        )
        observer.look(FEW_SAMPLES)
        seen, references = observer.records(), list(observer.outputs)
        self._latest[variant] = _concluded(network, roles, seen, references, settings)
        return self._latest[variant]

    def catch_up(self, variant: Variant, samples: Samples) -> None:
        """Gather evidence from samples that joined; without time for it, the old one stays."""
        if self[variant].observations.samples != samples.ids:
            self._budget.within("observe", partial(self.look, variant, samples), None)
