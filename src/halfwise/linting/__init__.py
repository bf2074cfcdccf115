"""Find faults of a model without running anything.

Each family of rules has a file. `linted` turns the findings into a report.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from halfwise.errors import CaseError, UsageError
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network
from halfwise.graph.protobufs import nodes_in, read_proto
from halfwise.linting import numbers, quantisation, structure, tensorrt
from halfwise.linting.rule import Rule, Subject
from halfwise.linting.structure import unread
from halfwise.progress import Silent, Watcher
from halfwise.records import SEVERITIES, Fact, Finding, LintReport, Note
from halfwise.reporting.parts import Lines, Report
from halfwise.tensorrt.versions import (
    ASKED,
    FIRST_WITH,
    NEWEST_RTX,
    SINCE,
    known_version,
    text_of,
)
from halfwise.wording import FEW, alike, clean, command, count, listed, meant, sentence, shorten

__all__ = [
    "FAMILIES",
    "RULES",
    "Rule",
    "Subject",
    "examine",
    "lint",
    "linted",
    "precision_remarks",
    "refusal",
]

FAMILIES = (numbers, quantisation, structure, tensorrt)
"""The modules of rules, in display order."""
RULES = tuple(
    each for module in FAMILIES for each in vars(module).values() if isinstance(each, Rule)
)
"""Every rule, by family and then as defined."""
PARSERS = frozenset(rule.id for rule in RULES if rule.family == "tensorrt")
"""Rules on what TensorRT's parser takes."""

_GRAVE = frozenset(
    rule.id
    for rule in RULES
    if not rule.parses and (rule.severity == "error" or rule.family == "quantisation")
)
"""Rules on what a run does not show: errors, and faults of quantisation."""
_FROZEN = "frozen-batch"


def examine(
    subject: Subject, ignored: Collection[str] = (), watcher: Watcher | None = None
) -> tuple[Finding, ...]:
    """Return the findings: errors first, then warnings, then infos, each sorted by rule.

    Args:
        subject: What is examined, and for what.
        ignored: Ids of rules to leave out.
        watcher: Receives the number of rules done.
    """
    findings: list[Finding] = []
    for done, rule in enumerate(RULES):
        (watcher or Silent()).step(done, len(RULES), "rules")
        if rule.id not in ignored and (subject.tensorrt is not None or not rule.parses):
            findings += rule.findings(subject)
    return tuple(sorted(findings, key=lambda f: SEVERITIES.index(f.severity)))


def lint(
    model: str | Path,
    *,
    target: Literal["rtx"] | None = None,
    trt_version: str | None = None,
    ignore: Iterable[str] = (),
    watcher: Watcher | None = None,
) -> LintReport:
    """Return the known faults of a model; of one that other commands refuse, why they do.

    Args:
        model: The ONNX file.
        target: "rtx": what the parser and the builder of TensorRT for RTX take, which are like
            those of a version of TensorRT.
        trt_version: Version of TensorRT whose parser will read it, such as "8.6" or "10.13.0.35",
            or of TensorRT for RTX, by default the latest known; without it, parsers are not
            checked.
        ignore: Ids of rules to leave out.
        watcher: Receives progress.

    Raises:
        CaseError: not a file, or not an ONNX model at all.
        UsageError: an unknown version or rule.
    """
    rtx = target == "rtx"
    if rtx:
        trt_version = trt_version or NEWEST_RTX
    version = None if trt_version is None else known_version(trt_version, rtx=rtx)
    ignored = tuple(dict.fromkeys(ignore))
    rules = [rule.id for rule in RULES]
    for name in ignored:
        if name not in rules:
            hint = meant(name, rules, f"Rules: {', '.join(rules)}.")
            raise UsageError(f"There is no rule called {name!r}.", hint)
    proto, opset = read_proto(Path(model)), None
    try:
        network = load_network(Path(model), (watcher or Silent()).step)
    except CaseError as error:
        findings: tuple[Finding, ...] = (unread(error),)
    else:
        opset = network.opset
        findings = examine(Subject(network, version, rtx, proto), ignored, watcher)
    return LintReport(
        source=str(model),
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        opset=opset,
        nodes=sum(1 for _ in nodes_in(proto.graph)),
        target="TensorRT for RTX" if rtx else "TensorRT",
        version=trt_version,
        findings=findings,
        ignored=ignored,
    )


