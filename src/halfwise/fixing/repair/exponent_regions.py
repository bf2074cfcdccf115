"""The parts of a model that one program covers: names that relations tie to a problem.

Small parts first. Factors without a place in the weights of one part may find one in a larger part;
if they find none, Muls are inserted.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache

from halfwise.fixing.repair.exponent_losses import Loss
from halfwise.fixing.repair.exponent_program import MUL, WORK, Allowance, Solution, solve
from halfwise.graph.dataflow import reached
from halfwise.graph.scaling import Relations
from halfwise.records import TensorName

SIZES = ((100, False), (500, False), (2500, False), (500, True))
"""Names around each problem: about a norm with its projection, then some blocks, then many; and
whether Muls may be inserted, which is tried last."""
Names = frozenset[TensorName]
_Near = Mapping[TensorName, list[TensorName]]


def assigned(
    found: Relations,
    problems: Iterable[TensorName],
    losses: Mapping[TensorName, Loss],
    work: int = WORK,
) -> tuple[dict[TensorName, int], int]:
    """Return the non-zero exponents with the least cost for problems.

    Settled exponents stay: relations are linear, so solutions add up if each is 0 wherever others
    are not.

    Args:
        found: What exponents must satisfy.
        problems: Names to start from.
        losses: Costs of exponents.
        work: For all programs together; problems beyond it are not solved.

    Returns:
        The exponents, and the number of problems for which a limit may have prevented the optimum.
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
                settled |= _centred(found, solution, losses, allowance)
                solved |= piece
        waiting = [name for name in waiting if name not in solved]
    return settled, sum(name in limited for name in problems)


def _centred(
    found: Relations,
    solution: Solution,
    losses: Mapping[TensorName, Loss],
    allowance: Allowance,
) -> Mapping[TensorName, int]:
    """Return other exponents of the same names, with the same Muls, that leave more room.

    The same ones if that takes too much work, or would leave nothing scaled. Constants need no
    room: they do not grow.
    """
    names, places, roomy = frozenset(solution.exponents), solution.places, cache(Loss.with_room)
    growing = names & losses.keys() - found.constants.keys()
    grow = {name: roomy(losses[name]) for name in growing}
    centred = solve(found, names, {**losses, **grow}, allowance, places=places)
    return centred.exponents or solution.exponents


def around(found: Relations, near: _Near, starts: Iterable[TensorName], most: int) -> Names:
    """Return the names that relations tie to `starts`, about `most` per start.

    All start at once, and each name counts for the start that reaches it first, so none is visited
    twice.
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
    """Yield the connected parts of `names` under relations and edges, in graph order."""
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
