"""The two sides of a comparison: sources of tensors, and their tolerances.

`Regions` runs nodes of the reference on a side's inputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Sample, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import OTHER_KERNELS, TOLERANCES, Arithmetic, ModelRunner, Runner
from halfwise.emulation.typed import emulate_tf32, emulate_typed
from halfwise.errors import HalfwiseError, TookTooLong
from halfwise.fixing.plan.rules import custom_roles
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import LOW_FORMATS, Format
from halfwise.graph.casts import low_type
from halfwise.graph.dataflow import GIVEN, region_model
from halfwise.graph.model import Network
from halfwise.graph.quantised import quantising
from halfwise.graph.roles import roles_of
from halfwise.metrics import Excess, Outputs, totals
from halfwise.records import Criterion, TensorName, TensorStatus

UNITS: Mapping[Arithmetic, float] = {
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "int8": 2.0**-8,
}
"""Largest relative error of one rounding; for INT8, relative to the largest of 127 steps."""


class Side(Runner, Protocol):
    """One side of a comparison.

    Attributes:
        exact: Whether this is the model itself in ONNX Runtime, where no error can be born.
        builds: Engines built so far.
    """

    exact: bool
    builds: int

    @property
    def few(self) -> bool:
        """Whether to ask for only a few tensors, without the inputs of nodes."""

    @property
    def tolerance(self) -> float:
        """Relative RMS error that the side's arithmetic explains."""

    def notes(self) -> tuple[str, ...]:
        """Return further remarks, one sentence each."""


@dataclass
class RecordedSide:
    """Tensors from a file, for each sample."""

    recorded: Sequence[Outputs]
    label: str
    arithmetic: Arithmetic = "fp32"
    exact: bool = False
    few: bool = False
    builds: int = 0

    @property
    def tolerance(self) -> float:
        """The tolerance of its arithmetic in unknown kernels."""
        return max(OTHER_KERNELS, TOLERANCES[self.arithmetic])

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the recorded tensors among `names`."""
        for outputs in self.recorded:
            yield {name: outputs[name] for name in names if name in outputs}

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return "missing" for a tensor without a record."""
        return None if name in self.recorded[0] else "missing"

    def notes(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()


def tolerance_of(*sides: Side) -> float:
    """Return the relative RMS error up to which tensors of two sides count as equal."""
    return max(side.tolerance for side in sides)


def excess_of(
    criterion: Criterion, a: Side, b: Side, outputs: Sequence[TensorName]
) -> float | None:
    """Return the largest error of outputs of `b` over what is allowed; see `Excess`.

    None if a side lacks one on a sample. Runs each side once, and keeps the outputs of `a`.
    """
    references = list(a.get(outputs))
    if any(not set(outputs) <= held.keys() for held in references):
        return None
    excess = Excess(criterion, totals(references))
    for expected, found in zip(references, b.get(outputs), strict=True):
        if not set(outputs) <= found.keys():
            return None
        excess.update(expected, found)
    return excess.final()


Low = Literal["tf32", "fp16", "bf16"]


def reference(
    network: Network, samples: Samples, settings: Settings, *, optimise: bool = False
) -> ModelRunner:
    """Return the model in ONNX Runtime; `optimise` allows fusions, which round differently."""
    label = "ONNX Runtime, FP32, with its optimisations" if optimise else "ONNX Runtime, FP32"
    return ModelRunner(
        network.model,
        samples,
        label,
        arithmetic_on(network, "fp32") if optimise else "fp32",
        exact=not optimise,
        optimise=optimise,
        runtime=settings.runtime,
    )


def emulated(network: Network, samples: Samples, settings: Settings, low: Low) -> ModelRunner:
    """Return an emulation of the model entirely in a low format, or with its products in TF32.

    BF16 needs a network with an opset that has it.
    """
    if low == "tf32":
        model, label = emulate_tf32(network), "emulation, TF32 products"
    else:
        typed = all_low(network, LOW_FORMATS[low], settings)
        model = emulate_typed(typed, accumulate=settings.accumulate)
        label = f"emulation, all {low.upper()}"
    arithmetic = arithmetic_on(network, low)
    return ModelRunner(model, samples, label, arithmetic, partial=True, runtime=settings.runtime)


def arithmetic_on(network: Network, given: Arithmetic) -> Arithmetic:
    """Return the arithmetic of a model run in `given`: INT8 if it has Q/DQ pairs.

    Earlier roundings move some elements by a whole INT8 step.
    """
    return "int8" if quantising(network) else given


def all_low(network: Network, fmt: Format, settings: Settings) -> ir.Model:
    """Return the typed model with everything possible low; inputs and outputs stay FP32."""
    custom = custom_roles(network, settings.rules, fmt)
    roles = roles_of(network, low_type(fmt), custom=custom)
    rewritten, _ = rewrite(network, roles, frozenset(), fmt, fixed=frozenset(), low_io=frozenset())
    return rewritten.model


class Regions:
    """The nodes between given tensors and targets."""

    def __init__(
        self,
        network: Network,
        targets: Sequence[TensorName],
        given: Sequence[TensorName],
        *,
        runtime: Runtime = CPU,
    ) -> None:
        """Take the model, the targets and the given tensors; see `graph.dataflow.region_model`."""
        self.targets = tuple(targets)
        self._part: Callable[[Sequence[TensorName]], Regions] = lambda targets: Regions(
            network, targets, given, runtime=runtime
        )
        model = region_model(network, targets, given)
        starts = [v for v in model.graph.inputs if str(v.name).endswith(GIVEN)]
        self._starts = {TensorName(str(v.name).removesuffix(GIVEN)): v.dtype for v in starts}
        self._session: Session | None = Session(model, runtime=runtime)

    def run(self, sample: Sample, given: Outputs, wiggle: float = 0.0) -> Outputs:
        """Return the targets computed from `given`, without those that cannot run on it.

        Args:
            sample: Inputs of the model.
            given: Tensors by name; converted to the model's types.
            wiggle: Largest relative random change of the given elements, floats only, the same in
                each run.
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
            # The candidate's tensor has another shape: only its readers cannot run.
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
