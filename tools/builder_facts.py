"""Ask TensorRT's parser and builder what they take, and write src/halfwise/graph/taken.json.

Every node test of the onnx package with one node is asked, as it is, as halfwise would write it in
FP16 and BF16, and with one thing changed: where an operand comes from, a Boolean, types, ranks, an
operand or output less or more, an attribute. Forms that no built one is like are refused
(`conditions`). No GPU is used.

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
from itertools import chain, count, product
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
from bench.reasons import Answer, When, conditions, order, seen_in
from halfwise.emulation.ort import OrtFailure, Session
from halfwise.errors import HalfwiseError
from halfwise.formats import BF16, FP16, Format
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import QUANTISED
from halfwise.graph.taken import Refused, features
from tests.judges import RtxBuilder

PAGE = Path(__file__).resolve().parent.parent / "src" / "halfwise" / "graph" / "taken.json"
FAR = 1000
"""An opset far beyond every known one."""
NEIGHBOURS = 1
"""Tests of an operator with alike inputs, outputs and attributes whose neighbours are asked."""
FORMS = 6
"""Tests of an operator and rank whose neighbours are asked; those refused do not count."""
SLOW = ("GRU", "LSTM", "RNN")
"""Operators that take seconds to build: their neighbours are not asked."""
_ADDED = (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64)
"""Types of operands that may be computed from others by an addition."""
_TYPES = (
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16),
    *(TensorProto.INT32, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL),
)
"""What types of operands are changed to."""


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


def valid(form: Form, *, runs: bool) -> bool:
    """Return whether a form is valid, in a process of its own, as ONNX's inference may crash.

    Args:
        form: The form.
        runs: Whether ONNX Runtime must run it, too.
    """
    child = os.fork()
    if not child:
        code = 1
        with suppress(*OrtFailure, HalfwiseError, *INVALID):
            model = form.model()
            if model is not None and runs:
                Session(ir.serde.deserialize_model(model.proto)).run(model.given)
            code = int(model is None)
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def changes(form: Form, values: Mapping[str, Collection[Any]]) -> Iterator[Form]:
    """Yield the forms that differ from a form in one thing and are valid.

    Args:
        form: A form that is valid.
        values: Per attribute, values that tests of the operator have.
    """
    same_graph = chain(_placed(form), _typed(form))
    other_graph = chain(_fewer(form), _attributes(form, values), _ranked(form))
    for other in chain(same_graph, other_graph):
        # What a change of values or places computes is known to be valid.
        if valid(other, runs=not _same(form, other)):
            yield other


def _same(form: Form, other: Form) -> bool:
    """Return whether two forms differ at most in types, and in where operands come from."""
    shapes = [[o and o.value.shape for o in f.operands] for f in (form, other)]
    return (
        form.attributes == other.attributes
        and form.outputs == other.outputs
        and shapes[0] == shapes[1]
    )


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
        yield replace(form, outputs=uses[:k])
        for use in ("unread", ""):
            yield replace(form, outputs=(*uses[:k], use, *uses[k + 1 :]))
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


class Gathering:
    """Asks about an operator's tests and the forms that differ from them in one thing."""

    def __init__(self, asked: Asked, tests: Sequence[Model]) -> None:
        self._asked, self._tests = asked, tests
        self._values = defaultdict[str, dict[Any, None]](dict)
        for a in (a for test in tests for a in test.node.attribute if a.type == a.STRING):
            self._values[a.name][helper.get_attribute_value(a)] = None
        self._changing = set[str]()

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
            if form is not None and asked and built is not None and form.op not in SLOW:
                self._near(form, test)
            if built and asked:
                for fmt, at in product((FP16, BF16), (test, *later(test))):
                    self._low(at, fmt)

    def _near(self, form: Form, model: Model, *, further: bool = True) -> None:
        """Ask about the forms that differ from one in one thing.

        With `further`, also about those that differ from these, where a new thing changes the
        answer.
        """
        before, answer = described(model), self._asked.ask(model)
        for other in changes(form, self._values):
            changed = other.model()
            assert changed is not None
            if {answer, self._asked.ask(changed, sound=True)} == {True, False} and further:
                after = described(changed)
                new = [(order(k), k, v) for k, v in after.items() if before.get(k) != v]
                thing = str(min(new, default=""))
                if thing not in self._changing:
                    self._changing.add(thing)
                    self._near(other, changed, further=False)

    def _low(self, model: Model, fmt: Format) -> None:
        """Ask about a model as halfwise would write it in a low format."""
        low = lowered(model, fmt, by_schema=True)
        if (
            low is None
            or not self._asked.ask(model)
            or self._asked.ask(low, sound=True) in (True, None)
        ):
            return
        form = form_of(model)
        for other in changes(form, {}) if form and form.op not in SLOW else ():
            changed = other.model()
            assert changed is not None
            low = lowered(changed, fmt, by_schema=True)
            if low is not None and self._asked.ask(changed):
                self._asked.ask(low, sound=True)


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
    """What was asked: by model, and by operator its forms."""

    known: dict[str, bool | None]
    by_op: defaultdict[str, list[Answer]]


