"""Makes samples of blocks: sets of arrays that are read together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.inputs.fitting import (
    as_one_sample,
    check_dtype,
    conversion_note,
    fit_sample,
    match_names,
)
from halfwise.inputs.layout import Layout, agree, layout_note, understand
from halfwise.inputs.spec import InputSpec, LoadedSamples, count_samples, format_shape


@dataclass(frozen=True)
class Block:
    """Arrays that belong together, such as the content of one `.npz`.

    Attributes:
        where: Name of the block for identifiers and errors.
        read: Returns name → array; called for every sample that is loaded.
        peek: Returns the same names, shapes and types without the content, where that is cheaper.
    """

    where: str
    read: Callable[[], Mapping[str, NDArray[Any]]]
    peek: Callable[[], Mapping[str, NDArray[Any]]] | None = None


def load_stacks(blocks: Sequence[Block], specs: Sequence[InputSpec]) -> LoadedSamples:
    """Make samples of blocks whose arrays hold one or several samples each.

    Each block is read, or peeked into, once here for its shapes, and read for every sample; values
    are checked when a sample is loaded. Identifiers are `where` for one sample and `where[i]` for
    several.

    Args:
        blocks: At least one.
        specs: The model's inputs.

    Raises:
        CaseError: Wrong names, dtypes, ranks, lengths or numbers of samples.
    """
    ids: list[str] = []
    places: list[tuple[Block, Mapping[str, Layout], int]] = []
    notes: dict[tuple[str, str, str], str] = {}
    for block in blocks:
        given = (block.peek or block.read)()
        arrays = match_names(given, specs, block.where)
        for name in given.keys() - arrays.keys():
            told = f"array '{name}' of {block.where} is taken for input '{specs[0].name}'"
            notes.setdefault((name, "", ""), told)
        layouts = {s.name: understand(arrays[s.name].shape, s, block.where) for s in specs}
        count = agree(layouts, block.where)
        ids += [block.where] if count == 1 else [f"{block.where}[{i}]" for i in range(count)]
        places += [(block, layouts, i) for i in range(count)]
        for spec in specs:
            array, layout = arrays[spec.name], layouts[spec.name]
            check_dtype(array.dtype, spec, block.where)
            # Files that are read alike share one note, which shows the first file's shape.
            key = (spec.name, layout.kind, array.dtype.name)
            notes.setdefault(key, _describe(array, spec, layout_note(layout, array.shape, spec)))

    def load(index: int) -> Sample:
        block, layouts, i = places[index]
        arrays = match_names(block.read(), specs, block.where)
        taken = {spec.name: layouts[spec.name].take(arrays[spec.name], i) for spec in specs}
        return fit_sample(taken, specs, ids[index])

    source = f" from {len(blocks)} files" if len(blocks) > 1 else ""
    samples = Samples(tuple(ids), load)
    return LoadedSamples(samples, (count_samples(len(ids)) + source, *notes.values()))


def load_singles(blocks: Sequence[Block], specs: Sequence[InputSpec]) -> LoadedSamples:
    """Make samples of blocks that hold one sample each.

    Only the first block is read here; the others when they are asked for. Arrays have the rank of
    the model's input or lack its batch axis.

    Args:
        blocks: At least one.
        specs: The model's inputs.

    Raises:
        CaseError: Wrong names, dtypes, ranks, fixed axes or values in the first block; in others
            when their sample is loaded. The error names the block.
    """

    def fit(block: Block) -> tuple[Mapping[str, NDArray[Any]], Sample]:
        found = block.read()
        arrays = match_names(found, specs, block.where)
        shaped = {s.name: as_one_sample(arrays[s.name], s, block.where) for s in specs}
        return found, fit_sample(shaped, specs, block.where)

    given, fitted = fit(blocks[0])
    notes = []
    for spec in specs:
        # A single input takes an array of any name.
        name = spec.name if spec.name in given else next(iter(given))
        array, shape = given[name], fitted[spec.name].shape
        source = "" if name == spec.name else f", taken from '{name}'"
        added = ", a batch axis is added" if array.ndim < len(shape) else ""
        understood = (
            f"input '{spec.name}'{source}: {format_shape(shape)} in the first sample{added}"
        )
        notes.append(_describe(array, spec, understood))
    samples = Samples(tuple(block.where for block in blocks), lambda i: fit(blocks[i])[1])
    return LoadedSamples(samples, (count_samples(len(blocks)), *notes))


def _describe(array: NDArray[Any], spec: InputSpec, understood: str) -> str:
    converted = conversion_note(array.dtype, spec)
    return f"{understood}; {converted}" if converted else understood
