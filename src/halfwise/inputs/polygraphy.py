"""Reads what Polygraphy's `--save-inputs` and `--save-outputs` wrote: JSON around `.npy` arrays.

Inputs are one dictionary {input name: array} per iteration, in a list; outputs are a list of
[runner, iterations], each iteration with a dictionary {output name: array}. Since 0.53 a path
without a suffix is a folder with one file per iteration. The format is that of
`polygraphy/json/serde.py` and `polygraphy/comparator/struct.py`: 0.48 to 0.53 write the same, and
what earlier ones wrote (arrays as Latin-1 text or `.npz` archives, other marks of types) is read
as their decoders read it.
"""

import base64
import functools
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.files import read_text
from halfwise.inputs.blocks import Block, load_singles
from halfwise.inputs.files import BROKEN, refuse_too_large
from halfwise.inputs.spec import InputSpec, LoadedSamples
from halfwise.memory import available

SUFFIX = ".json"

Arrays = Mapping[str, NDArray[Any]]
_TYPE = "polygraphy_class"
_FORMER_TYPES = {f"__polygraphy_encoded_{name}": name for name in ("ndarray", "LazyNumpyArray")}
_FORMER_MARK = "polygraphy_serialized_json_type"
_ARRAY_STARTS = (b"\x93NUMPY", b"PK")


def load_feeds(files: Sequence[Path], specs: Sequence[InputSpec]) -> LoadedSamples:
    """Load samples from files of `polygraphy run --save-inputs`, one from each iteration.

    The file in use stays in memory; a folder with a file per iteration needs the least.

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
        count = len(read(file))
        names = [file.name] if count == 1 else [f"{file.name}[{i}]" for i in range(count)]
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
    try:
        text = read_text(file, at_most=_largest())
        return json.loads(text, object_hook=functools.partial(_decode, file=file))
    except (*BROKEN, RecursionError) as error:
        # It may quote the array, which can be megabytes.
        reason = str(error)[:200] or type(error).__name__
        raise CaseError(
            f"{file.name} is not a readable {SUFFIX} file of Polygraphy ({reason}).",
            "Write it again with `polygraphy run … --save-inputs` or `--save-outputs`.",
        ) from error


def _largest() -> int:
    """Return how long a file may be: it lies in memory as text, as Base64 and as arrays."""
    free = available()
    return sys.maxsize if free is None else free // 4


def _decode(found: dict[str, Any], *, file: Path) -> object:
    """Return arrays in place of the objects that stand for them; others are left as they are."""
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
        raise ValueError("an array does not start like one")
    array = np.load(io.BytesIO(content), allow_pickle=False)
    if isinstance(array, np.ndarray):
        return array
    refuse_too_large(array, "an array", array.files)
    return next(iter(array.values()), None)
