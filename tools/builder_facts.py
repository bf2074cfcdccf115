"""Ask TensorRT's parser and builder what they take, and write src/halfwise/graph/taken.json.

Every node test of the onnx package with one node is asked, as it is, with inputs that come from
another node, with outputs and attributes that no test has, and as halfwise would write it in FP16
and BF16. Where the answer is no, changes show what it depends on: an input becomes a constant, an
output or input is dropped, an attribute is left out, types are widened. The features whose change
helps are the reason. No GPU is used.

usage: python tools/builder_facts.py [NOTES]

NOTES keeps the answers, so that a second run asks only what is new.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bench.building import Verdict, verdict
from bench.onnx_cases import cases, first_inputs, inputs_of
from halfwise.emulation.ort import OrtFailure, Session
from halfwise.errors import HalfwiseError
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.model import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.graph.taken import Feature, Refused, Test, features
from tests.judges import RtxBuilder

PAGE = Path(__file__).resolve().parent.parent / "src" / "halfwise" / "graph" / "taken.json"
NODE = "node"
LATE = (22, 24)
"""Opsets of which models are asked in low types beside their own: 22 is the first with BF16 for most."""
FEW = 2
INVALID = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, TypeError, ValueError)
_ONES = (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64)
_WIDER = {
    TensorProto.FLOAT16: TensorProto.FLOAT,
    TensorProto.BFLOAT16: TensorProto.FLOAT,
    TensorProto.DOUBLE: TensorProto.FLOAT,
    TensorProto.FLOAT: TensorProto.INT32,
    **dict.fromkeys((TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL), TensorProto.INT32),
}
"""What each type is changed to, to see whether a refusal depends on it."""

Array = NDArray[Any]
When = dict[str, Test]


class Change(NamedTuple):
    """A change of a model: the features that it ends, and the model without them."""

    when: When
    model: Model


@dataclass(frozen=True, eq=False)
class Model:
    """A model with one node that is asked about, and values of the inputs known at run time."""

    proto: onnx.ModelProto
    given: Mapping[str, Array]

    @property
    def node(self) -> onnx.NodeProto:
        """The node."""
        return next(n for n in self.proto.graph.node if n.name == NODE)

    @property
    def opset(self) -> int:
        """Its opset."""
        return next(o.version for o in self.proto.opset_import if o.domain in ("", "ai.onnx"))

    def copy(self) -> Model:
        """Return a copy that may be changed."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        return Model(proto, dict(self.given))


class Answer(NamedTuple):
    """Whether a node with these features was built; None if only a GPU could tell."""

    found: Mapping[str, Feature]
    built: bool | None


class Asked:
    """The builder with all its answers, by operator."""

    def __init__(self, builder: RtxBuilder, folder: Path, known: dict[str, bool | None]) -> None:
        self._builder, self._folder = builder, folder
        self.known = known
        self._heard: dict[str, bool | None] = {}
        self.answers: defaultdict[str, list[Answer]] = defaultdict(list)

    def ask(self, model: Model) -> bool | None:
        """Return whether a model is built, and remember the answer."""
        key = hashlib.sha256(model.proto.SerializeToString(deterministic=True)).hexdigest()
        if key not in self._heard:
            if key not in self.known:
                self.known[key] = self.said(model).built
            built = self._heard[key] = self.known[key]
            self.answers[model.node.op_type].append(Answer(described(model), built))
        return self._heard[key]


    def said(self, model: Model) -> Verdict:
        """Return the builder's whole answer, which is not remembered."""
        return verdict(self._builder, model.proto, model.given, self._folder)


def described(model: Model) -> Mapping[str, Feature]:
    """Return the features of the node."""
    graph = ir.serde.deserialize_model(model.proto).graph
    return features(next(n for n in graph if n.name == NODE), model.opset)


def models() -> Iterator[Model]:
    """Yield the node tests with one node of ONNX's own domain, and no sequences or bodies."""
    for case in cases():
        if case.model is None or len(case.model.graph.node) != 1 or case.model.functions:
            continue
        proto = onnx.ModelProto()
        proto.CopyFrom(case.model)
        node = proto.graph.node[0]
        ends = (*proto.graph.input, *proto.graph.output)
        bodies = any(a.type in (a.GRAPH, a.GRAPHS) for a in node.attribute)
        if node.domain or bodies:
            continue
        node.name = NODE
        names = [i.name for i in inputs_of(proto)]
        given = dict(zip(names, first_inputs(case), strict=False))
        tensors = (n for n, v in given.items() if isinstance(v, TensorProto))
        given |= {n: numpy_helper.to_array(given[n]) for n in tensors}
        yield Model(proto, given)


