"""A run's repairs as factors of weights, for the framework that made the model.

A repair folds into weights if it changes constants only. A `safetensors` file is eight bytes for
the length of its header (little-endian), the header in JSON, then the tensors' bytes in C order.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import asdict

from halfwise.errors import CaseError, UsageError
from halfwise.files import open_regular, unreadable
from halfwise.fixing.repair.making import repaired
from halfwise.graph.model import Network, constant_array, node_name
from halfwise.progress import Watcher
from halfwise.records import Record, Repair, replace
from halfwise.store import new_file, on_one_device, read_run
from halfwise.tensorrt.recipe import planned_repairs
from halfwise.tools.export import fp32_model
from halfwise.wording import count, listed

Array = npt.NDArray[Any]
_TYPES: Mapping[str, npt.DTypeLike] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
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


class Change(Struct, frozen=True):
    """A constant or attribute that repairs change.

    Attributes:
        name: The initializer, or the attribute.
        nodes: The nodes that read it, in graph order.
        before: Its value.
        after: What repairs make of it, of the same shape; equal if only other readers of it change.
        attribute: Whether it is an attribute of the node.
        key: Its name in the state dict; None if it has none there that only it sets.
        transposed: Whether the state dict has it transposed.
    """

    name: str
    nodes: tuple[str, ...]
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


class Weights(Struct, frozen=True):
    """What a run's repairs change in the model's constants.

    Attributes:
        table: JSON: `changes` row by row, and the repairs that are `not_folded`.
        notes: What the weights alone do not say, one sentence each.
        written: Files written: the weights and the table; empty if none.
    """

    table: str
    notes: tuple[str, ...]
    written: tuple[Path, ...] = ()


def export_weights(
    run: str | Path,
    *,
    out: str | Path | None = None,
    state_dict: str | Path | None = None,
    model: str | Path | None = None,
    trt_worker: str | None = None,
    watcher: Watcher | None = None,
) -> Weights:
    """Return a run's repairs as changes of constants, and write the changed weights.

    Args:
        run: Folder of a run of `fix`, or its `run.json`.
        out: A `safetensors` file to create; the table is written beside it, as `.json` after its
            name. None writes nothing.
        state_dict: A `safetensors` file of the module's state dict, which is written whole, in its
            own types. None: the changed constants by their names in the ONNX model.
        model: The user's model, if it has moved since the run.
        trt_worker: The device whose plan it is; required if the run has several.
        watcher: Receives how much of the model is read.

    Raises:
        UsageError: no such device, or `out` exists or cannot be written.
        CaseError: no repair folds into weights, or a file cannot be read.
        RecordMismatch: the run folder is damaged, or the model differs.
    """
    record = on_one_device(read_run(Path(run)), trt_worker)
    state = None if state_dict is None else read_safetensors(Path(state_dict))
    network = fp32_model(record, model, watcher)[1]
    repairs = planned_repairs(record)
    if not repairs:
        raise CaseError(
            "The run's plan has no repairs, so no weight changes.",
            "Make one that has nothing else: halfwise fix MODEL --inputs DATA --only fp16.",
        )
    changed, others = folded(network, repairs)
    if not changed:
        raise CaseError(
            f"No repair of this run folds into weights: {_places(others)}.",
            "They add nodes or change others: use the model in the run folder.",
        )
    if state is None:
        new = {c.name: c.after for c in changed if not c.attribute}
    else:
        changed = matched(changed, state, network)
        new = written_back(changed, state)
    text, notes = table(changed, others), tuple(_notes(changed, others, named=state is not None))
    if out is None:
        return Weights(text, notes)
    path, beside = Path(out), f"{Path(out)}.json"
    with new_file(path, ".json") as partial:
        try:
            write_safetensors(partial, new)
            partial.with_name(Path(beside).name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"Cannot write {path}: {error.strerror}.", "Give another path with -o."
            ) from error
    return Weights(text, notes, (path, Path(beside)))


def _notes(changed: Sequence[Change], others: Sequence[Repair], *, named: bool) -> Iterator[str]:
    """Yield what is to be set by hand, and what is left out."""
    by_hand = [c for c in changed if c.attribute or (named and c.key is None)]
    if by_hand:
        values = [
            f"{c.name} of {listed(c.nodes)}"
            + (f" ({c.before.item():g} to {c.after.item():g})" if c.before.size == 1 else "")
            for c in by_hand
        ]
        yield (
            f"The function is unchanged only if you also set {count(len(by_hand), 'value')} that "
            f"no tensor of the file holds: {listed(values)}."
        )
    if others:
        yield f"{count(len(others), 'repair')} not folded into weights: {_places(others)}."


def _places(repairs: Iterable[Repair]) -> str:
    return listed([f"{repair.rule} at {node}" for repair in repairs for node in repair.nodes[:1]])


def factor(before: Array, after: Array) -> float | dict[str, object] | None:
    """Return what one array is of another: a factor, `{"axis", "factors"}`, or None if neither.

    Arrays are of one shape. Zeros that stay zero, infinities and NaN that stay what they are fit
    any factor. Nothing else makes something of zero, or a number of an infinity.
    """
    finite = np.isfinite(before) & np.isfinite(after)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(finite & ((before != 0) | (after != 0)), after / before, np.nan)
    if np.isinf(ratio).any() or not np.array_equal(before[~finite], after[~finite], equal_nan=True):
        return None
    for axis in (None, *range(ratio.ndim)):
        rows = ratio.reshape(1, -1) if axis is None else np.moveaxis(ratio, axis, 0)
        rows = rows.reshape(len(rows), -1)
        factors = [float(row[~np.isnan(row)][0]) if (~np.isnan(row)).any() else 1.0 for row in rows]
        if all(np.all(np.isnan(r) | (r == f)) for r, f in zip(rows, factors, strict=True)):
            return factors[0] if axis is None else {"axis": axis, "factors": factors}
    return None


def changes(before: Network, after: Network) -> list[Change] | None:
    """Return how constants and attributes differ, in bodies too; None if anything else does."""
    theirs = {node_name(node): node for node in after.model.graph.all_nodes()}
    ours = {node_name(node): node for node in before.model.graph.all_nodes()}
    if ours.keys() != theirs.keys():
        return None
    constants: dict[tuple[str, str], Change] = {}
    attributes: list[Change] = []
    for name, node in ours.items():
        other = theirs[name]
        if node.op_type != other.op_type or len(node.inputs) != len(other.inputs):
            return None
        for mine, its in zip(node.inputs, other.inputs, strict=True):
            if mine is None or its is None or mine.const_value is None or its.const_value is None:
                if (mine and mine.name) != (its and its.name):
                    return None
                continue
            array, new = constant_array(mine), constant_array(its)
            if array.shape != new.shape:
                return None
            same = mine.const_value is its.const_value or _equal(array, new)
            place = str(mine.name), "" if same else sha256(new.tobytes()).hexdigest()
            nodes = constants[place].nodes if place in constants else ()
            constants[place] = Change(place[0], (*nodes, name), array, new)
        for key, attribute in node.attributes.items():
            one, two = _number(attribute), _number(other.attributes[key])
            if one is not None and two is not None and not _equal(one, two):
                attributes.append(Change(key, (name,), one, two, attribute=True))
    names = {name for name, digest in constants if digest}
    return [c for (name, _), c in constants.items() if name in names] + attributes


def _number(attribute: ir.Attr) -> Array | None:
    if attribute.type == ir.AttributeType.FLOAT:
        return np.asarray(attribute.as_float(), np.float32)
    return attribute.as_tensor().numpy() if attribute.type == ir.AttributeType.TENSOR else None


def _equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def folded(network: Network, repairs: Sequence[Repair]) -> tuple[list[Change], tuple[Repair, ...]]:
    """Return what the repairs that fold into constants change together, and the other repairs."""
    into: tuple[Repair, ...] = ()
    changed: list[Change] = []
    waiting = [tuple(repairs)] if repairs else []
    # In halves, as mostly all fold or a few do not.
    while waiting:
        some = waiting.pop()
        try:
            with_some = changes(network, repaired(network, (*into, *some)))
        except CaseError:  # one builds on another that does not fold
            with_some = None
        if with_some is not None:
            into, changed = (*into, *some), with_some
        elif len(some) > 1:
            half = len(some) // 2
            waiting += [some[half:], some[:half]]
    return changed, tuple(repair for repair in repairs if repair not in into)


def matched(
    changed: Sequence[Change], state: Mapping[str, Array], network: Network
) -> list[Change]:
    """Return the changes with their names in a state dict, by name and value, or by value alone.

    None for what several tensors of the state dict could be, for a tensor that would have to change
    in two ways or that another constant of the network holds too, and for values that its type
    does not hold.
    """
    names = {change.name for change in changed}
    shared = [
        constant_array(value)
        for graph in network.model.graphs()
        for value in graph.initializers.values()
        if value.name not in names and value.name not in state
    ]
    named = [_named(change, state, shared) for change in changed]
    keys = [change.key for change in named]
    return [replace(c, key=None) if keys.count(c.key) > 1 else c for c in named]


def _named(change: Change, state: Mapping[str, Array], shared: Iterable[Array]) -> Change:
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
    key, transposed = ways[0]
    tensor = state[key]
    held = _is(change.after.astype(tensor.dtype), change.after)
    if not held or any(_is(a, tensor) or _is(a.T, tensor) for a in shared):
        return change
    return replace(change, key=key, transposed=transposed)


def _is(one: Array, other: Array) -> bool:
    """Return whether arrays are equal but for their types and axes of length 1."""
    one, other = one.squeeze(), other.squeeze()
    return one.shape == other.shape and np.array_equal(one.astype(other.dtype), other)


def written_back(changed: Sequence[Change], state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the state dict with the changes that are named in it, in its own types."""
    new = dict(state)
    for change in changed:
        if change.key is not None:
            tensor = state[change.key]
            value = change.after.T if change.transposed else change.after
            new[change.key] = value.astype(tensor.dtype).reshape(tensor.shape)
    return new


