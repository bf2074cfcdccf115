"""Samples: their names, and which are held out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import Sample, Samples, hash_sample
from halfwise.errors import CaseError
from halfwise.inputs.fitting import (
    InputSpec,
    as_one_sample,
    check_dtype,
    check_fixed_axes,
    conversion,
    fit_sample,
    match_names,
)
from halfwise.records import Fact, MadeUp, Note
from halfwise.wording import dimensions

MOST_SAMPLES = 1_000_000
"""More than any run could process; a larger number is a mistake or an attack."""


UNNAMED = "arr_0"
"""NumPy's name for an array that is saved without one."""


class Rows(Struct, frozen=True):
    """Samples that one set of arrays holds along the model's own first axes.

    Attributes:
        first: Position of the first among all samples.
        count: Their number, at least 2.
        files: Number of sets of arrays, such as files, that all samples come from.
    """

    first: int
    count: int
    files: int


class LoadedSamples(Struct, frozen=True):
    """Samples, and how the user's data was read.

    Attributes:
        samples: Each maps every input name to an array of the model's dtype and rank. Arrays may be
            views of the user's data: do not write to them.
        notes: Remarks for the user to check, and warnings.
        made_up: Inputs that look generated; empty for halfwise's own random samples.
        real: False for random samples, and if all data that could be real looks generated.
        rows: The first that are only known as samples because the model's first axis is dynamic;
            None if there are none.
    """

    samples: Samples
    notes: tuple[Note, ...]
    made_up: tuple[MadeUp, ...] = ()
    real: bool = True
    rows: Rows | None = None


class Layout(Struct, frozen=True):
    """How one array is read as samples of one input.

    Attributes:
        kind: "stacked" if an axis before the model's own counts samples, "batched" if the model's
            dynamic batch axis does, "single" if the array is one sample.
        count: Number of samples, at least 1.
    """

    kind: Literal["stacked", "batched", "single"]
    count: int

    def take(self, array: NDArray[Any], index: int) -> NDArray[Any]:
        """Return sample `index` (0 ≤ index < count) with the input's own rank, as a view."""
        match self.kind:
            case "stacked":
                # With an ellipsis, a zero-dimensional result stays an array.
                return array[index, ...]
            case "batched":
                return array[index : index + 1]
            case "single":
                return array


def understand(shape: tuple[int, ...], spec: InputSpec, where: str) -> Layout:
    """Determine how many samples an array of this shape holds.

    With one axis more than the input, the array holds one sample per index of the first axis. The
    same goes for an array of the input's rank if the first axis is dynamic; each sample then keeps
    a batch axis of length 1. Otherwise it is one sample, as is every array for an input of unknown
    rank.

    Args:
        shape: Shape of the array.
        spec: The input it is for.
        where: Place to name in errors.

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
            f"{where}: input '{spec.name}' has rank {len(shape)} ({dimensions(shape)}); "
            f"expected rank {rank} ({dimensions(spec.shape)}) or one above.",
            "Give one sample with the model's own axes, or N samples with a leading axis of length "
            "N.",
        )
    if layout.count > MOST_SAMPLES:
        raise CaseError(
            f"{where}: input '{spec.name}' holds {layout.count:,} samples "
            f"({dimensions(shape)}); expected at most {MOST_SAMPLES:,}.",
            "Give fewer, or check the shape in the file.",
        )
    if layout.count == 0:
        raise CaseError(
            f"{where}: input '{spec.name}' is empty ({dimensions(shape)}); expected at least "
            "one sample.",
            "Save at least one sample.",
        )
    check_fixed_axes(sample_shape, spec, where, _batch_hint(shape, spec))
    return layout


def agree(layouts: Mapping[str, Layout], where: str) -> int:
    """Return the number of samples that all inputs agree on.

    Args:
        layouts: Input name → layout, at least one.
        where: Place to name in errors.

    Raises:
        CaseError: The numbers differ, or one input is a single sample and another holds several.
    """
    counts = {name: layout.count for name, layout in layouts.items()}
    if len(set(counts.values())) == 1:
        return next(iter(counts.values()))
    most = max(counts.values())
    listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
    lone = next((name for name, layout in layouts.items() if layout.kind == "single"), None)
    if lone is not None:
        batched = [name for name, layout in layouts.items() if layout.kind == "batched"]
        whole = f"If they are one sample, give each an axis in front: {[*batched, lone][0]}[None]. "
        raise CaseError(
            f"{where}: input '{lone}' holds one sample, but others hold several ({listed}); "
            "expected the same number for every input.",
            f"{whole if batched else ''}"
            f"Repeat '{lone}' along a new leading axis: np.stack([{lone}] * {most}). "
            "If the model declares no rank, give one file per sample.",
        )
    raise CaseError(
        f"{where}: the inputs hold different numbers of samples ({listed}); expected the same "
        "number for every input.",
        "Give every array a leading axis of samples, before the model's own axes.",
    )


def layout_note(
    layout: Layout, shape: tuple[int, ...], spec: InputSpec, converted: Mapping[str, str]
) -> Note:
    """Return a note on how an array was understood, for the user to check.

    Args:
        layout: Its layout.
        shape: Its shape.
        spec: The input.
        converted: How its type is converted; see `conversion`.
    """
    sample = {"stacked": shape[1:], "batched": (1, *shape[1:]), "single": shape}[layout.kind]
    facts: dict[str, Fact] = {
        "input": spec.name,
        "shape": shape,
        "layout": layout.kind,
        "samples": layout.count,
        "sample": sample,
        "ranked": int(spec.shape is not None),
        "counts": int(spec.counts),
        **converted,
    }
    return Note(kind="layout", facts=facts)


def _batch_hint(shape: tuple[int, ...], spec: InputSpec) -> str:
    """Return a hint for samples stacked along a batch axis that the model fixes to 1."""
    if not spec.shape or len(shape) != len(spec.shape) or spec.shape[0] != 1 or shape[0] == 1:
        return ""
    stacked = dimensions((shape[0], 1, *shape[1:]))
    return f"To give {shape[0]} samples, add an axis in front: {stacked}."


class Block(Struct, frozen=True):
    """Arrays that belong together, such as the content of one `.npz`.

    Attributes:
        where: Name of the block in identifiers and errors.
        read: Returns name → array; called for every sample that is loaded.
        peek: Returns the same names, shapes and types without content, if that is cheaper.
    """

    where: str
    read: Callable[[], Mapping[str, NDArray[Any]]]
    peek: Callable[[], Mapping[str, NDArray[Any]]] | None = None


_Kind = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and type of an array."""


