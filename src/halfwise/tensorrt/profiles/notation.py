"""Shapes in trtexec's notation: `--minShapes=a:1x3x224x224,'b:0':1x8`.

Read as `samples/common/sampleOptions.cpp` of TensorRT 8.6 and 10 reads it: items are split at
commas, which quotes do not protect; what stands before and within one pair of single quotes is the
name, and without quotes what stands before the last colon. Rank 0 is `a:`, or `a:scalar` as from
TensorRT 10 on.
"""

import re
from collections.abc import Mapping

from halfwise.errors import UsageError
from halfwise.records import TensorName

Shape = tuple[int, ...]

_INTEGER = re.compile(r"-?[0-9]{1,10}")
_LARGEST = 2**31 - 1
"""Sizes are 32-bit in TensorRT before 10, and no larger number is a size of anything that fits."""


def parse_shapes(text: str, option: str) -> dict[TensorName, Shape]:
    """Return the shapes that `text` gives, by input name, in its order.

    Negative numbers are taken: they have a meaning among the values of a shape tensor.

    Args:
        text: The value of the option.
        option: Its name, for errors.

    Raises:
        UsageError: no colon, no name, quotes that do not pair, a size that is no 32-bit integer, or
            a name that comes twice.
    """
    shapes: dict[TensorName, Shape] = {}
    for item in text.split(","):
        name, sizes = _name_and_sizes(item, option)
        if name in shapes:
            raise UsageError(f"{option} names input {name!r} twice.", "Give one shape per input.")
        shapes[TensorName(name)] = _shape(sizes, item, option)
    return shapes


def format_shapes(shapes: Mapping[TensorName, Shape]) -> str:
    """Return shapes as trtexec 8.5 to 11 reads them; `parse_shapes` undoes it.

    Raises:
        UsageError: a name holds a comma or a single quote, which trtexec cannot read.
    """
    return ",".join(f"{_quoted(name, shape)}:{_sizes(shape)}" for name, shape in shapes.items())


def _name_and_sizes(item: str, option: str) -> tuple[str, str]:
    parts = item.split("'")
    if len(parts) == 3 and parts[2].startswith(":"):
        name, sizes = parts[0] + parts[1], parts[2][1:]
    elif len(parts) == 1:
        name, _, sizes = item.rpartition(":")
    else:
        name, sizes = "", ""
    if not name:
        raise UsageError(
            f"{option}: {item!r} is not a name, a colon and sizes.",
            f"Write it like trtexec: {option}=input:1x3x224x224,'name:0':1x8.",
        )
    return name, sizes


def _shape(sizes: str, item: str, option: str) -> Shape:
    if sizes in ("", "scalar"):
        return ()
    parts = sizes.split("x")
    for part in parts:
        if not _INTEGER.fullmatch(part) or abs(int(part)) > _LARGEST:
            raise UsageError(
                f"{option}: {part!r} in {item!r} is not a 32-bit integer.",
                f"Write sizes with x between them: {option}=input:1x3x224x224.",
            )
    return tuple(int(part) for part in parts)


def _quoted(name: str, shape: Shape) -> str:
    if "," in name or "'" in name:
        raise UsageError(
            f"trtexec cannot read the input name {name!r}: it holds a comma or a single quote.",
            "Rename the input in the ONNX file.",
        )
    # Before version 10, rank 0 can be read within quotes only.
    return f"'{name}'" if ":" in name or not shape else name


def _sizes(shape: Shape) -> str:
    return "x".join(map(str, shape))
