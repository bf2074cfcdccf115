"""Run nodes of the reference on what a candidate's nodes were given."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Sample
from halfwise.emulation.ort import Session
from halfwise.errors import HalfwiseError, TookTooLong
from halfwise.graph.dataflow import GIVEN, region_model
from halfwise.graph.model import Network
from halfwise.metrics import Outputs
from halfwise.records import TensorName


class Regions:
    """The nodes between tensors that are given and those that are to be computed."""

    def __init__(
        self,
        network: Network,
        targets: Sequence[TensorName],
        given: Sequence[TensorName],
        *,
        runtime: Runtime = CPU,
    ) -> None:
        """Take the model, what to compute, and what is given; see `graph.cut.region_model`."""
        self.targets = tuple(targets)
        self._part: Callable[[Sequence[TensorName]], Regions] = lambda targets: Regions(
            network, targets, given, runtime=runtime
        )
        model = region_model(network, targets, given)
        starts = [v for v in model.graph.inputs if str(v.name).endswith(GIVEN)]
        self._starts = {TensorName(str(v.name).removesuffix(GIVEN)): v.dtype for v in starts}
        self._session: Session | None = Session(model, runtime=runtime)

    def run(self, sample: Sample, given: Outputs, wiggle: float = 0.0) -> Outputs:
        """Return the targets, computed from `given`, but for those that cannot be run on it.

        Args:
            sample: Inputs of the model.
            given: Tensors by name; converted to the model's types.
            wiggle: Largest relative change of the elements of what is given, floats alone, drawn
                anew but the same in each run.
        """
        if self._session is None:
            return self._in_halves(sample, given, wiggle)
        change = _Wiggle(wiggle)
        feed: dict[str, Any] = {name: change(array) for name, array in sample.items()}
        for name, dtype in self._starts.items():
            wanted = np.float32 if dtype is None else dtype.numpy()
            feed[f"{name}{GIVEN}"] = change(given[name].astype(wanted))
        try:
            return self._session.run(feed, self.targets)
        except TookTooLong:
            raise
        except HalfwiseError:
            # A candidate's tensor of another shape: its readers cannot be run on it, others can.
            if len(self.targets) == 1:
                return {}
            self._session = None
            return self._in_halves(sample, given, wiggle)

    def _in_halves(self, sample: Sample, given: Outputs, wiggle: float) -> Outputs:
        found = (half.run(sample, given, wiggle) for half in self._halves)
        return {name: array for outputs in found for name, array in outputs.items()}

    @cached_property
    def _halves(self) -> tuple["Regions", "Regions"]:
        middle = len(self.targets) // 2
        return self._part(self.targets[:middle]), self._part(self.targets[middle:])


class _Wiggle:
    def __init__(self, size: float) -> None:
        self._size, self._random = size, np.random.default_rng(0)

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        if self._size == 0 or array.dtype.kind != "f":
            return array
        factors = 1 + self._random.uniform(-self._size, self._size, array.shape)
        with np.errstate(all="ignore"):
            return np.asarray(array * factors, array.dtype)
