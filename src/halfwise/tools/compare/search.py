"""Find the first divergence of a walk, in engines with few builds."""

from collections.abc import Mapping, Sequence

from halfwise.graph.cut import read_by
from halfwise.graph.model import node_name, tensor_name
from halfwise.records import TensorName
from halfwise.tools.compare import Found, Walk, compared, tolerance_of
from halfwise.tools.compare.engines import EngineSide

MARKED = 6
"""Tensors that are marked at once: each may end a fusion, so few keep the engine what it is."""


def look(walk: Walk, rounds: int) -> None:
    """Measure what tells where the first divergence is; `rounds` bounds builds for dear tensors.

    Whether an output is wrong, engines without marks tell; where that begins, those with. Where an
    output is wrong only without marks, nothing inside is to blame, and the region of the output is
    all that leads to it.
    """
    engines = [side for side in (walk.a, walk.b) if isinstance(side, EngineSide)]
    ends = {tensor_name(v) for v in walk.network.graph.outputs}
    plain: dict[TensorName, Found] = {}
    if engines:
        named = [name for name in walk.line if name in ends and walk.found[name].is_float]
        walk.measure(named, alone=True)
        plain = {name: walk.found[name] for name in ends if name in walk.found}
    if walk.a.few or walk.b.few:
        _narrow(walk, rounds)
    else:
        walk.all()
    for side in engines:
        side.vanished = _take_plain(walk, plain)


def _take_plain(walk: Walk, plain: Mapping[TensorName, Found]) -> bool:
    """Give outputs the errors of engines without marks; return whether marks cured one."""
    tolerance, vanished = tolerance_of(walk.a, walk.b), False
    for name, own in plain.items():
        seen = walk.found[name]
        if own.error is None:
            continue
        if seen.error is None or seen.error.value <= tolerance < own.error.value:
            vanished = vanished or seen.error is not None
            walk.found[name] = own
        else:
            seen.error = own.error
    return vanished


def _narrow(walk: Walk, rounds: int) -> None:
    """Measure the tensors that tell where the first divergence is, in at most `rounds` rounds.

    Tensors of floats, that is: shapes and indices cannot always be marked.

    Where the rounds are enough for every tensor, all are measured; else those between the last
    tensors that are right and the first that is wrong, evenly spread, ever fewer nodes apart.
    """
    line = [name for name in walk.line if walk.found[name].is_float]
    if len(line) <= MARKED * rounds:
        for start in range(0, len(line), MARKED):
            walk.measure(line[start : start + MARKED])
            walk.progress(start // MARKED + 1, rounds)
        return
    known: list[TensorName] = []
    inside = line
    for number in range(rounds):
        # The tensors that bound what is searched are measured anew: builds differ.
        walk.measure([*known, *_spread(inside, max(1, MARKED - len(known)))])
        walk.progress(number + 1, rounds)
        first = compared(walk).first
        producers = {name: node_name(walk.found[name].node) for name in line}
        ends = [n for n in line if producers[n] in first and walk.found[n].error is not None]
        inside = [
            n
            for n in line
            if producers[n] in first and walk.found[n].error is None and walk.found[n].lack is None
        ]
        if not inside:
            return
        known = [*_bounds(walk, inside + ends), *ends[-1:]]


def _bounds(walk: Walk, region: Sequence[TensorName]) -> list[TensorName]:
    """Return the measured tensors that a region reads and does not make."""
    read = {name for tensor in region for name in read_by(walk.found[tensor].node)}
    return [
        name
        for name, found in walk.found.items()
        if name in read and name not in region and found.error is not None
    ]


def _spread(names: Sequence[TensorName], most: int) -> list[TensorName]:
    """Return at most `most` of `names`, evenly spread, the last one included."""
    count = min(most, len(names))
    places = {round((i + 1) * len(names) / count) - 1 for i in range(count)}
    return [names[i] for i in sorted(places)]