def load_stacks(blocks: Sequence[Block], specs: Sequence[InputSpec]) -> LoadedSamples:
    """Make samples from blocks whose arrays hold one or several samples each.

    Each block is read (or peeked into) once here for its shapes, and read again for every sample;
    values are checked when a sample is loaded. Identifiers are `where` for one sample and
    `where[i]` for several.

    Args:
        blocks: At least one.
        specs: The model's inputs.

    Raises:
        CaseError: Wrong names, dtypes, ranks, lengths or numbers of samples.
    """
    ids: list[str] = []
    places: list[tuple[Block, Mapping[str, Layout], int]] = []
    notes: dict[tuple[str, str, str], Note] = {}
    rows: Rows | None = None
    understood: list[tuple[Block, dict[str, _Kind], Mapping[str, Layout]]] = []
    for block in blocks:
        content = (block.peek or block.read)()
        arrays = match_names(content, specs, block.where)
        for name in content.keys() - arrays.keys() - {UNNAMED}:
            taken: dict[str, Fact] = {"array": name, "where": block.where, "input": specs[0].name}
            notes.setdefault((name, "", ""), Note(kind="array", facts=taken))
        read_as = {s.name: understand(arrays[s.name].shape, s, block.where) for s in specs}
        # Not the arrays: each may hold an open file, or all that was read.
        found = {s.name: (arrays[s.name].shape, arrays[s.name].dtype) for s in specs}
        understood.append((block, found, read_as))
    apart = any(_are_apart(layouts, specs) for *_, layouts in understood)
    for block, found, each in understood:
        kinds = {layout.kind for layout in each.values()}
        # Every array has its input's rank, so that each file can be one sample as it is.
        whole = kinds == {"batched", "single"} or (apart and kinds == {"batched"})
        layouts = dict.fromkeys(each, Layout("single", 1)) if whole and len(blocks) > 1 else each
        count = agree(layouts, block.where)
        if rows is None and count > 1 and all(one.kind == "batched" for one in layouts.values()):
            rows = Rows(len(ids), count, len(blocks))
        ids += numbered(block.where, count)
        places += [(block, layouts, i) for i in range(count)]
        for spec in specs:
            (shape, dtype), layout = found[spec.name], layouts[spec.name]
            check_dtype(dtype, spec, block.where)
            # Files that are read the same way share one note, with the first file's shape.
            key = (spec.name, layout.kind, dtype.name)
            notes.setdefault(key, layout_note(layout, shape, spec, conversion(dtype, spec)))

    def load(index: int) -> Sample:
        block, layouts, i = places[index]
        arrays = match_names(block.read(), specs, block.where)
        sample = {spec.name: layouts[spec.name].take(arrays[spec.name], i) for spec in specs}
        return fit_sample(sample, specs, ids[index])

    read = Note(kind="samples", facts={"samples": len(ids), "files": len(blocks)})
    return LoadedSamples(Samples(tuple(ids), load), (read, *notes.values()), rows=rows)


