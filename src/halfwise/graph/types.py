"""Element types: what operators demand of each other, and values that contradict it.

Converters to FP16 leave constants in the wrong one of FP16 and FP32: the most frequent fault in
public reports. ONNX's checker, without full inference, does not see it; ONNX Runtime refuses the
file. Here one walk finds every such place, says which Cast cures it, and makes that change.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct

from halfwise.graph.model import (
    Names,
    add_constant,
    bodies,
    cast_of,
    constant_array,
    graphs_of,
    is_standard,
)


class Parameter(Struct, frozen=True):
    """An input or output of an operator.

    Attributes:
        type: The name of its type, such as T, equal for all that have one type; or a type, such as
            tensor(int64).
        allowed: The ONNX types that it may have, such as tensor(float16).
        alike: Whether all values of a variadic one have the same type.
    """

    type: str
    allowed: frozenset[str]
    alike: bool = True


class Signature(Struct, frozen=True):
    """The inputs and outputs of an operator; only the last of each may be variadic."""

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]


@cache
def signature(domain: str, op_type: str, version: int) -> Signature | None:
    """Return an operator's signature at a version of its domain; None if it is not known.

    It comes from ONNX or, for operators that only ONNX Runtime has, from ONNX Runtime, which puts
    some of them into ONNX's own domain. Operators of registered libraries are not known.
    """
    if domain in ("", "ai.onnx") and onnx.defs.has(op_type, version):
        schema: Any = onnx.defs.get_schema(op_type, version, "")
    else:
        known = [s for s in onnx_runtime_schemas(domain, op_type) if s.since_version <= version]
        if not known:
            return None
        schema = max(known, key=lambda one: one.since_version)
    allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}

    def parameter(formal: Any) -> Parameter:  # noqa: ANN401 - ONNX and ONNX Runtime spell it apart
        ours = isinstance(formal, onnx.defs.OpSchema.FormalParameter)
        name = formal.type_str if ours else formal.typeStr
        alike = formal.is_homogeneous if ours else formal.isHomogeneous
        return Parameter(name, allowed.get(name, frozenset((name,))), alike)

    return Signature(tuple(map(parameter, schema.inputs)), tuple(map(parameter, schema.outputs)))


def onnx_runtime_schemas(domain: str, op_type: str) -> list[Any]:
    """Return the schemas that ONNX Runtime has of an operator."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime  # noqa: PLC0415 (0.3 s)

    schemas = runtime.get_all_operator_schema()
    return [schema for schema in schemas if (schema.domain, schema.name) == (domain, op_type)]


def is_own(domain: str, op_type: str) -> bool:
    """Return whether an operator is ONNX Runtime's: it has schemas of TensorRT's plugins, too."""
    return not op_type.endswith("_TRT") and bool(onnx_runtime_schemas(domain, op_type))


def is_of_onnx_runtime(node: ir.Node) -> bool:
    """Return whether only ONNX Runtime has a node's operator, as its optimiser writes them."""
    unknown = is_standard(node) and not onnx.defs.has(node.op_type)
    known = unknown and is_own("", node.op_type)
    return node.domain == "com.microsoft" or known


def signature_of(node: ir.Node, opsets: Mapping[str, int]) -> Signature | None:
    """Return the signature of a node's operator in a model that imports `opsets`."""
    default = opsets.get("", opsets.get("ai.onnx", 1))
    version = default if is_standard(node) else opsets.get(node.domain, 1)
    return signature(node.domain, node.op_type, version)


class Clash(Struct, frozen=True):
    """Values that a node demands in one type, and that have several.

    Attributes:
        node: The node; for an output of the model, the one that computes it.
        place: The input or output in question, such as "input 1".
        value: Its name.
        found: Its type.
        wanted: The type that makes the file valid.
        mends: Whether that is the only reading: both types are floats, or both are integers.
    """

    node: ir.Node
    place: str
    value: str
    found: ir.DataType
    wanted: ir.DataType
    mends: bool

    @property
    def words(self) -> str:
        """What is wrong, as a clause without a full stop."""
        is_not = f"is {self.found.name}, not {self.wanted.name}"
        return f"{self.value} {is_not}, {self.place} of {self.node.op_type} {self.node.name}"

    @property
    def cure(self) -> str:
        """What makes the file valid, as a clause without a full stop."""
        return f"a Cast of {self.value} to {self.wanted.name} cures it"


