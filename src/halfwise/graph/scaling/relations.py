"""The linear equations between exponents of a model's tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.formats import FP32, Format
from halfwise.graph.dataflow import captured
from halfwise.graph.model import constant_array, is_standard, node_name, opset_of, tensor_name
from halfwise.graph.roles import is_float
from halfwise.graph.scaling.rules import DEFAULTS, LOGARITHMS, Place, equations, is_invariant
from halfwise.graph.weights import pieces
from halfwise.records import NodeName, TensorName

_MOST = 126
"""Largest exponent of a Mul's factor: its inverse must also be normal in FP32."""
ANY = 1 << 12
"""An exponent that means no limit: zeros and infinities are their own multiples."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant at one place: an initializer that a node reads, or an attribute.

    Attributes:
        node: The node.
        slot: Index of the input, or name of the attribute.
        value: The initializer; None for an attribute.
        array: f32[*shape]: its content.
    """

    node: ir.Node
    slot: int | str
    value: ir.Value | None
    array: NDArray[np.float32]

    @cached_property
    def magnitudes(self) -> tuple[float, float]:
        """The smallest and largest finite nonzero magnitudes; (0, 0) for none."""
        low, high = math.inf, 0.0
        for piece in pieces(self.array):
            sizes = np.abs(piece)
            sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
            if sizes.size:
                low, high = min(low, float(sizes.min())), max(high, float(sizes.max()))
        return (low, high) if high else (0.0, 0.0)

    @cached_property
    def binades(self) -> Mapping[int, int]:
        """Number of elements with a magnitude in [2^k, 2^(k+1)), by k; without zeros and inf."""
        found: dict[int, int] = {}
        for piece in pieces(self.array):
            finite = piece[np.isfinite(piece) & (piece != 0)]
            levels, counts = np.unique(np.frexp(finite)[1] - 1, return_counts=True)
            for level, count in zip(levels.tolist(), counts.tolist(), strict=True):
                found[level] = found.get(level, 0) + count
        return found

    def exponents(self, fmt: Format = FP32) -> tuple[int, int]:
        """Return the least and greatest exponent with which all elements are normal in `fmt`.

        Zeros, NaN and infinities do not count; (-`ANY`, `ANY`) if there is nothing else. For FP32,
        the range always includes 0, and elements can be recovered exactly. A lower format may have
        no such exponent: then the first is above the second.
        """
        smallest, largest = self.magnitudes
        if not largest:
            return -ANY, ANY
        low = math.frexp(fmt.smallest_normal)[1] - math.frexp(smallest)[1]
        low += math.ldexp(smallest, low) < fmt.smallest_normal
        high = math.frexp(fmt.max)[1] - math.frexp(largest)[1]
        high -= math.ldexp(largest, high) > fmt.max
        return (min(low, 0), max(high, 0)) if fmt is FP32 else (low, high)


class Edge(NamedTuple):
    """One read of a tensor.

    Attributes:
        tensor: The tensor.
        node: The node that reads it; None for the end of the model.
        slot: Index of its input; None for reads in its bodies.
    """

    tensor: TensorName
    node: ir.Node | None
    slot: int | None


@dataclass(frozen=True)
class Relation:
    """Σ coefficient · e(name) = 0.

    Attributes:
        node: The node that requires it.
        terms: Coefficients by name: of an edge, a constant's place, or an output tensor.
        absorber: The constant among them that absorbs the remainder, if any.
    """

    node: NodeName
    terms: Mapping[TensorName, int]
    absorber: TensorName | None


@dataclass(frozen=True)
class Relations:
    """Constraints on the exponents of a model; e(t) means that t is stored as t·2^e.

    There are three kinds of names. Unless set, an exponent is 0 or follows from others:

    - a tensor of the main graph, by its own name: the stored tensor;
    - an edge "<tensor>@<node>:<slot>", a node's read of a tensor: follows the tensor. If it has
      another exponent, a Mul goes between them (one for all edges of a tensor with the same).
      "<tensor>@<node>:body" is a read in a node's bodies, and "<tensor>@output" the model's output:
      both are fixed, so a scaled output costs a Mul;
    - a constant at a place, "<constant>@<node>:<slot>", or "@<node>:<attribute>": follows from the
      relation that it absorbs. Every reader may have its own multiple of a shared constant. Those
      that absorb none (the variance of a BatchNormalization, say) are free, and 0 unless set.

    Attributes:
        tensors: The tensors with an exponent, in graph order: FP32 ones that are not constants.
        edges: The reads of tensors, except by readers that accept any exponent.
        constants: The constants that may be multiplied, by place.
        equations: What the nodes require.
        fixed: Tensors and edges whose exponent is 0.
        logs: Edges into a logarithm: an exponent there costs an Add, and is not bit-exact.
    """

    tensors: tuple[TensorName, ...]
    edges: Mapping[TensorName, Edge]
    constants: Mapping[TensorName, Constant]
    equations: tuple[Relation, ...]
    fixed: frozenset[TensorName]
    logs: frozenset[TensorName]


def relations(model: ir.Model) -> Relations:
    """Return what the exponents of `model` must satisfy.

    Args:
        model: In normal form: every value has a name and a type. Contents of If, Loop and Scan
            bodies are not scaled.
    """
    reading = _Reading(opset_of(model))
    for value in model.graph.inputs:
        if is_float(value):
            reading.fixed.add(reading.tensor(value))
    for node in model.graph:
        reading.read(node)
    for value in model.graph.outputs:
        if is_float(value) and value.name in reading.tensors:
            reading.fixed.add(reading.edge(value, None, None))
    related = {name for relation in reading.equations for name in relation.terms}
    return Relations(
        tuple(reading.tensors),
        reading.edges,
        {name: c for name, c in reading.constants.items() if name in related},
        tuple(reading.equations),
        frozenset(reading.fixed),
        frozenset(reading.logs),
    )


