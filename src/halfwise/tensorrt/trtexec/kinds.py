"""Layers by what they compute, for keys that give a kind of layer in place of a name."""

import re
from collections.abc import Mapping, Sequence

from halfwise.graph.model import node_name
from halfwise.graph.patterns import PATTERNS, written_out
from halfwise.graph.unchecked import Unchecked
from halfwise.tensorrt.trtexec.layers import Layer

Kinds = Mapping[str, tuple[Layer, ...]]


def kinds_of(model: Unchecked, layers: Sequence[Layer]) -> Kinds:
    """Return the layers of each operator, by its name.

    Those of nodes that together write the operator out are among them, in the order of `layers`.
    """
    found: dict[str, set[int | None]] = {}
    for layer in layers:
        found.setdefault(layer.op, set()).add(layer.place.number)
    if model.network is not None:
        numbers = {node_name(n): model.place(n).number for n in model.network.nodes()}
        for op in PATTERNS:
            for group in written_out(model.network, op):
                found.setdefault(op, set()).update(numbers[name] for name in group)
    return {
        op: tuple(n for n in layers if n.place.number in places and n.place.number is not None)
        for op, places in found.items()
    }


def kind_meant(word: str, kinds: Kinds) -> tuple[str, tuple[Layer, ...]] | None:
    """Return the operator that a word means, and its layers; None where it means none.

    Case, `*`, `_` and "alization" do not matter: `layernorm`, `LayerNorm*` and `layer_norm` are
    LayerNormalization; `norm` is any normalisation.
    """
    meant = _plain(word)
    ops = [op for op in kinds if meant == _plain(op)]
    if meant == "norm":
        ops = [op for op in kinds if _plain(op).endswith(meant)]
    layers = {layer.name: layer for op in ops for layer in kinds[op]}
    return (" or ".join(ops), tuple(layers.values())) if layers else None


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]|alization$|alisation$", "", word.lower().strip("*"))
