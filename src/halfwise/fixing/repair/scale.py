"""Store tensors times powers of two, so that nothing leaves the range or vanishes."""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache

import onnx_ir as ir

from halfwise.fixing.attribute import Attribution
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.repair.exponents import (
    ADDED,
    ALONE,
    BIT,
    MUL,
    OVERFLOW,
    WORK,
    Allowance,
    Loss,
    Solution,
    losses,
    multiplied,
    solve,
)
from halfwise.fixing.repair.rule import place
from halfwise.formats import Format
from halfwise.graph.casts import adjusted_constants
from halfwise.graph.dataflow import reached
from halfwise.graph.model import Network, is_standard, node_name, tensor_name
from halfwise.graph.reading import scalar
from halfwise.graph.roles import Roles
from halfwise.graph.scaling import Relations, at_once, relations, rescale
from halfwise.observing.statistics import detail_of
from halfwise.records import (
    Guard,
    GuardKind,
    InnerObservation,
    NodeName,
    Observation,
    Observations,
    Repair,
    RepairRule,
    TensorName,
    replace,
)

SIZES = ((100, False), (500, False), (2500, False), (500, True))
"""Names around each problem: about a norm with its projection, then some blocks, then many; and
whether Muls may be inserted, which is tried last."""
Names = frozenset[TensorName]
_Near = Mapping[TensorName, list[TensorName]]


def assigned(
    constraints: Relations,
    problems: Iterable[TensorName],
    losses: Mapping[TensorName, Loss],
    work: int = WORK,
    mul: float = MUL,
    *,
    muls: bool = True,
) -> dict[TensorName, int]:
    """Return the non-zero exponents with the least cost for problems.

    Settled exponents stay: relations are linear, so solutions add up if each is 0 wherever others
    are not.

    Args:
        constraints: What exponents must satisfy.
        problems: Names to start from.
        losses: Costs of exponents.
        work: For all programs together; problems beyond it are not solved.
        mul: The cost of a Mul.
        muls: Whether Muls may be inserted.
    """
    near, allowance = _near(constraints), Allowance(work)
    most = mul if muls else OVERFLOW
    settled: dict[TensorName, int] = {}
    waiting, examined = list(dict.fromkeys(problems)), set[Names]()
    for size, multiplying in SIZES if muls else SIZES[:-1]:
        free = around(constraints, near, waiting, size) - settled.keys()
        solved: set[TensorName] = set()
        for piece in pieces(constraints, free, near):
            if piece in examined and not multiplying:
                continue
            examined.add(piece)
            edges = None if multiplying else frozenset[TensorName]()
            solution = solve(constraints, piece, losses, allowance, edges, mul)
            if multiplying or solution.worth < most:
                settled |= _centred(constraints, solution, losses, allowance)
                solved |= piece
        waiting = [name for name in waiting if name not in solved]
    return settled


def _centred(
    constraints: Relations,
    solution: Solution,
    losses: Mapping[TensorName, Loss],
    allowance: Allowance,
) -> Mapping[TensorName, int]:
    """Return other exponents of the same names, with the same Muls, that leave more room.

    The same ones if that takes too much work, or would leave nothing scaled. Constants need no
    room: they do not grow.
    """
    names, roomy = frozenset(solution.exponents), cache(Loss.with_room)
    muls = multiplied(constraints, solution.exponents).keys()
    growing = names & losses.keys() - constraints.constants.keys()
    grow = {name: roomy(losses[name]) for name in growing}
    centred = solve(constraints, names, {**losses, **grow}, allowance, muls)
    return centred.exponents or solution.exponents


def around(constraints: Relations, near: _Near, starts: Iterable[TensorName], most: int) -> Names:
    """Return the names that relations tie to `starts`, nearest first, about `most` per start."""
    found = dict.fromkeys(starts)
    waiting, limit = deque(found), most * len(found)
    while waiting and len(found) < limit:
        name = waiting.popleft()
        if name not in constraints.fixed:
            new = dict.fromkeys(n for n in near.get(name, ()) if n not in found)
            found |= new
            waiting += new
    return frozenset(found) - constraints.fixed


