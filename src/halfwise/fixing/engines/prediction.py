"""What emulations predict of an engine, and the band of errors that low precision explains.

Engines of one plan differ in what they fuse, in the type of constants that FP32 nodes read, and in
what they leave in FP32; no rule predicts this. Each way is emulated, and an engine is expected
among them: at best like the one with fusion and the FP32 blocks of the engine with nothing kept, at
worst like the worst one, and either way within what two builds of one plan differ by.

In weak typing a constraint holds for a node's layer. The constants that it reads are layers of
their own, and the builder may store them in FP16 although the node computes in FP32. What this does
is in the log of TensorRT 8.6.0: finite values that would overflow are "converted to the closest
finite FP16 value", values below the smallest subnormal "to the FP16 minimum subnormalized value".
With that, emulation gives the errors of engines that were off without another explanation: 3.059
(3.059 measured), 3.59 (3.51 and 3.53) and 4.26 (4.33). Other builds of the same plans kept the
constants in FP32. Strong typing is not concerned.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite
from typing import TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.budget import OutOfTime
from halfwise.fixing.engines.plan import Assignment
from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import Trials
from halfwise.formats import Format
from halfwise.graph.model import Network, constant_array, is_standard, node_name
from halfwise.graph.weights import LowWeights
from halfwise.records import Band, TensorName
from halfwise.tensorrt.constrain import ALIKE

_OWN_WEIGHTS = ("BatchNormalization", "Conv", "ConvTranspose", "InstanceNormalization")
"""Operators whose layers hold their weights, and store them in their own type."""
LOSSY = ("constant-range", "constant-subnormal")
"""Guards of constants for which storing them in FP16 is more than one rounding."""


class StoredConstants:
    """Emulates plans of one case whose FP32 nodes read constants in the low format."""

    def __init__(self, planner: Planner) -> None:
        """Find the constants; the emulation is made when a plan needs it."""
        self._planner = planner
        network, found = planner.case.network, planner.evidence.guards
        named = {g.tensor: g.nodes for g in found if g.tensor is not None and g.kind in LOSSY}
        own = {node_name(n) for n in network.nodes() if is_standard(n, *_OWN_WEIGHTS)}
        known = network.graph.initializers
        self._readers = {t: frozenset(nodes) - own for t, nodes in named.items() if t in known}

    def concern(self, fp32: Assignment) -> bool:
        """Return whether some FP32 node reads such a constant.

        False for large networks: all their weights would be held once more.
        """
        if self._planner.weights.large:
            return False
        return any(map(fp32.intersection, self._readers.values()))

    @cached_property
    def trials(self) -> Trials:
        """Trials on the present samples, as `Planner.engine_trials`; low nodes read the same."""
        planner = copy(self._planner)
        network, fmt = planner.case.network, planner.settings.fmt
        planner.case = replace(planner.case, network=_stored(network, self._readers, fmt))
        planner.weights = LowWeights(planner.case.network.model, fmt)
        return planner.engine_trials()


def _stored(network: Network, names: Mapping[TensorName, object], fmt: Format) -> Network:
    model = network.copy()
    for name in names:
        value = model.graph.initializers[name]
        array = as_stored(constant_array(value).astype(np.float32), fmt)
        value.const_value = ir.tensor(array, name=name)
    return replace(network, model=model)


def as_stored(array: NDArray[np.float32], fmt: Format) -> NDArray[np.float32]:
    """Return f32[*shape] as TensorRT 8.6.0 stores it: nothing overflows, nothing becomes zero.

    Infinities and NaN stay.
    """
    least = np.copysign(np.float32(fmt.smallest_subnormal), array)
    lost = (array != 0) & (np.abs(array) < fmt.smallest_subnormal)
    return np.where(lost, least, fmt.saturate(array))


@dataclass(frozen=True)
class Emulated:
    """Errors of one plan in emulations, relative to what a trial may use; inf on overflow.

    Attributes:
        stored: Every value between low nodes is rounded.
        fused: Values that are fused are not rounded.
        own: The same, with FP32 where the engine with nothing kept has FP32 by itself.
        constants: As `fused`, with constants of FP32 nodes in FP16 (`StoredConstants`); None if
            they lose nothing so.
    """

    stored: float
    fused: float
    own: float
    constants: float | None = None

    @property
    def band(self) -> Band | None:
        """The expected errors; None if none are expected: then FP32 decides."""
        ways = [e for e in (self.stored, self.fused, self.constants) if e is not None]
        finite = [error for error in ways if isfinite(error)]
        most = ALIKE * max(finite) if isfinite(self.fused) else inf
        if not most:
            return None
        least = min(self.own / ALIKE, most)
        return Band(least=least, most=most, may_overflow=len(finite) < len(ways))


WORK = 300.0
"""Total work for predictions, in inferences over the data: a fifth of the search's.
Beyond it nothing is predicted."""
SECONDS = 300.0
"""Total time, whatever work is left: as long as a few builds."""

_Found = TypeVar("_Found")


class Prediction:
    """Predicts the errors of engines on the present samples of a planner."""

    def __init__(
        self, planner: Planner, *, weak: bool, work: float = WORK, seconds: float = SECONDS
    ) -> None:
        """Take what has the emulation without fusion.

        Args:
            planner: The planner.
            weak: Whether nodes are constrained, not typed: then their constants may be low.
            work: Budget for predictions, in inferences over the data.
            seconds: Time for them.
        """
        self._planner, self._weak = planner, weak
        self._budget = planner.budget.beside(seconds=seconds, work=work * planner.unit)
        self._fused: Trials | None = None
        self._stored: Trials | None = None
        self._constants: StoredConstants | None = None

    def is_enough(self, keep: Assignment, own: Assignment) -> bool:
        """Return whether a plan passes with fusion; false once the budget is spent.

        Args:
            keep: Compute nodes in FP32.
            own: Those that the engine with nothing kept has in FP32 by itself.
        """
        return self._in_time(lambda: self._trials.evaluate(keep | own).passed, False)

    def is_beyond(self, keep: Assignment, own: Assignment) -> bool:
        """Return whether both put a plan beyond the limit by more than chance explains.

        False once the budget is spent; arguments as for `is_enough`.
        """

        def beyond() -> bool:
            found = [self._trials.evaluate(keep | own), self._planner.trials.evaluate(keep)]
            # A failed trial gives a lower bound: it ends at the first failing sample.
            return all(trial.excess > ALIKE for trial in found)

        return self._in_time(beyond, False)

    def emulated(self, keep: Assignment, own: Assignment) -> Emulated | None:
        """Return the errors of a plan in emulations; None once the budget is spent."""
        return self._in_time(lambda: self._emulated(keep, own), None)

    def _emulated(self, keep: Assignment, own: Assignment) -> Emulated:
        trials, constants = self._trials, self._constants
        assert self._stored is not None
        in_fp16 = constants is not None and constants.concern(keep)
        return Emulated(
            stored=self._stored.excess(keep),
            fused=trials.excess(keep),
            own=trials.excess(keep | own),
            constants=constants.trials.excess(keep) if in_fp16 and constants else None,
        )

    def _in_time(self, work: Callable[[], _Found], otherwise: _Found) -> _Found:
        try:
            with self._budget.bounding():
                return work()
        except OutOfTime:
            return otherwise

    @property
    def _trials(self) -> Trials:
        """Trials with fusion on the present samples."""
        planner = self._planner
        if self._fused is None or self._fused.samples is not planner.trials.samples:
            self._fused = planner.engine_trials()
            headroom = bool(planner.evidence.limits)
            self._stored = planner.engine_trials("none") if headroom else planner.trials
            self._constants = StoredConstants(planner) if self._weak else None
        return self._fused
