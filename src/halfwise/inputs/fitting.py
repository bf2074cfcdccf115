"""A model's inputs, and fitting arrays to them: name, dtype, values, rank, fixed axes."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.graph.model import SMALL_BYTES
from halfwise.graph.weights import ALIGNMENT
from halfwise.user_code import RAISED, described
from halfwise.wording import dimensions, quoted, typed


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a C-contiguous array whose address is a multiple of `ALIGNMENT`; itself, if it is so.

    Views of mapped files up to `SMALL_BYTES` are copied too: many may stay loaded at once
    (`halfwise.case.HELD_BYTES`), and each map has a file descriptor.

    Args:
        array: C-contiguous; numbers or booleans of any shape and type, or objects, which stay.
    """
    pins = isinstance(array.base, np.memmap) and array.nbytes <= SMALL_BYTES
    if not array.size or array.dtype.hasobject or not (_address(array) % ALIGNMENT or pins):
        return array
    buffer = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -_address(buffer) % ALIGNMENT
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class InputSpec(Struct, frozen=True):
    """One input of the model.

    Attributes:
        name: Its name in the graph.
        dtype: Element type. Text inputs have `np.dtype(object)` or a NumPy string type.
        shape: One entry per axis: an int is fixed, a str or None is dynamic; `()` is a scalar. None
            if the model declares no rank: then every array is one sample, of any rank.
        counts: Whether a dynamic first axis may count samples.
        missing: Whether NaN stands for a missing value, and is therefore legal.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None
    counts: bool = True
    missing: bool = False

    @property
    def batch_is_dynamic(self) -> bool:
        """Whether there is a first axis, its length is dynamic, and it may count samples."""
        return bool(self.counts and self.shape and not isinstance(self.shape[0], int))


def format_inputs(specs: Sequence[InputSpec]) -> str:
    """List inputs as `x (float32 1×3×?×?), mask (bool 1×?)`."""
    return ", ".join(f"{s.name} ({s.dtype.name} {dimensions(s.shape)})" for s in specs)


# Within the model's own precision; whether each value fits is checked when a sample is loaded.
_CHECKED_CASTS = {
    ("float64", "float32"): "nearest",
    ("int64", "int32"): "checked",
}


def as_arrays(values: Mapping[str, Any], where: str) -> dict[str, NDArray[Any]]:
    """Return the values of a mapping (arrays, numbers, lists or CPU tensors) as arrays.

    Arrays are not copied.

    Args:
        values: Input name → value, from the user's code.
        where: Place to name in errors.

    Raises:
        CaseError: A key is not a string, or a value cannot be read as an array.
    """
    arrays = {}
    try:
        pairs = list(values.items())
    # The mapping and its content come from the user and may raise anything.
    except RAISED as error:
        raise CaseError(
            f"{where}: reading the dictionary raised {described(error)}.",
            "Use a plain dictionary {input name: array}.",
        ) from error
    for name, value in pairs:
        if not isinstance(name, str):
            raise CaseError(
                f"{where}: found a key of type {type(name).__name__}; expected an input name "
                "as a string.",
                "Use the model's input names as keys.",
            )
        try:
            arrays[name] = np.asarray(value)
        except RAISED as error:
            raise CaseError(
                f"{where}: input '{name}' is of type {type(value).__name__}, which is not an array "
                f"({described(error)}); expected a NumPy array.",
                "Make it rectangular and convert it with np.asarray(...).",
            ) from error
    return arrays


def match_names(
    arrays: Mapping[str, NDArray[Any]], specs: Sequence[InputSpec], where: str
) -> dict[str, NDArray[Any]]:
    """Return the arrays by input name, in the order of the model's inputs.

    For a model with one input, a single array may have any name.

    Raises:
        CaseError: An array belongs to no input, or an input has no array.
    """
    if len(specs) == 1 and len(arrays) == 1:
        return {specs[0].name: next(iter(arrays.values()))}
    expected = [spec.name for spec in specs]
    hint = f"The model's inputs are: {format_inputs(specs)}."
    unknown = [name for name in arrays if name not in expected]
    if unknown:
        raise CaseError(
            f"{where} holds {quoted(unknown)}, which is not an input of the model; expected "
            f"{quoted(expected)}.",
            hint,
        )
    missing = [name for name in expected if name not in arrays]
    if missing:
        held = f"only {quoted(arrays)}" if arrays else "no arrays"
        raise CaseError(f"{where} holds {held}; expected {quoted(expected)}.", hint)
    return {name: arrays[name] for name in expected}


def check_dtype(stored: np.dtype[Any], spec: InputSpec, where: str) -> None:
    """Check that a dtype converts to the input's own without loss.

    Equal types pass, and so do NumPy's safe casts (float16 → float32, uint8 → float32,
    int32 → int64, …) and two casts whose values `fit_values` checks: float64 → float32 and
    int64 → int32. Text inputs take only text.

    Raises:
        CaseError: The dtype is of another kind or wider, or holds Python objects.
    """
    if _is_text(spec.dtype):
        accepted = stored.kind in "OU"
    else:
        accepted = stored.kind != "O" and (
            np.can_cast(stored, spec.dtype, "safe")
            or (stored.name, spec.dtype.name) in _CHECKED_CASTS
        )
    if not accepted:
        kind = {"O": "Python objects", "U": "str", "S": "bytes"}.get(stored.kind, stored.name)
        raise CaseError(
            f"{where}: input '{spec.name}' has dtype {kind}; expected {spec.dtype.name}.",
            f"Convert it to {spec.dtype.name} as in training, and save it again.",
        )


def conversion(stored: np.dtype[Any], spec: InputSpec) -> dict[str, str]:
    """Return how an accepted dtype is converted, as facts of a note; empty if it is not."""
    if stored.name == spec.dtype.name or _is_text(spec.dtype):
        return {}
    cast = _CHECKED_CASTS.get((stored.name, spec.dtype.name), "lossless")
    return {"stored": stored.name, "dtype": spec.dtype.name, "cast": cast}


def fit_values(array: NDArray[Any], spec: InputSpec, where: str) -> NDArray[Any]:
    """Return the array in the input's dtype, C-contiguous and aligned; a view if nothing changes.

    Args:
        array: Any shape, any dtype.
        spec: The input.
        where: Place to name in errors.

    Raises:
        CaseError: See `check_dtype`; or a value is NaN (unless NaN means missing), infinite, a
            float64 above the largest float32, or an int64 outside int32.
    """
    check_dtype(array.dtype, spec, where)
    if _is_text(spec.dtype):
        return _fit_text(array, spec, where)
    # "V": bfloat16, as structured types did not pass the dtype check.
    if array.dtype.kind in "fV":
        _check_finite(array, spec, where)
    if (array.dtype.name, spec.dtype.name) in _CHECKED_CASTS:
        _check_range(array, spec, where)
    with np.errstate(over="ignore", under="ignore"):
        return aligned(np.asarray(array, dtype=spec.dtype, order="C"))


def as_one_sample(array: NDArray[Any], spec: InputSpec, where: str) -> NDArray[Any]:
    """Read an array as a single sample.

    An array with one axis less than the input gets a batch axis of length 1 if the model's first
    axis is dynamic or 1.

    Returns:
        A view of the input's own rank whose fixed axes have the model's lengths.

    Raises:
        CaseError: Wrong rank, or wrong length of a fixed axis.
    """
    if spec.shape is None:
        return array
    rank = len(spec.shape)
    lacks_batch = array.ndim == rank - 1 and (spec.batch_is_dynamic or spec.shape[0] == 1)
    sample = array[np.newaxis] if lacks_batch else array
    if sample.ndim != rank:
        raise CaseError(
            f"{where}: input '{spec.name}' has rank {array.ndim} "
            f"({dimensions(array.shape)}); expected one sample of rank {rank} "
            f"({dimensions(spec.shape)}).",
            "Here, each array is one sample: give it exactly the model's axes.",
        )
    check_fixed_axes(sample.shape, spec, where)
    return sample


def _batch_hint(shape: tuple[int, ...], spec: InputSpec) -> str:
    declared = spec.shape or ()
    batch = declared[0] if declared else None
    if shape[:1] != (1,) or not isinstance(batch, int) or _wrong_axes(shape[1:], declared[1:]):
        return ""
    return (
        f"The model takes batches of {batch}: concatenate {batch} samples along the first axis for "
        "each batch, or export the model with a dynamic axis there."
    )


def check_fixed_axes(shape: tuple[int, ...], spec: InputSpec, where: str, hint: str = "") -> None:
    """Check the fixed axes of one sample, whose rank is the input's.

    Raises:
        CaseError: A fixed axis has another length.
    """
    declared = shape if spec.shape is None else spec.shape
    if wrong := _wrong_axes(shape, declared):
        # Axis 0 often counts samples, so any other says more.
        axis = next((axis for axis in wrong if axis > 0), 0)
        raise CaseError(
            f"{where}: input '{spec.name}' is {dimensions(shape)}, with axis {axis} of "
            f"length {shape[axis]}; expected {dimensions(spec.shape)}.",
            _layout_hint(shape, spec)
            or (axis == 0 and (hint or _batch_hint(shape, spec)))
            or "Resize or crop the data, or export the model with a dynamic axis there.",
        )


def _wrong_axes(shape: Sequence[int], declared: Sequence[int | str | None]) -> list[int]:
    """Return the axes that have another length than the one declared."""
    pairs = enumerate(zip(shape, declared, strict=True))
    return [axis for axis, (size, n) in pairs if isinstance(n, int) and size != n]


def _layout_hint(shape: tuple[int, ...], spec: InputSpec) -> str:
    """Return a hint if data is NHWC where the model takes NCHW, or the reverse."""
    if spec.shape is None or len(shape) not in (3, 4):
        return ""
    image, declared = shape[-3:], spec.shape[-3:]
    if not _wrong_axes(image, declared):
        return ""
    ways = (("HWC", "CHW", "-1, -3", (2, 0, 1)), ("CHW", "HWC", "-3, -1", (1, 2, 0)))
    for layout, wanted, axes, order in ways:
        if not _wrong_axes([image[i] for i in order], declared):
            n = "N" if len(shape) > len(image) else ""
            return (
                f"The data is {n}{layout}, but the model takes {n}{wanted}. Transpose it: "
                f"np.moveaxis(x, {axes})."
            )
    return ""


def fit_sample(
    arrays: Mapping[str, NDArray[Any]], specs: Sequence[InputSpec], where: str
) -> dict[str, NDArray[Any]]:
    """Return a complete sample with every array in its input's dtype.

    An input may have an axis of length 0 (an empty key-value cache is a real input) if another
    input has elements.

    Args:
        arrays: Input name → array of the input's rank, complete.
        specs: The inputs.
        where: Place to name in errors.

    Raises:
        CaseError: See `fit_values`; or no input has any element.
    """
    if not any(arrays[spec.name].size for spec in specs):
        raise CaseError(
            f"{where}: the sample is empty; expected at least one element.",
            "Remove this sample, or export the data again.",
        )
    return {spec.name: fit_values(arrays[spec.name], spec, where) for spec in specs}


def _is_text(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "OU"


def _fit_text(array: NDArray[Any], spec: InputSpec, where: str) -> NDArray[Any]:
    text: NDArray[Any] = np.asarray(array, dtype=object, order="C")
    strange = next((type(item).__name__ for item in text.flat if not isinstance(item, str)), None)
    if strange is not None:
        raise CaseError(
            f"{where}: input '{spec.name}' holds a {strange}; expected text only.",
            "Convert every element to a string.",
        )
    return text


def _check_finite(array: NDArray[Any], spec: InputSpec, where: str) -> None:
    finite = ~np.isinf(array) if spec.missing else np.isfinite(array)
    if finite.all():
        return
    nan = int(np.isnan(array).sum())
    inf = int(array.size - finite.sum()) - nan
    first = [int(i) for i in np.unravel_index(int(np.argmin(finite)), array.shape)]
    raise CaseError(
        f"{where}: input '{spec.name}' holds {nan} NaN and {inf} inf, the first at {first}; "
        "expected finite numbers.",
        "Repair or remove this sample. Write a mask of -inf as a finite number such as -1e4.",
    )


def _check_range(array: NDArray[Any], spec: InputSpec, where: str) -> None:
    limits = (np.finfo if spec.dtype.kind == "f" else np.iinfo)(spec.dtype)
    least, most = float(limits.min), float(limits.max)
    ends = (end.reduce(array, None, initial=0).item() for end in (np.fmin, np.fmax))
    for beyond in (end for end in ends if not least <= end <= most):
        raise CaseError(
            f"{where}: input '{spec.name}' has dtype {array.dtype.name} and holds {typed(beyond)}; "
            f"expected {spec.dtype.name} ({typed(least)} to {typed(most)}).",
            "Check that this array belongs to this input, and scale it as in training.",
        )


Paired = Sequence[tuple[str, Mapping[str, Path]]]
"""The name of each sample, and input name → file."""

_FORM = "Give NAME=FOLDER for each input, separated by commas: left=DIR,right=DIR."


def split_sources(source: str) -> dict[str, Path]:
    """Return the source of each input named by `name=path,name=path`; empty for other text.

    The path of an existing file or folder, or of a function's file, is not such text. Paths may
    contain commas; names may contain neither commas nor "=".

    Raises:
        CaseError: An input is named twice, or without a path.
    """
    name, equals, _ = source.partition("=")
    file = source.rpartition(":")[0]
    if not (name and equals) or Path(source).exists() or (file and Path(file).exists()):
        return {}
    sources: dict[str, Path] = {}
    for part in re.split(r",(?=[^,=]+=)", source):
        name, _, path = part.partition("=")
        if name in sources:
            raise CaseError(f"Input '{name}' is named twice in {source}; expected once.", _FORM)
        if not path:
            raise CaseError(f"Input '{name}' has no source in {source}.", _FORM)
        sources[name] = Path(path)
    return sources


def demand_sources(sources: Mapping[str, Path], specs: Sequence[InputSpec] | None = None) -> None:
    """Refuse sources that are missing or equal, or that do not match `specs`.

    Raises:
        CaseError: As above; it names the first fault.
    """
    names = [spec.name for spec in specs or ()]
    inputs = f"The model's inputs are: {format_inputs(specs or ())}."
    for name, path in sources.items():
        if specs is not None and name not in names:
            raise CaseError(
                f"There is no file or folder {name}={path}, and the model has no input '{name}'; "
                f"expected a source for each of: {', '.join(names)}.",
                inputs,
            )
        if not path.exists():
            raise CaseError(
                f"There is no file or folder {path} for input '{name}'; expected images or .npy "
                "files there.",
                _FORM,
            )
    if missing := [name for name in names if name not in sources]:
        raise CaseError(
            f"Input '{missing[0]}' has no source; expected one for each of: {', '.join(names)}.",
            inputs,
        )
    for (one, path), (other, second) in combinations(sources.items(), 2):
        if path.resolve() == second.resolve():
            raise CaseError(
                f"The inputs '{one}' and '{other}' are both read from {path}, which would pair "
                "every file with itself; expected different sources.",
                "Copy or link the files of each input into a separate folder.",
            )


def pair_files(folders: Mapping[str, Sequence[Path]]) -> Paired:
    """Pair files by their names up to the suffix; one file for each input is a pair by itself.

    Args:
        folders: Input name → files, at least one each.

    Returns:
        One entry per sample, named after the first input's file and in the order of these files.

    Raises:
        CaseError: They cannot be paired.
    """
    single = all(len(files) == 1 for files in folders.values())
    keyed = {
        name: {"" if single else file.stem: file for file in files}
        for name, files in folders.items()
    }
    first = next(iter(keyed.values()))
    unique = all(len(keyed[name]) == len(files) for name, files in folders.items())
    if not unique or any(each.keys() != first.keys() for each in keyed.values()):
        raise _unpaired(folders)
    return [
        (file.name, {name: each[stem] for name, each in keyed.items()})
        for stem, file in first.items()
    ]


def _unpaired(folders: Mapping[str, Sequence[Path]]) -> CaseError:
    counts = ", ".join(f"'{name}' {len(files)}" for name, files in folders.items())
    (first, files), *others = folders.items()
    stems = {file.stem for file in files}
    odd = [(name, stems ^ {file.stem for file in files}) for name, files in others]
    where = next(
        (f"'{first}' and '{name}' differ in {min(apart)}" for name, apart in odd if apart),
        "one name occurs twice",
    )
    return CaseError(
        f"The files of the inputs do not pair up ({counts}; {where}); expected files with the "
        "same names for every input.",
        "Give the files of one sample the same name: left/0001.png and right/0001.png.",
    )
