"""What to run at the shapes of an optimization profile: batches of real samples.

Results are split again, so errors, metrics and labels are those of single samples. On all other
axes, only samples that really have the size count. Shapes without real data are not judged, and a
reason is given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from halfwise.case import Sample, Samples
from halfwise.judging.batching import Batching, Facts, Shape, without_axis
from halfwise.metrics import Outputs
from halfwise.records import Profile, ShapeRange, TensorName

Place = Literal["min", "opt", "max"]
_Row = tuple[int, int]
"""Index of a sample, and a row along its batch axis."""


@dataclass(frozen=True)
class Piece:
    """Rows `begin` to `end` (exclusive) of sample number `sample`; `whole` if that is all of it."""

    sample: int
    begin: int
    end: int
    whole: bool


@dataclass(frozen=True)
class Batches:
    """What to run at one set of shapes.

    Attributes:
        at: Place in the profile.
        profile: Index of the profile.
        shapes: Shapes of the inputs, as far as the profile defines them.
        samples: What to run, each with exactly these shapes. None if no real data has them.
        judged: The real samples in it, each once; `take_apart` returns outputs for these.
        reason: Why there are no samples.
        note: Further remarks, such as that samples were repeated; empty if there are none.
        batching: Batch axes; None if samples run one by one.
        pieces: The pieces that form each of `samples`; empty if samples run one by one.
    """

    at: Place
    profile: int
    shapes: dict[TensorName, Shape]
    samples: Samples | None = None
    judged: Samples | None = None
    reason: str = ""
    note: str = ""
    batching: Batching | None = field(default=None, repr=False)
    pieces: tuple[tuple[Piece, ...], ...] = field(default=(), repr=False)

    def take_apart(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        """Return the outputs of each of `judged`.

        Args:
            outputs: Outputs of each of `samples`, by the model or the engine. An output whose size
                is not the batch's stays whole, so its shape differs from the reference.
        """
        if self.batching is None:
            return list(outputs)
        found: dict[Piece, Outputs] = {}
        for result, pieces in zip(outputs, self.pieces, strict=True):
            begin, total = 0, sum(piece.end - piece.begin for piece in pieces)
            for piece in pieces:
                end = begin + piece.end - piece.begin
                cut = self.batching.cut_outputs(result, begin, end, total)
                found.setdefault(piece, cut)
                begin = end
        return list(found.values())


def plan_batches(
    batching: Batching | None, why_not: str, profiles: Sequence[Profile], samples: Samples
) -> tuple[Batches, ...]:
    """Return what to run at the opt, min and max shapes of every profile, each shape once.

    Args:
        batching: Batch axes; None if samples cannot be batched.
        why_not: Why samples cannot be batched.
        profiles: Optimization profiles.
        samples: Real samples; each is loaded once here, and again when it is run.
    """
    facts = [Facts.of(sample, batching) for sample in samples]
    plans: list[Batches] = []
    places: tuple[Place, ...] = ("opt", "min", "max")
    for index, profile in enumerate(profiles):
        seen: list[tuple[dict[TensorName, Shape], dict[TensorName, Shape]]] = []
        for at in places:
            shapes, values = _at(profile.shapes, at), _at(profile.values, at)
            if (shapes, values) not in seen:
                seen.append((shapes, values))
                head = Batches(at, index, shapes, batching=batching)
                plans.append(_plan(head, values, why_not, samples, facts))
    return tuple(plans)


def _at(ranges: Mapping[TensorName, ShapeRange], at: Place) -> dict[TensorName, Shape]:
    return {name: getattr(one, at) for name, one in ranges.items()}


def _plan(
    head: Batches,
    values: Mapping[TensorName, Shape],
    why_not: str,
    samples: Samples,
    facts: Sequence[Facts],
) -> Batches:
    """Return `head` with what to run, or with the reason why there is nothing."""
    axes = {} if head.batching is None else head.batching.inputs
    sizes = {head.shapes[name][axis] for name, axis in axes.items()}
    if len(sizes) > 1 or 0 in sizes:
        listed = " and ".join(map(str, sorted(sizes)))
        return replace(head, reason=f"the profile requires batches of {listed} here")
    wanted = {name: without_axis(shape, axes.get(name)) for name, shape in head.shapes.items()}
    fitting = [
        index
        for index, fact in enumerate(facts)
        if all(fact.shapes[name] == shape for name, shape in wanted.items())
        and all(fact.values.get(name) == value for name, value in values.items())
    ]
    if not fitting:
        return replace(head, reason=_lack(head, values, why_not))
    if head.batching is None:
        return replace(head, samples=samples.select(fitting), judged=samples.select(fitting))
    groups: dict[object, list[_Row]] = {}
    for index in fitting:
        rows = groups.setdefault(facts[index].kind, [])
        rows += [(index, row) for row in range(facts[index].rows)]
    return _joined(head, head.batching, sizes.pop(), list(groups.values()), samples, facts)


def _joined(
    head: Batches,
    batching: Batching,
    size: int,
    groups: Sequence[Sequence[_Row]],
    samples: Samples,
    facts: Sequence[Facts],
) -> Batches:
    """Return `head` with batches of `size` rows, each from one group."""
    batches = [chunk for rows in groups for chunk in _chunks(rows, size)]
    notes = []
    if not batches:
        rows = max(groups, key=len)
        batches = [(list(rows) * -(-size // len(rows)))[:size]]
        notes.append(
            f"only {len(rows)} real for a batch of {size}, so they are repeated; the repeats are "
            "not judged"
        )
    pieces = tuple(_pieces(batch, facts) for batch in batches)
    single = list(dict.fromkeys(piece for batch in pieces for piece in batch))

    def load(piece: Piece) -> Sample:
        return batching.cut(samples[piece.sample], piece.begin, piece.end)

    whole = all(piece.whole for piece in single)
    if samples.labels is not None and not whole:
        notes.append("labels belong to whole samples, but samples are cut here: labels are unused")
    labels = samples.labels if whole else None
    names = [_name(piece, samples) for piece in single]
    return replace(
        head,
        samples=Samples(
            tuple(_range([_name(p, samples) for p in batch]) for batch in pieces),
            lambda i: batching.join([load(piece) for piece in pieces[i]]),
        ),
        judged=Samples(
            tuple(names),
            lambda i: load(single[i]),
            None if labels is None else tuple(labels[piece.sample] for piece in single),
        ),
        note="; ".join(notes),
        pieces=pieces,
    )


def _chunks(rows: Sequence[_Row], size: int) -> list[Sequence[_Row]]:
    """Return full batches that cover all rows; the last overlaps the one before if necessary."""
    if len(rows) < size:
        return []
    full = [rows[begin : begin + size] for begin in range(0, len(rows) - size + 1, size)]
    return full if len(rows) % size == 0 else [*full, rows[-size:]]


def _pieces(batch: Sequence[_Row], facts: Sequence[Facts]) -> tuple[Piece, ...]:
    runs: list[list[int]] = []
    for sample, row in batch:
        if runs and runs[-1][0] == sample and runs[-1][2] == row:
            runs[-1][2] += 1
        else:
            runs.append([sample, row, row + 1])
    return tuple(Piece(s, b, e, whole=e - b == facts[s].rows) for s, b, e in runs)


def _name(piece: Piece, samples: Samples) -> str:
    name = samples.ids[piece.sample]
    return name if piece.whole else f"{name}[{piece.begin}:{piece.end}]"


def _range(names: Sequence[str]) -> str:
    last = list(dict.fromkeys(names))[-1]
    return last if len(names) == 1 else f"{names[0]} … {last} ({len(names)})"


def _lack(head: Batches, values: Mapping[TensorName, Shape], why_not: str) -> str:
    axes = {} if head.batching is None else head.batching.inputs
    parts = []
    for name, shape in head.shapes.items():
        sizes = ["?" if axis == axes.get(name) else str(n) for axis, n in enumerate(shape)]
        parts.append(f"{name} of {'×'.join(sizes)}")
    parts += [f"{name} = {list(value)}" for name, value in values.items()]
    apart = "" if head.batching else f", and samples cannot be batched: {why_not}"
    return f"no real sample has {' and '.join(parts)}{apart}"
