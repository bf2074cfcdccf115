"""Ask TensorRT's parser and builder what they take, and write src/halfwise/graph/taken.json.

Every node test of the onnx package with one node is asked, as it is, as halfwise would write it in
FP16 and BF16, and with one thing changed: where an operand comes from, a Boolean, types, ranks, an
operand or output less or more, an attribute. Where the answer is no, the features whose change
alone helps are the reason. No GPU is used.

usage: python tools/builder_facts.py [--page PAGE] [--notes NOTES]

As many processes as there are cores ask. NOTES keeps the answers, so that a second run asks only
what is new.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from itertools import chain, combinations, count, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from bench.building import Place, in_processes, verdict
from bench.one_node import (
    INVALID,
    NODE,
    Array,
    Form,
    Model,
    Operand,
    Source,
    Use,
    described,
    form_of,
    later,
    lowered,
    models,
)
from bench.onnx_cases import cases, first_inputs, inputs_of
from halfwise.emulation.ort import OrtFailure, Session
from halfwise.errors import HalfwiseError
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.casts import low_type
from halfwise.graph.loading import network_from_proto
from halfwise.graph.taken import Feature, Refused, Test, features, forms
from tests.judges import RtxBuilder

PAGE = Path(__file__).resolve().parent.parent / "src" / "halfwise" / "graph" / "taken.json"
FEW = 2
"""Most numbers taken of an attribute for which all others count as refused, if any was."""
FAR = 1000
"""An opset far beyond every known one."""
NEIGHBOURS = 1
"""Tests of an operator with alike inputs, outputs and attributes whose neighbours are asked."""
FORMS = 6
"""Tests of an operator and rank whose neighbours are asked; those refused do not count."""
LONGER = 4
"""How many times as long an axis is made: kernels may need some length."""
SLOW = ("GRU", "LSTM", "RNN")
"""Operators that take seconds to build: their neighbours are not asked."""
EXPLAINED = 1
"""Forms that are refused for one feature, of which neighbours are asked."""
_ADDED = (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64)
"""Types of operands that may be computed from others by an addition."""
_TYPES = (
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16),
    *(TensorProto.INT32, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL),
)
"""What types of operands are changed to."""

When = dict[str, Test]


class Answer(NamedTuple):
    """Whether a node with these features was built; None if only a GPU could tell."""

    found: Mapping[str, Feature]
    built: bool | None


class Asked:
    """A builder with all its answers."""

    def __init__(self, place: Place, known: Mapping[str, bool | None]) -> None:
        self._place = place
        self.known = dict(known)
        self._told: set[str] = set()
        self.answers: list[Answer] = []

    def ask(self, model: Model, *, sound: bool = False) -> bool | None:
        """Return whether a model is built, and remember the answer.

        Args:
            model: The model.
            sound: Whether it is known to be right, so that a refusal tells something.
        """
        key = key_of(model)
        if key not in self.known:
            self.known[key] = built_of(self._place, model)
        built = self.known[key]
        if (built or sound) and key not in self._told:
            self._told.add(key)
            self.answers.append(Answer(described(model), built))
        return built


def key_of(model: Model) -> str:
    """Return the key under which the answer about a model is kept."""
    return hashlib.sha256(model.proto.SerializeToString(deterministic=True)).hexdigest()


def runs(model: Model) -> bool:
    """Return whether ONNX Runtime runs a model on its values; in a process, as it may crash."""
    child = os.fork()
    if not child:
        code = 1
        with suppress(*OrtFailure, HalfwiseError, *INVALID):
            Session(ir.serde.deserialize_model(model.proto)).run(model.given)
            code = 0
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


class Change(NamedTuple):
    """A form that differs from another in one thing.

    Attributes:
        before: The feature that ends, and its value; nothing if only new ones begin.
        after: The feature that begins; nothing if only old ones end.
        model: The model of the changed form.
        form: The changed form.
    """

    before: When
    after: When
    model: Model
    form: Form


def changes(form: Form, values: Mapping[str, Collection[Any]]) -> Iterator[Change]:
    """Yield the forms that differ from a form in one thing and are valid.

    Args:
        form: A form that is valid.
        values: Per attribute, values that tests of the operator have.
    """
    model = form.model()
    if model is None:
        return
    old = described(model)
    same_graph = chain(_placed(form), _typed(form))
    other_graph = chain(_larger(form), _fewer(form), _attributes(form, values), _ranked(form))
    for other in chain(same_graph, other_graph):
        changed = other.model()
        if changed is None:
            continue
        new = described(changed)
        # What a change of values or places computes is known to be valid.
        if old != new and (_same(form, other) or runs(changed)):
            yield Change(_ended(old, new), _ended(new, old), changed, other)


def _same(form: Form, other: Form) -> bool:
    """Return whether two forms differ at most in types, and in where operands come from."""
    shapes = [[o and o.value.shape for o in f.operands] for f in (form, other)]
    return (
        form.attributes == other.attributes
        and form.outputs == other.outputs
        and shapes[0] == shapes[1]
    )


_KINDS = ("attribute", "input", "value", "output", "type", "rank", "last")


def _ended(before: Mapping[str, Feature], after: Mapping[str, Feature]) -> When:
    """Return the first feature of one form that another has not, in the order of `_KINDS`."""
    differing = [k for k in before if k not in after or after[k] != before[k]]
    differing.sort(key=lambda k: (_KINDS.index(k.split()[0]), "output" in k))
    for name in differing[:1]:
        gone = name not in after and name.startswith(("input", "output"))
        return {name: {"not": []} if gone else [before[name]]}
    return {}


def _with(form: Form, k: int, operand: Operand | None) -> Form:
    operands = (*form.operands[:k], operand, *form.operands[k + 1 :])
    return replace(form, operands=operands)


def _placed(form: Form) -> Iterator[Form]:
    """Yield the form with operands from other places, and with Booleans negated."""
    for k, operand in enumerate(form.operands):
        if operand is None:
            continue
        possible: dict[Source, bool] = {
            "constant": k > 0,
            "input": True,
            "computed": operand.dtype in _ADDED,
            "shape": k > 0 and operand.dtype == TensorProto.INT64,
        }
        for place, may in possible.items():
            if may and place != operand.place:
                yield _with(form, k, replace(operand, place=place))
        if k and operand.dtype == TensorProto.BOOL and operand.value.size == 1:
            yield _with(form, k, Operand(~operand.value, "constant"))
    later = [o and replace(o, place="constant") for o in form.operands[1:]]
    if len(later) > 1:
        # As exporters write them.
        yield replace(form, operands=(form.operands[0], *later))


def _typed(form: Form) -> Iterator[Form]:
    """Yield the form with each type of its operands changed to others."""
    known = [operand for operand in form.operands if operand is not None]
    for old in dict.fromkeys(operand.dtype for operand in known):
        for new in _TYPES:
            dtype = helper.tensor_dtype_to_np_dtype(new)
            if new != old:
                yield replace(
                    form,
                    operands=tuple(
                        replace(o, value=o.value.astype(dtype))
                        if o is not None and o.dtype == old
                        else o
                        for o in form.operands
                    ),
                )


_USES: tuple[Use, ...] = ("used", "unread")


def _fewer(form: Form) -> Iterator[Form]:
    """Yield the form with an optional operand less, and with other outputs."""
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    for k, operand in enumerate(form.operands):
        slots = form.schema.inputs
        if operand is not None and k < len(slots) and slots[k].option == optional:
            other = _with(form, k, None)
            while other.operands and other.operands[-1] is None:
                other = replace(other, operands=other.operands[:-1])
            yield other
    uses = form.outputs
    for k in range(1, len(uses)):
        # ONNX Runtime crashes where a BatchNormalization lacks one between others.
        yield replace(form, outputs=uses[:k])
        yield replace(form, outputs=(*uses[:k], "unread", *uses[k + 1 :]))
    if len(uses) < len(form.schema.outputs):
        for use in _USES:
            yield replace(form, outputs=(*uses, use))


def _attributes(form: Form, values: Mapping[str, Collection[Any]]) -> Iterator[Form]:
    """Yield the form with one attribute changed to its default, or to what a test has."""
    kinds = onnx.defs.OpSchema.AttrType
    for name, known in form.schema.attributes.items():
        default = helper.get_attribute_value(known.default_value) if known.default_value.type else 0
        now = form.attributes.get(name, default)
        others: list[Any] = [None] * (name in form.attributes)
        if known.type == kinds.FLOAT:
            others += [now * 0.7 + 0.1]
        elif known.type == kinds.INT:
            others += [1 - now] if now in (0, 1) else [1]
        elif known.type == kinds.INTS and form.attributes.get(name):
            others += [[1] * len(now)]
        elif known.type == kinds.STRING:
            others += [v for v in values.get(name, ()) if v != now]
        for value in others:
            rest = {n: v for n, v in form.attributes.items() if n != name}
            yield replace(form, attributes=rest if value is None else {**rest, name: value})


def _larger(form: Form) -> Iterator[Form]:
    """Yield the form with the last axis of the first operand longer, and all of that length."""
    first = form.operands[0] if form.operands else None
    if first is None or first.value.ndim < 2 or first.value.shape[-1] < 2:
        return
    length = first.value.shape[-1]

    def longer(operand: Operand) -> Operand:
        times = [LONGER if n == length else 1 for n in operand.value.shape]
        return replace(operand, value=np.tile(operand.value, times))

    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    operands = [longer(o) if o is not None and o.dtype in floats else o for o in form.operands]
    yield replace(form, operands=tuple(operands))


def _ranked(form: Form) -> Iterator[Form]:
    """Yield the form with an axis of one element more or less, of the first operand or of all."""
    first = form.operands[0] if form.operands else None
    if first is None:
        return
    rank = first.value.ndim
    alike = {k for k, o in enumerate(form.operands) if o is not None and o.value.ndim == rank}
    for chosen in ({0}, alike) if len(alike) > 1 else ({0},):
        for grow in (True, False):
            operands = [
                o if o is None or k not in chosen else _axis(o, grow)
                for k, o in enumerate(form.operands)
            ]
            if any(o is not None for o in operands):
                yield replace(form, operands=tuple(operands), ranks=())


def _axis(operand: Operand, grow: bool) -> Operand:
    value = operand.value
    return replace(operand, value=value[None] if grow else value.reshape(-1, *value.shape[2:]))


def lowest_type(low: Model, fmt: Format) -> When:
    """Return the feature that tells a low model from the same in FP32."""
    name = low_type(fmt).name.lower()
    found = described(low)
    slot = next((k for k, v in found.items() if k.startswith("type of") and v == name), "")
    return {slot: [name]} if slot else {}


class Gathering:
    """Asks about an operator's tests and their neighbours, and collects reasons of refusals."""

    def __init__(self, asked: Asked, tests: Sequence[Model]) -> None:
        self._asked, self._tests = asked, tests
        self._values = defaultdict[str, dict[Any, None]](dict)
        for a in (a for test in tests for a in test.node.attribute if a.type == a.STRING):
            self._values[a.name][helper.get_attribute_value(a)] = None
        self._explained = Counter[str]()
        self.reasons: list[When] = []

    def all(self) -> None:
        """Ask everything."""
        seen = Counter[Any]()
        for test in self._tests:
            found = described(test)
            kinds = [(k, v) for k, v in found.items() if k.startswith(("input", "output", "type"))]
            alike = (test.opset, *kinds, *(a.name for a in test.node.attribute))
            seen[alike] += 1
            built = self._asked.ask(test, sound=True)
            form = form_of(test)
            rank = found.get("rank of input 0")
            asked = seen[alike] <= NEIGHBOURS and seen[rank] < FORMS
            seen[rank] += asked and bool(built)
            if form is not None and asked and form.op not in SLOW:
                self._neighbours(form, test)
            if built and asked:
                for fmt, at in product((FP16, BF16), (test, *later(test))):
                    self._low(at, fmt)

    def _neighbours(self, form: Form, test: Model) -> None:
        """Ask about the forms that differ from one, and about theirs where the answer differs."""
        built = self._asked.ask(test)
        if built is None:
            return
        near = list(changes(form, self._values))
        for change in near:
            answer = self._asked.ask(change.model, sound=True)
            if built and answer is False:
                self._explain(change)
        if not built:
            self.reasons += [self._helping(near)]

    def _explain(self, change: Change) -> None:
        """Find why a form is refused that differs in one thing from one that is built."""
        key = json.dumps(change.after, sort_keys=True)
        self._explained[key] += 1
        if self._explained[key] <= EXPLAINED:
            near = list(changes(change.form, self._values))
            self.reasons.append(self._helping(near) | change.after)

    def _helping(self, near: Sequence[Change]) -> When:
        """Return the features each of whose change alone makes a form built."""
        helped = [c.before for c in near if self._asked.ask(c.model, sound=True)]
        return reduce(lambda one, other: other | one, helped, {})

    def _low(self, model: Model, fmt: Format) -> None:
        """Ask about a model as halfwise would write it in a low format."""
        low = lowered(model, fmt, by_schema=True)
        if low is None or not self._asked.ask(model):
            return
        if self._asked.ask(low, sound=True) is False:
            kind = lowest_type(low, fmt)
            form = form_of(model)
            helped: When = {}
            for change in changes(form, {}) if form and form.op not in SLOW else ():
                other = lowered(change.model, fmt, by_schema=True)
                if other is not None and self._asked.ask(change.model) and self._asked.ask(other):
                    helped = change.before | helped
            self.reasons.append(helped | kind)


