"""Rules: their definition and their input."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import onnx
import onnx_ir as ir
from msgspec import Struct

from halfwise.graph.model import Network, node_name
from halfwise.graph.protobufs import nodes_in
from halfwise.records import Finding, NodeName, Severity, TensorName
from halfwise.tensorrt.versions import Version


class Subject(Struct, frozen=True, eq=False, dict=True):
    """The model being linted.

    Attributes:
        network: The model.
        tensorrt: Version (major, minor) whose parser will read it; None if none is named.
        ahead: Whether engines are built ahead of time, without a GPU.
        proto: The content of its file, without external data; None leaves out what only that shows.
    """

    network: Network
    tensorrt: Version | None = None
    ahead: bool = False
    proto: onnx.ModelProto | None = None

    @property
    def version(self) -> Version:
        """The version, for rules that need one."""
        assert self.tensorrt is not None
        return self.tensorrt

    @property
    def opset(self) -> int:
        """Version of ONNX's operator set."""
        return self.network.opset

    @cached_property
    def order(self) -> Mapping[ir.Node, int]:
        """All nodes with their index."""
        return {node: place for place, node in enumerate(self.nodes())}

    @cached_property
    def in_file(self) -> Sequence[onnx.NodeProto]:
        """All nodes of the file, those of bodies behind the node that holds them."""
        return [] if self.proto is None else [node for _, node in nodes_in(self.proto.graph)]

    @cached_property
    def _places(self) -> Mapping[str, int]:
        """The number of the node that computes each value of the file."""
        numbered = enumerate(self.in_file, 1)
        return {name: number for number, node in numbered for name in node.output}

    def nodes(self) -> Iterator[ir.Node]:
        """Yield all nodes of the network, bodies included."""
        return iter(self.network.model.graph.all_nodes())

    def own_name(self, node: ir.Node) -> NodeName:
        """Return the name of a node in its file; "" if it has none."""
        name = node_name(node)
        return NodeName(self.network.original_names.get(name, name))

    def place(self, node: ir.Node) -> int | None:
        """Return the number of a node in the file; None for a node of a function, or no file."""
        return next((self._places.get(v.name) for v in node.outputs if v.name), None)


class Found(Struct, frozen=True, eq=False):
    """A finding of a rule: the node, what is wrong (with figures), and what to do.

    Attributes:
        message: One sentence without its full stop.
        fix: One sentence.
        node: The node; None for the file as a whole.
        tensor: The tensor concerned, if any.
        severity: Severity, if it differs from the rule's.
    """

    message: str
    fix: str
    node: ir.Node | None = None
    tensor: str | None = None
    severity: Severity | None = None


Look = Callable[[Subject], Iterable[Found]]


class Rule(Struct, frozen=True, eq=False):
    """A fault to look for.

    Attributes:
        id: Its name, as in `--ignore`.
        severity: Its severity, unless a finding overrides it.
        source: URL of the documentation or report behind it.
        why: The harm, in a sentence or two.
        family: The module that it belongs to.
        parses: Whether it is about a version of TensorRT, and left out where none is named.
        look: Finds the places.
    """

    id: str
    severity: Severity
    source: str
    why: str
    family: str
    parses: bool
    look: Look

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield what this rule finds."""
        for found in self.look(subject):
            node, at = found.node, dict[str, Any]()
            if node is not None:
                name = subject.own_name(node)
                at = {"node": name, "place": subject.place(node), "op": node.op_type}
                at["called"] = NodeName("" if name else node_name(node))
            yield Finding(
                rule=self.id,
                severity=found.severity or self.severity,
                tensor=None if found.tensor is None else TensorName(found.tensor),
                message=found.message,
                fix=found.fix,
                source=self.source,
                **at,
            )


def rule(
    name: str, severity: Severity, source: str, *, parses: bool = False
) -> Callable[[Look], Rule]:
    """Return what makes a function a rule; its docstring says why the rule exists."""

    def made(look: Look) -> Rule:
        family = look.__module__.rpartition(".")[2]
        why = " ".join((look.__doc__ or "").split())
        return Rule(name, severity, source, why, family, parses, look)

    return made


def name_of(value: ir.Value | None) -> str:
    """Return the name of a value; "" if it has none."""
    return "" if value is None else value.name or ""
