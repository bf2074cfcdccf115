"""trtexec's notation of shapes and of precision constraints, and a check of the latter.

The notation is from `samples/common/sampleOptions.cpp` of TensorRT 8.5 to 10.16: an option and its
value are one word with `=` between; values are split at commas, which quotes do not protect; the
name is the text before and within one pair of single quotes or, without quotes, before the last
colon. Rank 0 is `a:` or, as from TensorRT 10 on, `a:scalar`.

What a constraint reaches is from `sampleEngines.cpp` of 8.6 and 10: the layer with that name, else
in 8.5 and 8.6 all layers for `*`, from 9.0 to 10.16 the layers that match a name with one `*`, in
the order of a hash table. A layer has its node's name, or `node_of_<output>` without one.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import combinations

import onnx
import onnx_ir as ir

from halfwise.errors import CaseError, UsageError
from halfwise.graph.loading import Place, Unchecked
from halfwise.graph.model import node_name
from halfwise.graph.written_out import PATTERNS, written_out
from halfwise.records import SEVERITIES, Finding, NodeName, Profile, Severity, TensorName
from halfwise.tensorrt.layers import names_in
from halfwise.tensorrt.versions import FIRST_WITHOUT_WEAK, Version, has, since, text_of
from halfwise.wording import shorten

_UNSAYABLE = {",": "splits there", "'": "takes it for a quotation mark"}
"""How trtexec treats characters in a name; no quotes or escapes prevent that."""
OTHER_KIND = "Use --as python instead: it compares whole names."


def unsayable(name: str) -> str:
    """Return a character in a name that trtexec's notation cannot express; "" if there is none."""
    return next((character for character in _UNSAYABLE if character in name), "")


def quoted(name: str, what: str, *, always: bool = False) -> str:
    """Return a name as trtexec reads it back, quoted if it contains a colon or `always` is set.

    Raises:
        CaseError: the name is `unsayable`; `what` describes its owner in the message.
    """
    if character := unsayable(name):
        raise CaseError(
            f"trtexec cannot take the {what} {shorten(name)!r}: it contains a {character}, "
            f"and trtexec {_UNSAYABLE[character]}.",
            OTHER_KIND,
        )
    return f"'{name}'" if always or ":" in name else name


Shape = tuple[int, ...]

_INTEGER = re.compile(r"-?[0-9]{1,10}")
_LARGEST = 2**31 - 1
"""Sizes are 32-bit in TensorRT before 10; nothing larger would fit into memory."""


def parse_shapes(text: str, option: str) -> dict[TensorName, Shape]:
    """Return the shapes in `text` by input name, in its order.

    Negative numbers are accepted: the values of a shape tensor may be negative.

    Args:
        text: The value of the option.
        option: Its name, for errors.

    Raises:
        UsageError: no colon, no name, unbalanced quotes, a size that is no 32-bit integer, or
            a repeated name.
    """
    shapes: dict[TensorName, Shape] = {}
    for item in text.split(","):
        name, sizes = _split(item)
        if not name or sizes is None:
            raise UsageError(
                f"{option}: {item!r} is not a name, a colon and sizes.",
                f"Write it like trtexec: {option}=input:1x3x224x224,'name:0':1x8.",
            )
        if name in shapes:
            raise UsageError(f"{option} names input {name!r} twice.", "Give one shape per input.")
        shapes[TensorName(name)] = _shape(sizes, item, option)
    return shapes


def _shape(sizes: str, item: str, option: str) -> Shape:
    parts = [] if sizes in ("", "scalar") else sizes.split("x")
    for part in parts:
        if not _INTEGER.fullmatch(part) or abs(int(part)) > _LARGEST:
            raise UsageError(
                f"{option}: {part!r} in {item!r} is not a 32-bit integer.",
                f"Write sizes with x between them: {option}=input:1x3x224x224.",
            )
    return tuple(int(part) for part in parts)


def _split(item: str) -> tuple[str, str | None]:
    """Return the name in an item, and the text after its colon; None if trtexec cannot read it."""
    parts = item.split("'")
    if len(parts) == 3 and parts[2].startswith(":"):
        return parts[0] + parts[1], parts[2][1:]
    name, colon, rest = item.rpartition(":")
    return name, rest if len(parts) == 1 and colon and name else None


