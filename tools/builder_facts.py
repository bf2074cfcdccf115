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
from onnx import TensorProto, helper, numpy_helper

from bench.building import Verdict, verdict
from bench.one_node import INVALID, NODE, Array, Model, described, later, lowered, models, sound
from bench.onnx_cases import cases, first_inputs, inputs_of
from halfwise.emulation.ort import OrtFailure, Session
from halfwise.errors import HalfwiseError
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.casts import low_type
from halfwise.graph.loading import network_from_proto
from halfwise.graph.taken import Feature, Refused, Test, features
from tests.judges import RtxBuilder

PAGE = Path(__file__).resolve().parent.parent / "src" / "halfwise" / "graph" / "taken.json"
FEW = 2
"""Most numbers taken of an attribute for which all others count as refused, if any was."""
MANY = 0.1
"""Fraction of answers that are no, without a reason, above which all nodes are suspected."""
ENOUGH = 2
"""Low nodes of one type that were all refused: for more, the type is the reason."""
HARDER = 2
"""Tests of an operator with the same inputs and outputs that are also asked with what they lack."""
_ONES = (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64)
_WIDER = {
    TensorProto.FLOAT16: TensorProto.FLOAT,
    TensorProto.BFLOAT16: TensorProto.FLOAT,
    TensorProto.DOUBLE: TensorProto.FLOAT,
    TensorProto.FLOAT: TensorProto.INT32,
    **dict.fromkeys((TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL), TensorProto.INT32),
}
"""What each type is changed to, to see whether a refusal depends on it."""

When = dict[str, Test]


class Change(NamedTuple):
    """A change of a model: the features that it ends, and the model without them."""

    when: When
    model: Model


class Answer(NamedTuple):
    """Whether a node with these features was built; None if only a GPU could tell."""

    found: Mapping[str, Feature]
    built: bool | None


class Asked:
    """The builder with all its answers, by operator."""

    def __init__(self, builder: RtxBuilder, folder: Path, known: dict[str, bool | None]) -> None:
        self._builder, self._folder = builder, folder
        self.known = known
        self._told: set[str] = set()
        self.answers: defaultdict[str, list[Answer]] = defaultdict(list)

    def ask(self, model: Model, *, sound: bool = False) -> bool | None:
        """Return whether a model is built, and remember the answer.

        Args:
            model: The model.
            sound: Whether it is known to be right, so that a refusal tells something.
        """
        key = hashlib.sha256(model.proto.SerializeToString(deterministic=True)).hexdigest()
        if key not in self.known:
            self.known[key] = self.said(model).built
        built = self.known[key]
        if (built or sound) and key not in self._told:
            self._told.add(key)
            self.answers[model.node.op_type].append(Answer(described(model), built))
        return built

    def said(self, model: Model) -> Verdict:
        """Return the builder's whole answer, which is not remembered."""
        return verdict(self._builder, model.proto, model.given, self._folder)


def runs(model: Model) -> bool:
    """Return whether ONNX Runtime runs a model on the test's values."""
    try:
        Session(ir.serde.deserialize_model(model.proto)).run(model.given)
    except (*OrtFailure, HalfwiseError, *INVALID):
        return False
    return True


def plainer(model: Model, *, backwards: bool = False) -> Iterator[Change]:
    """Yield the model with one thing less that might be refused."""
    steps = [*_constants(model), *_dropped(model), *_attributes(model), *_retyped(model)]
    for when, change in reversed(steps) if backwards else steps:
        changed = change(model.copy())
        if changed is not None and (made := sound(changed)) is not None:
            yield Change(when, made)


Step = tuple[When, Callable[[Model], Model | None]]


def _constants(model: Model) -> Iterator[Step]:
    makers = {o: n for n in model.proto.graph.node for o in n.output if o}
    constants = {i.name for i in model.proto.graph.initializer}
    found = described(model)
    for k, name in enumerate(model.node.input):
        source = makers[name].input[0] if name in makers else name
        if name in makers:

            def direct(m: Model, k: int = k, source: str = source) -> Model:
                m.node.input[k] = source
                kept = [n for n in m.proto.graph.node if n.name == NODE]
                del m.proto.graph.node[:]
                m.proto.graph.node.extend(kept)
                return m

            yield {f"input {k}": [found[f"input {k}"]]}, direct
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

            yield {f"input {k}": [found[f"input {k}"]]}, constant


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
                while m.node.input and not m.node.input[-1]:
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
        name = f"attribute {attribute.name}"
        if name not in found:
            continue
        ones: list[int | list[int]] = []
        if attribute.type == attribute.INTS and attribute.ints and found[name] != 1:
            ones = [[1] * len(attribute.ints)]
        elif attribute.type == attribute.INT and attribute.i > 1:
            ones = [1]
        for value in (None, *ones):

            def other(
                m: Model, name: str = attribute.name, value: int | list[int] | None = value
            ) -> Model:
                kept = [a for a in m.node.attribute if a.name != name]
                del m.node.attribute[:]
                m.node.attribute.extend(kept)
                if value:
                    m.node.attribute.append(helper.make_attribute(name, value))
                return m

            yield {name: [found[name]]}, other


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
        if k and types.get(name) == TensorProto.INT64 and name in model.given:
            yield from filter(None, [_from_shapes(model, k)])