def sound(model: Model) -> Model | None:
    """Return a model with the types and shapes of its outputs inferred; None if it is invalid."""
    proto = model.proto
    for end in proto.graph.output:
        end.ClearField("type")
    try:
        found = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
        onnx.checker.check_model(found)
    except INVALID:
        return None
    return Model(found, model.given)


def runs(model: Model) -> bool:
    """Return whether ONNX Runtime runs a model on the test's values."""
    try:
        Session(ir.serde.deserialize_model(model.proto)).run(model.given)
    except (*OrtFailure, HalfwiseError, *INVALID):
        return False
    return True


def plainer(model: Model) -> Iterator[Change]:
    """Yield the model with one thing less that might be refused."""
    for when, change in [
        *_constants(model),
        *_dropped(model),
        *_attributes(model),
        *_retyped(model),
    ]:
        other = model.copy()
        changed = change(other)
        if changed is not None and (made := sound(changed)) is not None:
            yield Change(when, made)


Step = tuple[When, Callable[[Model], Model | None]]


def _constants(model: Model) -> Iterator[Step]:
    makers = {o: n for n in model.proto.graph.node for o in n.output}
    constants = {i.name for i in model.proto.graph.initializer}
    for k, name in enumerate(model.node.input):
        source = makers[name].input[0] if name in makers else name
        if name in makers:

            def direct(m: Model, k: int = k, source: str = source) -> Model:
                m.node.input[k] = source
                kept = [n for n in m.proto.graph.node if n.name == NODE]
                del m.proto.graph.node[:]
                m.proto.graph.node.extend(kept)
                return m

            yield {f"input {k}": ["computed"]}, direct
        if k and name and source in model.given and source not in constants:

            def constant(m: Model, name: str = name, source: str = source) -> Model:
                graph = m.proto.graph
                value = m.given[source]
                given = [i for i in graph.input if i.name != source]
                kept = [n for n in graph.node if name not in n.output]
                del graph.input[:], graph.node[:]
                graph.input.extend(given)
                graph.node.extend(kept)
                graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
                return Model(m.proto, {n: v for n, v in m.given.items() if n != source})

            yield {f"input {k}": ["computed" if name in makers else "input"]}, constant


def _dropped(model: Model) -> Iterator[Step]:
    schema = onnx.defs.get_schema(model.node.op_type, model.opset, "")
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    for k, name in enumerate(model.node.output):
        if k and name and any(n for n in model.node.output if n != name):

            def without(m: Model, k: int = k, name: str = name) -> Model:
                ends = [o for o in m.proto.graph.output if o.name != name]
                del m.proto.graph.output[:]
                m.proto.graph.output.extend(ends)
                m.node.output[k] = ""
                while not m.node.output[-1]:
                    m.node.output.pop()
                return m

            yield {f"output {k}": ["used"]}, without
    for k, name in enumerate(model.node.input):
        if name and k < len(schema.inputs) and schema.inputs[k].option == optional:

            def absent(m: Model, k: int = k, name: str = name) -> Model:
                m.node.input[k] = ""
                while not m.node.input[-1]:
                    m.node.input.pop()
                if name not in m.node.input:
                    graph = m.proto.graph
                    given = [i for i in graph.input if i.name != name]
                    stored = [i for i in graph.initializer if i.name != name]
                    del graph.input[:], graph.initializer[:]
                    graph.input.extend(given)
                    graph.initializer.extend(stored)
                return Model(m.proto, {n: v for n, v in m.given.items() if n != name})

            yield {f"input {k}": {"not": []}}, absent


def _attributes(model: Model) -> Iterator[Step]:
    found = described(model)
    for attribute in model.node.attribute:

        def reset(m: Model, name: str = attribute.name) -> Model:
            kept = [a for a in m.node.attribute if a.name != name]
            del m.node.attribute[:]
            m.node.attribute.extend(kept)
            return m

        name = f"attribute {attribute.name}"
        if name in found:
            yield {name: [found[name]]}, reset