def format_shapes(shapes: Mapping[TensorName, Shape]) -> str:
    """Return shapes as trtexec 8.5 to 11 reads them; the inverse of `parse_shapes`.

    Raises:
        CaseError: the name of an input is `unsayable`.
    """
    # Before version 10, rank 0 is read only within quotes.
    return ",".join(
        f"{quoted(name, 'input', always=not shape)}:{'x'.join(map(str, shape))}"
        for name, shape in shapes.items()
    )


def shape_options(profile: Profile) -> list[str]:
    """Return one profile's `--minShapes` and the like, unquoted; none if the profile is empty.

    Raises:
        CaseError: the name of an input is `unsayable`.
    """
    ranges = {**profile.shapes, **profile.values}
    return [
        f"--{end}Shapes={format_shapes({name: getattr(r, end) for name, r in ranges.items()})}"
        for end in ("min", "opt", "max")
        if ranges
    ]


PRECISIONS = "--layerPrecisions"
OUTPUT_TYPES = "--layerOutputTypes"
CONSTRAINTS = "--precisionConstraints"
_STRONG = "--stronglyTyped"
_OPTION = re.compile(r"(?:^|\s)['\"]?--\w")


@dataclass(frozen=True)
class Constraint:
    """One item of an option's value, such as `/norm*:fp32`.

    Attributes:
        option: `--layerPrecisions` or `--layerOutputTypes`.
        text: The item as written.
        name: Name of a layer, perhaps with `*`.
        types: The types as written, one for all outputs or one per output; None if trtexec cannot
            read the item.
    """

    option: str
    text: str
    name: str
    types: tuple[str, ...] | None

    @property
    def shown(self) -> str:
        """Its types, as written."""
        return "+".join(self.types or ())


@dataclass(frozen=True)
class Constraints:
    """A trtexec command, options or a specification, as written.

    Attributes:
        words: The words of the command, as a shell passes them on.
        items: The items of both options, in order.
    """

    words: tuple[str, ...]
    items: tuple[Constraint, ...]

    def value(self, option: str) -> str | None:
        """Return the value of an option; "" if it has none, None if it is not given."""
        pairs = (word.partition("=")[::2] for word in self.words)
        return next((value for name, value in pairs if name == option), None)


def read(words: Sequence[str]) -> Constraints:
    """Parse a command, its options, or a bare specification.

    Args:
        words: The words from a shell, or the whole text, such as a script's, as one word. A bare
            specification, such as `a:fp32,b:fp32`, is read as `--layerPrecisions`.

    Raises:
        UsageError: quotes are unbalanced, or the text has nothing about precision.
    """
    parts = split(words)
    if len(parts) == 1 and not parts[0].startswith("-") and ":" in parts[0]:
        parts = [f"{PRECISIONS}={parts[0]}"]
    items = constraints_of(parts)
    if not items:
        raise UsageError(
            f"It contains neither {PRECISIONS} nor {OUTPUT_TYPES}.",
            "Give a trtexec command, its options, or a specification such as layer:fp32,node:fp16.",
        )
    return Constraints(tuple(parts), items)


def split(words: Sequence[str]) -> list[str]:
    """Return the words of a command that is given as words, or as a text that is the only one."""
    return _words(words[0]) if len(words) == 1 else list(words)


def constraints_of(words: Sequence[str]) -> tuple[Constraint, ...]:
    """Return the items of both options in a command, in its order."""
    return tuple(
        Constraint(name, item, *_name_and_types(item, name))
        for name, _, value in (word.partition("=") for word in words)
        if name in (PRECISIONS, OUTPUT_TYPES)
        for item in value.split(",")
    )


def _words(text: str) -> list[str]:
    """Return the words of a text; a single option or specification is one, even with blanks."""
    if not _OPTION.search(text.strip(), 1) and (text[:2] == "--" or not _OPTION.search(text)):
        return [text.strip().replace('"', "")]
    try:
        # Shells continue lines with a backslash, PowerShell and cmd with ` and ^.
        return shlex.split(re.sub(r"(?:\\|\s[`^])\r?\n", " ", text), comments=True)
    except ValueError as error:
        raise UsageError(
            f"A shell could not parse the command: {error}.", "Paste it as it was typed."
        ) from error