def conditions(reasons: list[When], answers: list[Answer]) -> list[Refused]:
    """Return what refuses an operator's nodes, checked against all answers.

    Values of one feature are joined. Reasons that a built node has too are narrowed to the types
    and ranks with which it was refused. What no reason explains is described by its types, ranks
    and attributes, as far as no built node has them.
    """
    refused = [a.found for a in answers if a.built is False]
    built = [a.found for a in answers if a.built]
    wide = [
        _widened(kept, built)
        for when in _joined(filter(None, reasons))
        for kept in _narrowed(when, refused, built)
    ]
    lengths = any(name.startswith("last") for when in wide for name in when)
    found = [Refused(when, _seen(when, refused, lengths=lengths)) for when in wide]
    left = [r for r in refused if not any(each.fits(r) for each in found)]
    observed = _joined(when for r in left for when in _observed(r, built))
    found += [Refused(_widened(when, built)) for when in observed]
    return _needed(found, refused)


def _seen(when: When, refused: list[Any], *, lengths: bool = False) -> Mapping[str, list[Feature]]:
    """Return the features that tell forms apart, with their values in refused nodes.

    With `lengths`, those of last axes too: where one was a reason, others may be.
    """
    seen: defaultdict[str, set[Feature]] = defaultdict(set)
    for found in refused:
        if _fits(when, found):
            longest = (n for n in found if lengths and n.startswith("last axis of input"))
            for name in (*forms(found), *longest):
                seen[name].add(found[name])
    return {name: sorted(values, key=str) for name, values in sorted(seen.items())}


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
    """Return a reason with one more feature of each refused node, if built nodes fit it too."""
    if not any(_fits(when, b) for b in built):
        return [when]
    narrow = []
    for found in refused:
        if _fits(when, found):
            others = [n for n in found if n.startswith(("attribute", "input", "value", "output"))]
            for name in (*_describing(found), *others):
                more = {**when, name: [found[name]]}
                if more != when and not any(_fits(more, b) for b in built):
                    narrow.append(more)
                    break
    return _joined(narrow)


