"""An engine whose tensors are shown where fusion leaves them, from TensorRT 10.12 on.

One build shows all of them, and no fusion ends for it, unlike with marked outputs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from halfwise.case import Sample
from halfwise.metrics import Outputs
from halfwise.records import TensorName, TensorStatus
from halfwise.tensorrt.worker.failures import EngineFailed
from halfwise.tools.compare.engines import EngineSide


@dataclass
class UnfusedSide(EngineSide):
    """An engine that shows what fusion leaves; a run gives those tensors that are asked for.

    Attributes:
        shown: The tensors that fusion left.
        watch: Returns outputs and some of these, for a sample.
    """

    few: bool = False
    shown: frozenset[TensorName] = frozenset()
    watch: Callable[[Sample, Sequence[TensorName]], Outputs] = lambda _sample, _names: {}

    how: ClassVar[str] = "Showing tensors"

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, those of `names` that the engine shows.

        Raises:
            BuildFailed: not even the engine that shows nothing can be built.
            EngineFailed: not even that can be run, or the connection is lost.
        """
        _, finals = self.plain()
        inner = [name for name in names if name in self.shown and name not in self.outputs]
        for index, sample in enumerate(self.samples):
            found = self._watched(sample, [n for n in inner if n not in self.refused])
            self._compare(finals[index], found)
            both = {**finals[index], **found}
            yield {name: both[name] for name in names if name in both}

    def _watched(self, sample: Sample, names: Sequence[TensorName]) -> Outputs:
        """Return what the engine shows; what it cannot be run with is refused from then on."""
        if not names:
            return {}
        try:
            return self.watch(sample, names)
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            self.refused |= dict.fromkeys(names, failed.message)
            return {}

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return "fused" for what fusion did not leave, "refused" for what ended a run."""
        if name in self.refused:
            return "refused"
        return None if name in self.shown or name in self.outputs else "fused"
