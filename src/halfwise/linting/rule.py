"""Rules: their definition and their input."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir

from halfwise.formats import FP16
from halfwise.graph.loading import Place, Unchecked
from halfwise.graph.model import Network, constant_array, graphs_of
from halfwise.graph.weights import pieces
from halfwise.records import Finding, NodeName, Severity, TensorName
from halfwise.tensorrt.versions import Version

_WIDE = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16))
"""Types with numbers that FP16 cannot represent."""


@dataclass(frozen=True)
class Extent:
    """Magnitudes in one constant.

    Attributes:
        elements: Number of elements.
        least: Smallest element, or 0 if none is negative; may be -inf, never NaN.
        largest: The largest finite magnitude.
        beyond: Number of finite elements beyond FP16's 65504.
        nonzero: Number of finite non-zero elements.
        subnormal: Number of non-zero elements smaller than FP16's smallest normal number, 6.1e-5.
        zeroed: Number of non-zero elements that FP16 rounds to zero.
    """

    elements: int = 0
    least: float = 0.0
    largest: float = 0.0
    beyond: int = 0
    nonzero: int = 0
    subnormal: int = 0
    zeroed: int = 0


def extents(network: Network) -> Mapping[ir.Value, Extent]:
    """Return the extent of every constant in FP32, FP64 or BF16, including those in bodies."""
    return {
        value: _extent(value)
        for graph in graphs_of(network.model)
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype in _WIDE
    }


def _extent(value: ir.Value) -> Extent:
    elements = beyond = nonzero = subnormal = zeroed = 0
    least = largest = 0.0
    for piece in pieces(constant_array(value)):
        # FP64 stays: 1e300 would be infinite in FP32.
        wide = piece if piece.dtype == np.float64 else np.asarray(piece, np.float32)
        size = np.abs(wide)
        some = size[np.isfinite(size) & (size > 0)]
        elements += int(size.size)
        least = min(least, float(np.fmin.reduce(wide, initial=0.0)))
        largest = max(largest, float(some.max(initial=0.0)))
        beyond += int(np.count_nonzero(some > FP16.max))
        nonzero += int(some.size)
        subnormal += int(np.count_nonzero(some < FP16.smallest_normal))
        zeroed += int(np.count_nonzero(some <= FP16.flush_threshold))
    return Extent(elements, least, largest, beyond, nonzero, subnormal, zeroed)


@dataclass(frozen=True, eq=False)
class Subject:
    """The model being linted.

    Attributes:
        model: The model, as far as it can be read.
        tensorrt: Version (major, minor) whose parser will read it; None if none is named.
        ahead: Whether engines are built ahead of time, without a GPU.
        lacking: Names of nodes for which WebGPU has no kernel.
        refused: Why ONNX Runtime refuses the model there; "" if it does not.
    """

    model: Unchecked
    tensorrt: Version | None = None
    ahead: bool = False
    lacking: Collection[str] = ()
    refused: str = ""

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
    def extents(self) -> Mapping[ir.Value, Extent]:
        """Extents of all floating-point constants."""
        return extents(self.network)

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
