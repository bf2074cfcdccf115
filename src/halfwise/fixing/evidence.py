"""What networks show on samples."""

from functools import partial

from halfwise.case import FEW_SAMPLES, Samples
from halfwise.emulation.budget import Budget
from halfwise.fixing.attribute import Attribution
from halfwise.fixing.plan.plan import Variant
from halfwise.fixing.repair.scale import scaled
from halfwise.observing import Observer
from halfwise.progress import Watcher
from halfwise.records import replace


class Observed:
    """The latest evidence for each variant of a network."""

    def __init__(self, budget: Budget, watcher: Watcher) -> None:
        """Take what pays, and what receives progress."""
        self._budget, self._watcher = budget, watcher
        self._latest: dict[Variant, Attribution] = {}
        self._observers: dict[Variant, Observer] = {}

    def __getitem__(self, variant: Variant) -> Attribution:
        """Return the evidence that was gathered last."""
        return self._latest[variant]

    def get(self, variant: Variant) -> Attribution | None:
        """Return the evidence that was gathered last, or follows from that of the original."""
        original = variant.original
        if variant not in self._latest and original is not None:
            before, settings = self._latest[original], variant.settings
            network, roles, repairs = variant.case.network, variant.roles, variant.case.repairs
            of = before.observations, original.case.network, network, repairs, roles, settings.fmt
            if (observations := scaled(*of)) is not None:
                self._latest[variant] = replace(
                    before, network=network, roles=roles, observations=observations
                )
        return self._latest.get(variant)

    def look(self, variant: Variant, samples: Samples) -> Attribution:
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
            late_sums=settings.accumulate != "fp16",
            seen=variant.case.seen,
        )
        observer.look(FEW_SAMPLES)
        if settings.accumulate != "fp16":
            self._observers[variant] = observer
        self._latest[variant] = Attribution(
            network,
            roles,
            observer.records(),
            settings.fmt,
            settings.headroom,
            settings.accumulate,
            keeps=not settings.rules.only,
            references=observer.outputs,
        )
        return self._latest[variant]

    def catch_up(self, variant: Variant, samples: Samples) -> None:
        """Gather evidence from samples that joined; without time for it, the old one stays."""
        if self[variant].observations.samples != samples.ids:
            self._budget.within("observe", partial(self.look, variant, samples), None)

    def look_at_sums(self, variant: Variant) -> None:
        """Add sums inside nodes to the evidence that was gathered last, for repairs."""
        observer = self._observers.pop(variant, None)
        if observer is not None:
            observer.look_at_sums()
            self._latest[variant] = replace(self[variant], observations=observer.records())
