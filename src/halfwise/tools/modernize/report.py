"""Turn the record of a modernized model into a report."""

from collections import Counter
from collections.abc import Iterator

from halfwise.records import LeftAlone, Modernized, Verdict
from halfwise.reporting.parts import MOST_ROWS, Column, Lines, Report, Table
from halfwise.wording import clean, count, sentence, shorten

_NOT_REAL = "Compared on random numbers: give --inputs for a comparison on real data."


def modernized(record: Modernized) -> Report:
    """Return the report: what was rewritten and left, the proof, and what FP16 does."""
    parts = (_rewritings(record), _left(record), _proof(record), _fp16(record))
    return Report(
        _title(record),
        None,
        " · ".join((sentence(record.model), f"for {clean(record.target)}")),
        tuple(part for part in parts if part is not None),
        "" if record.real else _NOT_REAL,
    )


def _title(record: Modernized) -> str:
    opset = f"opset {record.new_opset}"
    if record.new_opset != record.opset:
        opset = f"opset {record.opset} → {record.new_opset}"
    kinds = Counter(r.op for r in record.rewritings)
    made = ", ".join(f"{number} {op}" for op, number in kinds.items()) or "nothing rewritten"
    return f"{opset}, {made}, {record.nodes} → {count(record.new_nodes, 'node')}"


def _rewritings(record: Modernized) -> Table | None:
    if not record.rewritings:
        return None
    rows = [
        (shorten(r.added[-1], 40), r.op, str(len(r.removed)), shorten(r.removed[0], 30))
        for r in record.rewritings[:MOST_ROWS]
    ]
    if len(record.rewritings) > MOST_ROWS:
        rows.append((f"and {len(record.rewritings) - MOST_ROWS} more", "", "", ""))
    columns = (Column("new node"), Column("operator"), Column("for", "right"), Column("nodes from"))
    return Table("Rewritten", columns, tuple(rows))


def _left(record: Modernized) -> Lines | None:
    reasons: dict[tuple[str, str], list[LeftAlone]] = {}
    for left in record.left:
        reasons.setdefault((left.op, left.reason), []).append(left)
    lines = [
        f"{clean(op)} ×{len(some)}: {sentence(reason)}; from {shorten(some[0].nodes[0])}"
        for (op, reason), some in reasons.items()
    ]
    return Lines("Left alone", tuple(lines[:MOST_ROWS])) if lines else None


def _proof(record: Modernized) -> Lines:
    lines = [
        f"Outputs in FP32 on {count(len(record.samples), 'sample')}: off by at most "
        f"{record.error:.1e} of the largest value."
    ]
    if record.folded:
        lines.append(
            f"{count(len(record.folded), 'node')} computed constants, and gave way to them."
        )
    lines += [sentence(note) for note in record.notes]
    return Lines("Proof", tuple(lines))


def _fp16(record: Modernized) -> Lines | None:
    if record.fp16_before is None or record.fp16_after is None:
        return None
    verdicts = {"before": record.fp16_before, "after": record.fp16_after}
    lines = [line for when, verdict in verdicts.items() for line in _verdict(when, verdict)]
    return Lines("Everything in FP16, by emulation", tuple(lines))


def _verdict(when: str, verdict: Verdict) -> Iterator[str]:
    yield f"{when}: {'passed' if verdict.passed else 'failed'}" + "".join(
        f"; {sentence(reason)}" for reason in verdict.reasons
    )