def mend_types(model: ir.Model) -> tuple[Clash, ...]:
    """Return the contradictions between element types; those that mend are mended, in place.

    A constant gets the type of what is computed beside it. Of two computed values, the one of the
    wider type decides: the Cast changes no value. Beside an input of the model, the type decides
    that most constants of the file have. Declared types of computed values are corrected.

    Args:
        model: In topological order, constants lifted, every node and value named.
    """
    return tuple(_Types(model).check(model.graph))


class _Types:
    def __init__(self, model: ir.Model) -> None:
        self.opsets = model.opset_imports
        self.names = Names(graphs_of(model))
        self.graph_inputs = frozenset(model.graph.inputs)
        stored = (v.dtype for graph in graphs_of(model) for v in graph.initializers.values())
        counts = Counter(dtype for dtype in stored if dtype is not None and _kind(dtype) == "float")
        self.usual = max(counts, key=counts.__getitem__, default=None)

    def check(self, graph: ir.Graph) -> Iterator[Clash]:
        for node in list(graph):
            inside = bodies(node)
            for body in inside:
                yield from self.check(body)
            known = signature_of(node, self.opsets)
            if known is None:
                continue
            for parameter, slots in _slots(known.inputs, node.inputs).items():
                yield from self._settled(node, slots, parameter)
            if is_standard(node, "If"):
                yield from self._branches(node, inside)
            else:
                yield from self._declared(node, known, graph)

    def _settled(
        self, node: ir.Node, slots: Sequence[int], parameter: Parameter
    ) -> Iterator[Clash]:
        """Give the inputs at `slots` one type that `parameter` may have."""
        values = [(slot, value) for slot in slots if (value := node.inputs[slot]) is not None]
        wanted = _only(parameter) or self._wanted([value for _, value in values])
        for slot, value in values:
            if value.dtype is None or wanted is None or value.dtype == wanted:
                continue
            mends = _kind(value.dtype) == _kind(wanted) != ""
            yield Clash(node, f"input {slot}", value.name or "", value.dtype, wanted, mends)
            if mends:
                node.replace_input_with(slot, self._in_type(value, wanted, node))

    def _wanted(self, values: Sequence[ir.Value]) -> ir.DataType | None:
        typed = [(v, v.dtype) for v in values if v.dtype is not None]
        types = {dtype for _, dtype in typed}
        if len(types) < 2:
            return next(iter(types), None)
        computed = {dtype for v, dtype in typed if v.const_value is None}
        if self.graph_inputs.intersection(values) and self.usual in types:
            return self.usual
        if len(computed) == 1:
            types = computed
        return max(types, key=_order)

    def _in_type(self, value: ir.Value, wanted: ir.DataType, reader: ir.Node) -> ir.Value:
        """Return `value` in another type: another constant, or a Cast in front of `reader`."""
        graph = reader.graph
        assert isinstance(graph, ir.Graph)
        if value.const_value is not None:
            array = _converted(constant_array(value), wanted)
            name = self.names.take(f"{value.name}_{wanted.name.lower()}")
            return add_constant(graph, name, array)
        cast = cast_of(value, wanted, self.names)
        graph.insert_before(reader, cast)
        return cast.outputs[0]

    def _branches(self, node: ir.Node, bodies: Sequence[ir.Graph]) -> Iterator[Clash]:
        """Give the outputs of an If's branches one type, and the If's outputs too."""
        for place, output in enumerate(node.outputs):
            ends = [body.outputs[place] for body in bodies if place < len(body.outputs)]
            types = [v.dtype for v in ends if isinstance(v.type, ir.TensorType)]
            if not types or len(types) < len(bodies) or None in types:
                continue
            wanted = self._wanted(ends)
            assert wanted is not None
            for body, value in zip(bodies, ends, strict=True):
                if value.dtype != wanted:
                    yield from self._end(body, place, value, wanted, node)
            output.type = ir.TensorType(wanted)

    def _end(
        self, graph: ir.Graph, place: int, value: ir.Value, wanted: ir.DataType, node: ir.Node
    ) -> Iterator[Clash]:
        """Give one output of `graph` another type, under its old name."""
        assert value.dtype is not None
        if not _kind(value.dtype) == _kind(wanted) != "":
            return
        name = value.name or ""
        yield Clash(node, f"output {place}", name, value.dtype, wanted, True)
        value.name = self.names.take(f"{name}_{value.dtype.name.lower()}")
        cast = cast_of(value, wanted, self.names)
        cast.outputs[0].name = name
        graph.append(cast)
        graph.outputs[place] = cast.outputs[0]

    def _declared(self, node: ir.Node, known: Signature, graph: ir.Graph) -> Iterator[Clash]:
        """Give a node's outputs the types that follow from its inputs or attributes.

        An output of `graph` gets the type that it declares through a Cast.
        """
        read = _slots(known.inputs, node.inputs)
        for parameter, slots in _slots(known.outputs, node.outputs).items():
            same = (node.inputs[slot] for slot in read.get(parameter, ()))
            kind = next((v.dtype for v in same if v is not None), None)
            kind = _only(parameter) or (_stated(node) if is_standard(node, "Cast") else kind)
            for slot, value in ((slot, node.outputs[slot]) for slot in slots):
                declared = value.dtype
                if kind is None or declared == kind:
                    continue
                value.type = ir.TensorType(kind)
                if declared is not None and value.is_graph_output():
                    yield from self._end(graph, graph.outputs.index(value), value, declared, node)
                elif declared is not None:
                    yield Clash(node, f"output {slot}", value.name or "", declared, kind, True)


