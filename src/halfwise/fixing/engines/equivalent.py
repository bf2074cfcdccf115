"""The model in another form, for a builder that refuses one: same function and tensors.

GRUs and LSTMs are written out; written-out normalisations become one node each.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.graph.conversion import raise_opset
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.loading import normalise
from halfwise.graph.model import (
    Names,
    Network,
    Writer,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
)
from halfwise.graph.one_node import FIRST_OPSET, Candidate, candidates, replace_all
from halfwise.records import NodeName
from halfwise.tensorrt.constrain import takes_type

MOST_STEPS = 256
"""Longest sequence that is unrolled. Our choice: a GRU has about 12 nodes per step and direction,
and builders are quick with a few thousand nodes, but not with tens of thousands."""
_SIZES_ARE_READ = 13
"""First operator set in which Split takes sizes as an input."""
_ACTIVATIONS = {"GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
UNROLLED_OPS = tuple(_ACTIVATIONS)
"""Operators that can be unrolled."""
_X, _W, _R, _B, _LENGTHS, _H, _C, _PEEPHOLES = range(8)


def unrolled(model: ir.Model, nodes: Collection[NodeName] | None = None) -> ir.Model:
    """Return a copy in which GRUs and LSTMs are MatMul, Add, Mul, Sub, Sigmoid and Tanh.

    Equal to the original except for the rounding order of FP32 sums (ONNX operators GRU and LSTM,
    versions 7 to 22). Outputs keep their names; an omitted state is zero and left out of the first
    step. New values have no types: `normalise` infers them.

    Args:
        model: In normal form, with shapes; not changed.
        nodes: Names of nodes of the main graph; None for all that can be unrolled.

    Raises:
        CaseError: one of `nodes` cannot be unrolled (see `refusal`), or is missing.
    """
    copy = model.clone()
    found = {NodeName(n.name or ""): n for n in copy.graph if is_standard(n, *_ACTIVATIONS)}
    if nodes is None:
        chosen = [node for node in found.values() if refusal(node) is None]
    else:
        missing = [name for name in nodes if name not in found]
        if missing:
            raise CaseError(
                f"{missing[0]} is not a GRU or LSTM of the main graph: it cannot be written out.",
                "Name GRU or LSTM nodes.",
            )
        chosen = [node for name, node in found.items() if name in nodes]
    names = Names(graphs_of(copy))
    for node in chosen:
        why = refusal(node)
        if why is not None:
            raise CaseError(f"{node.name} cannot be written out: {why}.", "Leave it as it is.")
        _replace(copy, node, names)
    drop_unused_constants((copy.graph,))
    return copy


def refusal(node: ir.Node) -> str | None:
    """Return why a GRU or LSTM cannot be unrolled, as the end of a sentence; None if it can."""
    return next(_refusals(node), None)


def _refusals(node: ir.Node) -> Iterator[str]:
    attributes = node.attributes
    if "activations" in attributes:
        told = tuple(name.lower() for name in attributes["activations"].as_strings())
        if told != _ACTIVATIONS[node.op_type] * len(_directions(node)):
            yield f"its activations are {', '.join(told)}"
    if any(name in attributes and attributes[name].value for name in ("clip", "input_forget")):
        yield "it clips values, or couples its gates"
    if _read(node, _PEEPHOLES) is not None:
        yield "it has peepholes"
    weights = [_read(node, slot) for slot in (_W, _R, _B)]
    if any(v is not None and v.const_value is None for v in weights):
        yield "its weights are not constant"
    steps, lengths = _steps(node), _read(node, _LENGTHS)
    if steps is None:
        yield "the length of its sequence is not fixed"
    elif not 1 <= steps <= MOST_STEPS:
        yield f"its sequence has {steps} steps; only 1 to {MOST_STEPS} are written out"
    if lengths is not None and (
        lengths.const_value is None or (constant_array(lengths) != steps).any()
    ):
        yield "its sequences may differ in length"


def _read(node: ir.Node, slot: int) -> ir.Value | None:
    return node.inputs[slot] if slot < len(node.inputs) else None


def _number(node: ir.Node, attribute: str) -> int:
    return node.attributes[attribute].as_int() if attribute in node.attributes else 0


def _steps(node: ir.Node) -> int | None:
    x = node.inputs[_X]
    size = None if x is None or x.shape is None else x.shape[_number(node, "layout")]
    return size if isinstance(size, int) else None


def _directions(node: ir.Node) -> tuple[str, ...]:
    given = node.attributes.get("direction")
    name = "forward" if given is None else given.as_string().lower()
    return ("forward", "reverse") if name == "bidirectional" else (name,)


def _replace(model: ir.Model, node: ir.Node, names: Names) -> None:
    """Replace a node by its unrolled steps."""
    steps, w = _steps(node), _Writer(model, str(node.name), names)
    assert steps is not None
    batch_first = bool(_number(node, "layout"))
    x = node.inputs[_X]
    assert x is not None
    if batch_first:
        x = w.op("Transpose", x, perm=(1, 0, 2))
    sequences, lasts, cells = [], [], []
    for index, name in enumerate(_directions(node)):
        direction = _Direction(w, node, index)
        order = range(steps)[::-1] if name == "reverse" else range(steps)
        every, cell = direction.run(x, order)
        lasts.append(w.row(every[-1], 0))
        cells.append(None if cell is None else w.row(cell, 0))
        ordered = every[::-1] if name == "reverse" else every
        sequences.append(w.joined([w.row(h, 0, 1) for h in ordered], 0))
    results = [w.joined(sequences, 1), w.joined(lasts, 0)]
    if None not in cells:
        results.append(w.joined([c for c in cells if c is not None], 0))
    if batch_first:
        orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        results = [w.op("Transpose", v, perm=p) for v, p in zip(results, orders, strict=False)]
    used = [(old, new) for old, new in zip(node.outputs, results, strict=False) if old.name]
    old, new = [v for v, _ in used], [v for _, v in used]
    ir.convenience.replace_nodes_and_values(model.graph, node, [node], w.made, old, new)
    for made in reversed(w.made):
        if not any(v.uses() or v.is_graph_output() for v in made.outputs):
            model.graph.remove(made, safe=True)


class _Writer(Writer):
    """Makes the nodes of the steps."""

    def row(self, state: ir.Value, *axes: int) -> ir.Value:
        """Return a state with additional axes of size 1."""
        return self.reshaped("Unsqueeze", state, *axes)

    def joined(self, parts: Sequence[ir.Value], axis: int) -> ir.Value:
        return self.op("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]

    def gates(self, value: ir.Value, sizes: tuple[int, ...]) -> tuple[ir.Value, ...]:
        """Return the parts of the last axis."""
        if self.opset < _SIZES_ARE_READ:
            return self.ops("Split", [value], len(sizes), axis=-1, split=sizes)
        told = self.constant("sizes", np.array(sizes, np.int64))
        return self.ops("Split", [value, told], len(sizes), axis=-1)


class _Direction:
    """Writes the steps of one direction.

    The gates are in the order of the ONNX operators: z, r, h of a GRU, and i, o, f, c of an LSTM.
    """

    def __init__(self, writer: _Writer, node: ir.Node, index: int) -> None:
        self.writer, self.node, self.index = writer, node, index
        self.op = writer.op
        self.is_gru, self.resets_late = node.op_type == "GRU", _number(node, "linear_before_reset")
        self.w, r = (self._weights(slot).T for slot in (_W, _R))
        self.size = r.shape[0]
        b = self._weights(_B) if _read(node, _B) is not None else np.zeros(2 * r.shape[1], r.dtype)
        of_x, of_h = np.split(b, 2)
        self.late = np.zeros(0, r.dtype)
        if self.is_gru and self.resets_late:
            # The bias added to the product before the reset stays separate.
            self.late = of_h[2 * self.size :]
            of_h = np.concatenate([of_h[: 2 * self.size], np.zeros_like(self.late)])
        self.b = of_x + of_h
        both = [r] if not self.is_gru else [r[:, : 2 * self.size], r[:, 2 * self.size :]]
        self.r = [writer.constant("R", np.ascontiguousarray(part)) for part in both]

    def _weights(self, slot: int) -> NDArray[Any]:
        value = _read(self.node, slot)
        assert value is not None
        return np.asarray(constant_array(value)[self.index])

    def run(self, x: ir.Value, order: Sequence[int]) -> tuple[list[ir.Value], ir.Value | None]:
        """Return the state after each step, [batch, hidden], and the last cell of an LSTM.

        Args:
            x: [steps, batch, input].
            order: The steps, in the order taken.
        """
        w = self.writer
        product = self.op("MatMul", x, w.constant("W", np.ascontiguousarray(self.w)))
        every = self.op("Add", product, w.constant("B", self.b))
        h, c = self._initial(_H), None if self.is_gru else self._initial(_C)
        states = []
        for step in order:
            now = self.op("Gather", every, w.constant("t", np.array(step, np.int64)), axis=0)
            if self.is_gru:
                h = self._gru(now, h)
            else:
                h, c = self._lstm(now, h, c)
            states.append(h)
        return states, c

    def _initial(self, slot: int) -> ir.Value | None:
        given = _read(self.node, slot)
        if given is None:
            return None
        place = self.writer.constant("direction", np.array(self.index, np.int64))
        return self.op("Gather", given, place, axis=_number(self.node, "layout"))

    def _gru(self, x: ir.Value, h: ir.Value | None) -> ir.Value:
        w, size = self.writer, self.size
        gates, new = w.gates(x, (2 * size, size))
        if h is not None:
            gates = self.op("Add", gates, self.op("MatMul", h, self.r[0]))
        z, r = w.gates(self.op("Sigmoid", gates), (size, size))
        if self.resets_late:
            late = w.constant("late", self.late)
            if h is not None:
                late = self.op("Add", self.op("MatMul", h, self.r[1]), late)
            new = self.op("Add", new, self.op("Mul", r, late))
        elif h is not None:
            new = self.op("Add", new, self.op("MatMul", self.op("Mul", r, h), self.r[1]))
        new = self.op("Tanh", new)
        left = self.op("Sub", new, self.op("Mul", z, new))
        return left if h is None else self.op("Add", left, self.op("Mul", z, h))

    def _lstm(
        self, x: ir.Value, h: ir.Value | None, c: ir.Value | None
    ) -> tuple[ir.Value, ir.Value]:
        if h is not None:
            x = self.op("Add", x, self.op("MatMul", h, self.r[0]))
        gates, new = self.writer.gates(x, (3 * self.size, self.size))
        i, o, f = self.writer.gates(self.op("Sigmoid", gates), (self.size,) * 3)
        cell = self.op("Mul", i, self.op("Tanh", new))
        if c is not None:
            cell = self.op("Add", self.op("Mul", f, c), cell)
        return self.op("Mul", o, self.op("Tanh", cell)), cell


BUILT_FILE = "model.built.onnx"
"""In a run folder, if the engine is built from another file than the FP32 model."""


_OPSET = FIRST_OPSET["LayerNormalization"]


@dataclass(frozen=True)
class Equivalent:
    """A model with some nodes in another form.

    Attributes:
        network: The model.
        parts: For each of these nodes, the names of the typed nodes that replace it, in graph
            order.
    """

    network: Network
    parts: Mapping[NodeName, tuple[NodeName, ...]]

    def constraints(self, names: Iterable[NodeName]) -> tuple[NodeName, ...]:
        """Return the nodes to constrain; a node in another form is replaced by its parts."""
        return tuple(dict.fromkeys(p for name in names for p in self.parts.get(name, (name,))))


def normalisations(network: Network, available: Collection[str]) -> tuple[Network, list[Candidate]]:
    """Return the normalisations that could be one node, and the model at the opset they need.

    Args:
        network: The model.
        available: Operators that the builder has.
    """
    try:
        raised = network if network.opset >= _OPSET else raise_opset(network, _OPSET)
    except CaseError:
        return network, []
    found = candidates(raised, [op for op in available if op.endswith("Normalization")])
    return raised, [c for c in found if c.replacement is not None and c.nodes]


def equivalent(network: Network, nodes: frozenset[NodeName]) -> Equivalent:
    """Return a model with `nodes` in another form.

    Args:
        network: The model.
        nodes: GRUs and LSTMs, and whole normalisations as found by `normalisations`.

    Raises:
        CaseError: as for `unrolled`.
    """
    own = (n for n in network.nodes() if is_standard(n, *UNROLLED_OPS))
    recurrent = nodes & frozenset(map(node_name, own))
    made, parts = _with_one_node(network, nodes - recurrent)
    if recurrent:
        model = unrolled(made.model, recurrent)
        known = {node_name(n) for n in made.nodes()}
        made = normalise(model, path=network.path, sha256=network.sha256)
        for name in (node_name(n) for n in made.nodes()):
            # One name may be a prefix of another.
            of = max((n for n in recurrent if name.startswith(f"{n}/")), key=len, default=None)
            if name not in known and of is not None:
                parts.setdefault(of, []).append(name)
    typed = {node_name(n) for n in made.nodes() if takes_type(n)}
    return Equivalent(
        made, {n: tuple(p for p in found if p in typed) for n, found in parts.items()}
    )


def _with_one_node(
    network: Network, nodes: frozenset[NodeName]
) -> tuple[Network, dict[NodeName, list[NodeName]]]:
    """Return a model with one node per normalisation of `nodes`, and those nodes."""
    if not nodes:
        return network, {}
    raised, found = normalisations(network, FIRST_OPSET)
    chosen = [c for c in found if nodes.issuperset(c.nodes)]
    model = raised.copy()
    done = replace_all(model, [c.replacement for c in chosen if c.replacement is not None])
    made = normalise(model, path=network.path, sha256=network.sha256)
    left = {node_name(n) for n in made.nodes()}
    return made, {
        name: [*([name] if name in left else []), *replaced.added]
        for candidate, replaced in zip(chosen, done, strict=True)
        for name in candidate.nodes
    }