def _fits(when: When, found: Mapping[str, Feature]) -> bool:
    return Refused(when).fits(found)


def _describing(found: Mapping[str, Feature]) -> list[str]:
    order = ("type of input", "type of output", "rank of input", "last axis of input")
    return [n for start in order for n in found if n.startswith(start)]


def _widened(reason: When, built: list[Any]) -> When:
    """Return a reason for all numbers but those that were built, where these are few."""
    when = dict(reason)
    for name, test in reason.items():
        if not name.startswith("attribute") or not isinstance(test, list):
            continue
        others = {k: v for k, v in when.items() if k != name}
        taken = {b[name] for b in built if name in b and _fits(others, b)}
        numbers = all(isinstance(v, int | float) for v in test)
        if numbers and len(taken) <= FEW and not {*test} <= {0, 1}:
            when[name] = {"not": sorted(taken, key=str)}
    return when


def _observed(found: Mapping[str, Feature], built: list[Any]) -> list[When]:
    """Return the first feature, or two types or ranks, that no built node has; or nothing."""
    single = [n for start in ("output", "input", "attribute") for n in found if n.startswith(start)]
    names = _describing(found)
    pairs = [pair for pair in combinations((*names, *single), 2) if pair[0] in names]
    # A rank alone is no reason: few tests have another.
    alone = [n for n in (*names, *single) if not n.startswith(("rank", "last"))]
    for chosen in [*((n,) for n in alone), *pairs]:
        when: When = {n: [found[n]] for n in chosen}
        if not any(_fits(when, b) for b in built):
            return [when]
    return []


