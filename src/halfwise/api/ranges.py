"""Optimization profiles from `--minShapes`, `--optShapes` and `--maxShapes` alone, without data."""

import re
from collections.abc import Sequence

import onnx_ir as ir

from halfwise.errors import CaseError, UsageError
from halfwise.graph.model import Network, tensor_name
from halfwise.records import Profile, ShapeRange, TensorName

_OPTIONS = ("--minShapes", "--optShapes", "--maxShapes")
_SIZES = re.compile(r"-?[0-9]{1,9}(x-?[0-9]{1,9})*")

Shapes = dict[TensorName, tuple[int, ...]]


def profiles_from(
    network: Network, minimum: Sequence[str], optimum: Sequence[str], maximum: Sequence[str]
) -> tuple[Profile, ...]:
    """Return one profile per place in the lists, which are in trtexec's notation.

    Sizes of an input whose axes are all fixed are its values: it is a shape tensor. With
    `--optShapes` alone that shape is the only one.

    Raises:
        UsageError: the lists differ in length or in the inputs they name, or cannot be read.
        CaseError: an input is not of the model, has another rank, or min ≤ opt ≤ max does not hold.
    """
    minimum, maximum = minimum or optimum, maximum or optimum
    if not len(minimum) == len(optimum) == len(maximum):
        raise UsageError(
            "The profiles are incomplete.",
            "Give each of --minShapes, --optShapes and --maxShapes once per profile, or "
            "--optShapes alone.",
        )
    texts = zip(minimum, optimum, maximum, strict=True)
    return tuple(_profile(network, [parse_shapes(t) for t in group]) for group in texts)


def parse_shapes(text: str) -> Shapes:
    """Return the shapes that trtexec reads in `text`, by input name.

    Items are split at commas; the name ends at the last colon, or is within single quotes.

    Raises:
        UsageError: it cannot be read.
    """
    shapes: Shapes = {}
    for item in text.split(","):
        name, _, sizes = item.rpartition(":")
        name = name[1:-1] if len(name) > 1 and name[0] == name[-1] == "'" else name
        if not name or not _SIZES.fullmatch(sizes):
            raise UsageError(
                f"{item!r} is not a name, a colon and sizes.", "Write it like input:1x3x224x224."
            )
        shapes[TensorName(name)] = tuple(map(int, sizes.split("x")))
    return shapes


def _profile(network: Network, ends: list[Shapes]) -> Profile:
    inputs = {tensor_name(v): v for v in network.graph.inputs}
    shapes: dict[TensorName, ShapeRange] = {}
    values: dict[TensorName, ShapeRange] = {}
    for name in dict.fromkeys(name for end in ends for name in end):
        if name not in inputs:
            raise CaseError(
                f"The model has no input {name!r}.", f"Its inputs are: {', '.join(inputs)}."
            )
        if not all(name in end for end in ends):
            raise UsageError(
                f"Input {name!r} is not in all of {', '.join(_OPTIONS)}.", "Name it in each."
            )
        low, opt, high = (end[name] for end in ends)
        fixed = _is_fixed(inputs[name])
        _check(inputs[name], (low, opt, high), None if fixed else inputs[name].shape)
        (values if fixed else shapes)[name] = ShapeRange(min=low, opt=opt, max=high)
    return Profile(shapes=shapes, values=values)


def _is_fixed(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(axis, int) for axis in value.shape)


def _check(value: ir.Value, ends: tuple[tuple[int, ...], ...], declared: ir.Shape | None) -> None:
    low, opt, high = ends
    rank = len(opt) if declared is None else len(declared)
    if not len(low) == len(opt) == len(high) == rank:
        raise CaseError(
            f"Input {value.name!r} has {rank} axes, and its shapes have another number.",
            "Give the size of every axis, as in input:1x3x224x224.",
        )
    if not all(a <= b <= c for a, b, c in zip(low, opt, high, strict=True)):
        raise CaseError(
            f"The shapes of input {value.name!r} are not in the order min ≤ opt ≤ max.",
            "Each axis of --minShapes may be at most that of --optShapes, and so on.",
        )
    for axis, size in enumerate(declared or ()):
        if isinstance(size, int) and not size == low[axis] == high[axis]:
            raise CaseError(
                f"Axis {axis} of input {value.name!r} is {size} in the model.",
                "Give that size for it.",
            )