def _retyped(model: Model) -> Iterator[Step]:
    found = described(model)
    types = {i.type.tensor_type.elem_type for i in model.proto.graph.input}
    for given in sorted(types & set(_WIDER)):

        def retype(m: Model, given: int = given) -> Model:
            wide = helper.tensor_dtype_to_np_dtype(_WIDER[given])
            graph = m.proto.graph
            for info in graph.input:
                if info.type.tensor_type.elem_type == given:
                    info.type.tensor_type.elem_type = _WIDER[given]
            for k, tensor in enumerate(graph.initializer):
                if tensor.data_type == given:
                    value = numpy_helper.to_array(tensor).astype(wide)
                    graph.initializer[k].CopyFrom(numpy_helper.from_array(value, tensor.name))
            low = helper.tensor_dtype_to_np_dtype(given)
            values = {
                n: v.astype(wide) if isinstance(v, np.ndarray) and v.dtype == low else v
                for n, v in m.given.items()
            }
            return Model(m.proto, values)

        name = TensorProto.DataType.Name(given).lower()
        first = next((k for k, v in found.items() if v == name and k.startswith("type of in")), "")
        if first:
            yield {first: [name]}, retype


def harder(model: Model) -> Iterator[Model]:
    """Yield a model with what its test lacks: an output, an attribute, inputs from other nodes."""
    schema = onnx.defs.get_schema(model.node.op_type, model.opset, "")
    made = []
    if len(model.node.output) < len(schema.outputs):
        other = model.copy()
        other.node.output.append("more")
        other.proto.graph.output.append(helper.make_empty_tensor_value_info("more"))
        made.append(other)
    for name, known in schema.attributes.items():
        if known.type not in (onnx.defs.OpSchema.AttrType.FLOAT, onnx.defs.OpSchema.AttrType.INT):
            continue
        present = {a.name: helper.get_attribute_value(a) for a in model.node.attribute}
        default = helper.get_attribute_value(known.default_value) if known.default_value.type else 0
        value = present.get(name, default)
        now = value * 0.7 + 0.1 if isinstance(value, float) else 1 - value
        if isinstance(value, float) or value in (0, 1):
            other = model.copy()
            kept = [a for a in other.node.attribute if a.name != name]
            del other.node.attribute[:]
            other.node.attribute.extend([*kept, helper.make_attribute(name, now)])
            made.append(other)
    for other in made:
        changed = sound(other)
        if changed is not None and runs(changed):
            yield changed
    yield from _computed(model)


def _computed(model: Model) -> Iterator[Model]:
    types = {i.name: i.type.tensor_type.elem_type for i in model.proto.graph.input}
    for k, name in enumerate(model.node.input):
        if types.get(name) in _ONES:
            other = model.copy()
            zero = np.zeros((), helper.tensor_dtype_to_np_dtype(types[name]))
            other.proto.graph.initializer.append(numpy_helper.from_array(zero, "zero"))
            other.proto.graph.node.insert(0, helper.make_node("Add", [name, "zero"], ["sum"]))
            other.node.input[k] = "sum"
            if (made := sound(other)) is not None:
                yield made


def at_opset(model: Model, opset: int) -> Model | None:
    """Return a model at another opset; None if it is not the same there."""
    other = model.copy()
    del other.proto.opset_import[:]
    other.proto.opset_import.append(helper.make_opsetid("", opset))
    return sound(other)


def lowered(model: Model, fmt: Format) -> Model | None:
    """Return a model as halfwise writes it with the node low; None if the node stays FP32."""
    try:
        network = network_from_proto(model.proto)
        roles = roles_of(network, low_type(fmt), by_schema=True)
        if not any(role.free for role in roles.values()):
            return None
        mixed = rewrite(network, roles, frozenset(), fmt).model
    except HalfwiseError:
        return None
    return Model(ir.serde.serialize_model(mixed), model.given)


def because(model: Model, ask: Callable[[Model], bool | None]) -> Iterator[When]:
    """Yield reasons why a model is refused: features each of whose change alone helps.

    If no change helps, changes are made one after another, and the reasons are those of the last
    model that is refused; none if none is built.
    """
    changes = list(plainer(model))
    helping = [change.when for change in changes if ask(change.model)]
    if helping:
        yield reduce(lambda one, other: one | other, helping)
        return
    for last in (0, -1):
        now, left = model, changes
        while left:
            after = left[last].model
            if ask(after):
                yield from because(now, ask)
                break
            now, left = after, list(plainer(after))


def lowest_type(low: Model, fmt: Format) -> When:
    """Return the feature that tells a low model from the same in FP32."""
    name = low_type(fmt).name.lower()
    found = described(low)
    slot = next((k for k, v in found.items() if k.startswith("type of") and v == name), "")
    return {slot: [name]} if slot else {}


