"""Reads what other tools recorded: Polygraphy's inputs and outputs, and outputs in a `.npz`.

Recorded outputs, for example of an engine, are judged like a candidate's.

Polygraphy's `--save-inputs` and `--save-outputs` write JSON around `.npy` arrays. Inputs are one
dictionary {input name: array} per iteration, in a list; outputs are a list of [runner, iterations],
each iteration with a dictionary {output name: array}. Since 0.53 a path without a suffix is a
folder with one file per iteration. The format is that of `polygraphy/json/serde.py` and
`polygraphy/comparator/struct.py`: 0.48 to 0.53 write the same. Files of earlier versions (arrays as
Latin-1 text or `.npz` archives, other type marks) are read as their own decoders read them.
"""

import base64
import functools
import io
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError, UsageError
from halfwise.files import no_file, read_text
from halfwise.inputs.array_files import BROKEN, peek_npz, read_npz, refuse_too_large
from halfwise.inputs.fitting import InputSpec
from halfwise.inputs.samples import Block, LoadedSamples, load_singles, numbered
from halfwise.memory import available
from halfwise.wording import count, dimensions

SUFFIX = ".json"

Arrays = Mapping[str, NDArray[Any]]
_TYPE = "polygraphy_class"
_FORMER_TYPES = {f"__polygraphy_encoded_{name}": name for name in ("ndarray", "LazyNumpyArray")}
_FORMER_MARK = "polygraphy_serialized_json_type"
_ARRAY_STARTS = (b"\x93NUMPY", b"PK")