_FLOATS = frozenset(
    (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)
)


def _slots(
    parameters: Sequence[Parameter], values: Sequence[ir.Value | None]
) -> dict[Parameter, list[int]]:
    """Return the slots of the values that have one type; sequences and optionals are left out."""
    slots: dict[Parameter, list[int]] = {}
    for slot, value in enumerate(values):
        parameter = parameters[min(slot, len(parameters) - 1)] if parameters else None
        tensor = value is not None and value.name and isinstance(value.type, ir.TensorType | None)
        if tensor and parameter is not None and parameter.alike:
            slots.setdefault(parameter, []).append(slot)
    return slots


def _only(parameter: Parameter) -> ir.DataType | None:
    """Return the only type that a parameter may have; None if it may have several."""
    if len(parameter.allowed) > 1:
        return None
    (name,) = parameter.allowed
    return _NAMES.get(name)


_NAMES = {f"tensor({t.name.lower()})": t for t in ir.DataType}


def _stated(node: ir.Node) -> ir.DataType | None:
    return ir.DataType(node.attributes["to"].as_int()) if "to" in node.attributes else None


def _order(dtype: ir.DataType) -> tuple[str, int]:
    return _kind(dtype), dtype.bitwidth if _kind(dtype) else 0


def _kind(dtype: ir.DataType) -> str:
    """Return what two types share that are readings of one number; "" for other types."""
    if dtype in _FLOATS:
        return "float"
    return "integer" if dtype in (ir.DataType.INT32, ir.DataType.INT64) else ""


def _converted(array: np.ndarray, wanted: ir.DataType) -> np.ndarray:
    """Return a constant in another type; finite numbers beyond its range become its largest."""
    dtype = wanted.numpy()
    if wanted.is_floating_point() and array.dtype.itemsize > dtype.itemsize:
        largest = float(wanted.max)
        array = np.where(np.isinf(array), array, np.clip(array, -largest, largest))
    return array.astype(dtype)
