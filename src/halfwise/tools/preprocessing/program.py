"""The transformation from A to B as Python that needs only NumPy, and its residual."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.tools.preprocessing.images import Layout, Turn
from halfwise.tools.preprocessing.normalisation import Own
from halfwise.tools.preprocessing.registration import Placement

_HEAD = """import numpy as np


def a_to_b(a):
    \"\"\"Turn one sample of A into one of B.\"\"\"
    x = np.asarray(a, np.float64)
"""
_LINEAR = (
    "top, left = np.minimum(rows.astype(int), x.shape[1] - 2), "
    "np.minimum(columns.astype(int), x.shape[2] - 2)",
    "down, along = (rows - top)[:, None], columns - left",
    "x = x[:, top] * (1 - down) + x[:, top + 1] * down",
    "x = x[:, :, left] * (1 - along) + x[:, :, left + 1] * along",
)


class Program:
    """The lines of a function `a_to_b`, in the order added."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._order: tuple[int, ...] | None = None

    def add(self, comment: str, *lines: str) -> None:
        """Add a step: a comment and its lines; none for a mere remark."""
        self._lines += [f"    # {comment}", *(f"    {line}" for line in lines)]

    def order(self, order: Sequence[int]) -> None:
        """Record that sample i of B is sample `order[i]` of A."""
        self._order = tuple(order)

    def read(self, layout: Layout) -> None:
        """Begin by reading a sample of A as [channels, rows, columns]."""
        lines = [f"x = x.reshape(x.shape[{layout.lead}:])"] if layout.lead else []
        if layout.order == "HW":
            lines.append("x = x[None]")
        elif layout.reshaped:
            lines.append(
                "x = x.reshape(x.shape[1:] + x.shape[:1]).transpose(2, 0, 1)"
                if layout.order == "CHW"
                else "x = x.reshape(x.shape[2:] + x.shape[:2])"
            )
        elif layout.order == "HWC":
            lines.append("x = x.transpose(2, 0, 1)")
        if lines:
            self.add(f"A is {layout}: to channels, rows, columns", *lines)

    def turn(self, turn: Turn) -> None:
        """Flip or rotate."""
        lines = ["x = x.transpose(0, 2, 1)"] if turn.transposed else []
        if turn.rows or turn.columns:
            lines.append(f"x = x[:, ::{-1 if turn.rows else 1}, ::{-1 if turn.columns else 1}]")
        self.add(str(turn), *lines)

    def unframe(self, value: Sequence[float], slack: float) -> None:
        """Remove the frame."""
        self.add(
            "remove A's padding",
            f"inside = (np.abs(x - np.array({_row(value)})[:, None, None]) > {slack:.3g}).any(0)",
            "rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))",
            "x = x[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]",
        )

    def shift(self, down: int, along: int, shape: Sequence[int]) -> None:
        """Shift by whole pixels; the border is repeated."""
        self.add(
            f"crop {down} rows further down, {along} columns further right",
            f"rows = np.clip(np.arange({shape[0]}) + {down}, 0, x.shape[1] - 1)",
            f"columns = np.clip(np.arange({shape[1]}) + {along}, 0, x.shape[2] - 1)",
            "x = x[:, rows][:, :, columns]",
        )

    def place(self, place: Placement, shape: Sequence[int]) -> None:
        """Resample by linear interpolation; the border is repeated."""
        lines = []
        for name, axis in (("rows", 1), ("columns", 2)):
            start, step = place.start[axis - 1], place.step[axis - 1]
            lines.append(
                f"{name} = np.clip({start:.6g} + {step:.8g} * np.arange({shape[axis - 1]}), "
                f"0, x.shape[{axis}] - 1)"
            )
        self.add(
            "resample (linear; an approximation)",
            *lines,
            *_LINEAR,
        )

    def stretch(self, shape: Sequence[int]) -> None:
        """Resize to `shape`, with half-pixel centres, by linear interpolation."""
        self.add(
            f"resize to {shape[0]}×{shape[1]} (linear; an approximation)",
            f"rows = (np.arange({shape[0]}) + 0.5) * x.shape[1] / {shape[0]} - 0.5",
            f"columns = (np.arange({shape[1]}) + 0.5) * x.shape[2] / {shape[1]} - 0.5",
            "rows = np.clip(rows, 0, x.shape[1] - 1)",
            "columns = np.clip(columns, 0, x.shape[2] - 1)",
            *_LINEAR,
        )

    def channels(self, channels: Sequence[int]) -> None:
        """Reorder channels."""
        self.add("channels in B's order", f"x = x[{list(channels)}]")

    def affine(self, gain: Sequence[float], offset: Sequence[float]) -> None:
        """Scale and offset."""
        lines = []
        if any(value != 1 for value in gain):
            lines.append(f"x = x * np.array({_row(gain)})[:, None, None]")
        if any(offset):
            lines.append(f"x = x + np.array({_row(offset)})[:, None, None]")
        self.add("B's normalisation", *lines)

    def own(self, how: Own) -> None:
        """Normalise each image by its own mean and deviation, or by its own range."""
        name, *lines = {
            "moments": ("mean and deviation", "x = x - x.mean()", "x = x / x.std()"),
            "range": ("smallest and largest value", "x = x - x.min()", "x = x / x.max()"),
        }[how]
        self.add(f"B is normalised by each image's own {name}", *lines)

    def quantise(self, step: Sequence[float], zero: Sequence[float], how: str) -> None:
        """Round to levels; `how` is "round" or "floor"."""
        self.add(
            "round to 8 bits, as in B",
            f"step, zero = np.array({_row(step)})[:, None, None], "
            f"np.array({_row(zero)})[:, None, None]",
            f"x = np.{how}((x - zero) / step{' + 1e-4' if how == 'floor' else ''}) * step + zero",
        )

    def clip(self, low: Sequence[float], high: Sequence[float]) -> None:
        """Clip to a range."""
        self.add(
            "clip as in B",
            f"x = np.clip(x, np.array({_row(low)})[:, None, None], "
            f"np.array({_row(high)})[:, None, None])",
        )

    def frame(self, shape: Sequence[int], value: Sequence[float], sides: Sequence[str]) -> None:
        """Add a frame; `sides` places the image, see `framing`."""
        places = {
            "start": "0",
            "centre": "({n} - x.shape[{axis}]) // 2",
            "centre-up": "({n} - x.shape[{axis}] + 1) // 2",
            "end": "{n} - x.shape[{axis}]",
        }
        top, left = (
            places[side].format(n=n, axis=axis)
            for side, n, axis in zip(sides, shape, (1, 2), strict=True)
        )
        self.add(
            "B's padding",
            f"framed = np.empty((x.shape[0], {shape[0]}, {shape[1]}))",
            f"framed[:] = np.array({_row(value)})[:, None, None]",
            f"top, left = {top}, {left}",
            "framed[:, top : top + x.shape[1], left : left + x.shape[2]] = x",
            "x = framed",
        )

    def write(self, layout: Layout, sample: NDArray[Any]) -> None:
        """End by writing the sample in B's layout."""
        lines = []
        if layout.order == "HW":
            lines.append("x = x[0]")
        elif layout.reshaped:
            lines.append(
                "x = x.transpose(1, 2, 0).reshape(x.shape)"
                if layout.order == "CHW"
                else "x = x.reshape(x.shape[1:] + x.shape[:1])"
            )
        elif layout.order == "HWC":
            lines.append("x = x.transpose(1, 2, 0)")
        if layout.lead:
            lines.append(f"x = x.reshape({(1,) * layout.lead} + x.shape)")
        if sample.dtype.kind in "iu":
            info = np.iinfo(sample.dtype)
            lines.append(f"x = np.clip(np.round(x), {info.min}, {info.max})")
        lines.append(f"return np.ascontiguousarray(x, np.{sample.dtype.name})")
        self.add(f"B is {layout}, {sample.dtype.name}", *lines)

    @property
    def text(self) -> str:
        """The Python."""
        head = _HEAD
        if self._order is not None:
            comment = "# Sample i of B is sample ORDER[i] of A.\n"
            head = head.replace(
                "\n\n\ndef", f"\n\n{comment}ORDER = {list(self._order)}\n\n\ndef", 1
            )
        return head + "\n".join(self._lines) + "\n"