@dataclass(frozen=True)
class Recorded:
    """Recorded outputs.

    Attributes:
        runner: What computed them: Polygraphy's runner, or the name of the `.npz`.
        outputs: {output name: array} of each sample, not yet checked against a model.
        others: Names of recorded tensors that were not requested.
    """

    runner: str
    outputs: tuple[Arrays, ...]
    others: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of all recorded tensors of the first sample."""
        return frozenset((*next(iter(self.outputs), {}), *self.others))


def holds_outputs(path: Path) -> bool:
    """Return whether a path names recorded outputs, not a model."""
    return path.suffix.lower() in (SUFFIX, ".npz") or path.is_dir()


def load_recorded(
    path: Path, samples: int, runner: str | None = None, *, wanted: Collection[str] | None = None
) -> Recorded:
    """Load recorded outputs.

    Args:
        path: Polygraphy's `.json`, a folder of them, or a `.npz`. Each array of a `.npz` holds one
            output: the i-th of `samples` equal parts of its first axis is sample i.
        samples: Number of samples that must have outputs.
        runner: Name of a runner, or its beginning; required if there are several.
        wanted: Names of outputs; others are ignored, whatever their shape. None takes all.

    Raises:
        UsageError: `runner` is required, matches none or several, or there are no runners.
        CaseError: The file cannot be read, or has another number of samples.
    """
    if path.suffix.lower() == ".npz":
        if runner is not None:
            raise UsageError(
                f"--runner {runner} is given, but {path.name} names no runners.",
                "Leave --runner out: a .npz file holds one runner's outputs.",
            )
        _demand_file(path)
        shaped, left = _chosen(peek_npz(path), wanted)
        _demand_parts(shaped, samples, path)
        return Recorded(path.name, _parts(read_npz(path, shaped), samples), left)
    if not path.is_dir():
        _demand_file(path)
        if path.suffix.lower() != SUFFIX:
            raise CaseError(
                f"{path.name} holds no recorded outputs; expected an .npz file, a {SUFFIX} file of "
                "Polygraphy or a folder of such.",
                "Write them with numpy.savez or `polygraphy run … --save-outputs`.",
            )
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise CaseError(
            f"Found no {SUFFIX} file in the folder {path}; expected the outputs of a runner.",
            "Write them with `polygraphy run … --save-outputs`.",
        )
    runners = read_runners(files)
    name = _choose(runners, runner, path)
    if len(runners[name]) != samples:
        raise CaseError(
            f"{path.name} holds {len(runners[name])} iterations of {name}, but the inputs are "
            f"{count(samples, 'sample')}.",
            "Give the inputs that the same run wrote: `polygraphy run … --save-inputs`.",
        )
    chosen = [_chosen(outputs, wanted) for outputs in runners[name]]
    others = tuple(dict.fromkeys(other for _, left in chosen for other in left))
    return Recorded(name, tuple(outputs for outputs, _ in chosen), others)


def fit_recorded(
    recorded: Recorded, references: Sequence[Arrays], ids: Sequence[str]
) -> list[dict[str, NDArray[Any]]]:
    """Return the outputs with the references' shapes and dtypes; FP16 is widened.

    Args:
        recorded: Recorded outputs, one for each reference; extra ones are ignored.
        references: {output name: array} of each sample.
        ids: Identifiers of the samples, for messages.

    Raises:
        CaseError: An output is missing, or a shape or a dtype differs.
    """
    fitted = []
    for given, reference, identifier in zip(recorded.outputs, references, ids, strict=True):
        where = f"{recorded.runner}, {identifier}"
        if not given.keys() >= reference.keys():
            raise CaseError(
                f"{where}: found the outputs {', '.join(sorted(given)) or 'none'}; expected "
                f"{', '.join(sorted(reference))}.",
                "Record all outputs of the model; extra ones are ignored.",
            )
        fitted.append({n: _fit(given[n], reference[n], f"{where}, '{n}'") for n in reference})
    return fitted


def _fit(array: NDArray[Any], reference: NDArray[Any], where: str) -> NDArray[Any]:
    # A part of a .npz has its own first axis, which the model's output may lack.
    single = array[0, ...] if array.shape[:1] == (1,) else array
    found = single if single.shape == reference.shape else array
    if found.shape != reference.shape:
        shape = min(single.shape, array.shape, key=lambda s: abs(len(s) - reference.ndim))
        raise CaseError(
            f"{where} is {dimensions(shape)}; expected {dimensions(reference.shape)}.",
            "Record the outputs on exactly these inputs.",
        )
    floats = found.dtype.kind == "f" and reference.dtype.kind == "f"
    if not floats and not np.can_cast(found.dtype, reference.dtype, "safe"):
        raise CaseError(
            f"{where} has dtype {found.dtype.name}; expected {reference.dtype.name}.",
            f"Convert the output to {reference.dtype.name} and save it again.",
        )
    with np.errstate(over="ignore"):
        return found.astype(reference.dtype)


def _chosen(arrays: Arrays, wanted: Collection[str] | None) -> tuple[Arrays, tuple[str, ...]]:
    """Return the requested arrays, and the names of the others."""
    if wanted is None:
        return arrays, ()
    kept = {name: array for name, array in arrays.items() if name in wanted}
    return kept, tuple(name for name in arrays if name not in wanted)


def _demand_parts(arrays: Arrays, samples: int, path: Path) -> None:
    for name, array in arrays.items():
        if not array.ndim or array.shape[0] % samples or not array.shape[0]:
            raise CaseError(
                f"{path.name}: output '{name}' is {dimensions(array.shape)}, but the inputs are "
                f"{count(samples, 'sample')}; expected the samples along the first axis.",
                "Stack the outputs of all samples along a first axis: np.stack(outputs).",
            )


def _parts(arrays: Arrays, samples: int) -> tuple[Arrays, ...]:
    parts = {name: np.split(array, samples) for name, array in arrays.items()}
    return tuple({name: part[i] for name, part in parts.items()} for i in range(samples))


def _choose(runners: Mapping[str, object], wanted: str | None, path: Path) -> str:
    names = ", ".join(runners)
    matches = [n for n in runners if n == wanted] or [
        n for n in runners if n.startswith(wanted or "")
    ]
    if len(matches) == 1:
        return matches[0]
    if wanted is None:
        problem = f"{path.name} holds outputs of {len(runners)} runners: {names}."
    else:
        meant = f"{len(matches)} runners" if matches else "no runner"
        problem = f"--runner {wanted} matches {meant} in {path.name}: {names}."
    raise UsageError(problem, "Add --runner with one of these names, or an unambiguous prefix.")


def _demand_file(path: Path) -> None:
    if not path.is_file():
        raise CaseError(no_file(path), "Give saved outputs: a .json or .npz file.")


def load_feeds(files: Sequence[Path], specs: Sequence[InputSpec]) -> LoadedSamples:
    """Load samples from files of `polygraphy run --save-inputs`, one per iteration.

    The current file stays in memory; a folder with one file per iteration needs the least.

    Args:
        files: At least one, in the order of their samples.
        specs: The model's inputs.

    Raises:
        CaseError: A file is broken, holds no inputs, or does not fit the model.
    """
    read = functools.lru_cache(maxsize=1)(_read_feeds)

    def feed(file: Path, index: int) -> Callable[[], Arrays]:
        return lambda: read(file)[index]

    blocks = []
    for file in files:
        names = numbered(file.name, len(read(file)))
        blocks += [Block(name, feed(file, i)) for i, name in enumerate(names)]
    return load_singles(blocks, specs)


def read_runners(files: Sequence[Path]) -> dict[str, list[Arrays]]:
    """Return the outputs that `polygraphy run --save-outputs` wrote.

    Args:
        files: At least one, in the order of their iterations.

    Returns:
        Runner → {output name: array} of each iteration, any dtype, non-finite values included.

    Raises:
        CaseError: A file is broken or holds no outputs.
    """
    runners: dict[str, list[Arrays]] = {}
    for file in files:
        match _read(file):
            case {"lst": [_, *_] as entries}:
                for entry in entries:
                    name, iterations = _runner(entry, file)
                    runners.setdefault(name, []).extend(iterations)
            case _:
                raise _no_outputs(file)
    return runners


def _runner(entry: object, file: Path) -> tuple[str, list[Arrays]]:
    match entry:
        case [str(name), [*iterations]]:
            outputs = [i.get("outputs") if isinstance(i, dict) else None for i in iterations]
            if all(map(_is_arrays, outputs)):
                return name, [o for o in outputs if o is not None]
    raise _no_outputs(file)


def _read_feeds(file: Path) -> list[Arrays]:
    content = _read(file)
    items: list[Any] = content if isinstance(content, list) else [content]
    if items and all(map(_is_arrays, items)):
        return items
    raise CaseError(
        f"{file.name} holds no inputs in Polygraphy's format: expected a list with a dictionary "
        "{input name: array} for each iteration.",
        "Write it with `polygraphy run … --save-inputs`; --save-outputs writes outputs.",
    )


def _is_arrays(found: object) -> bool:
    return (
        isinstance(found, dict)
        and len(found) > 0
        and all(isinstance(a, np.ndarray) for a in found.values())
    )


def _no_outputs(file: Path) -> CaseError:
    return CaseError(
        f"{file.name} holds no outputs in Polygraphy's format: expected a list of runners, with a "
        "dictionary {output name: array} for each iteration.",
        "Write it with `polygraphy run … --save-outputs`; --save-inputs writes inputs.",
    )


def _read(file: Path) -> object:
    free = available()
    # A file is held as text, Base64 and arrays.
    most = sys.maxsize if free is None else free // 4
    try:
        text = read_text(file, at_most=most)
        return json.loads(text, object_hook=functools.partial(_decode, file=file))
    except (*BROKEN, RecursionError) as error:
        # The message may quote the array, which can be megabytes.
        reason = str(error)[:200] or type(error).__name__
        raise CaseError(
            f"{file.name} is not a readable {SUFFIX} file of Polygraphy ({reason}).",
            "Write it again with `polygraphy run … --save-inputs` or `--save-outputs`.",
        ) from error


def _decode(found: dict[str, Any], *, file: Path) -> object:
    """Return arrays for the objects that encode them; other objects stay as they are."""
    former = (name for key, name in _FORMER_TYPES.items() if found.get(key) == _FORMER_MARK)
    match found.get(_TYPE) or next(former, None):
        case "ndarray":
            return _decode_array(found["array"])
        case "LazyArray" | "LazyNumpyArray":
            return found["values"]
        case "Tensor":
            raise CaseError(
                f"{file.name} holds PyTorch tensors, which are pickled and could run code from the "
                "file; expected NumPy arrays.",
                "Give Polygraphy NumPy arrays (tensor.numpy()) and save again; BF16 as float32.",
            )
    return found


def _decode_array(text: str) -> object:
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        content = text.encode("latin-1")
    if not content.startswith(_ARRAY_STARTS):
        raise ValueError("an array has a wrong header")
    array = np.load(io.BytesIO(content), allow_pickle=False)
    if isinstance(array, np.ndarray):
        return array
    refuse_too_large(array, "an array", array.files)
    return next(iter(array.values()), None)
