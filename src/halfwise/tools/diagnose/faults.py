"""Find where an engine is wrong, and prove it by transplants.

One way to find it is to mark all float tensors of an engine as outputs: a node is a suspect if its
result on its own inputs differs from FP32's. So inherited errors do not count, and one build covers
all nodes. Marks end fusions, so suspects must also be wrong on true inputs.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf, log10, sqrt

from halfwise.graph.dataflow import Ancestry, reached
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.roles import is_float
from halfwise.interruption import interruption
from halfwise.metrics import Outputs
from halfwise.metrics.difference import relative_rms
from halfwise.records import EngineDiagnosis, EngineFault, MarksEffect, NodeName, TensorName
from halfwise.tools.compare import comparable
from halfwise.tools.compare.sides import UNITS, Regions
from halfwise.tools.compare.walk import WIGGLED
from halfwise.tools.diagnose.localise import ENOUGH, STRETCH, Spent, localise, twins
from halfwise.tools.diagnose.pieces import Part
from halfwise.tools.diagnose.transplant import OFF, Transplants


@dataclass
class Marked:
    """Results of marking.

    Attributes:
        effect: The engine's result with marks; None if unknown.
        suspects: Nodes that go wrong there, without duplicates.
    """

    effect: MarksEffect | None = None
    suspects: list[Part] = field(default_factory=list)


def look(transplants: Transplants, marked: Marked) -> None:
    """Build the model with all float tensors as outputs, and record the results in place.

    If the builder refuses, mark the first half and then the other half, unless the build took too
    long.

    Raises:
        Spent: no more builds may be used.
        EngineFailed: the worker is lost.
    """
    network = transplants.engines.case.network
    known = comparable(network)
    ends = [name for v in network.graph.outputs if (name := tensor_name(v)) in known]
    names = [n for n in _floats(transplants) if n not in ends]
    half, what = len(names) // 2, f"{len(names)} tensors marked"
    ending, given = transplants.built(transplants.engines, what, names, transplants.one)
    sets = [given]
    if ending != OFF and not ending.late and half:
        what = f"{what}, half of them"
        halves = [(names[:half], what), (names[half:], f"the other {what}")]
        runs = [transplants.built(transplants.engines, w, n, transplants.one) for n, w in halves]
        sets = [given for ending, given in runs if ending == OFF]
    elif ending != OFF:
        sets = []
    if not sets:
        marked.effect = "late" if ending.late else "refused"
        return
    shown = (part for given in sets for part in _suspects(transplants, given))
    marked.suspects = list(dict.fromkeys(shown))
    right = transplants.values(ends)
    errors = [relative_rms(right[n], given[n]) for given in sets for n in ends if n in given]
    outputs_right = max(errors, default=0.0) <= transplants.tolerance
    marked.effect = "cured" if outputs_right else "shown" if marked.suspects else "hidden"


def _floats(transplants: Transplants) -> list[TensorName]:
    """Return the float tensors that depend on the inputs' values, in graph order."""
    network, varying = transplants.engines.case.network, transplants.pieces.varying
    floats = {v.name for node in network.nodes() for v in node.outputs if is_float(v)}
    return [name for name in comparable(network) if name in varying and name in floats]


def _suspects(transplants: Transplants, given: Outputs) -> Iterator[Part]:
    """Yield the nodes whose outputs do not follow from their inputs in the engine.

    If tensors are missing, yield the few nodes between known ones; more would show nothing.
    """
    network, sample = transplants.engines.case.network, transplants.one
    have = [name for name in _floats(transplants) if name in given]
    runtime = transplants.engines.settings.runtime
    computed = Regions(network, have, have, runtime=runtime).run(sample, given)
    errors = {n: relative_rms(computed[n], given[n]) for n in have if n in computed}
    above = [name for name, error in errors.items() if error > transplants.tolerance]
    if not above:
        return
    unit = UNITS[transplants.kind]
    wiggled = Regions(network, above, have, runtime=runtime).run(sample, given, unit)
    ancestry, searched = Ancestry(network), frozenset(transplants.pieces.reads)
    for name in above:
        part = searched.intersection(ancestry.between(have, name))
        natural = relative_rms(computed[name], wiggled[name]) if name in wiggled else 0.0
        if 0 < len(part) <= STRETCH and errors[name] > natural * WIGGLED * sqrt(len(part)):
            yield part


