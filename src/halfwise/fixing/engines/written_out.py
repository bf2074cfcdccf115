"""The model as it is built where GRUs and LSTMs are written out: the same function and tensors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from halfwise.graph.model import Network, node_name, normalise
from halfwise.graph.unroll import unrolled
from halfwise.records import NodeName
from halfwise.tensorrt.constrain import takes_type

BUILT_FILE = "model.built.onnx"
"""In a run folder, where the engine is built from another file than the FP32 model."""


@dataclass(frozen=True)
class WrittenOut:
    """A model with some nodes written out.

    Attributes:
        network: It.
        parts: Names of the nodes that stand for each of them and take a type, in graph order.
    """

    network: Network
    parts: Mapping[NodeName, tuple[NodeName, ...]]

    def constraints(self, names: Iterable[NodeName]) -> tuple[NodeName, ...]:
        """Return nodes to constrain, those that are written out by what stands for them."""
        return tuple(part for name in names for part in self.parts.get(name, (name,)))


def write_out(network: Network, nodes: frozenset[NodeName]) -> WrittenOut:
    """Return a model with `nodes` written out.

    Raises:
        CaseError: as for `unrolled`.
    """
    model = unrolled(network.model, nodes)
    made = normalise(model, path=network.path, sha256=network.sha256)
    known = {node_name(n) for n in network.nodes()}
    parts: dict[NodeName, list[NodeName]] = {name: [] for name in nodes}
    for node in made.nodes():
        name = node_name(node)
        # One name may begin with another one.
        of = max((n for n in nodes if name.startswith(f"{n}/")), key=len, default=None)
        if name not in known and of is not None and takes_type(node):
            parts[of].append(name)
    return WrittenOut(made, {name: tuple(found) for name, found in parts.items()})