def _are_apart(layouts: Mapping[str, Layout], specs: Sequence[InputSpec]) -> bool:
    """Return whether first axes that may count samples have lengths of their own: texts, images.

    Axes of one name have one length.
    """
    if any(each.kind != "batched" for each in layouts.values()):
        return False
    counts: dict[object, set[int]] = {}
    for spec in specs:
        axis = spec.shape[0] if spec.shape else None
        counts.setdefault(axis or spec.name, set()).add(layouts[spec.name].count)
    named = all(len(each) == 1 for each in counts.values())
    return named and len(set().union(*counts.values())) > 1


def numbered(where: str, count: int) -> list[str]:
    """Return identifiers of samples from one place: `where` for one, `where[i]` for several."""
    return [where] if count == 1 else [f"{where}[{i}]" for i in range(count)]


def load_singles(blocks: Sequence[Block], specs: Sequence[InputSpec]) -> LoadedSamples:
    """Make samples from blocks that hold one sample each.

    Only the first block is read here, the others on request. Arrays have the rank of the model's
    input, or lack its batch axis.

    Args:
        blocks: At least one.
        specs: The model's inputs.

    Raises:
        CaseError: Wrong names, dtypes, ranks, fixed axes or values in the first block, or in
            another one when its sample is loaded. The error names the block.
    """

    def fit(block: Block) -> tuple[Mapping[str, NDArray[Any]], Sample]:
        content = block.read()
        arrays = match_names(content, specs, block.where)
        shaped = {s.name: as_one_sample(arrays[s.name], s, block.where) for s in specs}
        return content, fit_sample(shaped, specs, block.where)

    content, fitted = fit(blocks[0])
    notes = [Note(kind="samples", facts={"samples": len(blocks)})]
    for spec in specs:
        # A single input takes an array of any name.
        name = spec.name if spec.name in content else next(iter(content))
        array, shape = content[name], fitted[spec.name].shape
        facts: dict[str, Fact] = {
            "input": spec.name,
            "shape": shape,
            "added": int(array.ndim < len(shape)),
            **({} if name == spec.name else {"array": name}),
            **conversion(array.dtype, spec),
        }
        notes.append(Note(kind="first-sample", facts=facts))
    samples = Samples(tuple(block.where for block in blocks), lambda i: fit(blocks[i])[1])
    return LoadedSamples(samples, tuple(notes))


def repeatable(load: Callable[[int], Sample], ids: Sequence[str], spec: str) -> Samples:
    """Return samples that a function computes whenever they are requested.

    The first is computed twice right away; from then on, each must stay bitwise the same. Samples
    are compared by hash, which is fast compared with decoding an image.

    Args:
        load: Computes sample i.
        ids: One identifier per sample; at least one.
        spec: `file.py:function`, for messages.

    Raises:
        CaseError: A sample differs from before, here or when it is loaded.
    """
    before: dict[int, str] = {}

    def checked(index: int) -> Sample:
        sample = load(index)
        digest = hash_sample(sample)
        if before.setdefault(index, digest) != digest:
            raise CaseError(
                f"{spec} returned different data for {ids[index]} this time; expected the same "
                "every time, because samples are computed again when needed.",
                "Switch off random augmentation, as for inference.",
            )
        return sample

    for _ in range(2):
        checked(0)
    return Samples(tuple(ids), checked)


SEARCHED = 24
"""A search needs no more samples: what it misses fails on held-out ones, some of which then join.
Our choice: see docs/decisions/0073-few-searched.md."""


def split_heldout(
    samples: Samples, *, most: bool = False, few: bool = False
) -> tuple[Samples, Samples]:
    """Split samples three to one into calibration and held-out samples; with `most`, one to three.

    Every fourth sample is held out (3, 7, 11, …), so ordered data is spread over both parts; of two
    or three samples, the last. With one sample or none, the held-out part is empty. With `few`, at
    most `SEARCHED`, evenly spread, are for calibration.

    Returns:
        Calibration and held-out samples, each in their original order.
    """
    if len(samples) < 2:
        return samples, samples.select(())
    heldout = list(range(3, len(samples), 4)) or [len(samples) - 1]
    calibration = [i for i in range(len(samples)) if i not in set(heldout)]
    if most:
        calibration, heldout = heldout, calibration
    if few and len(calibration) > SEARCHED:
        calibration = [i * len(samples) // SEARCHED for i in range(SEARCHED)]
        heldout = sorted(set(range(len(samples))) - set(calibration))
    return samples.select(calibration), samples.select(heldout)


def unseen(searched: Sequence[str], judged: Sequence[str]) -> list[int]:
    """Return the indices of held-out samples that equal no other, ascending.

    The search has already seen copies of calibration samples. It would also see copies of a
    held-out sample once that fails and joins the calibration: of these, only the first is returned.

    Args:
        searched: Hash of each calibration sample.
        judged: Hash of each held-out sample.
    """
    seen, chosen = set(searched), []
    for index, digest in enumerate(judged):
        if digest not in seen:
            seen.add(digest)
            chosen.append(index)
    return chosen
