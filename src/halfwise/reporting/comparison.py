"""The report on a comparison: where errors start, where they leave the tolerance, their paths."""

from collections import Counter
from collections.abc import Sequence
from math import inf, log

from halfwise.records import Comparison, NodeComparison, NodeName
from halfwise.reporting.parts import (
    MOST_ROWS,
    Column,
    Lines,
    Report,
    Table,
    commands,
    known,
    present,
)
from halfwise.reporting.steps import steps_told
from halfwise.wording import clean, count, listed, number, ratio, sentence, shorten, verb

_AMPLIFIED = "{} an error: out of tolerance, with inputs within it"
_MEANING = {
    "constant": "constant, folded away",
    "fused": "fused away in the engine",
    "missing": "missing on one side",
    "refused": "that no engine can output",
    "skipped": "not looked at",
}


def comparison(found: Comparison) -> Report:
    """Return the report on a comparison.

    It shows where errors first leave the tolerance, where they start, their paths, and what was not
    compared.
    """
    parts = present(
        _amplified(found),
        _way(found, found.amplified, "Path of the error from there"),
        _divergence(found),
        _outputs(found),
        _way(found, found.path, "Path of the error to the output"),
        _born(found),
        _rest(found),
        commands("Next", steps_told(found.next_step)),
    )
    about = (
        f"A: {sentence(found.a)} · B: {sentence(found.b)} · {count(len(found.samples), 'sample')} "
        f"· tolerance: a relative RMS error of {number(found.tolerance)}"
    )
    return Report(_title(found), not found.different, about, parts, _within(found))


def _title(found: Comparison) -> str:
    compared = sum(node.error is not None for node in found.nodes)
    if found.amplified:
        where = listed(_amplifier(found).region or found.amplified[:1])
        title = f"First divergence: {where}, where an error is amplified"
        if not found.first:
            return f"{title}; it starts at no single node"
        return f"{title}; the first node where an error that matters starts: {listed(found.first)}"
    if found.first:
        return f"First divergence: {listed(found.first)}"
    if found.differs:
        return "The outputs differ, and the error starts at no single node: it adds up"
    return f"No divergence in {count(compared, 'node')} that both sides have"


def _amplifier(found: Comparison) -> NodeComparison:
    return next(node for node in found.nodes if node.node == found.amplified[0])


def _amplified(found: Comparison) -> Lines | None:
    if not found.amplified:
        return None
    node = _amplifier(found)
    if node.factor is None:
        reads = "Its inputs do not differ, so rounding errors grow here"
    else:
        reads = (
            f"Its inputs are good, off by at most {number(node.inherited)}; the error grows to "
            f"{ratio(node.factor)} that"
        )
    lines = [
        f"{shorten(node.tensor)} is off by {number(node.error or 0.0)}; worst on "
        f"{shorten(node.worst_sample or '')}.",
        f"{reads}. It computes what the model says.",
    ]
    if len(node.region) > 1:
        lines.append(_one_of(node.region))
    return Lines("Where it is amplified", tuple(lines))


def _divergence(found: Comparison) -> Lines | None:
    if not found.first:
        return None
    node = next(n for n in found.nodes if n.status == "born" and n.region == found.first)
    side = "A" if node.side == "a" else "B"
    lines = [
        f"{side}, given the same inputs, is off by {number(node.born or 0.0)} of what "
        f"{'the node' if len(found.first) == 1 else 'these nodes'} should give "
        f"({shorten(node.tensor)}); worst on {shorten(node.worst_sample or '')}."
    ]
    if len(found.first) > 1:
        lines.append(_one_of(found.first))
    return Lines("Where it starts", tuple(lines))


def _one_of(region: Sequence[str]) -> str:
    return f"It is one of these {len(region)} nodes: the tensors between them are not available."


def _outputs(found: Comparison) -> Table | None:
    rows = [
        (clean(name), number(error), "good" if error <= found.tolerance else "off")
        for name, error in found.outputs.items()
    ]
    columns = (Column("output", width=48), Column("error", "right"), Column(""))
    return Table("Outputs", columns, tuple(rows), most=MOST_ROWS) if rows else None


def _within(found: Comparison) -> str:
    if not found.nothing_to_fix:
        return ""
    return (
        "The outputs are within what `halfwise fix` allows by default: the largest error is "
        f"{number(found.excess or 0.0)} × that. The tolerance here is narrower, to show where "
        "errors start."
    )


def _way(found: Comparison, way: Sequence[NodeName], title: str) -> Table | None:
    if len(way) < 2:
        return None
    by_name = {node.node: node for node in found.nodes}
    rows = [_row(step) for step in _thinned([by_name[name] for name in way])]
    of_all = f"{len(rows)} of " * (len(rows) < len(way))
    return Table(f"{title} ({of_all}{count(len(way), 'node')})", _COLUMNS, tuple(rows))


def _thinned(steps: list[NodeComparison]) -> list[NodeComparison]:
    """Return at most `MOST_ROWS` steps: the ends, the sources, and where errors change most."""
    if len(steps) <= MOST_ROWS:
        return steps
    by_interest = sorted(
        steps[1:-1], key=lambda s: (s.status in ("born", "amplified"), _growth(s)), reverse=True
    )
    kept = {step.node for step in (steps[0], *by_interest[: MOST_ROWS - 2], steps[-1])}
    return [step for step in steps if step.node in kept]


def _growth(step: NodeComparison) -> float:
    """Return the logarithm of the factor by which the error grows or shrinks at a node."""
    error, inherited = step.error or 0.0, step.inherited
    if error == inherited:
        return 0.0
    return (
        inf
        if inf in (error, inherited) or not error or not inherited
        else abs(log(error / inherited))
    )


def _born(found: Comparison) -> Table | None:
    told = {*found.first, *found.path, *found.amplified}
    others = [n for n in found.nodes if n.status == "born" and n.node not in told]
    if not others:
        return None
    others.sort(key=lambda n: n.born or 0.0, reverse=True)
    rows = [_row(node) for node in others]
    title = f"Errors start elsewhere too ({count(len(others), 'node')})"
    return Table(title, _COLUMNS, tuple(rows), most=MOST_ROWS)


_COLUMNS = (
    *map(Column, ("node", "op", "status")),
    *(Column(title, "right") for title in ("error", "inherited", "born")),
    Column("worst sample"),
)


def _row(node: NodeComparison) -> tuple[str, ...]:
    return (
        shorten(node.node, 36),
        shorten(node.op, 16),
        node.status,
        known(node.error),
        "" if node.error is None else number(node.inherited),
        known(node.born),
        shorten(node.worst_sample or "", 16),
    )


def _rest(found: Comparison) -> Lines | None:
    counts: Counter[str] = Counter(node.status for node in found.nodes)
    told = {*found.amplified, *found.path}
    amplifiers = sum(n.status == "amplified" and n.node not in told for n in found.nodes)
    noun = "more node" if found.amplified else "node"
    amplify = f"{count(amplifiers, noun)} {verb(amplifiers, 'amplifies', 'amplify')}"
    lines = [_AMPLIFIED.format(amplify)] if amplifiers else []
    lines += [
        f"{count(counts[status], 'node')} {meaning}"
        for status, meaning in _MEANING.items()
        if counts[status]
    ]
    lines += [sentence(note) for note in found.notes]
    if found.builds:
        lines.append(f"{count(found.builds, 'engine')} built")
    return Lines("About this comparison", tuple(lines)) if lines else None