def _needed(found: list[Refused], refused: list[Any]) -> list[Refused]:
    """Return the refusals without those that explain nothing that others do not."""
    needed: list[Refused] = []
    explained: set[int] = set()
    fits = [(each, {k for k, r in enumerate(refused) if each.fits(r)}) for each in found]
    for each, which in sorted(fits, key=lambda f: (not f[0].seen, len(f[0].when), -len(f[1]))):
        if which - explained:
            needed.append(each)
            explained |= which
    return needed


def whole() -> Iterator[Model]:
    """Yield the tests with several nodes: if one is built, so are all of its nodes."""
    for case in cases():
        proto = case.model
        if proto is not None and (len(proto.graph.node) > 1 or proto.functions):
            names = (i.name for i in inputs_of(proto))
            yield Model(proto, dict(zip(names, first_inputs(case), strict=False)))


def built_of(place: Place, model: Model) -> bool | None:
    """Return whether a model is built."""
    return verdict(place, model.proto, model.given).built


class Answers(NamedTuple):
    """What was asked: by model, and by operator its forms and why some are refused."""

    known: dict[str, bool | None]
    by_op: defaultdict[str, list[Answer]]
    reasons: dict[str, list[When]]


def of_operator(place: Place, job: tuple[Sequence[Model], Mapping[str, bool | None]]) -> Answers:
    """Return the answers about an operator's tests and their neighbours.

    Args:
        place: The builder.
        job: The tests, and answers that are known.
    """
    tests, known = job
    asked = Asked(place, known)
    gathering = Gathering(asked, tests)
    gathering.all()
    op = tests[0].node.op_type
    by_op = defaultdict[str, list[Answer]](list, {op: asked.answers})
    return Answers(asked.known, by_op, {op: gathering.reasons})