MANY = 32
"""Up to this many suspects, all are tested. Our choice: on a GPU an engine of hundreds of parts
took too long to build, and recurrent networks have a few dozen GRUs at most."""
Reads = Mapping[NodeName, Sequence[NodeName]]


@dataclass
class Found:
    """What is known about faults.

    Attributes:
        parts: Disjoint sets of nodes that are wrong on their true inputs, or look like such a set
            and could not be tested.
        explained: Whether the model is right with their true outputs fed in.
        fed: The largest relative RMS error of an output then.
        marked: Results of marking.
    """

    parts: list[Part]
    explained: bool | None = None
    fed: float | None = None
    marked: Marked = field(default_factory=Marked)


def faults(transplants: Transplants) -> EngineDiagnosis:
    """Return where an engine is wrong, within the budget of builds.

    Raises:
        EngineFailed: the worker is lost.
    """
    reads = transplants.pieces.reads
    network = transplants.engines.case.network
    found = _found(transplants, reads)
    everywhere = found.explained is not True and False not in transplants.known.values()
    everywhere = everywhere and transplants.symptom != OFF and bool(found.parts)
    if everywhere:
        found.parts.clear()
    wrong = [part for part in found.parts if transplants.known.get(part)]
    alone: dict[Part, bool | None] = {}
    unmarked: dict[Part, bool | None] = {}
    for place, *others in _by_operators(wrong, network):
        with suppress(Spent):
            alone[place] = transplants.alone(place)
            core = _unread(place, reads)
            if transplants.symptom == OFF and len(place) > ENOUGH and core and not others:
                unmarked[place] = transplants.inside(core)
    return EngineDiagnosis(
        symptom=transplants.symptom.kind,
        sample=transplants.right.samples.ids[transplants.sample],
        searched=len(reads),
        marks=found.marked.effect,
        suspects=_in_order(frozenset().union(*found.marked.suspects), network),
        limit_db=decibels(transplants.tolerance),
        faults=tuple(
            EngineFault(
                operators=_operators(places[0], network),
                places=tuple(_in_order(place, network) for place in places),
                unmarked=tuple(_in_order(_unread(place, reads), network) for place in places)
                if unmarked.get(places[0])
                else (),
                alone=alone.get(places[0]),
                snr_db=_snr(transplants.errors.get(places[0])),
            )
            for places in _by_operators(wrong, network)
        ),
        alike=tuple(_in_order(part, network) for part in found.parts if part not in wrong),
        everywhere=everywhere,
        explained=found.explained,
        fed_db=_snr(found.fed),
        build_seconds=transplants.seconds,
        late=transplants.late,
        interrupted=interruption().asked,
        builds=transplants.builds,
        most_builds=transplants.most,
    )


def decibels(error: float) -> float:
    """Return the SNR in dB of a relative RMS error ≥ 0: inf for 0, -inf for inf."""
    if error in (0.0, inf):
        return -inf if error else inf
    return -20 * log10(error)


def _snr(error: float | None) -> float | None:
    return None if error is None else decibels(error)


def _found(transplants: Transplants, reads: Reads) -> Found:
    """Search for faults until the model is right with their true outputs fed in.

    First those among nodes that only wrong outputs need; then those that marks show. If an engine
    with marks covers every node, none is tested alone: an engine with hundreds of inputs and
    outputs takes long to build.
    """
    found = Found([])
    together = transplants.together
    doubtful = _doubtful(transplants, reads)
    if together and len(doubtful) < len(reads):
        found.parts = localise(doubtful, transplants.ask, whole=False)
        if found.parts:
            with suppress(Spent):
                _explain(found, transplants)
    if together and found.explained is not True:
        with suppress(Spent):
            look(transplants, found.marked)
            if found.marked.effect == "shown":
                known = frozenset().union(*found.parts)
                new = [part for part in found.marked.suspects if not part & known]
                found.parts += _confirmed(new, transplants)
        if found.parts:
            with suppress(Spent):
                _explain(found, transplants)
    alone = found.marked.effect in (None, "refused")
    while found.explained is not True:
        left = _outside(reads, found.parts)
        new = localise(left, transplants.ask, together=together, alone=alone)
        if not new:
            break
        found.parts += new
        with suppress(Spent):
            _explain(found, transplants)
            several = len(_by_operators(new, transplants.engines.case.network)) > 1
            if (several or found.explained is False) and _unified(
                found, min(new, key=len), transplants, together=together, alone=alone
            ):
                _explain(found, transplants)
    return found


