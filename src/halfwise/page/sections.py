"""The sections of the page, in its order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeGuard

from markupsafe import Markup

from halfwise.page.data import Data, Section, Stored
from halfwise.page.graph import graph
from halfwise.records import (
    NodeName,
    Observation,
    Run,
    RunEvidence,
    Source,
    TensorName,
)
from halfwise.reporting.causes import LABELS, Causes, engine_proof
from halfwise.reporting.causes import causes as groups_of
from halfwise.reporting.engines import given_parts, proof_parts
from halfwise.reporting.parts import PRECISIONS, Column, Lines, Table, known, table_of
from halfwise.reporting.plan import curve_table, ladder_table
from halfwise.reporting.remarks import CAUSES, note_text, step_text
from halfwise.reporting.strip import strip
from halfwise.reporting.view import device_parts, error_table
from halfwise.wording import capital, clean, number

MOST = 400
"""Most places shown per group; run.json has the rest."""


def verdict(stored: Stored) -> Section:
    """Return the section of the first screen, with all commands."""
    facts = {
        "parts": [part for part in stored.screen.parts if not is_commands(part)],
        "steps": [step_text(step) for step in stored.run.next_step],
    }
    return Section("verdict", "Verdict", template="verdict.html", facts=facts, is_open=True)


def is_commands(part: Lines | Table) -> TypeGuard[Lines]:
    """Return whether a part consists of commands to copy."""
    return isinstance(part, Lines) and part.whole


def headroom(stored: Stored) -> Section | None:
    """Return the section of the headroom strip; None if nothing was observed."""
    drawn = strip(stored.run, stored.observations)
    return shown("headroom", "Headroom", drawn, is_open=True)


def causes(stored: Stored) -> Section | None:
    """Return the section of causes; None if the run names none."""
    groups, seen, low = groups_of(stored.run, stored.observations), stored.observations, stored.low
    if not groups:
        return None
    now = histograms(() if seen is None else seen.tensors)
    before = histograms(() if seen is None else seen.before)
    places = {name: one.model_dump() for name, one in sources_of(stored.evidence).items()}
    data: Data = {
        "groups": [_group(one, before if one.state == "mended" else now, places) for one in groups],
        "format": {
            "name": low.name.upper(),
            "limit": low.overflow_threshold,
            "normal": low.smallest_normal,
            "subnormal": low.flush_threshold,
        },
    }
    return Section(
        "causes",
        "What was wrong, where and why",
        data,
        scripts=("histogram", "source"),
        is_open=True,
    )


def histograms(tensors: Iterable[Observation]) -> dict[TensorName, Data]:
    """Return the distribution of each tensor of which it was taken."""
    details = ((one.tensor, one.detail) for one in tensors)
    return {
        name: {**detail.model_dump(exclude={"histogram"}), **detail.histogram.model_dump()}
        for name, detail in details
        if detail is not None
    }


def sources_of(evidence: RunEvidence | None) -> Mapping[NodeName, Source]:
    """Return where nodes come from: their line of code, or the module in their name."""
    if evidence is None:
        return {}
    found, shown = dict[NodeName, Source](), evidence.graph
    if shown is not None:
        for name, at, scope in zip(shown.nodes, shown.sources, shown.scopes, strict=True):
            found[name] = Source(module=scope) if at is None else evidence.sources[at]
    return found | {name: evidence.sources[at] for name, at in evidence.replaced.items()}


def _group(
    group: Causes, drawn: Mapping[TensorName, Data], places: Mapping[NodeName, Data]
) -> Data:
    return {
        "title": group.title,
        "state": group.state,
        "label": LABELS[group.state],
        "more": max(0, len(group.found) - MOST),
        "found": [
            {
                "node": one.node,
                "tensor": one.tensor,
                "text": one.text,
                "fix": one.fix,
                "histogram": None if one.tensor is None else drawn.get(one.tensor),
                "place": None if one.node is None else places.get(one.node),
            }
            for one in group.found[:MOST]
        ],
    }


def shown(
    name: str, title: str, *parts: Lines | Table | Markup | None, is_open: bool = False
) -> Section | None:
    """Return a section of pictures and of the report's own tables and lines; None without any."""
    facts = [part for part in parts if part is not None]
    if not facts:
        return None
    return Section(name, title, template="parts.html", facts=facts, is_open=is_open)