def gather(asked: Asked) -> dict[str, list[When]]:
    """Ask everything, and return the reasons found by operator."""
    reasons: defaultdict[str, list[When]] = defaultdict(list)
    for number, test in enumerate(models()):
        print(f"\r{number} {test.node.op_type:30}", end="", file=sys.stderr)
        for model in (test, *harder(test)):
            built = asked.ask(model)
            if built is False:
                reasons[model.node.op_type] += because(model, asked.ask)
            for fmt in (FP16, BF16) if built else ():
                for at in (model, *filter(None, (at_opset(model, o) for o in LATE))):
                    _ask_low(asked, at, fmt, reasons[model.node.op_type])
    return reasons


def _ask_low(asked: Asked, model: Model, fmt: Format, reasons: list[When]) -> None:
    def ask(plain: Model) -> bool | None:
        other = lowered(plain, fmt)
        return None if other is None or not asked.ask(plain) else asked.ask(other)

    low = lowered(model, fmt)
    if low is not None and asked.ask(model) and asked.ask(low) is False:
        kind = lowest_type(low, fmt)
        found = list(because(model, ask))
        reasons += [{**when, **kind} for when in found or ([kind] if kind else [])]


def conditions(reasons: list[When], answers: list[Answer]) -> list[Refused]:
    """Return what refuses an operator's nodes, checked against all answers.

    Values of one feature are joined. Reasons that a built node has too are narrowed to the types
    and ranks with which it was refused. What no reason explains is described by its types, ranks
    and attributes.
    """
    refused = [a.found for a in answers if a.built is False]
    built = [a.found for a in answers if a.built]
    found: list[Refused] = []
    for when in _joined(reasons):
        for kept in _narrowed(when, refused, built):
            found.append(Refused(kept, certain=True))
    found = [_widened(each, refused, built) for each in found]
    for left in refused:
        if not any(each.fits(left) for each in found):
            found += _observed(left, built)
    return _needed(found, refused)


def _joined(reasons: Iterable[When]) -> list[When]:
    """Return reasons with values of one feature joined where all others are the same."""
    left = [json.loads(text) for text in sorted({json.dumps(r, sort_keys=True) for r in reasons})]
    joined: list[When] = []
    for when in left:
        for other in joined:
            differing = [k for k in when if when.get(k) != other.get(k)]
            if when.keys() == other.keys() and len(differing) == 1:
                values = other[differing[0]], when[differing[0]]
                if all(isinstance(v, list) for v in values):
                    other[differing[0]] = sorted({*values[0], *values[1]}, key=str)
                    break
        else:
            joined.append(when)
    return joined


def _narrowed(when: When, refused: list[Any], built: list[Any]) -> list[When]:
    if not any(Refused(when, certain=True).fits(b) for b in built):
        return [when]
    narrow = []
    for found in refused:
        if Refused(when, certain=True).fits(found):
            for name in _describing(found):
                more = {**when, name: [found[name]]}
                if name not in when and not any(Refused(more, certain=True).fits(b) for b in built):
                    narrow.append(more)
                    break
    return _joined(narrow)


def _describing(found: Mapping[str, Feature]) -> list[str]:
    order = ("type of input", "type of output", "rank of input", "input", "attribute")
    return [n for start in order for n in found if n.startswith(start)]


def _widened(refused: Refused, all_refused: list[Any], built: list[Any]) -> Refused:
    """Return a refusal for all numbers but those that were built, where these are few."""
    when = dict(refused.when)
    for name, test in refused.when.items():
        if not name.startswith("attribute") or not isinstance(test, list):
            continue
        others = {k: v for k, v in when.items() if k != name}
        rest = Refused(others, certain=True)
        taken = {b[name] for b in built if name in b and rest.fits(b)}
        numbers = all(isinstance(v, int | float) for v in test)
        if numbers and len(taken) <= FEW and len({*test} | taken) > FEW:
            when[name] = {"not": sorted(taken, key=str)}
    return Refused(when, refused.certain)


def _observed(found: Mapping[str, Feature], built: list[Any]) -> list[Refused]:
    names = _describing(found)
    for size in (1, 2):
        for chosen in combinations(names, size):
            tried = Refused({n: [found[n]] for n in chosen}, certain=False)
            if not any(tried.fits(b) for b in built):
                return [tried]
    return []


def _needed(found: list[Refused], refused: list[Any]) -> list[Refused]:
    """Return the refusals without those that explain nothing that others do not."""
    needed: list[Refused] = []
    explained: set[int] = set()
    fits = [(each, {k for k, r in enumerate(refused) if each.fits(r)}) for each in found]
    for each, which in sorted(fits, key=lambda f: (not f[0].certain, len(f[0].when), -len(f[1]))):
        if which - explained:
            needed.append(each)
            explained |= which
    return needed


