"""What one item of a constraint means to a version of trtexec, and what is wrong with it.

From `samples/common/sampleEngines.cpp` of TensorRT 8.6 and 10: a key that is a layer's name applies
to that layer. Otherwise, in 8.5 and 8.6, `*` applies to all layers; from 9.0 to 10.16 any key with
one `*` applies to the layers that match, in the order of a hash table. There, `--layerOutputTypes`
gives all of these the type of the key `*`, or FP32 without one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from halfwise.records import Finding
from halfwise.tensorrt.layer_names import names_in
from halfwise.tensorrt.trtexec.layers import (
    Kinds,
    Layer,
    complaint,
    is_parsers_own,
    kind_meant,
    matching,
    spelt_like,
)
from halfwise.tensorrt.trtexec.notation import OUTPUT_TYPES, PRECISIONS, Key, unsayable
from halfwise.tensorrt.versions import Version, has, text_of

_TYPES = ("fp32", "fp16", "int32", "int8")
_CAST = "https://github.com/NVIDIA/TensorRT/issues/3618"


@dataclass(frozen=True, eq=False)
class Meant:
    """A key and the layers that it is meant for.

    Attributes:
        key: The key.
        layers: The layers that it names or matches; none if the parser makes the name up.
        wild: Whether it is a pattern.
        kind: The operator that it names instead of layers; "" if it names or matches layers.
    """

    key: Key
    layers: tuple[Layer, ...]
    wild: bool
    kind: str = ""


class KeyReader:
    """Reads the keys of one option."""

    def __init__(
        self,
        layers: Sequence[Layer],
        producers: Mapping[str, str],
        version: Version,
        keys: Sequence[Key],
        kinds: Kinds,
    ) -> None:
        """Take the layers, tensors' producers, the version, all keys of the option, and kinds."""
        self._kinds = kinds
        self._layers, self._producers, self._version = layers, producers, version
        self._names = {layer.name for layer in layers}
        self._called = {layer.place.called: layer.name for layer in layers if layer.place.called}
        general = [key.types for key in keys if key.name == "*" and not key.fault]
        self._type_of_wildcards = general[-1][:1] if general else ("fp32",)

    def fault(self, key: Key) -> Finding | None:
        """Return why trtexec cannot read a key; None if it can."""
        known = (*_TYPES, "bf16") if has("bf16", self._version) else _TYPES
        unknown = next((name for name in key.types if name not in known), None)
        reason = key.fault
        if unknown is not None:
            reason = f"it knows no type {unknown!r}, only {', '.join(known)}"
        if not reason and key.option == PRECISIONS and len(key.types) > 1:
            reason = "a precision must be a single type"
        if not reason:
            return None
        return complaint(
            "unreadable",
            "error",
            f"trtexec {text_of(self._version)} cannot read {key.item!r} in {key.option}: {reason}",
            "Write name:type; put a name that contains a colon in single quotes.",
        )

    def read(self, key: Key) -> Meant | None:
        """Return what a key is meant for; None if nothing has that name."""
        layers = tuple(matching(key.name, self._layers))
        if not layers and not is_parsers_own(key.name):
            kind = None if key.name in self._producers else kind_meant(key.name, self._kinds)
            return kind and Meant(key, kind[1], wild=True, kind=kind[0])
        return Meant(key, layers, wild=bool(layers) and key.name not in self._names)

    def says(self, meant: Meant) -> bool:
        """Return whether this trtexec can and does apply a key as it is meant."""
        if not meant.layers:
            return True
        if meant.kind:
            return False
        if not meant.wild:
            return self.takes(meant, meant.layers[0]) and not unsayable(meant.key.name)
        if self._mistyped(meant) or self._casts(meant):
            return False
        return self._knows(meant.key)

    def takes(self, meant: Meant, layer: Layer) -> bool:
        """Return whether a layer of that name accepts the key's types."""
        return not layer.own_type and not self._covers_integers(meant, layer)

    def unmatched(self, key: Key) -> Finding:
        """Return the finding about a name that nothing has."""
        made = self._producers.get(key.name)
        inside = [n for n in names_in(key.name) if n in self._names and n != key.name]
        if made is not None:
            fix = f"It is a tensor; it is computed by node {made}."
        elif key.name in self._called:
            fix = (
                f"{key.name} is halfwise's name for a node without a name in this file; trtexec "
                f"calls it {self._called[key.name]}."
            )
        elif inside:
            fix = f"It is a layer of the engine, after fusion; its nodes are {', '.join(inside)}."
        else:
            close = get_close_matches(key.name, sorted(self._names))
            fix = f"Did you mean {' or '.join(close)}?" if close else "Give names of ONNX nodes."
        what = "matches no layer" if "*" in key.name else "is not the name of a layer"
        return complaint(
            "unmatched",
            "error",
            f"{key.name} in {key.option} {what}; trtexec ignores it silently",
            fix,
        )

    def complaints(self, meant: Meant) -> Iterator[Finding]:
        """Yield findings on a key that has a meaning."""
        if not meant.layers:
            yield complaint(
                "parsers-own",
                "info",
                f"{meant.key.name} is a name that the parser generates: the ONNX file does not "
                "show whether it exists",
                "Look for it in the output of trtexec --verbose.",
            )
        elif meant.kind:
            yield self._of_kind(meant)
        elif meant.wild:
            yield from self._wildcard(meant)
        else:
            yield from self._layer(meant, meant.layers[0])
        yield from self._count(meant)

    def _of_kind(self, meant: Meant) -> Finding:
        key = meant.key
        return complaint(
            "type-word",
            "error",
            f"{key.name} in {key.option} is not the name of a layer, and trtexec cannot select by "
            f"kind: it ignores it silently; {len(meant.layers)} nodes are, or write out, "
            f"{meant.kind}",
            "Give their names, as below.",
            meant.layers[0].place,
        )

    def _wildcard(self, meant: Meant) -> Iterator[Finding]:
        key, place, version = meant.key, meant.layers[0].place, text_of(self._version)
        below = "Give the names, as below."
        if not self._knows(key):
            knows = (
                "reads one * per name" if key.name.count("*") > 1 else "knows no * within a name"
            )
            yield complaint(
                "wildcard-unknown",
                "error",
                f"trtexec {version} {knows}: {key.name} matches nothing there and is ignored "
                f"silently; it is meant for {len(meant.layers)} layers",
                below,
                place,
            )
        elif self._mistyped(meant):
            yield complaint(
                "wildcard-type",
                "error",
                f"trtexec {version} gives layers that match {key.name} in {key.option} the type "
                f"{self._type_of_wildcards[0]} (that of *, or FP32), not {'+'.join(key.types)}",
                below,
                place,
            )
        if casts := self._casts(meant):
            yield complaint(
                "untouchable",
                "error",
                f"{key.name} in {key.option} matches {_casts_named(casts)}, and a Cast with "
                "an output type other than its own fails the build with an assertion in "
                "castLayer.cpp",
                below,
                casts[0].place,
                _CAST,
            )

    def _layer(self, meant: Meant, layer: Layer) -> Iterator[Finding]:
        key = meant.key
        if self._casts(meant):
            yield complaint(
                "untouchable",
                "error",
                f"{layer.name} is a Cast to {layer.outputs[0] or 'integers'}: with the output type "
                f"{'+'.join(key.types)} the build fails with an assertion in castLayer.cpp",
                "Leave it out.",
                layer.place,
                _CAST,
            )
        elif layer.own_type:
            yield complaint(
                "untouchable",
                "warning",
                f"{key.name} ({layer.op}) takes no constraint: {layer.own_type}",
                "Leave it out.",
                layer.place,
            )
        elif self._covers_integers(meant, layer):
            yield complaint(
                "untouchable",
                "error",
                f"{key.item} in {key.option} applies to all outputs of {layer.name} ({layer.op}), "
                "but not all of them are floating point",
                "Leave it out; --layerPrecisions sets the type that the layer computes in.",
                layer.place,
            )
        elif character := unsayable(layer.name):
            yield complaint(
                "unsayable",
                "error",
                f"trtexec options cannot name {layer.name}: it contains a {character}",
                "Rename the node, or constrain it through the API.",
                layer.place,
            )
        elif layer.nodes > 1:
            yield complaint(
                "duplicate-name",
                "warning",
                f"{layer.nodes} nodes are called {layer.name}: the constraint reaches the first",
                "Give every node a unique name.",
                layer.place,
            )

    def _count(self, meant: Meant) -> Iterator[Finding]:
        types = meant.key.types
        for layer in meant.layers if len(types) > 1 else ():
            if len(layer.outputs) != len(types):
                yield complaint(
                    "type-count",
                    "error",
                    f"{meant.key.item} has {len(types)} types, but {layer.name} has "
                    f"{len(layer.outputs)} outputs: trtexec fails with an invalid argument",
                    "Give one type for all outputs, or one for each.",
                    layer.place,
                )
                break

    def _knows(self, key: Key) -> bool:
        """Return whether this trtexec treats a key's `*` as a wildcard."""
        return key.name == "*" or (has("* in names", self._version) and key.name.count("*") == 1)

    def _mistyped(self, meant: Meant) -> bool:
        """Return whether trtexec sets a type other than a wildcard requests."""
        key = meant.key
        if key.option != OUTPUT_TYPES or key.name == "*" or not has("* in names", self._version):
            return False
        return set(key.types) != set(self._type_of_wildcards)

    def _casts(self, meant: Meant) -> list[Layer]:
        """Return the Casts to a type other than the output type that a key requests."""
        if (
            meant.key.option != OUTPUT_TYPES
            or not has("layers for casts", self._version)
            or meant.kind
        ):
            return []
        if not meant.wild:
            layers = list(meant.layers)
        else:
            # It skips layers by their precision, and shapes, not by their output types.
            layers = spelt_like(meant.key.name, self._layers)
            layers = [n for n in layers if n.computes_floats or not n.of_shapes]
        casts = (layer for layer in layers if layer.op in ("Cast", "CastLike"))
        return [layer for layer in casts if layer.outputs[0] not in meant.key.types]

    def _covers_integers(self, meant: Meant, layer: Layer) -> bool:
        """Return whether one type is given for several outputs, some of which are not floats."""
        one = meant.key.option == OUTPUT_TYPES and len(meant.key.types) == 1
        return one and layer.computes_floats and "" in layer.outputs


def _casts_named(casts: Sequence[Layer]) -> str:
    if len(casts) == 1:
        return f"{casts[0].name}, a Cast to another type"
    return f"{len(casts)} Casts to another type, such as {casts[0].name}"
