"""Rules: their definition and their input."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx_ir as ir

from halfwise.graph.loading import Place, Unchecked
from halfwise.graph.model import Network
from halfwise.records import Finding, NodeName, Severity, TensorName
from halfwise.tensorrt.versions import Version


@dataclass(frozen=True, eq=False)
class Subject:
    """The model being linted.

    Attributes:
        model: The model, as far as it can be read.
        tensorrt: Version (major, minor) whose parser will read it; None if none is named.
        ahead: Whether engines are built ahead of time, without a GPU.
    """

    model: Unchecked
    tensorrt: Version | None = None
    ahead: bool = False

    @property
    def version(self) -> Version:
        """The version, for rules that need one."""
        assert self.tensorrt is not None
        return self.tensorrt

    @property
    def network(self) -> Network:
        """The graph; if it cannot be read, only rules that do not need it run."""
        assert self.model.network is not None
        return self.model.network

    @property
    def opset(self) -> int:
        """Version of ONNX's operator set; 1 if the file names none."""
        return self.model.opset or 1

    @cached_property
    def order(self) -> Mapping[ir.Node, int]:
        """All nodes with their index."""
        return {node: place for place, node in enumerate(self.nodes())}

    def nodes(self) -> Iterator[ir.Node]:
        """Yield all nodes of the network, bodies included."""
        return iter(self.network.model.graph.all_nodes())


@dataclass(frozen=True, eq=False)
class Found:
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
    node: ir.Node | Place | None = None
    tensor: str | None = None
    severity: Severity | None = None


Look = Callable[[Subject], Iterable[Found]]


@dataclass(frozen=True, eq=False)
class Rule:
    """A fault to look for.

    Attributes:
        id: Its name, as in `--ignore`.
        severity: Its severity, unless a finding overrides it.
        source: URL of the documentation or report behind it.
        why: The harm, in a sentence or two.
        family: The module that it belongs to.
        reads_graph: Whether it needs the graph in normal form; otherwise it reads only the file.
        parses: Whether it is about a version of TensorRT, and left out where none is named.
        look: Finds the places.
    """

    id: str
    severity: Severity
    source: str
    why: str
    family: str
    reads_graph: bool
    parses: bool
    look: Look

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield what this rule finds."""
        for finding in self.look(subject):
            node = finding.node
            place = subject.model.place(node) if isinstance(node, ir.Node) else node
            yield Finding(
                rule=self.id,
                severity=finding.severity or self.severity,
                node=None if place is None else place.name,
                place=None if place is None else place.number,
                op="" if place is None else place.op,
                called=NodeName("" if place is None else place.called),
                tensor=None if finding.tensor is None else TensorName(finding.tensor),
                message=finding.message,
                fix=finding.fix,
                source=self.source,
            )


def rule(
    name: str, severity: Severity, source: str, *, reads_graph: bool = True, parses: bool = False
) -> Callable[[Look], Rule]:
    """Return what makes a function a rule; its docstring says why the rule exists."""

    def made(look: Look) -> Rule:
        family = look.__module__.rpartition(".")[2]
        why = " ".join((look.__doc__ or "").split())
        return Rule(name, severity, source, why, family, reads_graph, parses, look)

    return made


def standard_nodes(subject: Subject, *ops: str) -> Iterator[tuple[Place, onnx.NodeProto]]:
    """Yield the file's nodes with operators of ONNX itself, limited to `ops` if given."""
    for place, node in subject.model.nodes:
        if node.domain in ("", "ai.onnx") and (not ops or node.op_type in ops):
            yield place, node


def name_of(value: ir.Value | None) -> str:
    """Return the name of a value; "" if it has none."""
    return "" if value is None else value.name or ""
