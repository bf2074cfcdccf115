"""The two sides of a comparison: where tensors come from, and how exact they can be."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import onnx_ir as ir

from halfwise.case import Samples, Settings
from halfwise.emulation.tensors import ModelTensors
from halfwise.emulation.tf32 import emulate_tf32
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing.plan.rules import custom_roles
from halfwise.fixing.rewrite import rewrite
from halfwise.formats import LOW_FORMATS, Format
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.metrics import Outputs
from halfwise.records import TensorName, TensorStatus

Arithmetic = Literal["fp32", "tf32", "fp16", "bf16"]

TOLERANCES: Mapping[Arithmetic, float] = {"fp32": 1e-5, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1.6e-2}
"""Relative RMS error that the arithmetic alone explains at one node. Of the low formats four times
the largest error of one rounding, 2⁻¹¹ and 2⁻⁸, since weights, inputs and output are rounded; of
FP32 what sums of 10⁴ terms in another order come to, √10⁴ · 2⁻²⁴, with some room."""

OTHER_KERNELS = 1e-3
"""The same for FP32 kernels that are not ONNX Runtime's, over many nodes: an SNR of 60 dB. FP32
engines of real models reach 84 dB and more, a wrong kernel 29 (docs/tensorrt.md has the list)."""

UNITS: Mapping[Arithmetic, float] = {
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
"""Largest relative error of one rounding."""


class Side(Protocol):
    """One side of a comparison.

    Attributes:
        label: What it is, for people.
        arithmetic: What it computes in.
        exact: Whether it is the model itself in ONNX Runtime, where no error can be born.
        builds: Engines built so far.
    """

    label: str
    arithmetic: Arithmetic
    exact: bool
    builds: int

    @property
    def few(self) -> bool:
        """Whether only few tensors should be asked for, so that the inputs of nodes are not."""

    @property
    def tolerance(self) -> float:
        """Relative RMS error that its arithmetic explains."""

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, those of `names` that it has."""

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return why it has no tensor `name`; None where it has it, or nobody knows yet."""

    def notes(self) -> tuple[str, ...]:
        """Return what else to know, one sentence each."""


@dataclass
class ModelSide:
    """A model in ONNX Runtime: the model itself, an emulation of it, or another file."""

    tensors: ModelTensors
    label: str
    arithmetic: Arithmetic = "fp32"
    exact: bool = False
    few: bool = False
    builds: int = 0

    @property
    def tolerance(self) -> float:
        """That of its arithmetic."""
        return TOLERANCES[self.arithmetic]

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the tensors among `names` that the model computes."""
        return self.tensors.get(names)

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return "constant" for what is a constant there, "missing" for what is not there."""
        if name in self.tensors.names:
            return None
        return "constant" if name in self.tensors.constants else "missing"

    def notes(self) -> tuple[str, ...]:
        """Return where it could not be run to the end; else nothing, since labels say it all."""
        failures = self.tensors.failures
        return tuple(
            f"{self.label}: {len(failures)} of the samples cannot be run to the end; "
            f"on {sample}, {f'node {failure.node} fails' if failure.node else 'it fails'} "
            f"({failure.why or failure.message})"
            for sample, failure in list(failures.items())[:1]
        )


@dataclass
class RecordedSide:
    """Tensors in a file, of each sample."""

    recorded: Sequence[Outputs]
    label: str
    arithmetic: Arithmetic = "fp32"
    exact: bool = False
    few: bool = False
    builds: int = 0

    @property
    def tolerance(self) -> float:
        """That of its arithmetic in kernels that nobody knows."""
        return max(OTHER_KERNELS, TOLERANCES[self.arithmetic])

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the tensors among `names` that are on record."""
        for outputs in self.recorded:
            yield {name: outputs[name] for name in names if name in outputs}

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return "missing" for what is not on record."""
        return None if name in self.recorded[0] else "missing"

    def notes(self) -> tuple[str, ...]:
        """Return nothing."""
        return ()


def tolerance_of(*sides: Side) -> float:
    """Return the relative RMS error up to which tensors of two sides count as equal."""
    return max(side.tolerance for side in sides)


Low = Literal["tf32", "fp16", "bf16"]


def reference(
    network: Network, samples: Samples, settings: Settings, *, optimise: bool = False
) -> ModelSide:
    """Return the model in ONNX Runtime; `optimise` lets it fuse, so that it rounds otherwise."""
    label = "ONNX Runtime, FP32, with its optimisations" if optimise else "ONNX Runtime, FP32"
    tensors = _tensors(network.model, samples, settings, optimise=optimise)
    return ModelSide(tensors, label, exact=not optimise)


def emulated(network: Network, samples: Samples, settings: Settings, low: Low) -> ModelSide:
    """Return the emulation of the model with everything in a low format, or its products in TF32.

    For BF16 the network has to have an opset that knows it.
    """
    if low == "tf32":
        model, label = emulate_tf32(network), "emulation, TF32 products"
    else:
        typed = all_low(network, LOW_FORMATS[low], settings)
        model = emulate_typed(typed, accumulate=settings.accumulate)
        label = f"emulation, all {low.upper()}"
    return ModelSide(_tensors(model, samples, settings, partial=True), label, low)


def all_low(network: Network, fmt: Format, settings: Settings) -> ir.Model:
    """Return the typed model with everything low that can be; inputs and outputs stay FP32."""
    custom = custom_roles(network, settings.rules, fmt)
    roles = roles_of(network, low_type(fmt), custom=custom)
    rewritten, _ = rewrite(network, roles, frozenset(), fmt, fixed=frozenset(), low_io=frozenset())
    return rewritten.model


def _tensors(
    model: ir.Model,
    samples: Samples,
    settings: Settings,
    *,
    optimise: bool = False,
    partial: bool = False,
) -> ModelTensors:
    return ModelTensors(
        model,
        samples,
        optimise=optimise,
        partial=partial,
        runtime=settings.runtime,
    )
