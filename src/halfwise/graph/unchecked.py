"""Read an ONNX file as far as possible, including files that other commands refuse.

A linter must say what is wrong with a file that nothing else accepts, and users need a log
explained most when a parser has refused the model. So each step toward the normal form is taken if
possible; otherwise the graph stays as it was.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common as passes

from halfwise.errors import CaseError
from halfwise.graph.intake import checkable, infer_shapes, refuse_maps, repair, take_types
from halfwise.graph.model import (
    REFUSALS,
    Network,
    constant_array,
    graphs_of,
    node_name,
    tensor_name,
)
from halfwise.graph.normal_form import (
    inline_functions,
    name_cast_types,
    name_uniquely,
    open_negative_sizes,
    unreadable_constants,
)
from halfwise.graph.reading import PER_MB, megabytes, normalising, read_proto, said
from halfwise.graph.serialisation import (
    find_beside,
    nodes_in,
    refuse_special_files,
    silent,
    skeleton,
    weights_folder,
    without_links,
)
from halfwise.graph.weights import map_files
from halfwise.progress import Weighed
from halfwise.records import LogNode, NodeName, TensorName

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
"""Exceptions that onnx-ir raises for unchecked files."""
_NUMBERED = re.compile(r"^node (?P<number>\d+)$")
_AGAIN = re.compile(r"_\d+$")
"""Suffix that TensorRT appends to a name already in use."""


@dataclass(frozen=True)
class Place:
    """Where a node is in the file.

    Attributes:
        name: The user's name for it; "" if it has none.
        op: Its operator.
        number: Its position in the file, from 1; nodes of bodies follow the node that holds them.
            None for a node outside the file's graph.
        called: halfwise's name for a nameless node; "" if the node has a name, or halfwise's name
            is ambiguous.
    """

    name: NodeName
    op: str
    number: int | None
    called: str = ""


@dataclass(frozen=True, eq=False)
class Unchecked:
    """An unchecked model.

    Attributes:
        proto: The file's content, without external data.
        path: The file.
        network: The graph, in normal form as far as possible; None if it cannot be read at all.
        nodes: All nodes of the file, bodies included, in file order.
        refusal: Why ONNX's checker refuses it; "" if it does not.
        unread: The steps to the normal form that failed, with the reason.
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
        """Version of ONNX's own operator set; None if the file names none."""
        named = {o.domain: o.version for o in self.proto.opset_import}
        return named.get("", named.get("ai.onnx"))

    def place(self, node: ir.Node) -> Place:
        """Return a node's place; for a node of a function, the place of the call."""
        number = node.metadata_props.get(_PLACE)
        name = node_name(node)
        original = self.network.original_names.get(name, name) if self.network else name
        called = "" if original else name
        return Place(NodeName(original), node.op_type, int(number) if number else None, called)


def read_unchecked(
    path: Path, progress: Callable[[int, int, str], None] | None = None
) -> Unchecked:
    """Return the model of an ONNX file, whatever is wrong with it.

    Args:
        path: The file.
        progress: As of `load_network`.

    Raises:
        CaseError: not a file, not an ONNX model, or external data that is not a regular file.
    """
    work = Weighed(progress)
    proto = read_proto(path, work)
    # ONNX's checker reads the file again.
    work.expect(checking := PER_MB * megabytes(path.stat().st_size))
    refuse_special_files(proto, path)
    nodes = []
    for number, (_, node) in enumerate(nodes_in(proto.graph), 1):
        nodes.append((Place(NodeName(node.name), node.op_type, number), node))
        # Inlining passes metadata on, so inlined nodes know the place of their call.
        node.metadata_props.add(key=_PLACE, value=str(number))
    refusal = _refusal(proto, path)
    work.did(checking)
    with silent():
        try:
            refuse_maps(proto)
            repair(proto)
            folder = _folder(proto, path)
            model = ir.serde.deserialize_model(proto)
            work.did(normalising(proto) / 4)
            unread, broken, names = _normalise(model, folder)
        except (*_UNREADABLE, CaseError) as error:
            why = f"the graph cannot be read: {said(error)}"
            return Unchecked(proto, path, None, tuple(nodes), refusal, (why,))
    network = Network(model=model, path=path, sha256="", original_names=names)
    called = _made_up(network)
    named = ((replace(at, called=called.get(at.number, at.called)), node) for at, node in nodes)
    return Unchecked(proto, path, network, tuple(named), refusal, unread, broken)


