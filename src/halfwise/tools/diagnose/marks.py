"""Mark all float tensors of an engine as outputs, and find the nodes that go wrong.

A node is a suspect if its result on its own inputs differs from FP32's. So inherited errors do not
count, and one build covers all nodes. Marks end fusions, so suspects must also be wrong on true
inputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt

from halfwise.graph.dataflow import Ancestry
from halfwise.graph.model import tensor_name
from halfwise.graph.roles import is_float
from halfwise.metrics import Outputs
from halfwise.metrics.relative import relative_rms
from halfwise.records import MarksEffect, TensorName
from halfwise.tools.compare import comparable
from halfwise.tools.compare.sides import UNITS, Regions
from halfwise.tools.compare.walk import WIGGLED
from halfwise.tools.diagnose.localise import STRETCH
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