def _name_and_types(item: str, option: str) -> tuple[str, tuple[str, ...] | None]:
    name, types = _split(item)
    if types is None:
        return name, None
    return name, tuple(types.split("+")) if option == OUTPUT_TYPES else (types,)


_SOURCE = "https://github.com/NVIDIA/TensorRT/blob/release/10.0/samples/common/sampleOptions.cpp"
_MIGRATION = "https://docs.nvidia.com/deeplearning/tensorrt/latest/api/migration-guide.html"
_CAST = "https://github.com/NVIDIA/TensorRT/issues/3618"
_PARSERS_OWN = re.compile(r"^\(Unnamed Layer\*|^ONNXTRT_")
_FIXED = {
    **dict.fromkeys(("If", "Loop", "Scan"), "constrain the nodes in its bodies instead"),
    **dict.fromkeys(("Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"), "its type is set"),
    "Constant": "a constant is fused away, and the constraint with it",
}
"""Why layers of an operator take no constraint."""
_TYPES = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.DOUBLE: "fp32",
}
"""Floating-point types in trtexec's names; the parser turns FP64 into FP32."""


@dataclass(frozen=True)
class _Layer:
    """A layer that the parser makes of a node, or of a constant.

    Attributes:
        name: Its name before fusion.
        place: The node; for a constant, its name and the operator Constant.
        outputs: Type of each output in trtexec's names, "" for other than floating-point ones;
            None if ONNX's inference does not give it.
        of_shapes: Whether it computes only from shapes and constants.
    """

    name: str
    place: Place
    outputs: tuple[str | None, ...]
    of_shapes: bool = False

    @property
    def computes_floats(self) -> bool:
        return any(kind != "" for kind in self.outputs)

    @property
    def is_cast(self) -> bool:
        return self.place.op in ("Cast", "CastLike")


def _layers(model: Unchecked) -> tuple[_Layer, ...]:
    """Return the layers of nodes, bodies included, and of constants; each name once."""
    types: dict[tuple[int | None, int], str] = {}
    for ir_node in model.network.model.graph.all_nodes() if model.network else ():
        number = model.place(ir_node).number
        for i, value in enumerate(ir_node.outputs):
            if value.dtype is not None:
                # A call has the type that its function computes first.
                types.setdefault((number, i), _TYPES.get(value.dtype, ""))
    constants = {tensor.name: tensor for tensor in model.proto.graph.initializer}
    shapes = set(constants)
    layers: dict[str, _Layer] = {}
    for place, node in model.nodes:
        outputs = tuple(types.get((place.number, i)) for i in range(len(node.output)))
        of_shapes = node.op_type in ("Shape", "Size") or shapes.issuperset(filter(None, node.input))
        shapes.update(node.output if of_shapes else ())
        name = _layer_name(node)
        layers.setdefault(name, _Layer(name, place, outputs, of_shapes))
    for name, tensor in constants.items():
        place = Place(name=NodeName(name), op="Constant", number=None)
        outputs = ("fp32" if tensor.data_type == onnx.TensorProto.FLOAT else "",)
        layers.setdefault(name, _Layer(name, place, outputs))
    return tuple(layers.values())


def _layer_name(node: onnx.NodeProto) -> str:
    return node.name or f"node_of_{next(iter(node.output), '')}"


