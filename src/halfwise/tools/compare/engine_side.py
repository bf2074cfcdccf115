"""An engine as a side of a comparison, with tensors marked as outputs a few at a time.

A tensor made an output ends a fusion there, so the engine examined differs from the plain one. The
change in the final outputs is measured and reported. Since TensorRT 10.12, one build shows what
fusion leaves without ending any.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.emulation.runner import OTHER_KERNELS, TOLERANCES, Arithmetic
from halfwise.errors import BuildFailed
from halfwise.metrics import Outputs
from halfwise.metrics.difference import relative_rms
from halfwise.records import BuildOutcome, TensorName, TensorStatus
from halfwise.tensorrt.failures import EngineFailed
from halfwise.wording import count, number

_SAME = 1e-6
"""Relative RMS difference of final outputs below which marking changed nothing: FP32 sums in
another order differ as much."""


@dataclass
class EngineSide:
    """Builds and runs engines with extra outputs, or one that shows its tensors.

    Attributes:
        label: Description.
        arithmetic: Its arithmetic.
        samples: Samples to run.
        build: Builds the engine with extra outputs.
        run: Returns all outputs of an engine for a sample, in the engine's types.
        outputs: The model's own outputs.
        budget: Builds allowed.
        builds: Builds used.
        refused: Tensors that no build could mark, and why.
        absent: Marked tensors that the engine did not return.
        change: Largest relative RMS change of a final output by marking, so far.
        vanished: Whether an output wrong without marks was right with them.
        shown: The tensors left by fusion, if an engine shows them; None if tensors are marked.
        watch: Returns that engine's outputs and some of these tensors for a sample.
    """

    label: str
    arithmetic: Arithmetic
    samples: Samples
    build: Callable[[Sequence[TensorName]], BuildOutcome]
    run: Callable[[BuildOutcome, Sample], Outputs]
    outputs: frozenset[TensorName]
    budget: int
    exact: bool = False
    builds: int = 0
    refused: dict[TensorName, str] = field(default_factory=dict)
    absent: set[TensorName] = field(default_factory=set)
    change: float = 0.0
    vanished: bool = False
    shown: frozenset[TensorName] | None = None
    watch: Callable[[Sample, Sequence[TensorName]], Outputs] = lambda _sample, _names: {}
    _plain: tuple[BuildOutcome, list[Outputs]] | None = None

    @property
    def few(self) -> bool:
        """Whether to ask for only a few tensors, since each may end a fusion."""
        return self.shown is None

    @property
    def tolerance(self) -> float:
        """The tolerance of its arithmetic in TensorRT's kernels."""
        return max(OTHER_KERNELS, TOLERANCES[self.arithmetic])

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the tensors among `names` that the engine returns or shows.

        With marked tensors, outputs come from the same engine, since marks may cure a fault.
        Outputs requested alone come from the engine without marks.

        Raises:
            BuildFailed: even the engine without marks cannot be built.
            EngineFailed: even that cannot run, or the connection is lost.
        """
        _, finals = self.plain()
        inner = [n for n in names if n not in self.outputs and self.lack(n) is None]
        engines = self._marked(inner) if inner and self.few else []
        for index, sample in enumerate(self.samples):
            found = self._all_of(engines, sample) if self.few else self._watched(sample, inner)
            self._compare(finals[index], found)
            both = {**finals[index], **found}
            yield {name: both[name] for name in names if name in both}

    def _all_of(
        self, engines: list[tuple[BuildOutcome, Sequence[TensorName]]], sample: Sample
    ) -> Outputs:
        """Return the outputs of marked engines; one that cannot run is refused from then on."""
        found: dict[str, NDArray[np.generic]] = {}
        for engine in list(engines):
            build, marks = engine
            given = self._unless_refused(marks, partial(self.run, build, sample))
            if given is None:
                engines.remove(engine)
                continue
            found |= given
            self.absent |= {name for name in marks if name not in given}
        return found

    def _watched(self, sample: Sample, names: Sequence[TensorName]) -> Outputs:
        """Return what the engine shows; tensors that keep it from running are then refused."""
        asked = [name for name in names if name not in self.refused]
        if not asked:
            return {}
        return self._unless_refused(asked, partial(self.watch, sample, asked)) or {}

    def _unless_refused(
        self, names: Sequence[TensorName], run: Callable[[], Outputs]
    ) -> Outputs | None:
        """Return a run's outputs; if it fails, None, and `names` are refused."""
        try:
            return run()
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            self.refused |= dict.fromkeys(names, failed.message)
            return None

    def _compare(self, finals: Outputs, found: Outputs) -> None:
        """Record how far outputs with marks are from those without."""
        own = [name for name in self.outputs if name in found]
        changes = [relative_rms(finals[name], found[name]) for name in own]
        self.change = max([self.change, *changes])

    def plain(self) -> tuple[BuildOutcome, list[Outputs]]:
        """Return the engine without marks, and its outputs for each sample; built once.

        Raises:
            BuildFailed: the build failed.
            EngineFailed: it cannot run, or the connection is lost.
        """
        if self._plain is None:
            outcome = self._build(())
            if outcome.engine is None:
                raise BuildFailed(
                    f"TensorRT builds no engine ({self.label}): {outcome.message}",
                    "`halfwise explain-log` explains the builder's log.",
                )
            self._plain = outcome, [self.run(outcome, sample) for sample in self.samples]
        return self._plain

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return "refused" for a tensor that failed builds or runs, "fused" for one lost to fusion.

        For marked engines, a tensor is lost if the engine did not return it.
        """
        if name in self.refused:
            return "refused"
        if self.shown is None:
            return "fused" if name in self.absent else None
        return None if name in self.shown or name in self.outputs else "fused"

    def notes(self) -> tuple[str, ...]:
        """Return the effects of marking."""
        told = []
        how = "Marking tensors" if self.few else "Showing tensors"
        if self.builds > 1:
            told.append(
                f"{how} changed the final outputs of {self.label} by up to "
                f"{number(self.change)} (relative RMS): the inspected engine is not quite the one "
                "without marks."
                if self.change > _SAME
                else f"{how} did not change the final outputs of {self.label}."
            )
        if self.vanished:
            told.append(
                f"{how} made wrong outputs of {self.label} right: the fault is in a fusion that "
                "marking breaks up, so it cannot be seen from inside."
            )
        if self.refused:
            first, why = next(iter(self.refused.items()))
            told.append(
                f"No engine could be built that outputs {count(len(self.refused), 'tensor')}, "
                f"such as {first}: {why}"
            )
        return tuple(told)

    def _marked(
        self, names: Sequence[TensorName]
    ) -> list[tuple[BuildOutcome, Sequence[TensorName]]]:
        """Return engines that together return `names`, each with its share.

        Refused names are singled out as far as the budget allows.
        """
        if self.builds >= self.budget:
            return []
        outcome = self._build(names)
        if outcome.engine is not None:
            return [(outcome, names)]
        if len(names) == 1:
            self.refused[names[0]] = outcome.message
            return []
        half = len(names) // 2
        return [*self._marked(names[:half]), *self._marked(names[half:])]

    def _build(self, names: Sequence[TensorName]) -> BuildOutcome:
        self.builds += 1
        outcome = self.build(names)
        if outcome.status == "lost":  # that says nothing about the engine
            raise EngineFailed(outcome.message, status="lost")
        return outcome
