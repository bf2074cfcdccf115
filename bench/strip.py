"""The headroom strip alone: does it name the node where a fault was planted?

    python bench/run.py strip

Networks of 50 to 300 nodes (`planted_networks.py`), right in FP16, get one detour behind a drawn
tensor that FP16 cannot take. `fix` runs with its defaults. A fault is named where one of the
detour's nodes stands in the text under the strip. The failure classes of `tests/models` with a
known set of nodes, fixed without repairs, are read alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product
from xml.etree import ElementTree as ET

import numpy as np
import onnx
from onnx import helper, numpy_helper

import halfwise
from bench.figures import Figure, at_least, at_most, reported
from bench.planted_networks import FAMILIES
from bench.runs import Workbench
from halfwise.reporting.strip import strip
from tests.models import CLASSES

WANTED, BYTES = 23, 50_000
BLOCKS = {"convolutions": 12, "transformer": 3, "recurrent": 8, "branches": 8}
SAMPLES = 8
Steps = Sequence[tuple[str, float | None]]
"""Operators of a detour in order, each with its second factor or term; None for none."""
DETOURS: Mapping[str, Steps] = {
    "overflow": (("Mul", 2.0**18), ("Mul", 2.0**-18)),
    "underflow": (("Mul", 2.0**-30), ("Mul", 2.0**30)),
    "cancellation": (("Add", 4096.0), ("Sub", 4096.0)),
    "exponential": (("Tanh", None), ("Mul", 60.0), ("Exp", None), ("Log", None)),
    "square": (("Mul", 1024.0), ("Abs", None), ("Pow", 2.0), ("Sqrt", None), ("Mul", 2.0**-10)),
    "eps": (("Mul", 1e-9), ("Abs", None), ("Add", 1e-9), ("Log", None)),
}
"""What FP16 cannot take, for values from 0.1 to 5."""


@dataclass(frozen=True)
class Read:
    """What a strip shows.

    Attributes:
        name: Of the fault.
        planted: Nodes of which one has to be named.
        picture: The strip as SVG.
        harmed: Whether the run keeps or repairs anything.
    """

    name: str
    planted: frozenset[str]
    picture: str
    harmed: bool

    @property
    def named(self) -> tuple[str, ...]:
        """The nodes named under the strip, gravest first."""
        root = ET.fromstring(self.picture)  # noqa: S314 - our own
        return tuple(node for text in root.itertext() for node in _FAULT.findall(text))

    @property
    def found(self) -> bool:
        """Whether one of the planted nodes is named."""
        return not self.planted.isdisjoint(self.named)


_FAULT = re.compile(r"^(\S+): ")


@dataclass(frozen=True)
class Fault:
    """A model, its inputs by name, and the nodes of which one has to be named."""

    name: str
    proto: onnx.ModelProto
    inputs: Mapping[str, np.ndarray]
    nodes: frozenset[str]


def planted() -> Iterator[Read]:
    """Yield the strips of 25 networks with a detour, each behind a drawn tensor where it harms."""
    pairs = [*product(FAMILIES, DETOURS)]
    for number, (family, kind) in enumerate([*pairs, pairs[0]]):
        draws = (read(drawn(family, kind, number + 100 * more)) for more in count())
        yield next(one for one in draws if one.harmed)


def drawn(family: str, kind: str, seed: int) -> Fault:
    """Return a network with a detour behind a tensor that the seed draws."""
    network = FAMILIES[family](BLOCKS[family], seed, [1] * SAMPLES)
    outputs = {output.name for output in network.proto.graph.output}
    places = [n for n in network.proto.graph.node if n.output[0] not in outputs]
    place = places[np.random.default_rng(seed).integers(len(places))]
    names = frozenset(detour(network.proto.graph, place, DETOURS[kind]))
    inputs = {"x": np.stack([sample["x"][0] for sample in network.samples])}
    return Fault(f"{kind} in {family}, {seed}", network.proto, inputs, names)


def detour(graph: onnx.GraphProto, place: onnx.NodeProto, steps: Steps) -> list[str]:
    """Lead what a node computes through `steps` to all its readers; return their names."""
    scope, tensor, nodes = place.name.rpartition("/")[0], place.output[0], []
    for i, (op, number) in enumerate(steps):
        name = f"{scope}/{op}_{90 + i}"
        second = [] if number is None else [f"{name}_with"]
        for constant in second:
            value = np.asarray(number, np.float32)
            graph.initializer.append(numpy_helper.from_array(value, constant))
        result = f"{name}_output_0"
        nodes.append(helper.make_node(op, [tensor, *second], [result], name=name))
        tensor = result
    for node in graph.node:
        node.input[:] = [tensor if name == place.output[0] else name for name in node.input]
    at = next(i for i, node in enumerate(graph.node) if node.name == place.name)
    order = [*graph.node[: at + 1], *nodes, *graph.node[at + 1 :]]
    del graph.node[:]
    graph.node.extend(order)
    return [node.name for node in nodes]


def classes() -> Iterator[Fault]:
    """Yield the failure classes with a known set of nodes."""
    for make in CLASSES:
        ill = make()
        if ill.kept and not ill.options:
            inputs = {name: np.asarray(array) for name, array in ill.inputs.items()}
            yield Fault(ill.name, ill.proto, inputs, frozenset(ill.kept))


def read(fault: Fault, *, no_repair: bool = False) -> Read:
    """Return the strip of a run; without one, nothing is named."""
    result = halfwise.fix(fault.proto, dict(fault.inputs), no_repair=no_repair)
    plan, shown = result.run.plan, strip(result.run, result.observations)
    harmed = plan is not None and bool(plan.keep or plan.repairs)
    return Read(fault.name, fault.nodes, shown or "<svg/>", harmed)


def measure(_bench: Workbench) -> tuple[list[Figure], str | None]:
    """Return how many faults are named, and how large strips are."""
    faults = [*planted()]
    others = [read(fault, no_repair=True) for fault in classes()]
    return [*figures(faults, others)], None


def figures(faults: Sequence[Read], others: Sequence[Read]) -> Iterator[Figure]:
    """Yield the figures of planted faults and of failure classes."""
    yield at_least(f"planted faults named, of {len(faults)}", *_named(faults, WANTED))
    first = sum(one.found and one.named[0] in one.planted for one in faults)
    yield reported("those named first", first)
    named, _, note = _named(others, 0)
    yield reported(f"failure classes with a needed node named, of {len(others)}", named, note)
    every = [*faults, *others]
    yield at_most("bytes of SVG", max(len(r.picture.encode()) for r in every), BYTES)


def _named(faults: Sequence[Read], wanted: int) -> tuple[int, int, str]:
    missed = [f"{one.name}: {', '.join(one.named) or 'none'}" for one in faults if not one.found]
    return len(faults) - len(missed), wanted, "; ".join(missed)
