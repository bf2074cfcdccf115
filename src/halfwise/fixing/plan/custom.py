"""Operators of custom domains: FP32, unless a rule says that the runtime has them in low precision.

ONNX has no schemas for them. Those that ONNX Runtime brings along (`com.microsoft`, `ai.onnx.ml`)
tell which slots take the low type; of others every float tensor counts as one that does.
"""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from halfwise.case import Rules
from halfwise.emulation.ort import signature
from halfwise.fixing.plan.rules import named
from halfwise.formats import Format
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.roles import NodeRole, Role, is_float
from halfwise.records import NodeName


def custom_roles(network: Network, rules: Rules, fmt: Format) -> Mapping[NodeName, NodeRole]:
    """Return the roles of the main graph's nodes whose operator is of a custom domain.

    Nodes with bodies, or with a value that is no tensor, are left out.

    Args:
        network: FP32 model, its types complete.
        rules: User rules; `lower` makes the nodes that it names free to be low.
        fmt: The low format.

    Raises:
        CaseError: a rule is neither a node's name nor a regular expression.
    """
    wanted = {node for rule in rules.lower for node in named(rule, network)}
    return {
        node_name(n): _role(n, network, fmt, lowered=node_name(n) in wanted)
        for n in network.nodes()
        if not is_standard(n) and _is_plain(n)
    }


def _is_plain(node: ir.Node) -> bool:
    bodies = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and v.name]
    return (
        not any(a.type in bodies for a in node.attributes.values())
        and all(isinstance(v.type, ir.TensorType) for v in values)
        and any(map(is_float, values))
    )


def _role(node: ir.Node, network: Network, fmt: Format, *, lowered: bool) -> NodeRole:
    known = signature(node.domain, node.op_type, network.model.opset_imports.get(node.domain, 1))
    inputs = _low_slots(node.inputs, fmt, known.inputs if known else None)
    outputs = _low_slots(node.outputs, fmt, known.outputs if known else None)
    where = f"operator of the custom domain {node.domain!r}"
    if not any(inputs + outputs):
        return NodeRole(Role.PINNED, reason=f"{where}, which takes no {fmt.name.upper()}")
    if lowered:
        return NodeRole(Role.COMPUTE, inputs, outputs)
    hint = f"--lower NODE if your runtime has it in {fmt.name.upper()}"
    return NodeRole(Role.PINNED, reason=f"{where}; {hint}")


def _low_slots(
    values: Sequence[ir.Value | None], fmt: Format, types: Sequence[frozenset[str]] | None
) -> tuple[bool, ...]:
    low = f"tensor({low_type(fmt).name.lower()})"
    return tuple(
        is_float(value) and (types is None or low in types[min(i, len(types) - 1)])
        for i, value in enumerate(values)
    )
