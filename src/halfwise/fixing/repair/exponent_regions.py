"""Which parts of a model one program is about: those that relations tie to a problem.

Small parts first. Where factors find no place in the weights of one, they may in those of a larger
one; where they find none, Muls are inserted.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from halfwise.fixing.repair.exponent_program import MUL, Loss, solve
from halfwise.fixing.repair.exponent_work import WORK, Allowance
from halfwise.graph.dataflow import reached
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
    work: int = WORK,
) -> tuple[dict[TensorName, int], int]:
    """Return exponents, those that are not 0, with which problems cost least.

    What is settled stays: relations are linear, so exponents that satisfy them and are 0 wherever
    others are not add up.

    Args:
        found: What exponents must satisfy.
        problems: Names to begin at.
        losses: What exponents cost.
        work: For all programs together; problems that they leave are not solved.

    Returns:
        The exponents, and how many problems a limit left without the best there is.
    """
    near, problems, allowance = _near(found), list(dict.fromkeys(problems)), Allowance(work)
    settled: dict[TensorName, int] = {}
    waiting, known, limited = problems, set[Names](), set[TensorName]()
    for size, multiplying in SIZES:
        free = around(found, near, waiting, size) - settled.keys()
        solved: set[TensorName] = set()
        for piece in pieces(found, free, near):
            if piece in known and not multiplying:
                continue
            known.add(piece)
            solution = solve(found, piece, losses, allowance, multiplying=multiplying)
            limited = limited - piece if solution.complete else limited | piece
            if multiplying or solution.worth < MUL:
                settled |= solution.exponents
                solved |= piece
        waiting = [name for name in waiting if name not in solved]
    return settled, sum(name in limited for name in problems)


def around(found: Relations, near: _Near, starts: Iterable[TensorName], most: int) -> Names:
    """Return the names that relations tie to `starts`, about `most` for each.

    All begin at once and each name counts for the start that is first to reach it, so none is
    visited twice.
    """
    of = {name: name for name in starts}
    counts, waiting = Counter(list(of)), deque(of)
    while waiting:
        name = waiting.popleft()
        if name in found.fixed or counts[of[name]] >= most:
            continue
        new = dict.fromkeys(n for n in near.get(name, ()) if n not in of)
        of |= dict.fromkeys(new, of[name])
        counts[of[name]] += len(new)
        waiting += new
    return frozenset(of) - found.fixed


def pieces(
    found: Relations, names: Collection[TensorName], near: _Near | None = None
) -> Iterator[Names]:
    """Yield those of `names` that relations and edges tie to each other, in graph order."""
    near, left = near or _near(found), set(names)
    for name in (*found.tensors, *found.edges, *found.constants):
        if name in left:
            piece = frozenset(reached([name], lambda n: left.intersection(near.get(n, ()))))
            left.difference_update(piece)
            yield piece


def _near(found: Relations) -> _Near:
    near: dict[TensorName, list[TensorName]] = {}
    for relation in found.equations:
        for name in relation.terms:
            near.setdefault(name, []).extend(n for n in relation.terms if n != name)
    for name, edge in found.edges.items():
        near.setdefault(name, []).append(edge.tensor)
        near.setdefault(edge.tensor, []).append(name)
    return near
