"""Turn the record of an export into a report."""

from halfwise.records import Exported, ParityCheck
from halfwise.reporting.parts import MOST_ROWS, Column, Lines, Report, Table
from halfwise.wording import clean, count, number, sentence


def exported(record: Exported) -> Report:
    """Return the report: whether module and export compute the same, at which sizes."""
    problems = tuple(sentence(c.problem) for c in record.checks if c.problem)
    traced = tuple(map(sentence, record.traced[:MOST_ROWS]))
    parts = [
        Table("Module against export, in FP32", _columns(record), tuple(map(_row, record.checks))),
        Lines("Problems", problems) if problems else None,
        Lines("Traced as constants: other inputs may do something else", traced)
        if traced
        else None,
        Lines("Inputs", tuple(map(clean, record.inputs))),
    ]
    worst = max((check.error for check in record.checks), default=0.0)
    result = "computes the same" if record.passed else "COMPUTES SOMETHING ELSE"
    return Report(
        f"{clean(record.model)} {result}: off by at most {number(worst)} of the largest value",
        record.passed,
        f"{sentence(record.module)} · {record.exporter} exporter · opset {record.opset} · "
        f"{count(record.nodes, 'node')} · {number(record.tolerance)} is allowed",
        tuple(part for part in parts if part is not None),
    )


def _columns(record: Exported) -> tuple[Column, ...]:
    symbols = record.checks[0].sizes if record.checks else ()
    return (*(Column(clean(symbol), "right") for symbol in symbols), Column("error", "right"))


def _row(check: ParityCheck) -> tuple[str, ...]:
    return (*map(str, check.sizes.values()), number(check.error))
