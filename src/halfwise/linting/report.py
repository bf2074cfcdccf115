"""Turn what was found in a model, or in constraints, into a report."""

from collections.abc import Iterator, Sequence

from halfwise.records import SEVERITIES, ConstraintReport, Finding, LintReport
from halfwise.reporting.parts import Lines, Report, Table
from halfwise.wording import clean, count, listed, sentence, shorten

_MOST_PLACES = 3
"""Findings of one rule that are printed each; the rest is counted (see --json)."""


def linted(report: LintReport) -> Report:
    """Return the report on a model's known faults."""
    about = [shorten(report.source), count(report.nodes, "node")]
    about += [f"opset {report.opset}"] if report.opset is not None else []
    about += [sentence(report.producer)] if report.producer else []
    about += [f"for TensorRT {clean(report.tensorrt)}"] if report.tensorrt else []
    about += [f"without {', '.join(report.ignored)}"] if report.ignored else []
    parts = list(_parts(report.findings, "; halfwise lint --json lists them"))
    if report.skipped:
        parts.append(Lines("Not looked at", tuple(map(sentence, report.skipped))))
    return Report(
        _title(report.findings), _passed(report.findings), " · ".join(about), tuple(parts)
    )


def checked(report: ConstraintReport) -> Report:
    """Return the report on constraints, the corrected ones last."""
    about = [
        shorten(report.source),
        count(report.keys, "constraint"),
        f"as trtexec {clean(report.tensorrt)} reads them",
    ]
    parts: list[Lines | Table] = list(_parts(report.findings, "; --json lists them"))
    if report.findings:
        title = "Corrected command" if report.command else "Corrected"
        text = clean(report.corrected) or "nothing: none of the constraints is left"
        parts.append(Lines(title, (text,), whole=True))
    return Report(
        _title(report.findings), _passed(report.findings), " · ".join(about), tuple(parts)
    )


def _title(findings: Sequence[Finding]) -> str:
    quantities = [
        count(number, "info" if severity == "info" else severity)
        for severity in SEVERITIES
        if (number := sum(f.severity == severity for f in findings))
    ]
    return ", ".join(quantities) if quantities else "Nothing found"


def _passed(findings: Sequence[Finding]) -> bool | None:
    if any(f.severity == "error" for f in findings):
        return False
    return None if findings else True


def _parts(findings: Sequence[Finding], hint: str) -> Iterator[Lines]:
    titles = {"error": "Errors", "warning": "Warnings", "info": "Infos"}
    for severity in SEVERITIES:
        rules: dict[str, list[Finding]] = {}
        for finding in findings:
            if finding.severity == severity:
                rules.setdefault(finding.rule, []).append(finding)
        lines = [line for alike in rules.values() for line in _lines(alike, hint)]
        if lines:
            yield Lines(titles[severity], tuple(lines))


def _lines(alike: Sequence[Finding], hint: str) -> Iterator[str]:
    first = alike[0]
    yield f"{first.rule}{f' ({len(alike)} times)' if len(alike) > 1 else ''}"
    for finding in alike[:_MOST_PLACES]:
        yield f"  {_where(finding)}{sentence(finding.message)}."
    rest = alike[_MOST_PLACES:]
    if rest:
        names = [f.node for f in rest if f.node]
        yield f"  and {len(rest)} more{f': {listed(names)}' if names else hint}"
    for fix in list(dict.fromkeys(f.fix for f in alike))[:_MOST_PLACES]:
        yield f"  → {sentence(fix)}"
    yield f"  → See {clean(first.source)}"


def _where(finding: Finding) -> str:
    if finding.node is None:
        return ""
    place = f", node {finding.place}" if finding.place is not None else ""
    return f"{shorten(finding.node) or 'unnamed'} ({shorten(finding.op, 24)}{place}): "
