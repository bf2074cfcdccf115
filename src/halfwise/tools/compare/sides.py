"""The two sides of a comparison: where tensors come from, and how exact they can be."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from halfwise.emulation.tensors import ModelTensors
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
        few: Whether only few tensors should be asked for, so that the inputs of nodes are not.
        builds: Engines built so far.
    """

    label: str
    arithmetic: Arithmetic
    exact: bool
    few: bool
    builds: int

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
