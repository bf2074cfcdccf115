"""Rung 2: the framework's outputs; do they belong to these samples, in this order?

Outputs that hardly vary between samples agree within any tolerance on their size, whatever the
samples.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Case
from halfwise.errors import BackendMissing, CaseError, UsageError
from halfwise.inputs import load_function
from halfwise.metrics import Outputs
from halfwise.metrics.difference import is_discrete
from halfwise.tools.compare.command import recorded_tensors
from halfwise.user_code import guarded
from halfwise.wording import listed, number

SHARE = 0.25
"""Error, relative to an output's spread between samples, from which the output says nothing about
these samples: the outputs of other samples give about √2."""
ROUNDING = 1e-5
"""Error, relative to an output's size, that FP32 rounding in other kernels explains."""
_LONGEST = 4096


@dataclass(frozen=True)
class Variation:
    """How an output varies between samples; RMS values over the RMS of the output.

    Attributes:
        name: The output.
        size: RMS of the output over all samples.
        spread: RMS deviation from its mean over the samples, ≥ 0.
        error: RMS difference from the given output, ≥ 0.
    """

    name: str
    size: float
    spread: float
    error: float

    @property
    def foreign(self) -> bool:
        """Whether the error is of the order of the spread, beyond rounding."""
        return self.error > max(ROUNDING, SHARE * self.spread)

    @property
    def constant(self) -> bool:
        """Whether it varies only by rounding."""
        return self.spread <= ROUNDING


def variations(given: Sequence[Outputs], computed: Sequence[Outputs]) -> list[Variation]:
    """Return how each output in `given` varies, if it holds finite floats of one shape.

    Args:
        given: What the framework gave, by sample.
        computed: What the model gives, by sample; at least these outputs.

    Returns:
        Empty for fewer than two samples.
    """
    found = []
    for name in given[0] if len(given) > 1 else ():
        rows = _rows(name, given, computed)
        if rows is None or not (size := _rms(rows[1])):
            continue
        wanted, actual = rows
        spread, error = _rms(actual - actual.mean(axis=0)), _rms(wanted - actual)
        found.append(Variation(name, size, spread / size, error / size))
    return found


