"""What to do by hand, in the user's own names, and why a tensor is not scaled into range.

Advice tells all that a repair does, or nothing.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from halfwise.graph.model import Network, graphs_of, node_name, values_of
from halfwise.graph.scaling import Constant, Relations, completed, in_place, multiples, relations
from halfwise.records import Guard, GuardKind, NodeName, Remark, TensorName
from halfwise.wording import listed


def own_names(network: Network) -> frozenset[str]:
    """Return the names of a model's values, including those in bodies."""
    return frozenset(str(v.name) for g in graphs_of(network.model) for v in values_of(g) if v.name)


def own_nodes(original: Network, network: Network) -> frozenset[NodeName]:
    """Return the nodes of `network` that `original` also has, with the same operators."""
    then, now = ({(node_name(n), n.op_type) for n in of.nodes()} for of in (original, network))
    return frozenset(name for name, _ in then & now)


def scaling_advice(
    found: Relations, exponents: Mapping[TensorName, int], given: Container[str] | None
) -> str:
    """Return everything `rescale` does with `exponents`; "" if the user's names cannot express it.

    Args:
        found: What exponents must satisfy.
        exponents: As for `rescale`.
        given: Names in the user's model; None for all.
    """
    full = completed(found, exponents)
    needed: list[str | None] = []
    muls: dict[int, list[str]] = {}
    for name, edge in found.edges.items():
        if by := full[name] - full[edge.tensor]:
            body = "" if edge.slot is not None else "the bodies of "
            reader = "the output" if edge.node is None else f"{body}{edge.node.name}"
            muls.setdefault(by, []).append(f"{edge.tensor} for {reader}")
            needed.append(edge.tensor)
    scaled: dict[int, list[str]] = {}
    for constant, by, is_copied in _scaled(found, full):
        scaled.setdefault(by, []).append(_called(constant, is_copied))
        needed += [] if constant.value is None else [constant.value.name]
    adds: dict[int, list[str]] = {}
    for name in found.logs:
        log = found.edges[name].node
        if full[name] and log is not None:
            adds.setdefault(-full[name], []).append(node_name(log))
    if given is not None and not all(name in given for name in needed):
        return ""
    factors = ", ".join(f"{_all(names)} by 2^{e}" for e, names in sorted(scaled.items()))
    lines = [f"Scale {factors}."] if scaled else []
    lines += [f"Insert a Mul by 2^{e}: {_all(names)}." for e, names in sorted(muls.items())]
    lines += [f"Insert an Add of {e}·ln 2 behind {_all(n)}." for e, n in sorted(adds.items())]
    return " ".join(lines)


def _scaled(
    found: Relations, full: Mapping[TensorName, int]
) -> Iterator[tuple[Constant, int, bool]]:
    """Yield what constants are multiplied by, and whether other nodes read them unscaled."""
    wanted = multiples(found, full)
    places: dict[ir.Value, dict[Constant, int]] = {}
    for constant, by in wanted.items():
        if constant.value is not None:
            places.setdefault(constant.value, {})[constant] = by
    # If readers need several multiples, a copy for each makes clear what is copied.
    whole = {v for v, some in places.items() if in_place(v, some) and len({*some.values()}) == 1}
    for constant, by in wanted.items():
        if by:
            yield constant, by, constant.value is not None and constant.value not in whole


def _called(constant: Constant, is_copied: bool) -> str:
    node, value = constant.node, constant.value
    if value is None:
        return f"the {constant.slot} of {node.name}"
    return f"a copy of {value.name} for {node.name}" if is_copied else str(value.name)


def _all(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return listed(names, most=len(names), width=max(map(len, names)) + len(names) * 8)


_RANGES: frozenset[GuardKind] = frozenset(("overflow", "square", "headroom", "underflow"))


def unscaled(
    network: Network, guards: Iterable[Guard], kept: frozenset[NodeName]
) -> Iterator[Remark]:
    """Yield, for each operator that prevents it, a tensor that a guard still names.

    Args:
        network: The model, with all repairs made.
        guards: Guards on it.
        kept: Nodes in FP32: a guard on none of them does no harm.
    """
    found = relations(network.model)
    producers = {v.name: node for node in network.nodes() for v in node.outputs}
    fixed: dict[str, ir.Node] = {}
    for name, edge in found.edges.items():
        if name in found.fixed and edge.node is not None:
            fixed.setdefault(edge.tensor, edge.node)
    told: dict[tuple[str, str], Remark] = {}
    for guard in guards:
        if guard.kind not in _RANGES or guard.tensor is None or kept.isdisjoint(guard.nodes):
            continue
        by = {"maker": producers.get(guard.tensor), "reader": fixed.get(guard.tensor)}
        if guard.tensor not in found.fixed:
            del by["maker"]
        for how, node in by.items():
            if node is not None:
                names = {"tensor": guard.tensor, how: node_name(node), "op": node.op_type}
                told.setdefault((how, node.op_type), Remark(kind="unscaled", names=names))
                break
    yield from told.values()