def _doubtful(transplants: Transplants, reads: Reads) -> dict[NodeName, list[NodeName]]:
    """Return the nodes that no right output needs, and what each reads of these."""
    network = transplants.engines.case.network
    made = {v.name: node_name(node) for node in network.nodes() for v in node.outputs}
    ends = (made[v.name] for v in network.graph.outputs if v.name in transplants.right_outputs)
    return _outside(reads, [frozenset(reached(ends, lambda node: reads.get(node, ())))])


def _explain(found: Found, transplants: Transplants) -> None:
    wrong, found.fed = transplants.without(found.parts)
    found.explained = None if wrong is None else not wrong


def _confirmed(suspects: Collection[Part], transplants: Transplants) -> list[Part]:
    """Return the suspects that are also wrong on their true inputs, and those that look alike.

    Of many, one per operator and shapes is tested: kernels are chosen by these.
    """
    nodes = {node_name(node): node for node in transplants.engines.case.network.nodes()}
    kinds: dict[tuple[str, ...], list[Part]] = {}
    for part in suspects:
        inside = (nodes[name] for name in sorted(part))
        told = (f"{n.op_identifier()} {[str(v and v.shape) for v in n.inputs]}" for n in inside)
        kinds.setdefault(tuple(told), []).append(part)
    few = len(suspects) <= MANY
    asked = list(suspects) if few else [parts[0] for parts in kinds.values()]
    wrong = {part for part, one in zip(asked, transplants.ask(asked), strict=True) if one}
    return [p for parts in kinds.values() for p in parts if (p if few else parts[0]) in wrong]


def _unified(
    found: Found, part: Part, transplants: Transplants, *, together: bool, alone: bool
) -> bool:
    """Add the places that look like a part, replacing larger ones around them.

    If no single engine shows which of these are wrong, those in no larger part are added untested.
    If nodes were tested alone, all were. Returns whether there is any such place.
    """
    if len(part) == 1 and together and alone:
        return False
    network = transplants.engines.case.network
    labels = {node_name(node): str(node.op_identifier()) for node in network.nodes()}
    alike = [
        twin
        for twin in twins(part, transplants.pieces.reads, labels)
        if twin not in found.parts and all(twin <= p or not twin & p for p in found.parts)
    ]
    if alike and together:
        wrong = transplants.ask(alike)
        alike = [twin for twin, is_wrong in zip(alike, wrong, strict=True) if is_wrong]
    elif alike:
        inside = [twin for twin in alike if any(twin <= p for p in found.parts)]
        alike = [twin for twin in alike if twin not in inside or transplants.ask([twin])[0]]
    found.parts = [p for p in found.parts if not any(twin <= p for twin in alike)] + alike
    return bool(alike)


def _unread(part: Part, reads: Reads) -> Part:
    """Return a part without nodes that nothing in it reads."""
    return part.intersection(before for name in part for before in reads[name])


def _outside(reads: Reads, parts: Collection[Part]) -> dict[NodeName, list[NodeName]]:
    """Return, for each node outside `parts`, what it reads outside them."""
    gone = frozenset().union(*parts)
    return {
        node: [one for one in those if one not in gone]
        for node, those in reads.items()
        if node not in gone
    }


def _by_operators(parts: Sequence[Part], network: Network) -> list[list[Part]]:
    found: dict[tuple[str, ...], list[Part]] = {}
    places = {node_name(node): i for i, node in enumerate(network.nodes())}
    for part in sorted(parts, key=lambda part: min(places[name] for name in part)):
        found.setdefault(_operators(part, network), []).append(part)
    return list(found.values())


def _in_order(part: Part, network: Network) -> tuple[NodeName, ...]:
    return tuple(name for node in network.nodes() if (name := node_name(node)) in part)


def _operators(part: Part, network: Network) -> tuple[str, ...]:
    return tuple(node.op_type for node in network.nodes() if node_name(node) in part)
