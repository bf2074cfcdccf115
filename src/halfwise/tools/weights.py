"""A run's repairs as factors of weights, for the framework that made the model.

A repair folds into weights if it changes constants only. A `safetensors` file is eight bytes for
the length of its header (little-endian), the header in JSON, then the tensors' bytes in C order.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.fixing.repair.making import repaired
from halfwise.graph.model import Network, constant_array, node_name
from halfwise.records import Repair

Array = npt.NDArray[Any]
_TYPES: Mapping[str, npt.DTypeLike] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_NAMES = {np.dtype(dtype): name for name, dtype in _TYPES.items()}


@dataclass(frozen=True)
class Change:
    """A constant or attribute that repairs change.

    Attributes:
        name: The initializer, or the attribute.
        node: The first node that reads it.
        before: Its value, in FP32.
        after: What repairs make of it, of the same shape.
        attribute: Whether it is an attribute of the node.
        key: Its name in the state dict; None if it is not there, or not only there.
        transposed: Whether the state dict has it transposed.
    """

    name: str
    node: str
    before: Array
    after: Array
    attribute: bool = False
    key: str | None = None
    transposed: bool = False

    def row(self) -> dict[str, object]:
        """Return the row of the table: names, the factor, and both values of a scalar."""
        row = asdict(self) | {"factor": factor(self.before, self.after)}
        del row["before"], row["after"]
        if self.before.size == 1:
            row |= {"before": self.before.item(), "after": self.after.item()}
        return row


def factor(before: Array, after: Array) -> float | dict[str, object] | None:
    """Return what one array is of another: a factor, `{"axis", "factors"}`, or None if neither.

    Zeros that stay zero fit any factor. Arrays are of one shape, and finite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((before == 0) & (after == 0), np.nan, after / before)
    for axis in (None, *range(ratio.ndim)):
        rows = ratio.reshape(1, -1) if axis is None else np.moveaxis(ratio, axis, 0)
        rows = rows.reshape(len(rows), -1)
        factors = [float(row[~np.isnan(row)][0]) if (~np.isnan(row)).any() else 1.0 for row in rows]
        if all(np.all(np.isnan(r) | (r == f)) for r, f in zip(rows, factors, strict=True)):
            return factors[0] if axis is None else {"axis": axis, "factors": factors}
    return None


def changes(before: Network, after: Network) -> list[Change] | None:
    """Return how constants and attributes differ; None if anything else of the main graph does."""
    ours, theirs = list(before.graph), {node_name(node): node for node in after.graph}
    if {node_name(node) for node in ours} != theirs.keys():
        return None
    found: dict[tuple[str, bytes], Change] = {}
    for node in ours:
        other = theirs[node_name(node)]
        pairs = list(zip(node.inputs, other.inputs, strict=False))
        if node.op_type != other.op_type or len(node.inputs) != len(other.inputs):
            return None
        for mine, its in pairs:
            if mine is None or its is None or mine.const_value is None or its.const_value is None:
                if (mine and mine.name) != (its and its.name):
                    return None
                continue
            values = constant_array(mine), constant_array(its)
            if not np.array_equal(*values):
                change = Change(str(mine.name), node_name(node), *values)
                found.setdefault((change.name, values[1].tobytes()), change)
        for name, attribute in node.attributes.items():
            one, two = _number(attribute), _number(other.attributes[name])
            if one is not None and two is not None and not np.array_equal(one, two):
                found[node_name(node) + "/" + name, b""] = Change(
                    name, node_name(node), one, two, attribute=True
                )
    return list(found.values())


def _number(attribute: ir.Attr) -> Array | None:
    if attribute.type == ir.AttributeType.FLOAT:
        return np.asarray(attribute.as_float(), np.float32)
    return attribute.as_tensor().numpy() if attribute.type == ir.AttributeType.TENSOR else None


def folded(network: Network, repairs: Sequence[Repair]) -> tuple[list[Change], tuple[Repair, ...]]:
    """Return what the repairs that fold into constants change together, and the other repairs."""
    into: tuple[Repair, ...] = ()
    found: list[Change] = []
    for repair in repairs:
        try:
            with_it = changes(network, repaired(network, (*into, repair)))
        except CaseError:  # it builds on one that does not fold
            continue
        if with_it is not None:
            into, found = (*into, repair), with_it
    return found, tuple(repair for repair in repairs if repair not in into)


def matched(found: Sequence[Change], state: Mapping[str, Array]) -> list[Change]:
    """Return the changes with their names in a state dict, by name and value, or by value alone.

    What several tensors of the state dict could be, and a tensor that would have to change in two
    ways, have none.
    """
    named = [_named(change, state) for change in found]
    keys = [change.key for change in named]
    return [replace(c, key=None) if keys.count(c.key) > 1 else c for c in named]


def _named(change: Change, state: Mapping[str, Array]) -> Change:
    if change.attribute:
        return change
    near = [change.name] if change.name in state else [*state]
    ways = [
        (key, transposed)
        for transposed in (False, True)
        for key in near
        if _is(state[key].T if transposed else state[key], change.before)
    ]
    if len({key for key, _ in ways}) != 1:
        return change
    return replace(change, key=ways[0][0], transposed=ways[0][1])


def _is(one: Array, other: Array) -> bool:
    return one.shape == other.shape and np.array_equal(one.astype(other.dtype), other)


def written_back(found: Sequence[Change], state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the state dict with the changes that are named in it, in its own types."""
    new = dict(state)
    for change in found:
        if change.key is not None:
            value = change.after.T if change.transposed else change.after
            new[change.key] = value.astype(state[change.key].dtype)
    return new


def table(found: Sequence[Change], others: Sequence[Repair]) -> str:
    """Return the table as JSON: `changes` row by row, and the repairs that are `not_folded`."""
    rows = [change.row() for change in found]
    rest = [{"rule": repair.rule, "nodes": list(repair.nodes)} for repair in others]
    return json.dumps({"changes": rows, "not_folded": rest}, indent=1) + "\n"


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a `safetensors` file by name, mapped read-only.

    Raises:
        CaseError: it is none, or has a type that NumPy has no name for.
    """
    try:
        data = np.memmap(path, np.uint8, "r")
        start = 8 + int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8:start].tobytes())
        header.pop("__metadata__", None)
        return dict(_tensors(data[start:], header))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError) as error:
        raise CaseError(
            f"{path} cannot be read as safetensors: {error}.",
            "Write one with safetensors.torch.save_file(module.state_dict(), FILE).",
        ) from error


def _tensors(data: Array, header: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        yield name, data[first:last].view(_TYPES[str(entry["dtype"])]).reshape(entry["shape"])


def safetensors(tensors: Mapping[str, Array]) -> bytes:
    """Return the bytes of a `safetensors` file."""
    header: dict[str, object] = {}
    parts, end = [np.ascontiguousarray(array).tobytes() for array in tensors.values()], 0
    for (name, array), part in zip(tensors.items(), parts, strict=True):
        offsets = [end, end := end + len(part)]
        dtype = _NAMES[array.dtype]
        header[name] = {"dtype": dtype, "shape": [*array.shape], "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)