def check(constraints: Constraints, model: Unchecked, version: Version) -> tuple[Finding, ...]:
    """Return what is wrong with constraints as trtexec of a version reads them, errors first.

    Contradictions, names that no layer has, and layers that take no constraint. `version` is
    (major, minor).
    """
    if version >= FIRST_WITHOUT_WEAK:
        return (
            _finding(
                "removed",
                f"trtexec {text_of(version)} has no constraints and fails on their options: from "
                f"{text_of(FIRST_WITHOUT_WEAK)} on, every network is strongly typed",
                "Write the types into the model (halfwise fix does so), and build it without them.",
                source=_MIGRATION,
            ),
        )
    findings = [*_without_effect(constraints, version)]
    layers = _layers(model)
    for option in (PRECISIONS, OUTPUT_TYPES):
        items = [item for item in constraints.items if item.option == option]
        checked = _Checked(model, layers, version)
        findings += [finding for item in items for finding in checked.of(item)]
        findings += checked.contradictions()
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _without_effect(constraints: Constraints, version: Version) -> Iterator[Finding]:
    """Yield findings on what a command says beside its constraints."""
    if constraints.value(_STRONG) is not None:
        if has("strong typing", version):
            why = f"{_STRONG} and constraints cannot be combined: its layers take no precision"
        else:
            why = f"trtexec {text_of(version)} has no {_STRONG}: {since('strong typing')} is first"
        yield _finding("strong-typing", why, f"Leave {_STRONG} out, or the constraints.")
    is_command = any("trtexec" in word or word.startswith("--onnx") for word in constraints.words)
    if is_command and constraints.value(CONSTRAINTS) not in ("obey", "prefer"):
        yield _finding(
            "no-effect",
            f"without {CONSTRAINTS}=obey trtexec sets no constraint at all",
            f"Add {CONSTRAINTS}=obey.",
        )


