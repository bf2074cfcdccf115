"""What a rule is, what it is given, and the register of all of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx_ir as ir

from halfwise.graph.model import Network
from halfwise.graph.unchecked import Place, Unchecked
from halfwise.linting.extents import Extent, extents
from halfwise.records import Finding, Severity, TensorName
from halfwise.tensorrt.versions import Version


@dataclass(frozen=True, eq=False)
class Subject:
    """What is linted.

    Attributes:
        model: The model, as far as it can be read.
        tensorrt: Version (major, minor) whose parser is to read it; None where none is named.
    """

    model: Unchecked
    tensorrt: Version | None

    @property
    def network(self) -> Network:
        """The graph; only rules that need none run where it cannot be read."""
        assert self.model.network is not None
        return self.model.network

    @property
    def opset(self) -> int:
        """Version of ONNX's operator set; 1 where the file names none."""
        return self.model.opset or 1

    @cached_property
    def extents(self) -> Mapping[ir.Value, Extent]:
        """How large the numbers of each floating-point constant are."""
        return extents(self.network)

    @cached_property
    def order(self) -> Mapping[ir.Node, int]:
        """The nodes of the main graph with their place in it."""
        return {node: place for place, node in enumerate(self.network.nodes())}

    def nodes(self) -> Iterator[ir.Node]:
        """Yield all nodes of the network, bodies included."""
        return iter(self.network.model.graph.all_nodes())


@dataclass(frozen=True, eq=False)
class Found:
    """What a rule found: the node, what is wrong there in numbers, and what to do.

    Attributes:
        message: One sentence without a full stop at its end.
        fix: One sentence.
        node: The node; None for the file as a whole.
        tensor: The tensor that it is about, if any.
        severity: Where it is not that of the rule.
    """

    message: str
    fix: str
    node: ir.Node | Place | None = None
    tensor: str | None = None
    severity: Severity | None = None


Look = Callable[[Subject], Iterable[Found]]


@dataclass(frozen=True, eq=False)
class Rule:
    """One thing to look for.

    Attributes:
        id: Its name, as users give it to `--ignore`.
        severity: How bad it is, where a finding does not say otherwise.
        source: Address of the documentation or report that it rests on.
        why: What it does harm to, in a sentence or two.
        family: The module that it is in.
        reads_graph: Whether it needs the graph in normal form; without, it reads the file alone.
        look: Finds the places.
    """

    id: str
    severity: Severity
    source: str
    why: str
    family: str
    reads_graph: bool
    look: Look

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """Yield what this rule finds."""
        for found in self.look(subject):
            node = found.node
            place = subject.model.place(node) if isinstance(node, ir.Node) else node
            yield Finding(
                rule=self.id,
                severity=found.severity or self.severity,
                node=None if place is None else place.name,
                place=None if place is None else place.number,
                op="" if place is None else place.op,
                tensor=None if found.tensor is None else TensorName(found.tensor),
                message=found.message,
                fix=found.fix,
                source=self.source,
            )


_registered: dict[str, Rule] = {}


def rule(
    name: str, severity: Severity, source: str, *, reads_graph: bool = True
) -> Callable[[Look], Look]:
    """Register a rule; its docstring tells why it is one."""

    def register(look: Look) -> Look:
        family = look.__module__.rpartition(".")[2]
        why = " ".join((look.__doc__ or "").split())
        _registered[name] = Rule(name, severity, source, why, family, reads_graph, look)
        return look

    return register


def registered() -> tuple[Rule, ...]:
    """Return every rule whose file is imported, in the order of definition."""
    return tuple(_registered.values())


def standard_nodes(subject: Subject, *ops: str) -> Iterator[tuple[Place, onnx.NodeProto]]:
    """Yield the file's nodes whose operator is one of ONNX's own, and of `ops` where given."""
    for place, node in subject.model.nodes:
        if node.domain in ("", "ai.onnx") and (not ops or node.op_type in ops):
            yield place, node


def name_of(value: ir.Value | None) -> str:
    """Return the name of a value; "" where it has none."""
    return "" if value is None else value.name or ""