def _made_up(network: Network) -> dict[int | None, NodeName]:
    """Return halfwise's names of nameless nodes, by place; inlined calls have none."""
    found: dict[int | None, list[NodeName]] = {}
    for node in network.model.graph.all_nodes():
        number = node.metadata_props.get(_PLACE)
        if number and network.original_names.get(node_name(node)) == "":
            found.setdefault(int(number), []).append(node_name(node))
    return {number: names[0] for number, names in found.items() if len(names) == 1}


def _folder(proto: onnx.ModelProto, path: Path) -> Path:
    try:
        return weights_folder(proto, path)
    except CaseError:  # reported where the data is read
        return path.parent


def _refusal(proto: onnx.ModelProto, path: Path) -> str:
    with ExitStack() as stack:
        with suppress(CaseError, OSError):  # reported where the data is read
            path = stack.enter_context(without_links(proto, path))
        try:
            # By path: a model may exceed the limit of a protobuf in memory.
            onnx.checker.check_model(path)
        except _UNREADABLE as error:
            return said(error)
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
        "make negative sizes dynamic": lambda: open_negative_sizes(graphs_of(model)),
        "separate constants from inputs": partial(passes.RemoveInitializersFromInputsPass(), model),
        "lift constants": partial(lift, model),
        _SORT: partial(passes.TopologicalSortPass(), model),
        "map external data": lambda: map_files(model),
        "read constants": lambda: broken.update(_drop_broken(model)),
        "name nodes": rename,
        "infer types": lambda: _infer(model),
        "resolve the types of CastLike": lambda: name_cast_types(graphs_of(model)),
    }
    unread = []
    for what, step in steps.items():
        try:
            step()
        except _UNREADABLE as error:
            if what == _SORT:  # there is a cycle, and a walk along it never ends
                raise
            unread.append(f"could not {what}: {said(error)}")
    return tuple(unread), broken, names


def _infer(model: ir.Model) -> None:
    """Give values the types that ONNX infers, in place, if its checker takes the graph.

    Inference has crashed on graphs that the checker refuses. Operators that ONNX does not know,
    such as TensorRT's plugins, are skipped.

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
    """Remove the data of unreadable constants, and return the reasons."""
    found = {}
    for value, error in unreadable_constants(graphs_of(model), _UNREADABLE):
        found[tensor_name(value)] = said(error)
        value.const_value = None
    return found


def numbers(value: ir.Value | None) -> NDArray[np.generic] | None:
    """Return the array of a numeric constant; None for anything else."""
    if value is None or value.const_value is None or value.const_value.dtype == ir.DataType.STRING:
        return None
    return constant_array(value)


class NodePlaces:
    """The nodes of a file, bodies included, by name, output tensor and constant.

    Attributes:
        count: Number of nodes.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            CaseError: not an ONNX file.
        """
        found = list(nodes_in(read_proto(path).graph))
        self._nodes = [node for _, node in found]
        self._main = [place for place, (depth, _) in enumerate(found) if not depth]
        self.count = len(self._nodes)
        self._names: dict[str, tuple[int, str]] = {}
        own = [[node.name] for node in self._nodes]
        outputs = [node.output for node in self._nodes]
        inputs = [node.input for node in self._nodes]
        for via, names in (("node", own), ("output", outputs), ("reader", inputs)):
            for place, some in enumerate(names):
                for name in filter(None, some):
                    self._names.setdefault(name, (place, via))
        # Myelin replaces all but letters and digits in constants' names by underscores.
        self._plain = {re.sub(r"\W", "_", name): found for name, found in self._names.items()}

    def find(self, name: str) -> LogNode:
        """Return the node that `name` refers to."""
        if numbered := _NUMBERED.match(name):
            number = int(numbered["number"])
            if number < len(self._main):
                return self._answer(name, self._main[number], "node")
        for known, wanted in self._wanted(name):
            if wanted in known:
                return self._answer(name, *known[wanted])
        return LogNode(name=NodeName(name))

    def _wanted(self, name: str) -> Iterator[tuple[dict[str, tuple[int, str]], str]]:
        yield self._names, name
        yield self._names, name.removeprefix("node_of_")
        yield self._names, _AGAIN.sub("", name)
        yield self._names, name.removesuffix("_output")
        yield self._plain, re.sub(r"\W", "_", name.removesuffix("_constant"))

    def _answer(self, name: str, place: int, via: str) -> LogNode:
        node = self._nodes[place]
        return LogNode.model_validate(
            {
                "name": name,
                # TensorRT's name for a nameless node.
                "node": node.name or f"node_of_{next(iter(node.output), '')}",
                "op": node.op_type,
                "place": place + 1,
                "via": via,
            }
        )