def completed(found: Relations, exponents: Mapping[TensorName, int]) -> dict[TensorName, int]:
    """Return the exponents of all tensors, edges and constants, completed from some of them.

    Args:
        found: The constraints that they must satisfy.
        exponents: Exponents of tensors, and of names that do not follow them; 0 if left out.

    Raises:
        CaseError: a name is unknown, a relation does not hold, or a constant would not be exact in
            FP32.
    """
    if unknown := exponents.keys() - {*found.tensors, *found.edges, *found.constants}:
        raise CaseError(
            f"The model has no tensor {min(unknown)!r} to scale.",
            "Give the model for which the repair was proposed.",
        )
    full: dict[TensorName, int] = dict.fromkeys(found.tensors, 0)
    full |= dict.fromkeys(found.constants, 0)
    full |= {name: e for name, e in exponents.items() if name in full}
    full |= {name: exponents.get(name, full[e.tensor]) for name, e in found.edges.items()}
    for relation in found.equations:
        absorber = relation.absorber
        if absorber is not None and absorber not in exponents:
            full[absorber] -= _left(relation, full) // relation.terms[absorber]
    if broken := [relation.node for relation in found.equations if _left(relation, full)]:
        raise _broken(broken[0])
    if wrong := [name for name in found.fixed if full[name]]:
        raise _broken(min(wrong))
    spans = {n: c.exponents() if full[n] else (0, 0) for n, c in found.constants.items()}
    for name, edge in found.edges.items():
        stored = full[edge.tensor]
        spans[name] = (stored - _MOST, stored + _MOST)
    for name, (low, high) in spans.items():
        if not low <= full[name] <= high:
            raise CaseError(
                f"{name} times 2^{full[name]} is not exact in FP32.",
                f"Use an exponent from {low} to {high}.",
            )
    return full


def _left(relation: Relation, exponents: Mapping[TensorName, int]) -> int:
    return sum(c * exponents[name] for name, c in relation.terms.items())


def _broken(name: str) -> CaseError:
    return CaseError(
        f"The exponents of the inputs and outputs of {name!r} do not fit together.",
        "Give the model for which the repair was proposed.",
    )


@dataclass
class _Reading:
    """The relations of the nodes read so far."""

    opset: int
    tensors: dict[TensorName, None] = field(default_factory=dict)
    edges: dict[TensorName, Edge] = field(default_factory=dict)
    constants: dict[TensorName, Constant] = field(default_factory=dict)
    equations: list[Relation] = field(default_factory=list)
    fixed: set[TensorName] = field(default_factory=set)
    logs: set[TensorName] = field(default_factory=set)

    def tensor(self, value: ir.Value) -> TensorName:
        """Add a stored tensor, and return its name."""
        name = tensor_name(value)
        self.tensors[name] = None
        return name

    def edge(self, value: ir.Value, node: ir.Node | None, slot: int | None) -> TensorName:
        """Add a read of a tensor, and return its name."""
        reader = "output" if node is None else f"{node.name}:{'body' if slot is None else slot}"
        name = TensorName(f"{value.name}@{reader}")
        self.edges[name] = Edge(tensor_name(value), node, slot)
        return name

    def read(self, node: ir.Node) -> None:
        """Add a node of the main graph, after those it reads from."""
        outputs = ((~i, v) for i, v in enumerate(node.outputs) if v.name and is_float(v))
        given: dict[Place, TensorName] = {place: self.tensor(v) for place, v in outputs}
        read = {i: v for i, v in enumerate(node.inputs) if v is not None and v.name in self.tensors}
        free = {0} if is_invariant(node) else set[Place]()
        # After an operator that ONNX does not know, types are unknown too.
        known = all(v.type for v in (*node.inputs, *node.outputs) if v is not None and v.name)
        for equation in equations(node, self.opset) if known else ():
            named = {p: given.get(p) or self._named(node, p, read) for p in equation}
            terms = {name: equation[p] for p, name in named.items() if name is not None}
            if len(terms) > 1:
                absorber = next((name for name in terms if name in self.constants), None)
                self.equations.append(Relation(node_name(node), terms, absorber))
                free |= {p for p, name in named.items() if name is not None}
        self.fixed |= {name for place, name in given.items() if place not in free}
        self.fixed |= {self.edge(v, node, i) for i, v in read.items() if i not in free}
        inside = (v for v in captured(node) if v.name in self.tensors)
        self.fixed |= {self.edge(v, node, None) for v in inside}
        if is_standard(node, *LOGARITHMS) and 0 in read:
            self.logs.add(self.edge(read[0], node, 0))

    def _named(
        self, node: ir.Node, place: Place, read: Mapping[int, ir.Value]
    ) -> TensorName | None:
        """Return the name that a place of `node` has in equations; None if there is none."""
        if isinstance(place, str):
            value, array = None, _attribute(node, place)
        elif place in read:
            return self.edge(read[place], node, place)
        else:
            value = node.inputs[place] if 0 <= place < len(node.inputs) else None
            array = constant_array(value) if value is not None and is_float(value) else None
        if array is None:
            return None
        name = TensorName(f"{value.name if value else ''}@{node.name}:{place}")
        self.constants[name] = Constant(node, place, value, array)
        return name


def _attribute(node: ir.Node, name: str) -> NDArray[Any] | None:
    """Return the value or default of a float attribute; None if it plays no part."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return np.asarray(DEFAULTS[name], np.float32) if name in DEFAULTS else None
    tensor = attribute.type is ir.AttributeType.TENSOR
    array = np.asarray(attribute.as_tensor().numpy() if tensor else attribute.as_float())
    return array.astype(np.float32)