def table(changed: Sequence[Change], others: Sequence[Repair]) -> str:
    """Return the table as JSON: `changes` row by row, and the repairs that are `not_folded`."""
    rows = [change.row() for change in changed]
    rest = [{"rule": repair.rule, "nodes": list(repair.nodes)} for repair in others]
    return json.dumps({"changes": rows, "not_folded": rest}, indent=1) + "\n"


class _Tensor(Record):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a `safetensors` file by name, mapped read-only.

    Raises:
        CaseError: it is none, or has a type that NumPy has no name for.
    """
    hint = "Write it with safetensors.torch.save_file(module.state_dict(), FILE)."
    try:
        with open_regular(path) as stream:
            data = np.memmap(stream, np.uint8, "r")
        start = 8 + int.from_bytes(data[:8].tobytes(), "little")
        header = msgspec.json.decode(data[8:start].tobytes(), type=dict[str, msgspec.Raw])
        return {
            name: _mapped(data[start:], _Tensor.from_json(entry))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except OSError as error:
        raise CaseError(unreadable(path, error), hint) from error
    except (ValueError, KeyError) as error:
        raise CaseError(
            f"{path} is not a safetensors file of types that NumPy has.", hint
        ) from error


def _mapped(data: Array, tensor: _Tensor) -> Array:
    first, last = tensor.data_offsets
    return data[first:last].view(_TYPES[tensor.dtype]).reshape(tensor.shape)


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write a `safetensors` file for PyTorch.

    Raises:
        OSError: it cannot be written.
    """
    # Readers map the file, so each tensor has to begin at a multiple of its elements' size.
    order = sorted(tensors, key=lambda name: -tensors[name].itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        array = tensors[name]
        offsets = [end, end := end + array.nbytes]
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": [*array.shape],
            "data_offsets": offsets,
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            stream.write(tensors[name].tobytes())