def _from_shapes(model: Model, k: int) -> Model | None:
    """Return a model whose input `k` is computed from shapes alone, with the test's value."""
    other = model.copy()
    name, graph = model.node.input[k], other.proto.graph
    given = [i for i in graph.input if i.name != name]
    del graph.input[:]
    graph.input.extend(given)
    graph.initializer.append(numpy_helper.from_array(np.asarray(model.given[name]), name))
    makers = [
        helper.make_node("Size", [given[0].name], ["size"]),
        helper.make_node("Sub", ["size", "size"], ["zero"]),
        helper.make_node("Add", [name, "zero"], ["sum"]),
        *graph.node,
    ]
    del graph.node[:]
    graph.node.extend(makers)
    other.node.input[k] = "sum"
    left = {n: v for n, v in model.given.items() if n != name}
    return sound(Model(other.proto, left))


def because(model: Model, ask: Callable[[Model], bool | None]) -> Iterator[When]:
    """Yield reasons why a model is refused: features each of whose change alone helps.

    If no change helps, changes are made one after another, and the reasons are those of the last
    model that is refused; none if none is built.
    """
    if when := helping(model, ask):
        yield when
        return
    for backwards in (False, True):
        now = model
        while change := next(plainer(now, backwards=backwards), None):
            if ask(change.model):
                yield helping(now, ask)
                break
            now = change.model


def helping(model: Model, ask: Callable[[Model], bool | None]) -> When:
    """Return the features each of whose change alone makes a model built."""
    found = [change.when for change in plainer(model) if ask(change.model)]
    return reduce(lambda one, other: other | one, found, {})


def lowest_type(low: Model, fmt: Format) -> When:
    """Return the feature that tells a low model from the same in FP32."""
    name = low_type(fmt).name.lower()
    found = described(low)
    slot = next((k for k, v in found.items() if k.startswith("type of") and v == name), "")
    return {slot: [name]} if slot else {}


def gather(asked: Asked) -> dict[str, list[When]]:
    """Ask everything, and return the reasons found by operator."""
    reasons: defaultdict[str, list[When]] = defaultdict(list)
    seen = Counter[tuple[Any, ...]]()
    for number, test in enumerate(models()):
        sys.stderr.write(f"\r{number} {test.node.op_type:30}")
        op = test.node.op_type
        form = (op, test.opset, *(len(f) > 0 for f in (*test.node.input, *test.node.output)))
        seen[form] += 1
        for model in (test, *(harder(test) if seen[form] <= HARDER else ())):
            built = asked.ask(model, sound=True)
            if built is False:
                reasons[op] += because(model, asked.ask)
            for fmt in (FP16, BF16) if built else ():
                for at in (model, *later(model)):
                    _ask_low(asked, at, fmt, reasons[op])
    return reasons


def _ask_low(asked: Asked, model: Model, fmt: Format, reasons: list[When]) -> None:
    def ask(plain: Model) -> bool | None:
        other = lowered(plain, fmt, by_schema=True)
        return None if other is None or not asked.ask(plain) else asked.ask(other)

    low = lowered(model, fmt, by_schema=True)
    if low is None or not asked.ask(model) or asked.ask(low, sound=True) is not False:
        return
    kind = lowest_type(low, fmt)
    alike = [
        a.built for a in asked.answers[model.node.op_type] if Refused(kind, True).fits(a.found)
    ]
    if len(alike) > ENOUGH and not any(alike):
        reasons.append(kind)
        return
    when = helping(model, ask)
    if when or all(asked.ask(computed) for computed in _computed(model)):
        # Otherwise the Casts are the reason, not the type.
        reasons.append(when | kind)


