"""Report an engine's precision: its layers by time, its nodes by precision."""

from collections.abc import Mapping, Sequence

from halfwise.records import EngineLayer, NodeName, NodePrecision, Precision, PrecisionProof
from halfwise.reporting.parts import MOST_ROWS, Column, Lines, Report, Table, lines_of, present
from halfwise.wording import clean, count, listed, number, percent, shorten

WORDS: dict[Precision, str] = {
    "fp32": "FP32",
    "tf32": "TF32",
    "fp16": "FP16",
    "bf16": "BF16",
    "int8": "INT8",
    "fp8": "FP8",
    "mixed": "mixed",
    "other": "other",
    "unknown": "unknown",
}


def inspected(proof: PrecisionProof, engine: str) -> Report:
    """Return the report on an engine, by its inspector.

    Args:
        proof: Its precisions; without nodes if its model is unknown.
        engine: Its name, such as its path.
    """
    total = _total(proof.layers)
    timed = f"; {number(total)} ms in all of them" if total else ""
    shares = proof.time_share or proof.node_share or _layer_share(proof.layers)
    of = "of the time" if proof.time_share else "of the nodes" if proof.node_share else "of layers"
    return Report(
        title=f"{share_words(shares)} {of}" if shares else "The engine has no layers",
        passed=False if proof.findings else None,
        about=f"{clean(engine)}; {count(len(proof.layers), 'layer')}{timed}",
        parts=present(*proof_parts(proof)),
    )


def proof_parts(proof: PrecisionProof) -> tuple[Lines | Table | None, ...]:
    """Return the parts on an engine's precision, in reading order."""
    return (
        lines_of("Not as requested", proof.findings),
        share_table(proof),
        layer_table(proof.layers),
        node_table(proof.nodes),
        lines_of("Remarks", proof.remarks),
    )


def share_words(shares: Mapping[Precision, float]) -> str:
    """Return shares such as `FP16 83%, FP32 12%, other 5%`, largest first; "" for none."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{WORDS[precision]} {percent(share)}" for precision, share in ordered)


def share_table(proof: PrecisionProof) -> Table | None:
    """Return a row for each precision: its layers, compute nodes and time."""
    kinds = [p for p in WORDS if any(layer.precision == p for layer in proof.layers)]
    kinds += [p for p in WORDS if p not in kinds and p in {**proof.node_share, **proof.time_share}]
    rows = tuple(
        (
            WORDS[kind],
            str(sum(layer.precision == kind for layer in proof.layers)),
            percent(proof.node_share[kind]) if kind in proof.node_share else "",
            percent(proof.time_share[kind]) if kind in proof.time_share else "",
        )
        for kind in kinds
    )
    columns = ("layers", "of compute nodes", "of time")
    table = Table(
        "Precision",
        (Column("precision"), *(Column(title, "right") for title in columns)),
        rows,
    )
    return table.without_empty_columns() if rows else None


def layer_table(layers: Sequence[EngineLayer]) -> Table | None:
    """Return the layers that take longest, or the first ones if no time is known."""
    if not layers:
        return None
    total = _total(layers)
    shown = sorted(layers, key=lambda layer: -(layer.milliseconds or 0.0))
    rows, rest = tuple(_layer_row(layer, total) for layer in shown), tuple[str, ...]()
    if others := shown[MOST_ROWS:]:
        left = _total(others)
        share = percent(left / total) if total else ""
        rest = (f"and {len(others)} more", "", "", "", number(left) if total else "", share)
    columns = (
        *map(Column, ("layer", "type", "reads → gives", "precision")),
        Column("ms", "right"),
        Column("of time", "right"),
    )
    title = "Layers, longest first" if total else "Layers"
    return Table(title, columns, rows, most=MOST_ROWS, rest=rest).without_empty_columns()


def node_table(nodes: Sequence[NodePrecision]) -> Table | None:
    """Return the nodes by requested and actual precision, wrong ones first."""
    groups: dict[tuple[Precision | None, Precision], list[NodeName]] = {}
    for node in nodes:
        if node.precision != "other" or node.asked is not None:
            groups.setdefault((node.asked, node.precision), []).append(node.node)
    if not groups:
        return None
    ordered = sorted(groups.items(), key=lambda item: (_is_as_asked(*item[0]), -len(item[1])))
    rows = tuple(
        (
            WORDS[asked] if asked else "",
            WORDS[precision],
            str(len(names)),
            listed(names, most=3, width=40),
        )
        for (asked, precision), names in ordered
    )
    columns = (Column("asked"), Column("is"), Column("nodes", "right"), Column("which"))
    return Table("Nodes of the model", columns, rows).without_empty_columns()


def _is_as_asked(asked: Precision | None, precision: Precision) -> bool:
    return asked is None or precision in (asked, "unknown", "other")


def _layer_row(layer: EngineLayer, total: float) -> tuple[str, ...]:
    time = layer.milliseconds
    return (
        shorten(layer.name, 34),
        shorten(layer.type, 16),
        _types(layer),
        WORDS[layer.precision],
        "" if time is None else number(time),
        percent(time / total) if time and total else "",
    )


def _types(layer: EngineLayer) -> str:
    sides = [", ".join(dict.fromkeys(filter(None, side))) for side in (layer.inputs, layer.outputs)]
    return shorten(" → ".join(side or "?" for side in sides), 24) if any(sides) else ""


def _layer_share(layers: Sequence[EngineLayer]) -> dict[Precision, float]:
    found = [layer.precision for layer in layers]
    return {kind: found.count(kind) / len(found) for kind in dict.fromkeys(found)}


def _total(layers: Sequence[EngineLayer]) -> float:
    return sum(layer.milliseconds or 0.0 for layer in layers)