def untested(asked: Asked, known: Iterable[str]) -> list[str]:
    """Return the operators without a test that the parser does not know."""
    opset = onnx.defs.onnx_opset_version()
    lacking = []
    for schema in onnx.defs.get_all_schemas():
        if schema.domain or schema.deprecated or schema.name in known:
            continue
        names = [f"i{k}" for k in range(schema.min_input)]
        node = helper.make_node(schema.name, names, ["y"], NODE)
        given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 8, 8]) for n in names]
        end = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])
        model = one(node, given, [end], opset=opset)
        if asked.said(model).lacks:
            lacking.append(schema.name)
    return lacking


def one(
    node: onnx.NodeProto,
    given: list[onnx.ValueInfoProto],
    ends: list[onnx.ValueInfoProto],
    stored: Mapping[str, Array] = MappingProxyType({}),
    opset: int = 23,
) -> Model:
    """Return a model of one node."""
    constants = [numpy_helper.from_array(v, n) for n, v in stored.items()]
    graph = helper.make_graph([node], "g", given, ends, constants)
    imports = [helper.make_opsetid("", opset)]
    return Model(helper.make_model(graph, opset_imports=imports, ir_version=11), {})


def types(asked: Asked) -> list[str]:
    """Return the element types that no tensor may have."""
    refused = []
    for name, number in TensorProto.DataType.items():
        given, same, floats = (
            helper.make_tensor_value_info(n, t, [4])
            for n, t in (("x", number), ("y", number), ("y", TensorProto.FLOAT))
        )
        copied = one(helper.make_node("Identity", ["x"], ["y"], NODE), [given], [same])
        node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"], NODE)
        read = one(node, [given], [floats], {"s": np.ones((), np.float32)})
        if number and not any(asked.said(m).built for m in (copied, read)):
            refused.append(name.lower())
    return sorted(refused)


def opsets(asked: Asked) -> tuple[int, int]:
    """Return the first and the last opset of this onnx with which a Relu is built."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    relu = helper.make_node("Relu", ["x"], ["y"], NODE)
    all_opsets = range(1, onnx.defs.onnx_opset_version() + 1)
    taken = [o for o in all_opsets if asked.said(one(relu, [x], [y], opset=o)).built]
    return taken[0], taken[-1]


def largest_k(asked: Asked) -> Refused:
    """Return the refusal of a TopK with a larger K than is built."""
    built, refused = 1, 1 << 16
    while refused - built > 1:
        k = (built + refused) // 2
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1 << 16])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, k])
        i = helper.make_tensor_value_info("i", TensorProto.INT64, [1, k])
        node = helper.make_node("TopK", ["x", "k"], ["y", "i"], NODE)
        model = one(node, [x], [y, i], {"k": np.array([k])})
        built, refused = (k, refused) if asked.said(model).built else (built, k)
    return Refused({"value of input 1": {"above": built}}, certain=True)


def main() -> None:
    """Ask, and write what was answered."""
    notes = Path(sys.argv[1]) if sys.argv[1:] else None
    known = json.loads(notes.read_text()) if notes and notes.exists() else {}
    with tempfile.TemporaryDirectory() as folder, RtxBuilder() as builder:
        asked = Asked(builder, Path(folder), known)
        known_types, known_opsets = types(asked), opsets(asked)
        try:
            reasons = gather(asked)
        finally:
            if notes:
                notes.write_text(json.dumps(known))
        limits = {"TopK": [largest_k(asked)]}
        never = untested(asked, asked.answers)
    found: dict[str, Any] = {}
    unknown = []
    for op, answers in sorted(asked.answers.items()):
        tally = Counter(a.built for a in answers)
        if not tally[True]:
            (unknown if tally[None] else never).append(op)
            continue
        usable = [a for a in answers if not known_types_in(a, known_types)]
        met = [*limits.get(op, []), *conditions(reasons[op], usable)]
        if met:
            found[op] = [{"when": dict(m.when), "certain": m.certain} for m in met]
    page = {
        "version": "1.7.1", "asked": datetime.now(UTC).date().isoformat(),
        "opsets": known_opsets, "types": known_types, "never": sorted(never), "unknown": unknown,
        "refused": found,
    }
    PAGE.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    Path("/tmp/types/answers.json").write_text(json.dumps({op: [[dict(a.found), a.built] for a in v] for op, v in asked.answers.items()}))
    Path("/tmp/types/reasons.json").write_text(json.dumps(reasons))


def known_types_in(answer: Answer, refused: list[str]) -> bool:
    """Return whether a node has a tensor of a type that is refused everywhere."""
    return any(k.startswith("type of") and v in refused for k, v in answer.found.items())


if __name__ == "__main__":
    main()