def conditions(reasons: list[When], answers: list[Answer]) -> list[Refused]:
    """Return what refuses an operator's nodes, checked against all answers.

    Values of one feature are joined. Reasons that a built node has too are narrowed to the types
    and ranks with which it was refused. What no reason explains is described by its types, ranks
    and attributes.
    """
    refused = [a.found for a in answers if a.built is False]
    built = [a.found for a in answers if a.built]
    found = [
        _widened(Refused(kept, certain=True), built)
        for when in _joined(reasons)
        for kept in _narrowed(when, refused, built)
    ]
    left = [r for r in refused if not any(each.fits(r) for each in found)]
    observed = _joined(when for r in left for when in _observed(r, built))
    found += [_widened(Refused(when, certain=False), built) for when in observed]
    if sum(not any(each.fits(r) for each in found) for r in left) > MANY * len(answers):
        found.append(Refused({}, certain=False))
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
            others = [n for n in found if n.startswith(("attribute", "input"))]
            for name in (*_describing(found), *others):
                more = {**when, name: [found[name]]}
                if name not in when and not any(Refused(more, certain=True).fits(b) for b in built):
                    narrow.append(more)
                    break
    return _joined(narrow)


def _describing(found: Mapping[str, Feature]) -> list[str]:
    order = ("type of input", "type of output", "rank of input")
    return [n for start in order for n in found if n.startswith(start)]


def _widened(refused: Refused, built: list[Any]) -> Refused:
    """Return a refusal for all numbers but those that were built, where these are few."""
    when = dict(refused.when)
    for name, test in refused.when.items():
        if not name.startswith("attribute") or not isinstance(test, list):
            continue
        others = {k: v for k, v in when.items() if k != name}
        rest = Refused(others, certain=True)
        taken = {b[name] for b in built if name in b and rest.fits(b)}
        numbers = all(isinstance(v, int | float) for v in test)
        if numbers and len(taken) <= FEW and not {*test} <= {0, 1}:
            when[name] = {"not": sorted(taken, key=str)}
    return Refused(when, refused.certain)


def _observed(found: Mapping[str, Feature], built: list[Any]) -> list[When]:
    """Return the first feature, or two types or ranks, that no built node has; or nothing."""
    single = [n for start in ("output", "input", "attribute") for n in found if n.startswith(start)]
    names = _describing(found)
    pairs = [pair for pair in combinations((*names, *single), 2) if pair[0] in names]
    for chosen in [*((n,) for n in (*names, *single)), *pairs]:
        when: When = {n: [found[n]] for n in chosen}
        if not any(Refused(when, certain=False).fits(b) for b in built):
            return [when]
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


def whole(asked: Asked) -> None:
    """Ask about the tests with several nodes: if one is built, so are all of its nodes."""
    for case in cases():
        proto = case.model
        if proto is None or (len(proto.graph.node) == 1 and not proto.functions):
            continue
        given = dict(zip((i.name for i in inputs_of(proto)), first_inputs(case), strict=False))
        key = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
        if key not in asked.known:
            asked.known[key] = asked.said(Model(proto, given)).built
        if asked.known[key]:
            try:
                network = network_from_proto(proto)
            except HalfwiseError:
                continue
            for node in network.model.graph.all_nodes():
                asked.answers[node.op_type].append(Answer(features(node, network.opset), True))


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
    kinds = {
        "sequence": helper.make_sequence_type_proto,
        "optional": helper.make_optional_type_proto,
    }
    for name, make in kinds.items():
        kind = make(helper.make_tensor_type_proto(TensorProto.FLOAT, [4]))
        given, same = (helper.make_value_info(n, kind) for n in "xy")
        if not asked.said(
            one(helper.make_node("Identity", ["x"], ["y"], NODE), [given], [same])
        ).built:
            refused.append(name)
    return sorted(refused)


def opsets(asked: Asked) -> tuple[int, int]:
    """Return the first and the last opset of this onnx with which an Add is built."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    add = helper.make_node("Add", ["x", "x"], ["y"], NODE)
    all_opsets = range(1, onnx.defs.onnx_opset_version() + 1)
    taken = [o for o in all_opsets if asked.said(one(add, [x], [y], opset=o)).built]
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
            whole(asked)
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
        "version": "1.7.1",
        "asked": datetime.now(UTC).date().isoformat(),
        "opsets": known_opsets,
        "types": known_types,
        "never": sorted(never),
        "unknown": unknown,
        "refused": found,
    }
    PAGE.write_text(lines(page), encoding="utf-8")


def lines(page: Mapping[str, Any]) -> str:
    """Return the page as JSON with a line per entry, and per operator."""

    def block(value: Mapping[str, Any], indent: str, deep: int) -> str:
        entries = (
            f"{indent}{json.dumps(k)}: "
            + (block(v, indent + " ", deep - 1) if deep and isinstance(v, dict) else json.dumps(v))
            for k, v in value.items()
        )
        return "{\n" + ",\n".join(entries) + "\n" + indent[1:] + "}"

    return block(page, " ", 1) + "\n"


def known_types_in(answer: Answer, refused: list[str]) -> bool:
    """Return whether a node has a tensor of a type that is refused everywhere."""
    return any(k.startswith("type of") and v in refused for k, v in answer.found.items())


if __name__ == "__main__":
    main()
