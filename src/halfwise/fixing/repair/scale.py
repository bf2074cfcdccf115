"""Store tensors times powers of two, so that nothing leaves the range or vanishes."""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import onnx_ir as ir

from halfwise.fixing.attribute import guards_of
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.repair.exponents import (
    ADDED,
    BIT,
    MUL,
    WORK,
    Allowance,
    Loss,
    Solution,
    losses,
    multiplied,
    solve,
)
from halfwise.fixing.repair.rule import place
from halfwise.graph.dataflow import reached
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.scaling import Relations, relations, rescale
from halfwise.records import Guard, GuardKind, Remark, Repair, RepairRule, TensorName

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
            solution = solve(found, piece, losses, allowance, None if multiplying else frozenset())
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
    names, roomy = frozenset(solution.exponents), cache(Loss.with_room)
    muls = multiplied(found, solution.exponents).keys()
    growing = names & losses.keys() - found.constants.keys()
    grow = {name: roomy(losses[name]) for name in growing}
    centred = solve(found, names, {**losses, **grow}, allowance, muls)
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


_KINDS: frozenset[GuardKind] = frozenset(
    (
        *("overflow", "square", "headroom", "sum", "underflow", "eps"),
        *("constant-range", "constant-subnormal"),
    )
)
"""Guards about a range, which factors may remove."""
Place = tuple[TensorName, list[TensorName]]


class Scale:
    """Stores tensors times powers of two: chains, streams into norms, squares under roots, logs.

    The function stays for all inputs; bit for bit in FP32 if nothing becomes subnormal or leaves
    FP32's range, except for the rounding of a·log 2.
    """

    name: RepairRule = "scale"
    identity = (
        "f(2^a·x; 2^b·w) = 2^c·f(x; w), with a, b and c given by the degrees of f; "
        "log(2^a·x) = a·log 2 + log x"
    )

    def propose(self, evidence: Evidence) -> Iterable[Repair]:
        """Yield a repair for each connected part of the cheapest exponents.

        See `exponent_losses` for their costs. None for a format with FP32's range.
        """
        guards = [g for g in guards_of(evidence) if g.kind in _KINDS]
        if not guards or evidence.fmt.has_range_of_fp32:
            return
        found = relations(evidence.network.model)
        problems = _problems(evidence, guards)
        own = dict(losses(evidence, found, problems))
        places = _places(found)
        start = [place for name in problems for place, _ in places.get(name, ())]
        exponents, left = assigned(found, start, own)
        if left:
            evidence.remarks.append(Remark(kind="scale-limited", numbers={"elements": left}))
        about = [[p for n in _problems(evidence, [g]) for p in places.get(n, ())] for g in guards]
        for part in _parts(found, exponents):
            mended = [any(_mends(own, part, *place) for place in some) for some in about]
            answered = [guard for guard, is_mended in zip(guards, mended, strict=True) if is_mended]
            if answered:
                yield _repair(evidence, found, part, answered)

    def apply(self, model: ir.Model, repair: Repair) -> None:
        """Scale as recorded; see `rescale`."""
        rescale(model, repair.exponents)


def _problems(evidence: Evidence, guards: Iterable[Guard]) -> dict[TensorName, float]:
    """Return the cost of a lost bit for the tensors and constants that guards name.

    A lost eps is not worth a Mul if all sums seen are larger.
    """
    found: dict[TensorName, float] = {}
    for guard in guards:
        names = [] if guard.tensor is None else [guard.tensor]
        if guard.tensor is None or guard.kind == "eps":
            names += [tensor_name(v) for v in evidence.nodes[guard.node].outputs if v.name]
        weight = ADDED / 2 if guard.kind == "eps" and guard.severity < 1 else BIT
        found |= {name: max(weight, found.get(name, 0.0)) for name in names}
    return found


def _places(found: Relations) -> Mapping[TensorName, list[Place]]:
    """Return where each tensor or constant is stored, by name, and who reads it."""
    read: dict[TensorName, list[TensorName]] = {}
    for name, edge in found.edges.items():
        read.setdefault(edge.tensor, []).append(name)
    places = {name: [(name, read.get(name, [name]))] for name in found.tensors}
    for name, constant in found.constants.items():
        if constant.value is not None:
            places.setdefault(tensor_name(constant.value), []).append((name, [name]))
    return places


@dataclass(frozen=True)
class _Part:
    """Exponents that relations tie to each other.

    Attributes:
        all: Those other than 0.
        told: Those that determine the others.
    """

    all: Mapping[TensorName, int]
    told: dict[TensorName, int]


def _parts(found: Relations, exponents: Mapping[TensorName, int]) -> Iterator[_Part]:
    follow = {relation.absorber for relation in found.equations}
    own = {n: n for n in (*found.tensors, *found.constants) if n in exponents and n not in follow}
    own |= {
        name: name if name in exponents else edge.tensor
        for name, edge in found.edges.items()
        if exponents.get(name, 0) != exponents.get(edge.tensor, 0)
    }
    for group in pieces(found, exponents.keys()):
        told = {n: exponents.get(n, 0) for n, where in own.items() if where in group}
        yield _Part({n: exponents[n] for n in exponents if n in group}, told)


def _mends(
    own: Mapping[TensorName, Loss], part: _Part, name: TensorName, read: list[TensorName]
) -> bool:
    """Return whether a part mends a tensor or constant, if only for one of its readers."""

    def better(n: TensorName) -> bool:
        return n in own and own[n].mended(part.all.get(n, 0))

    return name in part.all and better(name) and any(map(better, read))


def _repair(evidence: Evidence, found: Relations, part: _Part, answered: list[Guard]) -> Repair:
    constants = {n: found.constants[n] for n in part.all if n in found.constants}
    edges = [found.edges[n] for n in part.told if n in found.edges]
    changed = {node_name(c.node) for c in constants.values()}
    changed |= {node_name(e.node) for e in edges if e.node is not None}
    return Repair(
        rule="scale",
        nodes=tuple(n for n in evidence.nodes if n in changed),
        exponents=part.told,
        guards=tuple(dict.fromkeys(map(place, answered))),
    )