def pieces(
    constraints: Relations, names: Collection[TensorName], near: _Near | None = None
) -> Iterator[Names]:
    """Yield the connected parts of `names` under relations and edges, in graph order."""
    near, remaining = near or _near(constraints), set(names)
    for name in (*constraints.tensors, *constraints.edges, *constraints.constants):
        if name in remaining:
            piece = frozenset(reached([name], lambda n: remaining.intersection(near.get(n, ()))))
            remaining.difference_update(piece)
            yield piece


def _near(constraints: Relations) -> _Near:
    near: dict[TensorName, list[TensorName]] = {}
    for relation in constraints.equations:
        for name in relation.terms:
            near.setdefault(name, []).extend(n for n in relation.terms if n != name)
    for name, edge in constraints.edges.items():
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
        "log(2^a·x) = a·log 2 + log x; softmax(x) = softmax(x - max x)"
    )

    def __init__(self, *, muls: bool = True) -> None:
        """Take whether it may insert Muls; else it folds into weights, whatever that loses."""
        self._muls = muls

    def propose(self, evidence: Attribution) -> Iterable[Repair]:
        """Yield a repair for each connected part of the cheapest exponents.

        See `losses` for their costs. None for a format with FP32's range.
        """
        guards = [g for g in evidence.guards if g.kind in _KINDS]
        if not guards or evidence.fmt.has_range_of_fp32:
            return
        constraints = relations(evidence.network.model)
        if evidence.keeps:
            constraints = constraints.without_sums()
        problems = _problems(evidence, guards)
        costs = dict(losses(evidence, constraints, problems))
        places = _places(constraints)
        start = [place for name in problems for place, _ in places.get(name, ())]
        mul = MUL if evidence.keeps else ALONE
        exponents = assigned(constraints, start, costs, mul=mul, muls=self._muls)
        better = {name for name, loss in costs.items() if loss.mended(exponents.get(name, 0))}
        better |= constraints.shifted & multiplied(constraints, exponents).keys()
        mended = [
            {
                name
                for problem in _problems(evidence, [guard])
                for name, readers in places.get(problem, ())
                if name in better
                and (
                    (guard.tensor is None and not evidence.keeps) or not better.isdisjoint(readers)
                )
            }
            for guard in guards
        ]
        for part in pieces(constraints, exponents.keys()):
            answered = [g for g, names in zip(guards, mended, strict=True) if names & part]
            if answered:
                yield _repair(evidence, constraints, exponents, part, answered)

    def apply(self, model: ir.Model, *repairs: Repair) -> None:
        """Scale as recorded; see `rescale`."""
        rescale(model, *(repair.exponents for repair in repairs))


def _problems(evidence: Evidence, guards: Iterable[Guard]) -> dict[TensorName, float]:
    """Return the cost of a lost bit for the tensors and constants that guards name.

    A lost eps is not worth a Mul if all sums seen are larger.
    """
    weights: dict[TensorName, float] = {}
    for guard in guards:
        names = [] if guard.tensor is None else [guard.tensor]
        if guard.tensor is None or guard.kind == "eps":
            names += [tensor_name(v) for v in evidence.nodes[guard.node].outputs if v.name]
        weight = ADDED / 2 if guard.kind == "eps" and guard.severity < 1 else BIT
        weights |= {name: max(weight, weights.get(name, 0.0)) for name in names}
    return weights


def _places(constraints: Relations) -> Mapping[TensorName, list[Place]]:
    """Return where each tensor or constant is stored, by name, and who reads it."""
    read: dict[TensorName, list[TensorName]] = {}
    for name, edge in constraints.edges.items():
        read.setdefault(edge.tensor, []).append(name)
    places = {name: [(name, read.get(name, [name]))] for name in constraints.tensors}
    for name, constant in constraints.constants.items():
        if constant.value is not None:
            places.setdefault(tensor_name(constant.value), []).append((name, [name]))
    return places