class _Checked:
    """The constraints of one option so far, and the layers that each reaches."""

    def __init__(self, model: Unchecked, layers: Sequence[_Layer], version: Version) -> None:
        self._model, self._layers, self._version = model, layers, version
        self._named: dict[str, list[Constraint]] = {}
        self._matched: dict[str, list[Constraint]] = {}

    def of(self, item: Constraint) -> Iterator[Finding]:
        """Take an item; yield what is wrong with it alone."""
        types = ("fp32", "fp16", "int32", "int8") + ("bf16",) * has("bf16", self._version)
        if item.types is None or not set(item.types) <= set(types):
            yield _finding(
                "unreadable",
                f"trtexec {text_of(self._version)} cannot read {item.text!r} in {item.option}",
                "Write name:type, a name that contains a colon in single quotes; types: "
                f"{', '.join(types)}.",
            )
        elif exact := [layer for layer in self._layers if layer.name == item.name]:
            self._named.setdefault(item.name, []).append(item)
            yield from self._untouchable(item, exact[0])
        elif matched := self._matching(item.name):
            for layer in matched:
                if layer.computes_floats:
                    self._matched.setdefault(layer.name, []).append(item)
            yield from self._casts(item, matched)
        elif not _PARSERS_OWN.search(item.name):
            yield _finding(
                "unmatched",
                f"{item.name} in {item.option} names no layer; trtexec ignores it silently",
                self._meant(item),
            )

    def contradictions(self) -> Iterator[Finding]:
        """Yield pairs of items that give a layer different types; names go before wildcards."""
        matched = {name: v for name, v in self._matched.items() if name not in self._named}
        reported = set()
        for name, items in (*self._named.items(), *matched.items()):
            for one, other in combinations(items, 2):
                if one.types != other.types and (one, other) not in reported:
                    reported.add((one, other))
                    counts = (
                        "the later one" if one.name == other.name else "one of them, by chance,"
                    )
                    yield _finding(
                        "two-types",
                        f"{name} gets {one.shown} by {one.text} and {other.shown} by {other.text} "
                        f"in {one.option}: {counts} counts",
                        "Leave one of them out.",
                    )

    def _matching(self, pattern: str) -> list[_Layer]:
        """Return the layers that trtexec of this version takes a name with `*` for."""
        if pattern != "*" and not (pattern.count("*") == 1 and has("* in names", self._version)):
            return []
        return _spelt_like(pattern, self._layers)

    def _untouchable(self, item: Constraint, layer: _Layer) -> Iterator[Finding]:
        """Yield why a layer that an item names does not take its types."""
        if layer.is_cast and item.option == OUTPUT_TYPES:
            yield from self._casts(item, [layer])
        elif why := _FIXED.get(layer.place.op, "" if layer.computes_floats else "it has no floats"):
            message = f"{item.name} ({layer.place.op}) takes no constraint: {why}"
            yield _finding("untouchable", message, "Leave it out.", layer.place, "warning")
        elif item.option == OUTPUT_TYPES and len(item.types or ()) == 1 and "" in layer.outputs:
            yield _finding(
                "untouchable",
                f"{item.text} applies to all outputs of {item.name} ({layer.place.op}), but not "
                "all of them are floating point",
                f"Leave it out; {PRECISIONS} sets the type that the layer computes in.",
                layer.place,
            )

    def _casts(self, item: Constraint, layers: Iterable[_Layer]) -> Iterator[Finding]:
        """Yield the first Cast that an item would give an output type other than its own.

        Before 8.6 a Cast was an Identity. Wildcards pass over what computes shapes.
        """
        for layer in layers if item.option == OUTPUT_TYPES else ():
            wrong = layer.is_cast and not {*layer.outputs[:1]} <= {*(item.types or ())}
            if wrong and not layer.of_shapes and has("layers for casts", self._version):
                yield _finding(
                    "untouchable",
                    f"{item.text} in {item.option} reaches {layer.name}, a Cast to "
                    f"{layer.outputs[0] or 'integers'}: the build fails with an assertion in "
                    "castLayer.cpp",
                    "Leave it out; give the names of other layers.",
                    layer.place,
                    source=_CAST,
                )
                return

    def _meant(self, item: Constraint) -> str:
        """Return what somebody who wrote a name that no layer has may have meant."""
        if "*" in item.name and (alike := _spelt_like(item.name, self._layers)):
            return f"This version knows no such pattern. {_written(item, alike)}"
        if layers := self._of_kind(item.name):
            return f"trtexec cannot select by kind. {_written(item, layers)}"
        nodes, inside = self._model.nodes, names_in(item.name)
        numbers = {p.number for p, node in nodes if item.name in (p.called, *node.output)}
        if layers := [x for x in self._layers if x.place.number in numbers or x.name in inside]:
            return f"trtexec knows it by other names. {_written(item, layers)}"
        close = get_close_matches(item.name, [layer.name for layer in self._layers])
        return f"Did you mean {' or '.join(close)}?" if close else "Give names of ONNX nodes."

    def _of_kind(self, word: str) -> list[_Layer]:
        """Return the layers of the operators that a word means, of nodes that write one out too.

        Case, `*`, `_` and "alization" are ignored: `layernorm`, `LayerNorm*` and `layer_norm` mean
        LayerNormalization; `norm` means any normalisation.
        """
        nodes, network = self._model.nodes, self._model.network
        numbers = {place.number for place, node in nodes if _means(word, node.op_type)}
        if network is not None:
            places = {node_name(node): self._model.place(node).number for node in network.nodes()}
            groups = (
                group for op in PATTERNS if _means(word, op) for group in written_out(network, op)
            )
            numbers.update(places[name] for group in groups for name in group)
        return [layer for layer in self._layers if layer.place.number in numbers - {None}]


def _spelt_like(pattern: str, layers: Sequence[_Layer]) -> list[_Layer]:
    expression = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return [layer for layer in layers if expression.fullmatch(layer.name)]


def _means(word: str, op: str) -> bool:
    short, plain = (
        re.sub(r"[^a-z0-9]|ali[sz]ation$", "", text.lower().strip("*")) for text in (word, op)
    )
    return plain == short or (short == "norm" and plain.endswith(short))


def _written(item: Constraint, layers: Sequence[_Layer]) -> str:
    """Return an advice to write the names of layers that take the item's types."""
    names = [
        layer.name
        for layer in layers
        if layer.computes_floats and layer.place.op not in _FIXED and not unsayable(layer.name)
    ]
    return "Write " + ",".join(f"{quoted(name, 'layer')}:{item.shown}" for name in names) + "."


def _finding(
    rule: str,
    message: str,
    fix: str,
    place: Place | None = None,
    severity: Severity = "error",
    *,
    source: str = _SOURCE,
) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        node=place.name if place else None,
        place=place.number if place else None,
        op=place.op if place else "",
        called=NodeName(place.called if place else ""),
        message=message,
        fix=fix,
        source=source,
    )
