"""Which parts of a model one program is about: those that relations tie to a problem.

Small parts first. Where factors find no place in the weights of one, they may in those of a larger
one; where they find none, Muls are inserted.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from halfwise.fixing.repair.exponent_program import MUL, Loss, solve
from halfwise.graph.scaling import Relations
from halfwise.records import TensorName

SIZES = ((100, False), (500, False), (2500, False), (500, True))
"""Names around each problem: about a norm with its projection, some blocks, and many; and whether
Muls may be inserted there, which is the last thing to do."""
Names = frozenset[TensorName]
_Near = Mapping[TensorName, list[TensorName]]


def assigned(
    found: Relations,
    problems: Iterable[TensorName],
    losses: Mapping[TensorName, Loss],
    seconds: float,
) -> dict[TensorName, int]:
    """Return exponents, those that are not 0, with which problems cost least.

    What is settled stays: relations are linear, so exponents that satisfy them and are 0 wherever
    others are not add up.

    Args:
        found: What exponents must satisfy.
        problems: Names to begin at.
        losses: What exponents cost.
        seconds: For all programs together; problems that they leave are not solved.
    """
    end, near = time.monotonic() + seconds, _near(found)
    settled: dict[TensorName, int] = {}
    waiting = list(problems)
    for size, multiplying in SIZES:
        reached = (around(found, near, name, size) for name in waiting)
        free = Names().union(*reached) - settled.keys()
        solved: set[TensorName] = set()
        for piece in pieces(found, free, near):
            left = end - time.monotonic()
            solution = solve(found, piece, losses, left, multiplying=multiplying)
            if multiplying or solution.worth < MUL:
                settled |= solution.exponents
                solved |= piece
        waiting = [name for name in waiting if name not in solved]
    return settled


def around(found: Relations, near: _Near, start: TensorName, most: int) -> Names:
    """Return the names that relations tie to `start`, about the nearest `most` of them."""
    reached = {start: None}
    waiting = deque(reached)
    while waiting and len(reached) < most:
        name = waiting.popleft()
        if name not in found.fixed:
            new = [n for n in near.get(name, ()) if n not in reached]
            reached |= dict.fromkeys(new)
            waiting += new
    return frozenset(reached) - found.fixed


def pieces(
    found: Relations, names: Collection[TensorName], near: _Near | None = None
) -> Iterator[Names]:
    """Yield those of `names` that relations and edges tie to each other, in graph order."""
    near, left = near or _near(found), set(names)
    for name in (*found.tensors, *found.edges, *found.constants):
        if name in left:
            piece, waiting = {name}, [name]
            while waiting:
                new = {n for n in near.get(waiting.pop(), ()) if n in left} - piece
                piece |= new
                waiting += new
            left -= piece
            yield frozenset(piece)


def _near(found: Relations) -> _Near:
    near: dict[TensorName, list[TensorName]] = {}
    for relation in found.equations:
        for name in relation.terms:
            near.setdefault(name, []).extend(n for n in relation.terms if n != name)
    for name, edge in found.edges.items():
        near.setdefault(name, []).append(edge.tensor)
        near.setdefault(edge.tensor, []).append(name)
    return near