def _repair(
    evidence: Evidence,
    constraints: Relations,
    exponents: Mapping[TensorName, int],
    part: Names,
    answered: list[Guard],
) -> Repair:
    """Return the repair that a part of the exponents makes, by those that determine the others."""
    constants = {n: constant for n, constant in constraints.constants.items() if n in part}
    follow = {relation.absorber for relation in constraints.equations}
    free = [n for n in (*constraints.tensors, *constants) if n in part and n not in follow]
    muls = multiplied(constraints, exponents).items()
    edges = [name for name, tensor in muls if name in part or tensor in part]
    changed = {node_name(c.node) for c in constants.values()}
    readers = (constraints.edges[name].node for name in edges)
    changed |= {node_name(node) for node in readers if node is not None}
    changed |= {node_name(n) for name, n in constraints.sums.items() if name in free}
    return Repair(
        rule="scale",
        nodes=tuple(n for n in evidence.nodes if n in changed),
        exponents={n: exponents.get(n, 0) for n in (*free, *edges)},
        guards=tuple(dict.fromkeys(map(place, answered))),
    )


def scaled(
    before: Observations,
    original: Network,
    network: Network,
    repairs: Iterable[Repair],
    roles: Roles,
    fmt: Format,
) -> Observations | None:
    """Return what a network with repairs shows, from what the original does.

    What a run would show bit for bit, except that shares of elements are those of whole binades.
    None if a repair does not scale, or scales what a logarithm reads or an exponential gives: a
    factor becomes a sum there.

    Args:
        before: What the original shows.
        original: The network without repairs.
        network: The network with them.
        repairs: The repairs.
        roles: Roles of the nodes of `network`.
        fmt: The low format.
    """
    scalings = [repair.exponents for repair in repairs]
    if not all(scalings):
        return None
    constraints = relations(original.model)
    exponents, later = at_once(constraints, scalings)
    if later or any(exponents[name] for name in constraints.sums):
        return None
    nodes = {node_name(node): node for node in original.all_nodes()}
    if (shown := _shown(before, nodes, exponents, network, fmt)) is None:
        return None

    def inside(one: InnerObservation) -> float:
        e = exponents[tensor_name(nodes[one.node].outputs[0])] if one.kind == "sum" else 0
        return math.ldexp(one.value, e)

    return replace(
        before,
        tensors=tuple(shown.values()),
        inner=tuple(replace(one, value=inside(one)) for one in before.inner),
        constants=adjusted_constants(network, roles, frozenset(), fmt),
    )


def _shown(
    before: Observations,
    nodes: Mapping[NodeName, ir.Node],
    exponents: Mapping[TensorName, int],
    network: Network,
    fmt: Format,
) -> dict[TensorName, Observation] | None:
    """Return what each tensor of a scaled network shows; None if it has other nodes than Muls.

    Args:
        before: What the original shows.
        nodes: The original's nodes.
        exponents: Of its tensors.
        network: The scaled network: a tensor may have another name, but not another maker.
        fmt: The low format.
    """
    seen = {one.tensor: one for one in before.tensors}
    inputs = (tensor_name(v) for graph in network.graphs() for v in graph.inputs)
    shown = {name: seen[name] for name in inputs if name in seen}
    for node in network.all_nodes():
        if (old := nodes.get(node_name(node))) is not None:
            olds = (seen.get(TensorName(v.name or "")) for v in old.outputs)
            made = [one and _times_power(one, exponents[one.tensor], fmt) for one in olds]
        elif is_standard(node, "Mul") and (factor := scalar(node.inputs[1])) and node.inputs[0]:
            read = shown[tensor_name(node.inputs[0])]
            made = [_times_power(read, round(math.log2(factor)), fmt)]
        else:
            return None
        for value, one in zip(node.outputs, made, strict=True):
            if one is not None:
                shown[tensor_name(value)] = replace(
                    one, tensor=tensor_name(value), producer=node_name(node), op=node.op_type
                )
    return shown


def _times_power(one: Observation, e: int, fmt: Format) -> Observation:
    """Return what a tensor times 2^e shows."""
    if not e:
        return one
    largest, detail = math.ldexp(one.absmax, e), one.detail
    if detail is None:
        return replace(one, absmax=largest)
    histogram = replace(detail.histogram, first=detail.histogram.first + e)
    smallest = detail.smallest_nonzero * 2.0**e
    times = detail_of(histogram, smallest, detail.samples, fmt)
    return replace(one, absmax=largest, detail=times)
