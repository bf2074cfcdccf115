"""Read an ONNX file as far as it can be read: without refusing what other commands refuse.

A linter has to say what is wrong with a file that nobody else takes. So each step towards the
normal form is taken where it can be, and where it cannot the graph stays as it was before it.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError
from halfwise.graph.castlike import name_cast_types
from halfwise.graph.external import find_beside, refuse_special_files, weights_folder, without_links
from halfwise.graph.functions import inline_functions
from halfwise.graph.inference import infer_shapes, take_types
from halfwise.graph.intake import checkable, repair
from halfwise.graph.model import (
    REFUSALS,
    Network,
    constant_array,
    graphs_of,
    node_name,
    read_proto,
    silent,
)
from halfwise.graph.naming import name_uniquely
from halfwise.graph.places import nodes_in
from halfwise.graph.sizes import open_negative_sizes
from halfwise.graph.slim import skeleton
from halfwise.graph.weights import map_files
from halfwise.records import NodeName, TensorName

_PLACE = "halfwise.place"
_SORT = "sort nodes"
_UNREADABLE = (
    *REFUSALS,
    OSError,
    NotImplementedError,
    AttributeError,
    IndexError,
    OverflowError,
    MemoryError,
)
"""What onnx-ir raises on files that nobody checked, beyond what it says of checked ones."""


@dataclass(frozen=True)
class Place:
    """Where a node stands.

    Attributes:
        name: The user's name for it, "" where it has none.
        op: Its operator.
        number: Its position in the file, from 1; nodes of bodies follow the node that has them.
            None for a node that is not in the file's graph.
    """

    name: NodeName
    op: str
    number: int | None


@dataclass(frozen=True, eq=False)
class Unchecked:
    """A model that nobody has checked.

    Attributes:
        proto: The file's content, without external data.
        path: The file.
        network: The graph, in normal form as far as it goes; None where it cannot be read at all.
        nodes: All nodes of the file, bodies included, in its order.
        refusal: What ONNX's checker has against it; "" where it takes it.
        unread: What could not be done on the way to the normal form, with the reason.
        broken: Constants whose data cannot be read, with the reason; they have no value in the
            network.
    """

    proto: onnx.ModelProto
    path: Path
    network: Network | None
    nodes: tuple[tuple[Place, onnx.NodeProto], ...]
    refusal: str = ""
    unread: tuple[str, ...] = ()
    broken: Mapping[TensorName, str] = field(default_factory=dict)

    @property
    def opset(self) -> int | None:
        """Version of ONNX's own operator set; None where the file names none."""
        named = {o.domain: o.version for o in self.proto.opset_import}
        return named.get("", named.get("ai.onnx"))

    def place(self, node: ir.Node) -> Place:
        """Return where a node of the network stands; one of a function, where it is called."""
        number = node.metadata_props.get(_PLACE)
        name = node_name(node)
        original = self.network.original_names.get(name, name) if self.network else name
        return Place(NodeName(original), node.op_type, int(number) if number else None)


def read_unchecked(path: Path) -> Unchecked:
    """Return the model of an ONNX file, whatever is wrong with it.

    Raises:
        CaseError: not a file, no ONNX model at all, or external data that is no regular file.
    """
    proto = read_proto(path)
    refuse_special_files(proto, path)
    nodes = []
    for number, (_, node) in enumerate(nodes_in(proto.graph), 1):
        nodes.append((Place(NodeName(node.name), node.op_type, number), node))
        # Inlining hands metadata on, so that what comes of a call knows where that stands.
        node.metadata_props.add(key=_PLACE, value=str(number))
    refusal = _refusal(proto, path)
    with silent():
        try:
            repair(proto)
            folder = _folder(proto, path)
            model = ir.serde.deserialize_model(proto)
            unread, broken, names = _normalise(model, folder)
        except _UNREADABLE as error:
            why = f"the graph cannot be read: {_line(error)}"
            return Unchecked(proto, path, None, tuple(nodes), refusal, (why,))
    network = Network(model=model, path=path, sha256="", original_names=names)
    return Unchecked(proto, path, network, tuple(nodes), refusal, unread, broken)


def _folder(proto: onnx.ModelProto, path: Path) -> Path:
    try:
        return weights_folder(proto, path)
    except CaseError:  # told where the data is read
        return path.parent


def _refusal(proto: onnx.ModelProto, path: Path) -> str:
    with ExitStack() as stack:
        with suppress(CaseError, OSError):  # told where the data is read
            path = stack.enter_context(without_links(proto, path))
        try:
            # By its path: a model may be larger than a protobuf in memory may be.
            onnx.checker.check_model(path)
        except _UNREADABLE as error:
            return _line(error)
    return ""


def _normalise(
    model: ir.Model, folder: Path
) -> tuple[tuple[str, ...], dict[TensorName, str], dict[NodeName, str]]:
    broken: dict[TensorName, str] = {}
    names: dict[NodeName, str] = {}

    def rename() -> None:
        names.update({NodeName(new): old for new, old in name_uniquely(model).items()})

    lift = passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)
    steps: Mapping[str, Callable[[], object]] = {
        "find external data": lambda: find_beside(model, folder),
        "inline functions": lambda: inline_functions(model),
        "open negative sizes": lambda: open_negative_sizes(graphs_of(model)),
        "tell constants from inputs": partial(passes.RemoveInitializersFromInputsPass(), model),
        "lift constants": partial(lift, model),
        _SORT: partial(passes.TopologicalSortPass(), model),
        "map external data": lambda: map_files(model),
        "read constants": lambda: broken.update(_drop_broken(model)),
        "name nodes": rename,
        "infer types": lambda: _infer(model),
        "name the types of CastLike": lambda: name_cast_types(graphs_of(model)),
    }
    unread = []
    for what, step in steps.items():
        try:
            step()
        except _UNREADABLE as error:
            if what == _SORT:  # there is a cycle, and a walk along it has no end
                raise
            unread.append(f"could not {what}: {_line(error)}")
    return tuple(unread), broken, names


def _infer(model: ir.Model) -> None:
    """Give values the types that ONNX infers, in place, if its checker takes the graph.

    On graphs that it refuses, inference has ended the process. Operators that ONNX does not know,
    as those of TensorRT's plugins, are passed over.

    Raises:
        ValidationError: the checker refuses the graph.
    """
    proto = skeleton(model)[0]
    given = {tensor.name for tensor in proto.graph.initializer}
    for name, value in model.graph.initializers.items():
        if name not in given and value.const_value is None and value.dtype and value.shape:
            shape = list(value.shape.numpy())
            info = onnx.helper.make_tensor_value_info(name, value.dtype.value, shape)
            proto.graph.input.append(info)
    known = checkable(proto, any_operator=True)
    onnx.checker.check_model(known)
    take_types(model, infer_shapes(proto))


def _drop_broken(model: ir.Model) -> dict[TensorName, str]:
    """Take the data of constants away that cannot be read, and return the reasons."""
    found = {}
    for graph in graphs_of(model):
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            try:
                tensor.numpy()
            except _UNREADABLE as error:
                found[TensorName(name)] = _line(error)
                value.const_value = None
    return found


def numbers(value: ir.Value | None) -> NDArray[np.generic] | None:
    """Return the array of a constant of numbers; None for anything else."""
    if value is None or value.const_value is None or value.const_value.dtype == ir.DataType.STRING:
        return None
    return constant_array(value)


def _line(error: Exception) -> str:
    text = str(error.__cause__ or error).strip()
    return (text.splitlines() or [type(error).__name__])[0]
