"""The model in another form, for a builder that refuses one: same function and tensors.

GRUs and LSTMs are written out; written-out normalisations become one node each.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from halfwise.errors import CaseError
from halfwise.graph.conversion import raise_opset
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.one_node import FIRST_OPSET, Candidate, candidates, replace_all
from halfwise.graph.unroll import UNROLLED_OPS, unrolled
from halfwise.records import NodeName
from halfwise.tensorrt.constrain import takes_type

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
