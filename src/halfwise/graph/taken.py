"""What TensorRT's parser and builder take of ONNX's operators, as they answered when asked.

`taken.json` is written by tools/builder_facts.py, which asks the ONNX parser and the builder of
TensorRT for RTX. It describes refused nodes by features. No table here is typed by hand.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from msgspec import Struct

Feature = str | int | float | None
"""A value of one feature; lists become their text, such as "[1, 2]"."""
Test = list[Feature] | dict[str, Any]
"""Values that are refused; {"not": values}: all others; {"above": n}: numbers larger than n."""


class Refused(Struct, frozen=True):
    """Nodes that are refused: all features named have one of the values.

    Attributes:
        when: Per feature (see `features`), the values.
        seen: Per feature that tells forms apart (see `forms`), the values that refused nodes had.
            Empty where no change of a feature alone was seen to help.
    """

    when: Mapping[str, Test]
    seen: Mapping[str, Collection[Feature]] = {}

    def certain(self, node_features: Mapping[str, Feature]) -> bool:
        """Return whether nodes of this form were refused; else similar ones were."""
        same = all(
            node_features[k] in values for k, values in self.seen.items() if k in node_features
        )
        return bool(self.seen) and same and all(k in self.seen for k in forms(node_features))

    @property
    def of_type(self) -> bool:
        """Whether the type of an input or output is a reason."""
        return any(name.split()[0] == "type" for name in self.when)

    def fits(self, node_features: Mapping[str, Feature]) -> bool:
        """Return whether a node with these features is refused for this reason."""
        return all(
            name in node_features and _within(node_features[name], test)
            for name, test in self.when.items()
        )

    def words(self, op: str) -> str:
        """Return what nodes of operator `op` are refused, such as "with computed axes"."""
        return " and ".join(_refusal_words(op, name, test)[0] for name, test in self.when.items())

    def remedy(self, op: str) -> str:
        """Return what makes them other nodes, such as "make axes a constant"."""
        return ", or ".join(_refusal_words(op, name, test)[1] for name, test in self.when.items())


class Taken(Struct, frozen=True):
    """The answers of one version.

    Attributes:
        version: The version asked.
        first_opset: The first opset with which it builds; there is no last one.
        types: Element types (ONNX's names in lower case) that no tensor may have.
        never: Operators that it builds in no form.
        unknown: Operators that it has, but that cannot be built without a GPU.
        refused: Other refusals, by operator.
    """

    version: str
    first_opset: int
    types: Collection[str]
    never: Collection[str]
    unknown: Collection[str]
    refused: Mapping[str, tuple[Refused, ...]]

    def why(self, op: str, node_features: Mapping[str, Feature]) -> Refused | None:
        """Return why a node with these features is refused; None if it is not known to be."""
        fits = [refused for refused in self.refused.get(op, ()) if refused.fits(node_features)]
        return min(fits, key=lambda refused: not refused.certain(node_features), default=None)

    def deciding_features(self, op: str) -> frozenset[str]:
        """Return the features that decide whether a node of an operator is refused."""
        return frozenset(name for refused in self.refused.get(op, ()) for name in refused.when)


@cache
def taken() -> Taken:
    """Return the answers that this package ships."""
    return taken_from(json.loads(Path(__file__).with_name("taken.json").read_text("utf-8")))


def taken_from(read: Mapping[str, Any]) -> Taken:
    """Return answers from their JSON form."""
    refused = {
        op: tuple(Refused(**entry) for entry in entries) for op, entries in read["refused"].items()
    }
    types, never, unknown = (frozenset(read[name]) for name in ("types", "never", "unknown"))
    return Taken(read["version"], read["first_opset"], types, never, unknown, refused)


def forms(node_features: Mapping[str, Feature]) -> list[str]:
    """Return the features by which forms of an operator are told apart.

    These are the types, ranks and places of inputs, outputs, and attributes that are words.
    """
    kinds = ("input", "output", "type of input", "rank of input")
    return [
        name
        for name, value in node_features.items()
        if name.startswith(kinds) or (name.startswith("attribute") and isinstance(value, str))
    ]


def features(
    node: ir.Node,
    opset: int,
    low: ir.DataType | None = None,
    inputs: Sequence[bool] = (),
    outputs: Sequence[bool] = (),
    *,
    only: Collection[str] | None = None,
    computed: set[ir.Node] | None = None,
) -> dict[str, Feature]:
    """Return what the answers tell nodes apart by.

    * `input K`: constant, input (of the graph), computed, or shape (computed from shapes alone);
      absent if the node has no such input
    * `output K`: used, or unread if it has a name only; absent if it has none
    * `type of input K`, `rank of input K`, the same of outputs: where known
    * `value of input K`: of a constant with one element
    * `attribute NAME`: every attribute of the operator; its default (None without one) if the
      node lacks it. Lists of equal numbers are that number; tensors and graphs are "given".

    Args:
        node: A node of ONNX's own domain.
        opset: The opset that tells the defaults.
        low: A type to assume for some inputs and outputs; an input of the graph then comes from a
            Cast. None for the types as they are.
        inputs: Per input, whether it gets that type; the others, and those beyond, do not.
        outputs: The same of outputs.
        only: Of `input K`, for which a walk through the graph is needed, those to tell; None for
            all.
        computed: Nodes known to depend on inputs of the graph, where a walk ends; found ones are
            added.
    """
    of_node: dict[str, Feature] = {}
    for k, value in enumerate(node.inputs):
        if value is None or not value.name:
            continue
        dtype = low if k < len(inputs) and inputs[k] else None
        if only is None or f"input {k}" in only:
            place = _place(value, set() if computed is None else computed)
            of_node[f"input {k}"] = "computed" if dtype is not None and place == "input" else place
        of_node |= _described(f"input {k}", value, dtype)
        constant = value.const_value
        if constant is not None and constant.size == 1:
            of_node[f"value of input {k}"] = _one(constant)
    for k, value in enumerate(node.outputs):
        if value.name:
            dtype = low if k < len(outputs) and outputs[k] else None
            used = value.uses() or value.is_graph_output()
            of_node[f"output {k}"] = "used" if used else "unread"
            of_node |= _described(f"output {k}", value, dtype)
    return of_node | _attributes(node, opset)


def why_not_low(
    node: ir.Node,
    opset: int,
    low: ir.DataType,
    inputs: Sequence[bool],
    outputs: Sequence[bool],
    computed: set[ir.Node] | None = None,
) -> Refused | None:
    """Return why TensorRT refuses a node in a low type that it takes in FP32; None if it does not.

    The reason is a type, or it is certain: where similar nodes are refused for another reason, the
    low type changes nothing. Arguments are those of `features`.
    """
    answers, op = taken(), node.op_type
    if op not in answers.refused or why_refused(node, opset, computed):
        return None
    in_low = partial(features, node, opset, low, inputs, outputs, computed=computed)
    if answers.why(op, in_low(only=answers.deciding_features(op))) is None:
        return None
    node_features = in_low()
    refused = answers.why(op, node_features)
    counts = refused is not None and (refused.of_type or refused.certain(node_features))
    return refused if counts else None


def why_refused(node: ir.Node, opset: int, computed: set[ir.Node] | None = None) -> Refused | None:
    """Return why TensorRT refuses a node as it is; None if it is not known to: see `features`."""
    answers, op = taken(), node.op_type
    if op not in answers.refused:
        return None
    deciding = answers.deciding_features(op)
    return answers.why(op, features(node, opset, only=deciding, computed=computed))


def _within(value: Feature, test: Test) -> bool:
    if isinstance(test, list):
        return value in test
    if "above" in test:
        return isinstance(value, int | float) and value > test["above"]
    return value not in test["not"]


def _refusal_words(op: str, feature: str, test: Test) -> tuple[str, str]:
    """Return in words which values of a feature are refused, and what to do."""
    *of, name = feature.split()
    if of[-1] in ("input", "output"):
        schema = onnx.defs.get_schema(op)
        slots = schema.inputs if of[-1] == "input" else schema.outputs
        called = slots[min(int(name), len(slots) - 1)].name if slots else name
        name = f"{called} ({of[-1]} {name})"
    if isinstance(test, list):
        values = " or ".join(map(str, test))
    elif "above" in test:
        return f"with {name} above {test['above']}", f"take {name} up to {test['above']}"
    else:
        values = " or ".join("none" if v is None else str(v) for v in test["not"])
        if values:
            return f"with another {name} than {values}", f"take {name} {values}"
    words = {
        "attribute": (f"with {name} {values}", f"take another {name}"),
        "value": (f"with {name} {values}", f"take another {name}"),
        "type": (f"with {name} in {values}", f"give {name} another type"),
        "rank": (f"with {name} of rank {values}", f"give {name} another rank"),
    }
    if of[0] == "input" and test == ["computed"]:
        return f"with {name} from another node", f"make {name} an input of the model"
    if of[0] == "input" and isinstance(test, list):
        return f"with {name} known only at run time", f"make {name} a constant"
    return words.get(of[0], (f"with {name}", f"leave out {name}"))


def _described(what: str, value: ir.Value, low: ir.DataType | None) -> dict[str, Feature]:
    described: dict[str, Feature] = {}
    if low is not None or isinstance(value.type, ir.TensorType):
        dtype = low if low is not None else value.dtype
        assert dtype is not None
        described[f"type of {what}"] = dtype.name.lower()
    if value.shape is not None:
        described[f"rank of {what}"] = len(value.shape)
    return described


def _place(value: ir.Value, computed: set[ir.Node]) -> str:
    """Return where a value comes from, and add its node to those `computed`: see `features`."""
    if value.const_value is not None:
        return "constant"
    maker = value.producer()
    if maker is None:
        return "input"
    seen, todo, kinds = {maker}, [maker], {"constant"}
    while todo:
        node = todo.pop()
        if node.op_type in ("Shape", "Size"):
            kinds.add("shape")
            continue
        for source in node.inputs:
            if source is None or source.const_value is not None:
                continue
            before = source.producer()
            if before is None or before in computed:
                computed.add(maker)
                return "computed"
            if before not in seen:
                seen.add(before)
                todo.append(before)
    return "shape" if "shape" in kinds else "constant"


def _one(tensor: ir.TensorProtocol) -> Feature:
    if tensor.dtype == ir.DataType.STRING:
        return None
    value = tensor.numpy().reshape(-1)[0].item()
    return round(value, 6) if isinstance(value, int | float) else None


def _attributes(node: ir.Node, opset: int) -> dict[str, Feature]:
    if not onnx.defs.has(node.op_type, opset):
        return {}
    described: dict[str, Feature] = {}
    for name, declared in onnx.defs.get_schema(node.op_type, opset, "").attributes.items():
        attribute = node.attributes.get(name)
        if attribute is not None and not attribute.is_ref():
            described[f"attribute {name}"] = _plain(attribute.value)
        elif declared.default_value.type:
            default = onnx.helper.get_attribute_value(declared.default_value)
            described[f"attribute {name}"] = _plain(default)
        else:
            described[f"attribute {name}"] = None
    return described


def _plain(value: object) -> Feature:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list | tuple):
        items = [_plain(v) for v in value]
        alike = len(set(items)) == 1
        return items[0] if alike else str(items).replace("'", "")
    if isinstance(value, float):
        return round(value, 6)
    return value if isinstance(value, str | int) else "given"