def gathered(known: dict[str, bool | None], notes: Path | None) -> Answers:
    """Ask about all tests; `notes` keeps what was answered so far."""
    tests = defaultdict[str, list[Model]](list)
    for model in models():
        tests[model.node.op_type].append(model)
    jobs = [(each, known) for each in sorted(tests.values(), key=len, reverse=True)]
    answers = Answers(dict(known), defaultdict(list), {})
    for found in in_processes(of_operator, jobs):
        answers.known.update(found.known)
        answers.by_op.update(found.by_op)
        answers.reasons.update(found.reasons)
        sys.stderr.write(f"{len(answers.by_op)} of {len(jobs)}: {', '.join(found.by_op)}\n")
        if notes:
            notes.write_text(json.dumps(answers._asdict()), encoding="utf-8")
    several = list(whole())
    new = [model for model in several if key_of(model) not in answers.known]
    for model, built in zip(new, in_processes(built_of, new), strict=True):
        answers.known[key_of(model)] = built
    for model in several:
        if answers.known[key_of(model)]:
            with suppress(HalfwiseError):
                network = network_from_proto(model.proto)
                for node in network.model.graph.all_nodes():
                    found_features = features(node, network.opset)
                    answers.by_op[node.op_type].append(Answer(found_features, built=True))
    if notes:
        notes.write_text(json.dumps(answers._asdict()), encoding="utf-8")
    return answers


