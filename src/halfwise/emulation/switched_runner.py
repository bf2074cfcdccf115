"""Runs a switched model in ONNX Runtime, from as late a node as the assignment allows."""

import gc
from collections.abc import Callable
from functools import lru_cache

from halfwise.case import CPU, Runtime, Sample
from halfwise.emulation.late_start import References
from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, Switched
from halfwise.metrics import Outputs
from halfwise.records import NodeName

_MANY = 1000
"""Nodes from which garbage collection pays: at 5,000 nodes it takes 1 to 3 s and frees 100 MiB."""


class SwitchedRunner:
    """A switched model in ONNX Runtime, which runs any assignment."""

    def __init__(
        self,
        make: Callable[[], Switched],
        whole: Callable[[], Switched] | None = None,
        *,
        runtime: Runtime = CPU,
    ) -> None:
        """Make and load the model; raises as `Session` does.

        Args:
            make: Makes the model, which is not kept. It may omit mixed stretches (`alike`): it then
                takes a third of the time.
            whole: Makes the model that emulates every assignment; needed if `make` does not.
            runtime: Where to run.
        """
        self._whole, self._runtime = whole, runtime
        self._session: Session | None
        self._references: References
        self._load(make)

    def prepare(self, fp32: frozenset[NodeName]) -> None:
        """Load the model that runs an assignment, unless loaded; raises as `Session` does."""
        if self._session is None or not self.switches.runs(self._switch(fp32)):
            assert self._whole is not None
            self._session = None  # Two sessions at once would need more memory.
            self._load(self._whole)

    def release(self) -> None:
        """Free the session and its memory; the next run loads it again."""
        if self._whole is not None:
            self._session = None
            self._references.forget()

    def run(self, sample: Sample, fp32: frozenset[NodeName]) -> Outputs:
        """Return the outputs with the nodes `fp32` in FP32, all others low.

        Raises:
            RunFailed: as `Session.run`.
        """
        self.prepare(fp32)
        assert self._session is not None
        switch = self._switch(fp32)
        cuts = self._references.inputs(sample, self.switches.low_from(switch))
        return self._session.run({**sample, **cuts, SWITCH_INPUT: switch})

    def _load(self, make: Callable[[], Switched]) -> None:
        """Load a model, and free its graph, the largest object of a run."""
        switched = make()
        self.switches = switches = switched.switches
        self._switch = lru_cache(maxsize=4)(switches.switch)
        self._session = Session(switched.model, runtime=self._runtime)
        self._references = References(switched.network, switches.starts, self._runtime)
        del switched
        if len(switches.nodes) >= (_MANY if switches.alike else _MANY // 10):
            gc.collect()