def precision_remarks(network: Network) -> tuple[Note, ...]:
    """Return warnings about the linter's findings in a model that a run does not show.

    These are errors, and warnings about its quantisation; and, apart from them, why no TensorRT
    builds an engine, or only a late one, or only for a single batch size.
    """
    others = [rule.id for rule in RULES if rule.id not in _GRAVE | {_FROZEN}]
    findings = examine(Subject(network, ASKED), others)
    notes = [*_refusals(network)]
    notes += _limits("frozen", [f for f in findings if f.rule == _FROZEN])
    grave = [f for f in findings if f.severity != "info" and f.rule in _GRAVE]
    return (*notes, *_counted(grave))


def refusal(network: Network) -> Note | None:
    """Return why no TensorRT builds a model, or only a late one; None if that is not known."""
    return next(_refusals(network), None)


def _refusals(network: Network) -> Iterator[Note]:
    """Yield why the versions with strong typing refuse a model: all of them, or those before one.

    Only those that a rule may tell apart are looked at.
    """
    first, ops = FIRST_WITH["strong typing"], {node.op_type for node in network.all_nodes()}
    told_apart = {SINCE[op] for op in ops & SINCE.keys() if SINCE[op] > first}
    others = [rule.id for rule in RULES if rule.id not in PARSERS]
    later: dict[str, Fact] = {}
    for version in sorted({first, ASKED, *told_apart}, reverse=True):
        findings = examine(Subject(network, version), others)
        if refused := [f for f in findings if f.severity == "error"]:
            facts = later | {"version": text_of(version)}
            yield from _limits("late" if later else "unbuilt", refused, facts)
            return
        later = {"since": text_of(version)}


def _limits(
    kind: Literal["unbuilt", "late", "frozen"],
    findings: Iterable[Finding],
    more_facts: Mapping[str, Fact] = MappingProxyType({}),
) -> Iterator[Note]:
    """Yield what keeps a builder from a model, if anything."""
    groups = alike(findings, lambda found: found.message)
    if groups:
        nodes = (listed([*dict.fromkeys(f.node for f in group if f.node)]) for group in groups)
        told = [
            f"{g[0].message} ({n})" if n else g[0].message
            for n, g in zip(nodes, groups, strict=True)
        ]
        more = max(0, len(told) - FEW)
        facts = {**more_facts, "reasons": "; ".join(told[:FEW]), "more": more}
        yield Note(kind=kind, severity="warning", facts=facts)


def _counted(grave: Sequence[Finding]) -> tuple[Note, ...]:
    if not grave:
        return ()
    counts = Counter(f.rule for f in grave)
    shown = list(counts.items())[:FEW]
    facts: dict[str, Fact] = {
        "rules": tuple(f"{often} × {rule}" for rule, often in shown),
        "more": len(counts) - len(shown),
    }
    return (Note(kind="linted", severity="warning", facts=facts),)


def linted(report: LintReport) -> Report:
    """Return the report on a model's known faults."""
    about = [shorten(report.source), count(report.nodes, "node")]
    about += [f"opset {report.opset}"] if report.opset is not None else []
    about += [sentence(report.producer)] if report.producer else []
    about += [f"for {report.target} {clean(report.version)}"] if report.version else []
    about += [f"without {', '.join(report.ignored)}"] if report.ignored else []
    parts = list(
        _parts(
            report.findings,
            f"; halfwise lint {clean(command(Path(report.source)))} --json lists them",
        )
    )
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
        grave = (finding for finding in findings if finding.severity == severity)
        lines = [line for same in alike(grave, lambda f: f.rule) for line in _lines(same, hint)]
        if lines:
            yield Lines(titles[severity], tuple(lines))


def _lines(same: Sequence[Finding], hint: str) -> Iterator[str]:
    first = same[0]
    yield f"{first.rule}{f' ({len(same)} times)' if len(same) > 1 else ''}"
    for finding in same[:FEW]:
        yield f"  {_where(finding)}{sentence(finding.message)}."
    rest = same[FEW:]
    if rest:
        names = [name for f in rest if (name := f.node or f.called)]
        yield f"  and {len(rest)} more{f': {listed(names)}' if names else hint}"
    for fix in list(dict.fromkeys(f.fix for f in same))[:FEW]:
        yield f"  → {sentence(fix)}"
    yield f"  → See {clean(first.source)}"


def _where(finding: Finding) -> str:
    if finding.node is None:
        return ""
    if finding.called:
        # The name identifies the node; a place next to the name's number would be confusing.
        return f"{shorten(finding.called)} ({shorten(finding.op, 24)}, unnamed): "
    place = f", node {finding.place}" if finding.place is not None else ""
    return f"{shorten(finding.node) or 'unnamed'} ({shorten(finding.op, 24)}{place}): "
