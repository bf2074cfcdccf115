"""Layers of engines in columns: their precision and their time."""

from collections.abc import Sequence

from halfwise.page.columns import Interned, front_coded
from halfwise.page.data import Data
from halfwise.records import NodeName, PrecisionProof
from halfwise.records.curve import runs
from halfwise.reporting.precision import WORDS

_JOINED = " + "
"""Separator that TensorRT puts between the names of fused nodes."""


class Layers:
    """The layers of several engines; shared values are stored once."""

    def __init__(self) -> None:
        self._nodes, self._words = Interned[NodeName](), Interned[str]()
        self._names = Interned[str]()

    def of(self, proof: PrecisionProof) -> dict[str, Data]:
        """Return the layers of an engine in columns, and its shares by precision.

        `name` is an index into the names, -1 if it is its nodes' names joined; `nodes` are indices
        into the nodes, as `records.curve.runs` writes them; `type`, `precision`, `types`, `weights`
        and `tactic` are indices into the words.
        """
        layers, word = proof.layers, self._words.of
        return {
            "name": [
                -1 if layer.name == _JOINED.join(layer.nodes) else self._names.of(layer.name)
                for layer in layers
            ],
            "nodes": [runs(map(self._nodes.of, layer.nodes)) for layer in layers],
            "type": [word(layer.type) for layer in layers],
            "precision": [word(WORDS[layer.precision]) for layer in layers],
            "types": [word(_types(layer.inputs, layer.outputs)) for layer in layers],
            "weights": [word(layer.weights) for layer in layers],
            "tactic": [word(layer.tactic) for layer in layers],
            "ms": [layer.milliseconds for layer in layers],
            "findings": proof.findings,
            "remarks": proof.remarks,
            "shares": {
                of: {WORDS[kind]: share for kind, share in found.items()}
                for of, found in (("nodes", proof.node_share), ("time", proof.time_share))
            },
        }

    def shared(self) -> Data:
        """Return the shared values; call it last."""
        return {
            "nodes": front_coded(self._nodes.all),
            "names": front_coded(self._names.all),
            "words": self._words.all,
        }


def _types(inputs: Sequence[str], outputs: Sequence[str]) -> str:
    sides = [", ".join(dict.fromkeys(filter(None, side))) for side in (inputs, outputs)]
    return " → ".join(side or "?" for side in sides) if any(sides) else ""