def untested(place: Place, known: Iterable[str]) -> list[str]:
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
        if verdict(place, model.proto, {}).lacks:
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


def types(place: Place) -> list[str]:
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
        if number and not any(built_of(place, m) for m in (copied, read)):
            refused.append(name.lower())
    kinds = {
        "sequence": helper.make_sequence_type_proto,
        "optional": helper.make_optional_type_proto,
    }
    for name, make in kinds.items():
        kind = make(helper.make_tensor_type_proto(TensorProto.FLOAT, [4]))
        given, same = (helper.make_value_info(n, kind) for n in "xy")
        copied = one(helper.make_node("Identity", ["x"], ["y"], NODE), [given], [same])
        if not built_of(place, copied):
            refused.append(name)
    return sorted(refused)


def first_opset(place: Place) -> int:
    """Return the first opset with which an Add is built; there is no last one."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    add = helper.make_node("Add", ["x", "x"], ["y"], NODE)

    def built(opset: int) -> bool | None:
        return built_of(place, one(add, [x], [y], opset=opset))

    if not built(FAR):
        raise SystemExit(f"opset {FAR} is refused: the last opset has to be found, too")
    return next(opset for opset in count(1) if built(opset))


def largest_k(place: Place) -> Refused:
    """Return the refusal of a TopK with a larger K than is built."""
    built, refused = 1, 1 << 16
    while refused - built > 1:
        k = (built + refused) // 2
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1 << 16])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, k])
        i = helper.make_tensor_value_info("i", TensorProto.INT64, [1, k])
        node = helper.make_node("TopK", ["x", "k"], ["y", "i"], NODE)
        model = one(node, [x], [y, i], {"k": np.array([k])})
        built, refused = (k, refused) if built_of(place, model) else (built, k)
    when: When = {"value of input 1": {"above": built}}
    return Refused(when, _seen(when, [{**described(model), "value of input 1": refused}]))


def main() -> None:
    """Ask, and write what was answered."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--notes", type=Path)
    options = parser.parse_args()
    kept = options.notes if options.notes and options.notes.exists() else None
    known = json.loads(kept.read_text(encoding="utf-8"))["known"] if kept else {}
    answers = gathered(known, options.notes)
    with tempfile.TemporaryDirectory() as folder, RtxBuilder() as builder:
        place = Place(builder, Path(folder))
        known_types, first = types(place), first_opset(place)
        limits = {"TopK": [largest_k(place)]}
        never = untested(place, answers.by_op)
        page = {
            "version": builder.version,
            "asked": datetime.now(UTC).date().isoformat(),
            "first_opset": first,
            "types": known_types,
            **told(answers.by_op, answers.reasons, known_types, limits, never),
        }
    options.page.write_text(lines(page), encoding="utf-8")


def told(
    answers: Mapping[str, list[Answer]],
    reasons: Mapping[str, list[When]],
    refused_types: list[str],
    limits: Mapping[str, list[Refused]],
    never: list[str],
) -> dict[str, Any]:
    """Return which operators are never built, cannot be known, or are refused in some forms."""
    found: dict[str, Any] = {}
    unknown: list[str] = []
    never = [*never]
    for op, given in sorted(answers.items()):
        tally = Counter(a.built for a in given)
        if not tally[True]:
            (unknown if tally[None] else never).append(op)
            continue
        usable = [a for a in given if not known_types_in(a, refused_types)]
        met = [*limits.get(op, []), *conditions(reasons.get(op, []), usable)]
        if met:
            found[op] = [{"when": dict(m.when), "seen": m.seen} for m in met]
    return {"never": sorted(never), "unknown": unknown, "refused": found}


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
