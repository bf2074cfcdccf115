"""Reads outputs that something else computed, such as an engine, to be judged like a candidate's.

They come from the iterations of a runner in Polygraphy's JSON, or from a `.npz` whose arrays hold
an output of all samples.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError, UsageError
from halfwise.inputs.files import peek_npz, read_npz
from halfwise.inputs.polygraphy import SUFFIX, Arrays, read_runners
from halfwise.inputs.spec import count_samples, format_shape


@dataclass(frozen=True)
class Recorded:
    """Outputs on record.

    Attributes:
        runner: Who computed them: Polygraphy's runner, or the name of the `.npz`.
        outputs: {output name: array} of each sample, not yet compared with any model.
        others: Names of tensors on record that nobody asked for.
    """

    runner: str
    outputs: tuple[Arrays, ...]
    others: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of all that is on record for the first sample."""
        return frozenset((*next(iter(self.outputs), {}), *self.others))


def holds_outputs(path: Path) -> bool:
    """Return whether a path names outputs on record, and not a model."""
    return path.suffix.lower() in (SUFFIX, ".npz") or path.is_dir()


def load_recorded(
    path: Path, samples: int, runner: str | None = None, *, wanted: Collection[str] | None = None
) -> Recorded:
    """Load outputs on record.

    Args:
        path: Polygraphy's `.json`, a folder of them, or a `.npz`. Each array of a `.npz` holds one
            output: of sample i the i-th of `samples` equal parts of its first axis.
        samples: How many samples there have to be outputs for.
        runner: Name of a runner, or how it begins; needed where there are several.
        wanted: Names of outputs; others are left out, whatever their shape. None takes all.

    Raises:
        UsageError: `runner` is needed, means none or more than one, or there are no runners.
        CaseError: The file cannot be read, or has another number of samples.
    """
    if path.suffix.lower() == ".npz":
        if runner is not None:
            raise UsageError(
                f"--runner {runner} is given, and {path.name} names no runners.",
                "Leave --runner out: a .npz holds the outputs of one.",
            )
        _demand_file(path)
        shaped, left = _chosen(peek_npz(path), wanted)
        _demand_parts(shaped, samples, path)
        return Recorded(path.name, _parts(read_npz(path, shaped), samples), left)
    if not path.is_dir():
        _demand_file(path)
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise CaseError(
            f"Found no {SUFFIX} file in the folder {path}, expected the outputs of a runner.",
            "Write them with `polygraphy run … --save-outputs`.",
        )
    runners = read_runners(files)
    name = _choose(runners, runner, path)
    if len(runners[name]) != samples:
        raise CaseError(
            f"{path.name} holds {len(runners[name])} iterations of {name}, and the inputs are "
            f"{count_samples(samples)}; expected as many.",
            "Give the inputs that `polygraphy run … --save-inputs` wrote in the same run.",
        )
    chosen = [_chosen(outputs, wanted) for outputs in runners[name]]
    others = tuple(dict.fromkeys(other for _, left in chosen for other in left))
    return Recorded(name, tuple(outputs for outputs, _ in chosen), others)


def fit_recorded(
    recorded: Recorded, references: Sequence[Arrays], ids: Sequence[str]
) -> list[dict[str, NDArray[Any]]]:
    """Return the outputs in the references' shapes and dtypes; FP16 is widened.

    Args:
        recorded: Outputs on record, one for each reference; it may hold more than these.
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
                f"{where}: found the outputs {', '.join(sorted(given)) or 'none'}, expected "
                f"{', '.join(sorted(reference))}.",
                "Record the model's own outputs, all of them; others may come with them.",
            )
        fitted.append({n: _fit(given[n], reference[n], f"{where}, '{n}'") for n in reference})
    return fitted


def _fit(array: NDArray[Any], reference: NDArray[Any], where: str) -> NDArray[Any]:
    # A part of a .npz has its own first axis, which the model's output may lack.
    single = array[0, ...] if array.shape[:1] == (1,) else array
    found = single if single.shape == reference.shape else array
    if found.shape != reference.shape:
        raise CaseError(
            f"{where} is {format_shape(array.shape)}, expected {format_shape(reference.shape)}.",
            "Record the outputs on these very inputs.",
        )
    floats = found.dtype.kind == "f" and reference.dtype.kind == "f"
    if not floats and not np.can_cast(found.dtype, reference.dtype, "safe"):
        raise CaseError(
            f"{where} has dtype {found.dtype.name}, expected {reference.dtype.name}.",
            f"Convert the output to {reference.dtype.name} and save it again.",
        )
    with np.errstate(over="ignore"):
        return found.astype(reference.dtype)


def _chosen(arrays: Arrays, wanted: Collection[str] | None) -> tuple[Arrays, tuple[str, ...]]:
    """Return the arrays that are wanted, and the names of the others."""
    if wanted is None:
        return arrays, ()
    kept = {name: array for name, array in arrays.items() if name in wanted}
    return kept, tuple(name for name in arrays if name not in wanted)


def _demand_parts(arrays: Arrays, samples: int, path: Path) -> None:
    for name, array in arrays.items():
        if not array.ndim or array.shape[0] % samples or not array.shape[0]:
            raise CaseError(
                f"{path.name}: output '{name}' is {format_shape(array.shape)}, and the inputs are "
                f"{count_samples(samples)}; expected a first axis that counts the samples.",
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
        problem = f"{path.name} holds the outputs of {len(runners)} runners: {names}."
    else:
        meant = f"{len(matches)} of the runners" if matches else "none of the runners"
        problem = f"--runner {wanted} means {meant} in {path.name}: {names}."
    raise UsageError(problem, "Give --runner one of them, or enough of its beginning.")


def _demand_file(path: Path) -> None:
    if not path.is_file():
        raise CaseError(
            f"Found no file {path}, expected outputs there.", "Give a .json or .npz file."
        )
