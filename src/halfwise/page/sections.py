"""The sections of the page, in its order."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeGuard

from halfwise.page.data import Data, Interned, Section, Stored
from halfwise.page.engines import engine
from halfwise.page.graph import graph
from halfwise.page.plans import curve
from halfwise.records import (
    Detail,
    KeptNode,
    NodeName,
    Observation,
    Run,
    RunEvidence,
    Source,
    TensorName,
)
from halfwise.reporting.causes import LABELS, Causes
from halfwise.reporting.causes import causes as groups_of
from halfwise.reporting.engines import WORDS
from halfwise.reporting.guards import CAUSES
from halfwise.reporting.parts import Lines, Table
from halfwise.reporting.remarks import in_words
from halfwise.reporting.steps import note_text, step_text
from halfwise.reporting.strip import as_svg, strip
from halfwise.reporting.view import error_table
from halfwise.wording import capital, clean, dimensions


class Places:
    """The places that a section names."""

    def __init__(self, evidence: RunEvidence | None) -> None:
        self._places = Interned[Source]()
        self._of: dict[NodeName, Source] = {}
        if evidence is not None:
            if (graph := evidence.graph) is not None:
                for name, at, scope in zip(graph.nodes, graph.sources, graph.scopes, strict=True):
                    module = Source(module=graph.scope_names[scope])
                    self._of[name] = module if at is None else evidence.sources[at]
            self._of |= {name: evidence.sources[at] for name, at in evidence.replaced.items()}

    def of(self, node: NodeName | None) -> int | None:
        """Return the index of a node's place in `data`; None if unknown."""
        source = None if node is None else self._of.get(node)
        return None if source in (None, Source(module="")) else self._places.of(source)

    @property
    def data(self) -> list[Data]:
        """All places that were named."""
        return [place.model_dump() for place in self._places.all]


MOST = 400
"""Most places shown per group; run.json has the rest."""


def headroom(stored: Stored) -> Section | None:
    """Return the section of the headroom strip; None if nothing was observed."""
    drawn = strip(stored.run, stored.observations)
    if drawn is None:
        return None
    return Section("headroom", "Headroom", template="headroom.html", facts=as_svg(drawn))


def causes(stored: Stored) -> Section | None:
    """Return the section of causes; None if the run names none."""
    groups = groups_of(stored.run, stored.observations)
    if not groups:
        return None
    drawn = _Drawn(stored)
    places = Places(stored.evidence)
    low = stored.low
    rows = [_group(group, drawn, places) for group in groups]
    data: Data = {
        "groups": rows,
        "histograms": drawn.histograms,
        "format": {
            "name": low.name.upper(),
            "limit": low.overflow_threshold,
            "normal": low.smallest_normal,
            "subnormal": low.flush_threshold,
        },
        "places": places.data,
    }
    return Section(
        "causes",
        "What was wrong, where and why",
        data,
        scripts=("histogram", "source"),
        is_open=True,
    )


def _group(group: Causes, drawn: "_Drawn", places: Places) -> Data:
    shown = group.found[:MOST]
    return {
        "title": group.title,
        "state": group.state,
        "label": LABELS[group.state],
        "more": len(group.found) - len(shown),
        "found": [
            {
                "node": one.node,
                "tensor": one.tensor,
                "text": one.text,
                "fix": one.fix,
                "histogram": drawn.of(one.tensor, before=group.state == "mended"),
                "place": places.of(one.node),
            }
            for one in shown
        ],
    }


class _Drawn:
    """The drawn histograms, each once."""

    def __init__(self, stored: Stored) -> None:
        seen = stored.observations
        self._now = _details(seen.tensors if seen is not None else ())
        self._before = _details(seen.before if seen is not None else ())
        self._places: dict[int, int] = {}
        self.histograms: list[Data] = []

    def of(self, tensor: TensorName | None, *, before: bool) -> int | None:
        """Return the index of a tensor's histogram; None if there is none."""
        detail = (self._before if before else self._now).get(tensor) if tensor else None
        if detail is None:
            return None
        if id(detail) not in self._places:
            self._places[id(detail)] = len(self.histograms)
            self.histograms.append(
                {
                    "first": detail.histogram.first,
                    "counts": detail.histogram.counts,
                    "zeros": detail.histogram.zeros,
                    "overflow": detail.overflow,
                    "flush": detail.flush,
                    "subnormal": detail.subnormal,
                    "samples": detail.samples,
                }
            )
        return self._places[id(detail)]


def _details(tensors: Iterable[Observation]) -> dict[TensorName, Detail]:
    return {one.tensor: one.detail for one in tensors if one.detail is not None}


def samples(stored: Stored) -> Section | None:
    """Return the section of samples; None if the run has no results per sample."""
    verdict, evidence = stored.run.verdict, stored.evidence
    shown = evidence.previews if evidence is not None else ()
    excesses = dict(zip(verdict.samples, verdict.excesses, strict=False))
    if not (shown or excesses):
        return None
    worst = sorted(excesses, key=lambda name: -excesses[name])
    previews: list[Data] = [
        {
            **one.model_dump(exclude={"shape"}),
            "shape": dimensions(one.shape),
            "excess": excesses.get(one.sample),
        }
        for one in shown
    ]
    data: Data = {
        "over": "allowed" if verdict.metric is None else "the default tolerance",
        "rows": [[name, excesses[name]] for name in worst],
        "previews": previews,
    }
    return Section("samples", "Worst samples", data)


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


def provenance(stored: Stored) -> Section:
    """Return the section of versions, hashes, options and inputs."""
    named = [(name, list(map(clean, filter(None, values)))) for name, values in facts(stored.run)]
    shown = [(name, values) for name, values in named if values]
    return Section("provenance", "Provenance", template="provenance.html", facts=shown)


def facts(run: Run) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield names and their facts."""
    origin = run.provenance
    yield "command", (origin.command or run.kind,)
    yield "date", (origin.date,)
    yield "model", (origin.model,)
    yield "candidate", (origin.candidate,)
    yield "SHA-256 of the model", (origin.model_sha256,)
    yield "folder", (origin.folder,)
    yield "inputs", (origin.data or "",)
    yield "SHA-256 of the inputs", (origin.inputs_sha256,)
    yield "read as", tuple(map(note_text, origin.notes))
    yield "options", tuple(f"{name} = {value}" for name, value in origin.options.items())
    yield "device", (f"{origin.device}, {origin.platform}",)
    yield "versions", (" · ".join(f"{name} {number}" for name, number in origin.versions.items()),)


def kept(stored: Stored) -> Section | None:
    """Return the section of kept nodes, and of those excluded from INT8."""
    plan = in_words(stored.run).plan
    nodes = () if plan is None else (*plan.keep, *plan.left_out)
    rows = [list(cells(node)) for node in nodes]
    return Section("kept", "Kept nodes", {"rows": rows}) if rows else None


def cells(node: KeptNode) -> Iterator[Data]:
    """Yield name, operator, type, effect when low, and the error without it over the limit."""
    yield node.node
    yield node.op
    yield WORDS[node.precision]
    yield node.reason if node.guard is None else capital(CAUSES[node.guard])
    yield node.error_without


def errors(stored: Stored) -> Section | None:
    """Return the section of all outputs' errors; None if no output was judged."""
    table = error_table(stored.run)
    if table is None:
        return None
    return Section("errors", "Errors", template="errors.html", facts=table)


SECTIONS: tuple[Callable[[Stored], Section | None], ...] = (
    verdict,
    headroom,
    curve,
    causes,
    graph,
    kept,
    errors,
    samples,
    engine,
    provenance,
)