def code_of(codes: Mapping[str, str]) -> str:
    """Return the Python for all inputs: `a_to_b`, or `a_to_b_0` and so on if several.

    Args:
        codes: Python by input name; empty text if A and B are the same.
    """
    parts = [code for code in codes.values() if code] or ["# A and B are the same.\n"]
    if len(parts) > 1:
        # Input names are untrusted, so they are quoted.
        parts = [
            f"# Input {name!a}\n{code.replace('def a_to_b(', f'def a_to_b_{i}(')}"
            for i, (name, code) in enumerate(codes.items())
            if code
        ]
    return "\n\n".join(parts)


def transformation(text: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return the function in a program's text, which `Program` builds only from numbers.

    So the code shown is the code measured.
    """
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102 - no text of a user's is in it
    made: Callable[[NDArray[Any]], NDArray[Any]] = names["a_to_b"]
    return made


def _row(values: Sequence[float]) -> str:
    return "[" + ", ".join(f"{float(v):.9g}" for v in values) + "]"


@dataclass(frozen=True)
class Residual:
    """What the transformation leaves.

    Attributes:
        before: Largest |A − B|; None if a shape differs.
        largest: Largest |transformed A − B|; inf if a shape differs.
        rms: Root mean square, likewise.
    """

    before: float | None
    largest: float
    rms: float


def measure(
    a: Sequence[NDArray[Any]],
    b: Sequence[NDArray[Any]],
    transform: Callable[[NDArray[Any]], NDArray[Any]],
    inside: Callable[[NDArray[Any]], NDArray[Any]] = lambda sample: sample,
) -> Residual:
    """Return the residual over all samples, with one pair in memory at a time.

    Args:
        a: Samples of A, in B's order.
        b: Samples of B, equally many.
        transform: From a sample of A to one of B.
        inside: Crops a sample of B to what A shows too.
    """
    before: float | None = 0.0
    largest, squares, count = 0.0, 0.0, 0
    for x, y in zip(a, b, strict=True):
        target = y.astype(np.float64)
        if x.shape == y.shape and before is not None:
            before = max(before, float(np.abs(x.astype(np.float64) - target).max(initial=0)))
        else:
            before = None
        mapped = transform(x).astype(np.float64)
        if mapped.shape != target.shape:
            return Residual(before, float("inf"), float("inf"))
        left = np.abs(inside(mapped) - inside(target))
        largest = max(largest, float(left.max(initial=0)))
        squares, count = squares + float((left**2).sum()), count + left.size
    return Residual(before, largest, float(np.sqrt(squares / count)) if count else 0.0)
