"""The batch axis, along which samples can be joined without affecting one another.

It is confirmed on the FP32 model; `Batching` joins samples along it and splits the results.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import cycle, islice
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import TOGETHER, Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.errors import RunFailed
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.sizes import declared_axes, frozen_nodes, shape_inputs
from halfwise.metrics import Outputs
from halfwise.metrics.difference import is_close
from halfwise.records import Profile, ShapeRange, TensorName, replace
from halfwise.wording import listed

Shape = tuple[int, ...]

_SAME = 1e-4
"""Largest difference between the rows of a batch and single samples, relative to the largest
magnitude: another order of summation causes 1e-6, in deep models 1e-5; mixed samples far more."""


class Batching(Struct, frozen=True):
    """How samples are joined.

    Attributes:
        inputs: Batch axis of each input that has one; the others are the same for all samples.
        outputs: Batch axis of each output that has one; the others do not depend on the samples.
            Their size along it is a multiple of that of the inputs.
    """

    inputs: Mapping[TensorName, int]
    outputs: Mapping[TensorName, int]

    def join(self, samples: Sequence[Sample]) -> dict[str, NDArray[Any]]:
        """Return the samples joined; inputs without a batch axis come from the first."""
        return {
            name: np.concatenate([s[name] for s in samples], self.inputs[TensorName(name)])
            if name in self.inputs
            else array
            for name, array in samples[0].items()
        }

    def size(self, sample: Sample) -> int | None:
        """Return the size of a sample along the batch axis; None if its inputs disagree."""
        sizes = {sample[name].shape[axis] for name, axis in self.inputs.items()}
        return int(sizes.pop()) if len(sizes) == 1 else None

    def cut_outputs(self, outputs: Outputs, begin: int, end: int, total: int) -> Outputs:
        """Return the outputs for rows `begin` to `end` (exclusive) of `total` rows of the inputs.

        An output whose size does not fit that many rows stays whole and gets an extra axis, so that
        its shape differs from one that fits.
        """
        cut = dict(outputs)
        for name, axis in self.outputs.items():
            array = outputs[name]
            rows, rest = divmod(array.shape[axis], total) if array.ndim > axis else (0, 1)
            at = (slice(None),) * axis + (slice(begin * rows, end * rows),)
            cut[name] = array[at] if rows and not rest else array[np.newaxis]
        return cut


class Apart(Struct, frozen=True):
    """Why samples cannot be joined and split again.

    Attributes:
        why: "axis": no axis could be the batch axis; "sizes": inputs differ in size along it;
            "fails": the model does not run on a batch; "whole": it runs, but its rows differ from
            the results of single samples.
        reason: The reason for the user, with names and sizes; a clause.
        inputs: The axes that were tried.
    """

    why: Literal["axis", "sizes", "fails", "whole"]
    reason: str
    inputs: Mapping[TensorName, int]


def kind_of(sample: Sample, batching: Batching | None) -> tuple[object, ...]:
    """Return a key that is equal for samples that can be joined, and are of one size.

    Without a batch axis they can if they are equal.
    """
    size = None if batching is None else batching.size(sample)
    axes = {} if batching is None or size is None else batching.inputs
    apart = b"".join(np.ascontiguousarray(a).tobytes() for n, a in sample.items() if n not in axes)
    shapes = tuple((n, without_axis(a.shape, axes.get(TensorName(n)))) for n, a in sample.items())
    return size, shapes, sha256(apart).hexdigest()


def find_batching(
    network: Network,
    session: Session,
    samples: Samples,
    references: Mapping[str, Outputs] = MappingProxyType({}),
) -> Batching | Apart:
    """Return the batch axes, or why samples cannot be joined.

    An axis may be the batch axis if it is dynamic and occurs in every input with a dynamic axis,
    apart from shape tensors: the first axis of each, or one with the same symbol. The model then
    runs on a batch of up to three samples. Its rows must match the single samples, to 1e-4 of an
    output's largest magnitude, or exactly for outputs that are not floats.

    Args:
        network: The FP32 model.
        session: Its session.
        samples: At least one.
        references: Its outputs by the samples' identifiers; those without run.
    """
    failed = []
    for axes in batch_axes(network):
        confirmed = _confirmed(network, session, samples, references, axes)
        if isinstance(confirmed, Batching):
            return confirmed
        failed.append(confirmed)
    none = "the model has no dynamic axis common to all its inputs with dynamic axes"
    return failed[0] if failed else Apart("axis", none, {})


def without_axis(shape: Shape, axis: int | None) -> Shape:
    """Return `shape` with 0 in place of `axis`; unchanged if `axis` is None."""
    return shape if axis is None else (*shape[:axis], 0, *shape[axis + 1 :])


def dynamic_inputs(network: Network) -> dict[TensorName, tuple[int | str | None, ...]]:
    """Return the declared axes of inputs with a dynamic axis, apart from shape tensors."""
    declared = {tensor_name(v): declared_axes(v) for v in network.graph.inputs}
    shape_tensors = shape_inputs(network)
    return {
        name: axes
        for name, axes in declared.items()
        if name not in shape_tensors and not all(isinstance(axis, int) for axis in axes)
    }


def batch_axes(network: Network) -> Iterator[dict[TensorName, int]]:
    """Yield possible batch axes of each input with a dynamic one, the likeliest first."""
    dynamic = dynamic_inputs(network)
    if not dynamic:
        return
    if not any(isinstance(axes[0], int) for axes in dynamic.values()):
        yield dict.fromkeys(dynamic, 0)
    first = next(iter(dynamic.values()))
    for symbol in (axis for axis in first[1:] if isinstance(axis, str)):
        if all(axes.count(symbol) == 1 for axes in dynamic.values()):
            yield {name: axes.index(symbol) for name, axes in dynamic.items()}


def _confirmed(
    network: Network,
    session: Session,
    samples: Samples,
    references: Mapping[str, Outputs],
    axes: Mapping[TensorName, int],
) -> Batching | Apart:
    trial = Batching(axes, {})
    names, chosen = zip(*_alike(samples, trial), strict=True)
    sizes = [size for sample in chosen if (size := trial.size(sample))]
    if len(sizes) < len(chosen):
        why = "the inputs have different sizes along the possible batch axes"
        return Apart("sizes", why, axes)
    singles = [references.get(n) or session.run(s) for n, s in zip(names, chosen, strict=True)]
    try:
        together = session.run(trial.join(chosen))
    except RunFailed as error:
        why = f"the model fails on a batch of {sum(sizes)}, though the axis is dynamic: "
        return Apart("fails", f"{why}{_suspects(network)}{error.message}", axes)
    outputs = {}
    for name, array in together.items():
        alone = [np.asarray(single[name]) for single in singles]
        if all(is_close(array, one, _SAME) for one in alone):
            continue
        axis = _grown(array.shape, [one.shape for one in alone], sizes)
        # The samples may be on another axis while the first keeps the exported batch size.
        moved = axis and not any(axes.values()) and array.shape[0] == sizes[0]
        if axis is None or (moved and frozen_nodes(network)):
            why = (
                f"output {name} has the shape {list(array.shape)} for a batch of {sum(sizes)} and "
                f"{list(alone[0].shape)} for one of {sizes[0]}: {_suspects(network)}its size does "
                "not follow the batch"
            )
            return Apart("whole", why, axes)
        if not is_close(array, np.concatenate(alone, axis), _SAME):
            why = (
                f"the model mixes the samples of a batch: row by row, output {name} differs "
                "from that of single samples"
            )
            return Apart("whole", why, axes)
        outputs[TensorName(name)] = axis
    return Batching(axes, outputs)


def _alike(samples: Samples, trial: Batching) -> list[tuple[str, Sample]]:
    """Return up to three samples that can be joined, with identifiers; one alone twice."""
    groups: dict[object, list[tuple[str, Sample]]] = {}
    for name, sample in zip(samples.ids, samples, strict=True):
        group = groups.setdefault(kind_of(sample, trial)[1:], [])
        group.append((name, sample))
        if len(group) == TOGETHER:
            return group
    largest = max(groups.values(), key=len)
    return largest if len(largest) > 1 else largest * 2


def _grown(batch: Shape, alone: Sequence[Shape], sizes: Sequence[int]) -> int | None:
    """Return the axis along which the batch is as long as all single samples together."""
    for axis, total in enumerate(batch):
        whole, part = divmod(total, sum(sizes))
        expected = [(*batch[:axis], whole * size, *batch[axis + 1 :]) for size in sizes]
        if whole and not part and list(alone) == expected:
            return axis
    return None


def _suspects(network: Network) -> str:
    names = frozen_nodes(network)
    if not names:
        return ""
    constants = listed(names)
    return f"the export seems to have fixed its batch size in the constants of {constants}; "


Place = Literal["min", "opt", "max"]


class Batches(Struct, frozen=True):
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
        parts: The real samples that form each of `samples`, by index; all of a batch have as many
            rows. Empty if samples run one by one.
    """

    at: Place
    profile: int
    shapes: dict[TensorName, Shape]
    samples: Samples | None = None
    judged: Samples | None = None
    reason: str = ""
    note: str = ""
    batching: Batching | None = None
    parts: tuple[tuple[int, ...], ...] = ()

    def take_apart(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        """Return the outputs of each of `judged`.

        Args:
            outputs: Outputs of each of `samples`, by the model or the engine. An output whose size
                is not the batch's stays whole, so its shape differs from the reference.
        """
        if self.batching is None:
            return list(outputs)
        outputs_of: dict[int, Outputs] = {}
        name, axis = next(iter(self.batching.inputs.items()))
        total = self.shapes[name][axis]
        for result, part in zip(outputs, self.parts, strict=True):
            rows = total // len(part)
            for place, sample in enumerate(part):
                begin = place * rows
                cut = self.batching.cut_outputs(result, begin, begin + rows, total)
                outputs_of.setdefault(sample, cut)
        return list(outputs_of.values())


def plan_batches(
    joining: Batching | Apart, profiles: Sequence[Profile], samples: Samples
) -> tuple[Batches, ...]:
    """Return what to run at the opt, min and max shapes of every profile, each shape once.

    A batch holds whole samples, all of the same size, so its own must be a multiple of that.

    Args:
        joining: Batch axes, or why samples cannot be batched.
        profiles: Optimization profiles.
        samples: Real samples; each is loaded once here, and again when it is run.
    """
    batching = joining if isinstance(joining, Batching) else None
    groups: dict[object, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(kind_of(sample, batching), []).append(index)
    plans: list[Batches] = []
    places: tuple[Place, ...] = ("opt", "min", "max")
    for index, profile in enumerate(profiles):
        shapes_taken: list[tuple[dict[TensorName, Shape], dict[TensorName, Shape]]] = []
        for at in places:
            shapes, values = _at(profile.shapes, at), _at(profile.values, at)
            if (shapes, values) not in shapes_taken:
                shapes_taken.append((shapes, values))
                head = Batches(at, index, shapes, batching=batching)
                plans.append(_plan(head, values, joining, samples, list(groups.values())))
    return tuple(plans)


def _at(ranges: Mapping[TensorName, ShapeRange], at: Place) -> dict[TensorName, Shape]:
    return {name: getattr(one, at) for name, one in ranges.items()}


def _plan(
    head: Batches,
    values: Mapping[TensorName, Shape],
    joining: Batching | Apart,
    samples: Samples,
    groups: Sequence[Sequence[int]],
) -> Batches:
    """Return `head` with what to run, or with the reason why there is nothing.

    Samples of a group can be joined, and are of one size. The last batch of a group is filled with
    its first samples.
    """
    batching = head.batching
    axes = {} if batching is None else batching.inputs
    sizes = {head.shapes[name][axis] for name, axis in axes.items()}
    if len(sizes) > 1 or 0 in sizes:
        listed = " and ".join(map(str, sorted(sizes)))
        return replace(head, reason=f"the profile requires batches of {listed} here")
    total = sizes.pop() if sizes else 1
    parts, notes = list[tuple[int, ...]](), list[str]()
    for group in groups:
        sample = samples[group[0]]
        size = 1 if batching is None else batching.size(sample) or 0
        fits = size > 0 and total % size == 0 and _fits(sample, head.shapes, values, axes)
        count = total // size if fits else 0
        for start in range(0, len(group), count) if fits else ():
            parts.append(tuple(islice(cycle((*group[start:], *group[:start])), count)))
        if len(group) < count:
            notes.append(
                f"only {len(group)} real for a batch of {count}, so they are repeated; the repeats "
                "are not judged"
            )
    if not parts:
        return replace(head, reason=_lack(head, values, joining))
    judged = samples.select(list(dict.fromkeys(i for part in parts for i in part)))
    if batching is None:
        return replace(head, samples=judged, judged=judged)
    return replace(
        head,
        samples=Samples(
            tuple(_range([samples.ids[i] for i in part]) for part in parts),
            lambda i: batching.join([samples[place] for place in parts[i]]),
        ),
        judged=judged,
        note=notes[0] if notes else "",
        parts=tuple(parts),
    )


def _fits(
    sample: Sample,
    shapes: Mapping[TensorName, Shape],
    values: Mapping[TensorName, Shape],
    axes: Mapping[TensorName, int],
) -> bool:
    """Return whether a sample has these shapes, but for batch axes, and these shape tensors."""
    return all(
        without_axis(sample[name].shape, axes.get(name)) == without_axis(shape, axes.get(name))
        for name, shape in shapes.items()
    ) and all(np.array_equal(np.ravel(sample[name]), value) for name, value in values.items())


def _range(names: Sequence[str]) -> str:
    last = list(dict.fromkeys(names))[-1]
    return last if len(names) == 1 else f"{names[0]} … {last} ({len(names)})"


def _lack(head: Batches, values: Mapping[TensorName, Shape], joining: Batching | Apart) -> str:
    parts = [f"{name} of {'×'.join(map(str, shape))}" for name, shape in head.shapes.items()]
    parts += [f"{name} = {list(value)}" for name, value in values.items()]
    apart = (
        f", and samples cannot be batched: {joining.reason}" if isinstance(joining, Apart) else ""
    )
    return f"no real samples have {' and '.join(parts)}{apart}"
