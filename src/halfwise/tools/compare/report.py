"""Turn a comparison of tensors into a report."""

from collections import Counter

from halfwise.records import Comparison, NodeComparison
from halfwise.reporting.parts import MOST_ROWS, Column, Lines, Report, Table
from halfwise.wording import count, listed, number, sentence, shorten

_MEANING = {
    "constant": "constant, folded away",
    "fused": "fused away in the engine",
    "missing": "missing on one side",
    "refused": "that no engine can give out",
    "skipped": "not looked at",
}


def comparison(found: Comparison) -> Report:
    """Return the report on a comparison: the first divergence, its way, what was not compared."""
    parts = [_divergence(found), _outputs(found), _path(found), _born(found), _rest(found)]
    about = (
        f"A: {sentence(found.a)} · B: {sentence(found.b)} · {count(len(found.samples), 'sample')} "
        f"· a tensor is good up to a relative RMS error of {number(found.tolerance)}"
    )
    return Report(_title(found), not found.different, about, tuple(part for part in parts if part))


def _title(found: Comparison) -> str:
    compared = sum(node.error is not None for node in found.nodes)
    if found.first:
        return f"First divergence: {listed(found.first)}"
    if found.differs:
        return "The outputs differ, and the error is born at no node alone: it adds up"
    return f"No divergence in {count(compared, 'node')} that both sides have"


def _divergence(found: Comparison) -> Lines | None:
    if not found.first:
        return None
    node = next(n for n in found.nodes if n.status == "born" and n.region == found.first)
    side = "A" if node.side == "a" else "B"
    lines = [
        f"{side}, given these very inputs, is off by {number(node.born or 0.0)} of what "
        f"{'the node' if len(found.first) == 1 else 'these nodes'} should give "
        f"({shorten(node.tensor)}); worst on {shorten(node.worst_sample or '')}."
    ]
    if len(found.first) > 1:
        lines.append(
            f"It is one of these {len(found.first)} nodes: the tensors between them are not there."
        )
    return Lines("Born there", tuple(lines))


def _outputs(found: Comparison) -> Table | None:
    rows = [
        (shorten(name, 48), number(error), "good" if error <= found.tolerance else "off")
        for name, error in found.outputs.items()
    ]
    columns = (Column("output"), Column("error", "right"), Column(""))
    return Table("Outputs", columns, tuple(rows[:MOST_ROWS])) if rows else None


def _path(found: Comparison) -> Table | None:
    if len(found.path) < 2:
        return None
    by_name = {node.node: node for node in found.nodes}
    steps = [by_name[name] for name in found.path]
    rows = [_row(step) for step in _thinned(steps)]
    return Table(f"On its way to the output ({count(len(steps), 'node')})", _COLUMNS, tuple(rows))


def _thinned(steps: list[NodeComparison]) -> list[NodeComparison]:
    """Return at most `MOST_ROWS` steps: the first, the last, and where the error grows most."""
    if len(steps) <= MOST_ROWS:
        return steps
    grown = sorted(steps[1:-1], key=_growth, reverse=True)[: MOST_ROWS - 2]
    kept = {step.node for step in (steps[0], *grown, steps[-1])}
    return [step for step in steps if step.node in kept]


def _growth(step: NodeComparison) -> float:
    return abs((step.error or 0.0) - step.inherited)


def _born(found: Comparison) -> Table | None:
    others = [n for n in found.nodes if n.status == "born" and n.node not in found.first]
    if not others:
        return None
    others.sort(key=lambda n: n.born or 0.0, reverse=True)
    rows = tuple(_row(node) for node in others[:MOST_ROWS])
    return Table(f"Errors are born elsewhere too ({count(len(others), 'node')})", _COLUMNS, rows)


_COLUMNS = (
    *map(Column, ("node", "op", "status")),
    *(Column(title, "right") for title in ("error", "inherited", "born")),
    Column("worst sample"),
)


def _row(node: NodeComparison) -> tuple[str, ...]:
    def shown(value: float | None) -> str:
        return "" if value is None else number(value)

    return (
        shorten(node.node, 36),
        shorten(node.op, 16),
        node.status,
        shown(node.error),
        "" if node.error is None else number(node.inherited),
        shown(node.born),
        shorten(node.worst_sample or "", 16),
    )


def _rest(found: Comparison) -> Lines | None:
    counts: Counter[str] = Counter(node.status for node in found.nodes)
    lines = [
        f"{count(counts[status], 'node')} {meaning}"
        for status, meaning in _MEANING.items()
        if counts[status]
    ]
    lines += [sentence(note) for note in found.notes]
    if found.builds:
        lines.append(f"{count(found.builds, 'engine')} built")
    return Lines("What else to know", tuple(lines)) if lines else None
