"""Export a PyTorch module and run it next to its export; nothing else imports PyTorch."""


# ruff: noqa: PLC0415 (imports inside functions: PyTorch is an extra, and takes seconds to load)

import contextlib
import inspect
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import BackendMissing, BuildFailed, CaseError
from halfwise.graph.weights import LARGE_MODEL_BYTES
from halfwise.user_code import RAISED, guarded

Exporter = Literal["dynamo", "torchscript"]
Arrays = Mapping[str, NDArray[Any]]

LEAST_OPSET = 17
"""The first opset with LayerNormalization."""
LEAST_DYNAMO_OPSET = 18
"""The lowest opset the dynamo exporter writes (torch.onnx documentation)."""
_LOW_TYPES = ("float16", "bfloat16")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""ANSI colours in the dynamo exporter's messages."""


@dataclass(frozen=True)
class DynamicAxis:
    """A dynamic axis of an input.

    Attributes:
        name: Parameter of the module's forward.
        axis: Index from 0.
        symbol: Name of its size; axes that share a symbol share a size.
    """

    name: str
    axis: int
    symbol: str


def demand_torch() -> None:
    """Raise BackendMissing if PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise BackendMissing(
            f"PyTorch is not installed: {error}.", "Install it: pip install 'halfwise[torch]'."
        ) from error


class Module:
    """The user's module in eval mode, called with arrays by parameter name."""

    def __init__(self, made: object, source: str) -> None:
        """Take what a factory returned: a module, or one and example inputs.

        Raises:
            BackendMissing: PyTorch is not installed.
            CaseError: the factory returned neither, or the parameters are not FP32.
        """
        demand_torch()
        import torch

        module, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(module, torch.nn.Module):
            raise CaseError(
                f"{source} returned {type(module).__name__}, not a torch.nn.Module.",
                "Return the module, or a pair of module and example inputs.",
            )
        low = {str(p.dtype).removeprefix("torch.") for p in module.parameters()} & {*_LOW_TYPES}
        if low:
            raise CaseError(
                f"The module returned by {source} stores {', '.join(sorted(low))}.",
                "Return it in FP32: call module.float() before loading its weights.",
            )
        self.source = source
        self.module = module.eval()
        self.names = tuple(inspect.signature(module.forward).parameters)
        self.example = None if example is None else self._named(example)

    def named(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Return arrays by parameter, in forward's order; a single array goes to the first.

        Raises:
            CaseError: a name is not a parameter.
        """
        if len(arrays) == 1 and not arrays.keys() & {*self.names} and self.names:
            return {self.names[0]: next(iter(arrays.values()))}
        if unknown := arrays.keys() - {*self.names}:
            raise CaseError(
                f"Inputs {', '.join(sorted(unknown))} are not parameters of the module's forward.",
                f"Name the arrays as forward does: {', '.join(self.names)}.",
            )
        return {name: arrays[name] for name in self.names if name in arrays}

    def bound(self, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Map the inputs of an export to parameters: by name, or in order if any name is unknown.

        Raises:
            CaseError: there are more inputs than parameters.
        """
        if arrays.keys() <= {*self.names}:
            return self.named(arrays)
        if len(arrays) > len(self.names):
            raise CaseError(
                f"The model has inputs {', '.join(arrays)}, but the module of {self.source} takes "
                f"{', '.join(self.names) or 'none'}.",
                "Give the module that the model was exported from.",
            )
        return dict(zip(self.names, arrays.values(), strict=False))

    def run(self, arrays: Arrays) -> list[NDArray[Any]]:
        """Return the outputs as a flat list, in the order exporters number them.

        Raises:
            CaseError: the module raised.
        """
        return self._called(arrays)[0]

    def outputs(self, arrays: Arrays, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the export's outputs `names`: by key if they are keys, else in order.

        Raises:
            CaseError: the module raised, or the number of outputs differs.
        """
        flat, keyed = self._called(arrays)
        if keyed.keys() >= {*names}:
            return {name: keyed[name] for name in names}
        if len(flat) != len(names):
            raise CaseError(
                f"The module of {self.source} returns {len(flat)} tensors, but the model has "
                f"{len(names)} outputs: {', '.join(names)}.",
                "Return the exported tensors in that order, or as a dictionary with these names.",
            )
        return dict(zip(names, flat, strict=True))

    def _called(self, arrays: Arrays) -> tuple[list[NDArray[Any]], dict[str, NDArray[Any]]]:
        """Return the outputs in order, and by key if the module returns a dictionary."""
        import torch

        called = guarded(
            self.source,
            f"The module of {self.source}",
            f" on inputs of shape {_shapes(arrays)}",
            "Check the inputs against forward; give sizes that it accepts with --sizes.",
        )
        with called, torch.no_grad():
            result = self.module(**_tensors(arrays))
            pairs = result.items() if isinstance(result, Mapping) else ()
            keyed = {k: v.detach().numpy() for k, v in pairs if isinstance(v, torch.Tensor)}
            flat = [leaf.numpy() for leaf in _leaves(result)]
        if not flat:
            raise CaseError(
                f"The module of {self.source} returns no tensor.",
                "Return one, or a tuple or dictionary of them.",
            )
        return flat, keyed

    def _named(self, example: object) -> dict[str, NDArray[Any]]:
        import torch

        given = (example,) if isinstance(example, torch.Tensor) else example
        if isinstance(given, Sequence) and len(given) <= len(self.names):
            given = dict(zip(self.names, given, strict=False))
        if not isinstance(given, Mapping) or not all(
            isinstance(value, torch.Tensor) for value in given.values()
        ):
            raise CaseError(
                f"The example inputs of {self.source} are not tensors.",
                "Return a tensor, a tuple of tensors, or a dictionary of them by parameter.",
            )
        return self.named({name: value.detach().numpy() for name, value in given.items()})


def export(
    module: Module,
    arrays: Arrays,
    path: Path,
    *,
    dynamic: Sequence[DynamicAxis] = (),
    exporter: Exporter = "dynamo",
    opset: int = LEAST_DYNAMO_OPSET,
    fold: bool = True,
) -> tuple[str, ...]:
    """Write the module as ONNX; its inputs are named after the parameters.

    Args:
        module: The module.
        arrays: Example inputs for tracing, by parameter.
        path: File to write.
        dynamic: Dynamic axes.
        exporter: Which of PyTorch's exporters.
        opset: At least 17, for the dynamo exporter at least 18.
        fold: Whether the exporter folds constants and simplifies.

    Returns:
        PyTorch's warnings about values that tracing turned into constants.

    Raises:
        BuildFailed: the exporter failed.
    """
    import torch

    options: dict[str, Any] = {"opset_version": opset, "input_names": list(arrays)}
    if exporter == "dynamo":
        size = sum(p.numel() * p.element_size() for p in module.module.parameters())
        options |= {
            "dynamo": True,
            "optimize": fold,
            "dynamic_shapes": _dims(arrays, dynamic),
            "external_data": size > LARGE_MODEL_BYTES,
            "verbose": False,
        }
    else:
        axes: dict[str, dict[int, str]] = {}
        for axis in dynamic:
            axes.setdefault(axis.name, {})[axis.axis] = axis.symbol
        options |= {"dynamo": False, "do_constant_folding": fold, "dynamic_axes": axes}
    try:
        with _quiet() as caught:
            torch.onnx.export(module.module, (), str(path), kwargs=_tensors(arrays), **options)
    except RAISED as error:
        other = "torchscript" if exporter == "dynamo" else "dynamo"
        raise BuildFailed(
            f"PyTorch's {exporter} exporter failed: {type(error).__name__}: {_first_line(error)}",
            f"Try --exporter {other}, or fewer --dynamic axes.",
        ) from error
    return tuple(dict.fromkeys(map(_told, caught)))


def _dims(arrays: Arrays, dynamic: Sequence[DynamicAxis]) -> dict[str, dict[int, Any]]:
    import torch

    dims = {axis.symbol: torch.export.Dim(axis.symbol) for axis in dynamic}
    return {
        name: {axis.axis: dims[axis.symbol] for axis in dynamic if axis.name == name}
        for name in arrays
    }


def _tensors(arrays: Arrays) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _leaves(result: object) -> Iterator[Any]:
    import torch

    if isinstance(result, torch.Tensor):
        yield result.detach()
    elif isinstance(result, Mapping):
        for value in result.values():
            yield from _leaves(value)
    elif isinstance(result, Sequence) and not isinstance(result, str):
        for value in result:
            yield from _leaves(value)


@contextlib.contextmanager
def _quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Silence what exporters print to standard output; collect only the tracer's warnings."""
    import torch

    with (
        contextlib.redirect_stdout(sys.stderr),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", torch.jit.TracerWarning)
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield caught
        finally:
            logging.disable(before)


def _told(warning: warnings.WarningMessage) -> str:
    said = _first_line(str(warning.message)).partition(". ")[0].rstrip(".")
    return f"{Path(warning.filename).name}, line {warning.lineno}: {said}"


def _shapes(arrays: Arrays) -> str:
    return ", ".join(f"{name} {'×'.join(map(str, a.shape))}" for name, a in arrays.items())


def _first_line(error: BaseException | str) -> str:
    plain = _COLOURS.sub("", str(error)).strip()
    return (plain or "no message").splitlines()[0][:300]