def plans(stored: Stored) -> Section | None:
    """Return the section of the plans to choose from, and of the ladder."""
    parts = curve_table(stored.run), ladder_table(stored.run)
    return shown("plans", "What precision costs", *parts, is_open=True)


def kept(stored: Stored) -> Section | None:
    """Return the section of kept nodes, and of those excluded from INT8."""
    plan = stored.run.plan
    table = table_of(
        "Kept nodes",
        () if plan is None else (*plan.keep, *plan.left_out),
        [
            (Column("node"), lambda node: clean(node.node)),
            (Column("operator", minor=True), lambda node: clean(node.op)),
            (Column("in"), lambda node: PRECISIONS[node.precision]),
            (Column("why"), lambda n: capital(CAUSES[n.guard]) if n.guard else clean(n.reason)),
            (
                Column("error without it, × limit", "right"),
                lambda node: known(node.error_without, number),
            ),
        ],
        15,
    )
    return shown("kept", "Kept nodes", table)


def errors(stored: Stored) -> Section | None:
    """Return the section of all outputs' errors; None if no output was judged."""
    return shown("errors", "Errors", error_table(stored.run))


def samples(stored: Stored) -> Section | None:
    """Return the section of samples, worst first; None if the run has no results per sample."""
    verdict = stored.run.verdict
    over = "allowed" if verdict.metric is None else "the default tolerance"
    excesses = zip(verdict.samples, verdict.excesses, strict=False)
    table = table_of(
        "Samples",
        sorted(excesses, key=lambda one: -one[1]),
        [
            (Column("sample"), lambda one: clean(one[0])),
            (Column(f"error / {over}", "right"), lambda one: number(one[1])),
        ],
        10,
    )
    return shown("samples", "Worst samples", table)


def engine(stored: Stored) -> Section | None:
    """Return the section of engines; None if the run has none."""
    run = stored.run
    proof = None if run.engines is None else engine_proof(run)
    return shown(
        "engine",
        "Engines",
        *device_parts(run.devices),
        *(() if proof is None else proof_parts(proof)),
        *(() if run.given_engine is None else given_parts(run.given_engine)),
    )


def provenance(stored: Stored) -> Section:
    """Return the section of versions, hashes, options and inputs."""
    named = {n: [*map(clean, filter(None, values))] for n, values in facts(stored.run).items()}
    shown = [(name, values) for name, values in named.items() if values]
    return Section("provenance", "Provenance", template="provenance.html", facts=shown)


def facts(run: Run) -> Mapping[str, Sequence[str]]:
    """Return what is needed to repeat a run, by name."""
    origin = run.provenance
    return {
        "command": [origin.command or run.kind],
        "date": [origin.date],
        "model": [origin.model],
        "candidate": [origin.candidate],
        "SHA-256 of the model": [origin.model_sha256],
        "folder": [origin.folder],
        "inputs": [origin.data or ""],
        "SHA-256 of the inputs": [origin.inputs_sha256],
        "read as": [*map(note_text, origin.notes)],
        "options": [f"{name} = {value}" for name, value in origin.options.items()],
        "device": [f"{origin.device}, {origin.platform}"],
        "versions": [" · ".join(f"{name} {number}" for name, number in origin.versions.items())],
    }


SECTIONS: tuple[Callable[[Stored], Section | None], ...] = (
    verdict,
    headroom,
    plans,
    causes,
    graph,
    kept,
    errors,
    samples,
    engine,
    provenance,
)