def order(given: Sequence[Outputs], computed: Sequence[Outputs]) -> tuple[int, ...] | None:
    """Return the sample of each given output, if another order of the samples fits.

    Each is matched with the nearest computed outputs; outputs alike in all samples say nothing.

    Returns:
        An index for each sample; None if the nearest form no other order, or do not fit.
    """
    parts = []
    for each in variations(given, computed):
        rows = _rows(each.name, given, computed)
        if rows is not None and not each.constant:
            step = -(-rows[0].shape[1] // _LONGEST)
            parts.append(
                [
                    (r[:, ::step] - rows[1][:, ::step].mean(axis=0)) / each.spread / each.size
                    for r in rows
                ]
            )
    if not parts:
        return None
    wanted, actual = (np.concatenate(side, axis=1) for side in zip(*parts, strict=True))
    squares = (wanted**2).sum(axis=1)[:, None] + (actual**2).sum(axis=1) - 2 * wanted @ actual.T
    nearest = squares.argmin(axis=1)
    if len(set(nearest)) < len(nearest) or (nearest == np.arange(len(nearest))).all():
        return None
    fits = _rms(wanted - actual[nearest]) <= min(SHARE, SHARE * _rms(wanted - actual))
    return tuple(map(int, nearest)) if fits else None


def _rows(
    name: str, given: Sequence[Outputs], computed: Sequence[Outputs]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return an output of both sides, a row per sample; None unless finite floats."""
    arrays: list[NDArray[Any]] = [side[name] for both in (given, computed) for side in both]
    if len({a.shape for a in arrays}) > 1 or any(is_discrete(a.dtype) for a in arrays):
        return None
    rows = np.stack([np.ravel(a) for a in arrays]).astype(np.float64)
    return (rows[: len(given)], rows[len(given) :]) if np.isfinite(rows).all() else None


def _rms(array: NDArray[np.float64]) -> float:
    return sqrt(float(np.square(array).mean())) if array.size else 0.0


def reordered(order: Sequence[int], ids: Sequence[str]) -> str:
    """Say that the expected outputs belong to the same samples in another order.

    Args:
        order: The sample of each output.
        ids: Names of the samples.
    """
    moved = [(given, of) for given, of in enumerate(order) if given != of]
    pairs = [f"{ids[given]} has the outputs of {ids[of]}" for given, of in moved[:3]]
    more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
    return (
        "The expected outputs belong to the same samples in another order: "
        f"{', '.join(pairs)}{more}."
    )


def foreign(varying: Variation) -> str:
    """Say that the expected outputs tell these samples from others no better than chance."""
    return (
        f"Output {varying.name} varies by only {number(varying.spread)} of its size between "
        f"samples but differs from the expected one by {number(varying.error)} (RMS): either the "
        "expected outputs belong to other inputs, or the ONNX file computes something else."
    )


def constant_outputs(varying: Sequence[Variation]) -> str:
    """Say that nothing shows whether the expected outputs belong to the inputs."""
    most = max(varying, key=lambda each: each.spread)
    return (
        "This does not show that the expected outputs belong to these inputs: "
        f"{listed([each.name for each in varying])} varies by no more than {number(most.spread)} "
        "of its size between samples, so the outputs of any other inputs would match as well."
    )


def demand_expected(expected: str | Path | None, runner: str | None) -> None:
    """Raise UsageError if a runner is named, but no outputs are given."""
    if runner is not None and expected is None:
        raise UsageError(
            f"--runner {runner} does not apply without --expected.", "Give --expected too."
        )


def expected_tensors(case: Case, source: str | Path, runner: str | None) -> Sequence[Outputs]:
    """Return the framework's tensors for each sample of a case, by the model's tensor names.

    Args:
        case: Model and samples.
        source: Recorded tensors, see `recorded_tensors`; or `file.py:factory` that returns a
            torch.nn.Module (or one and example inputs). The file runs, as the user asked, and the
            module in FP32 and eval mode. Its inputs and outputs match by name if the names are the
            model's, else in order.
        runner: Runner whose tensors to use, if several are recorded.

    Raises:
        BackendMissing: PyTorch is not installed.
        UsageError, CaseError: the file cannot be used, or its module does not fit the model.
    """
    text = str(source)
    if ".py:" not in text and not text.endswith(".py"):
        return recorded_tensors(case, Path(source), runner)[0]
    if runner is not None:
        raise UsageError(
            f"--runner {runner} does not apply to {text}, which names no runners.",
            "Leave --runner out.",
        )
    _demand_torch()
    module = _Module(load_function(text)(), text)
    inputs, outputs = (
        [str(v.name) for v in values]
        for values in (case.network.graph.inputs, case.network.graph.outputs)
    )
    return [
        module.outputs({name: sample[name] for name in inputs}, outputs)
        for sample in case.calibration
    ]


def _demand_torch() -> None:
    """Raise BackendMissing if PyTorch is not installed."""
    try:
        import torch  # noqa: F401, PLC0415 (PyTorch is an extra, and takes seconds to load)
    except ImportError as error:
        raise BackendMissing(
            f"PyTorch is not installed: {error}.", "Install it: pip install 'halfwise[torch]'."
        ) from error


class _Module:
    """The user's module in eval mode, called with arrays."""

    def __init__(self, made: object, source: str) -> None:
        """Take what a factory returned: a module, or one and example inputs.

        Raises:
            CaseError: the factory returned neither, or the parameters are not FP32.
        """
        import torch  # noqa: PLC0415

        module = made[0] if isinstance(made, tuple) and len(made) == 2 else made
        if not isinstance(module, torch.nn.Module):
            raise CaseError(
                f"{source} returned {type(module).__name__}, not a torch.nn.Module.",
                "Return the module, or a pair of module and example inputs.",
            )
        low = {p.dtype for p in module.parameters()} & {torch.float16, torch.bfloat16}
        if low:
            raise CaseError(
                f"The module returned by {source} stores {', '.join(sorted(map(str, low)))}.",
                "Return it in FP32: call module.float() before loading its weights.",
            )
        self.source = source
        self.module = module.eval()
        self.names = tuple(inspect.signature(module.forward).parameters)

    def outputs(
        self, arrays: Mapping[str, NDArray[Any]], names: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Return the export's outputs `names`: by key if they are keys, else in order.

        Args:
            arrays: The export's inputs; they are parameters of forward, or stand in its order.
            names: The export's outputs.

        Raises:
            CaseError: the module raised, or the number of inputs or outputs differs.
        """
        import torch  # noqa: PLC0415

        given = {n: torch.from_numpy(np.array(a)) for n, a in self._bound(arrays).items()}
        called = guarded(
            self.source,
            f"The module of {self.source}",
            f" on inputs of shape {', '.join(f'{n} {tuple(t.shape)}' for n, t in given.items())}",
            "Check the inputs against forward.",
        )
        with called, torch.no_grad():
            result = self.module(**given)
            leaves = [leaf.numpy() for leaf in _leaves(result)]
            pairs = result.items() if isinstance(result, Mapping) else ()
            keyed = {k: v.detach().numpy() for k, v in pairs if isinstance(v, torch.Tensor)}
        if keyed.keys() >= {*names}:
            return {name: keyed[name] for name in names}
        if len(leaves) != len(names):
            raise CaseError(
                f"The module of {self.source} returns {len(leaves)} tensors, but the model has "
                f"{len(names)} outputs: {', '.join(names)}.",
                "Return the exported tensors in that order, or as a dictionary with these names.",
            )
        return dict(zip(names, leaves, strict=True))

    def _bound(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        if arrays.keys() <= {*self.names}:
            return arrays
        if len(arrays) > len(self.names):
            raise CaseError(
                f"The model has inputs {', '.join(arrays)}, but the module of {self.source} takes "
                f"{', '.join(self.names) or 'none'}.",
                "Give the module that the model was exported from.",
            )
        return dict(zip(self.names, arrays.values(), strict=False))


def _leaves(result: object) -> Iterator[Any]:
    """Yield tensors in the order in which exporters number them."""
    import torch  # noqa: PLC0415

    if isinstance(result, torch.Tensor):
        yield result.detach()
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from _leaves(value)
    elif isinstance(result, Sequence) and not isinstance(result, str):
        for value in result:
            yield from _leaves(value)
