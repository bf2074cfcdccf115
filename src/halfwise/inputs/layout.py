"""The rule that says how many samples an array holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.inputs.fitting import check_fixed_axes
from halfwise.inputs.spec import InputSpec, count_samples, format_shape

MOST_SAMPLES = 1_000_000
"""More than any run would get through; what holds more is no list of samples, or a trap."""


@dataclass(frozen=True)
class Layout:
    """How one array is read as samples of one input.

    Attributes:
        kind: "stacked" where an axis before the model's own counts samples, "batched" where the
            model's dynamic batch axis does, "single" where the array is one sample.
        count: Number of samples, at least 1.
    """

    kind: Literal["stacked", "batched", "single"]
    count: int

    def take(self, array: NDArray[Any], index: int) -> NDArray[Any]:
        """Return sample `index` (0 ≤ index < count) of the input's own rank, as a view."""
        match self.kind:
            case "stacked":
                # With an ellipsis a zero-dimensional result stays an array.
                return array[index, ...]
            case "batched":
                return array[index : index + 1]
            case "single":
                return array


def understand(shape: tuple[int, ...], spec: InputSpec, where: str) -> Layout:
    """Decide how many samples an array of this shape holds.

    An array of rank one above the input's is that many samples. An array of the input's own rank
    is as many samples as its first axis is long where the model's first axis is dynamic, each
    kept with a batch axis of length 1, and otherwise one sample; so is every array for an input
    of unknown rank.

    Args:
        shape: Shape of the array.
        spec: The input it is for.
        where: Place to name in an error.

    Raises:
        CaseError: Any other rank, no samples, or another length on an axis the model fixes.
    """
    rank = len(shape) if spec.shape is None else len(spec.shape)
    if len(shape) == rank + 1:
        layout, sample_shape = Layout("stacked", shape[0]), shape[1:]
    elif len(shape) == rank and spec.batch_is_dynamic:
        layout, sample_shape = Layout("batched", shape[0]), (1, *shape[1:])
    elif len(shape) == rank:
        layout, sample_shape = Layout("single", 1), shape
    else:
        raise CaseError(
            f"{where}: input '{spec.name}' has rank {len(shape)} ({format_shape(shape)}), "
            f"expected rank {rank} ({format_shape(spec.shape)}) or one above.",
            "Give one sample with the model's own axes, or N samples behind an axis of length N.",
        )
    if layout.count > MOST_SAMPLES:
        raise CaseError(
            f"{where}: input '{spec.name}' holds {layout.count:,} samples "
            f"({format_shape(shape)}), expected at most {MOST_SAMPLES:,}.",
            "Give fewer, or check the shape in the file.",
        )
    if layout.count == 0:
        raise CaseError(
            f"{where}: input '{spec.name}' is empty ({format_shape(shape)}), expected at least "
            "one sample.",
            "Export the data again.",
        )
    check_fixed_axes(sample_shape, spec, where, _batch_hint(shape, spec))
    return layout


def agree(layouts: Mapping[str, Layout], where: str) -> int:
    """Return the number of samples that all inputs agree on.

    Args:
        layouts: Input name → layout, at least one.
        where: Place to name in an error.

    Raises:
        CaseError: The numbers differ, or one input is a single sample and another one several.
    """
    counts = {name: layout.count for name, layout in layouts.items()}
    if len(set(counts.values())) == 1:
        return next(iter(counts.values()))
    most = max(counts.values())
    listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
    lone = next((name for name, layout in layouts.items() if layout.kind == "single"), None)
    if lone is not None:
        raise CaseError(
            f"{where}: input '{lone}' is given as one sample and others as several ({listed}), "
            "expected the same number for every input.",
            f"Repeat '{lone}' behind an axis of length {most}: np.stack([{lone}] * {most}). "
            "Where the model tells no rank, give a file for each sample.",
        )
    raise CaseError(
        f"{where}: the inputs give different numbers of samples ({listed}), expected the same "
        "number for every input.",
        "Give every array an axis before the model's own that counts the samples.",
    )


def layout_note(layout: Layout, shape: tuple[int, ...], spec: InputSpec) -> str:
    """Say how an array was understood, in one sentence for the user to check."""
    array = f"input '{spec.name}': {format_shape(shape)} is read as"
    match layout.kind:
        case "stacked":
            sample, why = shape[1:], "the axis before the model's own counts samples"
        case "batched":
            sample, why = (1, *shape[1:]), "the model's dynamic batch axis counts samples"
        case "single":
            sample, why = shape, "it has the model's own axes"
            if spec.shape is None:
                why = "the model tells no rank, so every array is one sample"
    return f"{array} {count_samples(layout.count)} of {format_shape(sample)} ({why})"


def _batch_hint(shape: tuple[int, ...], spec: InputSpec) -> str:
    """Help those who stacked samples along a batch axis that the model fixes to 1."""
    if not spec.shape or len(shape) != len(spec.shape) or spec.shape[0] != 1 or shape[0] == 1:
        return ""
    stacked = format_shape((shape[0], 1, *shape[1:]))
    return f"To give {shape[0]} samples add an axis before the model's own: {stacked}."