def of_operator(place: Place, job: tuple[Sequence[Model], Mapping[str, bool | None]]) -> Answers:
    """Return the answers about an operator's tests and their neighbours.

    Args:
        place: The builder.
        job: The tests, and answers that are known.
    """
    tests, known = job
    asked = Asked(place, known)
    Gathering(asked, tests).all()
    by_op = defaultdict[str, list[Answer]](list, {tests[0].node.op_type: asked.answers})
    return Answers(asked.known, by_op)


def gathered(known: dict[str, bool | None], notes: Path | None) -> Answers:
    """Ask about all tests; `notes` keeps what was answered so far."""
    tests = defaultdict[str, list[Model]](list)
    for model in chain(models(), attentions()):
        tests[model.node.op_type].append(model)
    jobs = [(each, known) for each in sorted(tests.values(), key=len, reverse=True)]
    answers = Answers(dict(known), defaultdict(list))
    for found in in_processes(of_operator, jobs):
        answers.known.update(found.known)
        answers.by_op.update(found.by_op)
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


def attentions() -> Iterator[Model]:
    """Yield forms of Attention with heads of 64 channels: tests have 8, which no kernel takes."""
    tri = np.tri(16, dtype=bool)
    for kind, attributes, mask, (heads, shared), rank in product(
        (TensorProto.FLOAT16, TensorProto.BFLOAT16),
        ({}, {"is_causal": 1}, {"scale": 0.25}),
        ("", "bool", "float", "constant"),
        ((4, 4), (8, 2)),
        (3, 4),
    ):
        sizes = [
            [1, each, 16, 64] if rank == len("bhsc") else [1, 16, each * 64]
            for each in (heads, shared, shared, heads)
        ]
        many = {} if rank == len("bhsc") else {"q_num_heads": heads, "kv_num_heads": shared}
        names = ["q", "k", "v", *(["m"] if mask else [])]
        node = helper.make_node("Attention", names, ["y"], NODE, **attributes, **many)
        *given, end = map(helper.make_tensor_value_info, "qkvy", [kind] * 4, sizes)
        if mask in ("bool", "float"):
            read = kind if mask == "float" else TensorProto.BOOL
            given.append(helper.make_tensor_value_info("m", read, [16, 16]))
        yield one(node, given, [end], {"m": tri} if mask == "constant" else {})


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
    return Refused(when, seen_in(when, [{**described(model), "value of input 1": refused}]))


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
            **told(answers.by_op, known_types, limits, never),
        }
    options.page.write_text(lines(page), encoding="utf-8")


def told(
    answers: Mapping[str, list[Answer]],
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
        met = [*limits.get(op, []), *filter(_is_no_chance, conditions(usable))]
        if met and not op.startswith(QUANTISED):
            found[op] = [{"when": dict(m.when), "seen": m.seen} for m in met]
    return {"never": sorted(never), "unknown": unknown, "refused": found}


def _is_no_chance(refused: Refused) -> bool:
    """Return whether a change of a feature alone was seen to help, or no rank is in the reason.

    Ranks tell many tests apart by chance: of Slice, only those of rank 4 were asked in FP16.
    """
    return bool(refused.seen) or not any(name.startswith("rank") for name in refused.when)


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
