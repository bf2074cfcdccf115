"""The sections of the page, in its order, and what each reads: the stored run, data as JSON."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf, log10
from typing import Any, TypeAlias

from markupsafe import Markup
from msgspec import Struct

from halfwise.formats import LOW_FORMATS, Format
from halfwise.records import (
    Curve,
    Engines,
    Graph,
    NodeName,
    Observation,
    Observations,
    PrecisionProof,
    Run,
    RunEvidence,
    Source,
    TensorName,
)
from halfwise.reporting.causes import (
    LABELS,
    TYPES,
    Causes,
    engine_proof,
    grown_with,
    told_of_nodes,
    type_words,
)
from halfwise.reporting.causes import causes as groups_of
from halfwise.reporting.engines import given_parts, proof_parts
from halfwise.reporting.parts import PRECISIONS, Column, Lines, Report, Table, known, table_of
from halfwise.reporting.plan import curve_table, ladder_table
from halfwise.reporting.remarks import CAUSES, note_text, step_text
from halfwise.reporting.strip import strip
from halfwise.reporting.view import device_parts, error_table, screen
from halfwise.wording import WIDEST_NAME, capital, clean, number

Data: TypeAlias = "Mapping[str, Data] | Sequence[Data] | str | float | bool | None"

_ESCAPED = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&"})
_DIGITS = 7
"""Significant digits of a number: FP32's precision. `run.json` has all digits."""


def script_json(value: Data) -> Markup:
    """Return `value` as JSON for a `<script type="application/json">`.

    The result is ASCII without `<`, `>` and `&`, so no text can end the tag or begin a comment in
    it (HTML, "script data state"). NaN and infinite numbers are the strings that JavaScript's
    `Number` takes: "NaN", "Infinity" and "-Infinity".

    Args:
        value: Mappings with strings as keys, sequences, strings, numbers, booleans and None.
    """
    rounded = json.loads(json.dumps(value), parse_float=_rounded, parse_constant=str)
    text = json.dumps(rounded, separators=(",", ":"))
    # The escaped characters occur only in strings: the rest of JSON has none.
    return Markup(text.translate(_ESCAPED))  # noqa: S704


def _rounded(digits: str) -> float:
    return float(f"{float(digits):.{_DIGITS}g}")


class Stored(Struct, frozen=True, dict=True):
    """A stored run.

    Attributes:
        run: The record.
        observations: Observations of its tensors; None if the command made none.
        evidence: Its graph, sources and samples; None if the folder has none.
    """

    run: Run
    observations: Observations | None = None
    evidence: RunEvidence | None = None

    @property
    def low(self) -> Format:
        """The low format of its plan or candidate; FP16 if it has none."""
        return LOW_FORMATS[self.run.low or "fp16"]

    @cached_property
    def screen(self) -> Report:
        """The report's first screen, the same as on the terminal."""
        return screen(self.run)


class Section(Struct, frozen=True):
    """A section.

    Attributes:
        id: Its anchor. `static/ID.js` and `static/ID.css` are its script and its style, if these
            files exist.
        title: Its heading.
        data: The data that its script receives, by `halfwise.section(ID, (root, data) => …)`.
        template: File in `templates/` that makes its body from `section` and `stored`; "" for an
            empty one, which the script fills.
        facts: Values that only the template needs.
        scripts: Further files in `static/` that its script needs, without `.js`.
        libraries: Libraries in `static/vendor/` that its scripts need.
        is_open: Whether it is unfolded at first.
    """

    id: str
    title: str
    data: Data = None
    template: str = ""
    facts: Any = None
    scripts: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    is_open: bool = False


MOST = 400
"""Most places shown per group; run.json has the rest."""


def verdict(stored: Stored) -> Section:
    """Return the section of the first screen, with all commands."""
    facts = {
        "parts": [
            part for part in stored.screen.parts if not isinstance(part, Lines) or not part.whole
        ],
        "steps": [step_text(step) for step in stored.run.next_step],
    }
    return Section("verdict", "Verdict", template="verdict.html", facts=facts, is_open=True)


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
    places = {name: one.to_dict() for name, one in sources_of(stored.evidence).items()}
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
        name: (facts := detail.to_dict()) | facts.pop("histogram")
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
    """Return the section of the plans to choose from, as a plot and a table, and of the ladder."""
    parts = plot(stored.run), curve_table(stored.run), ladder_table(stored.run)
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


MOST_INSIDE = 36
"""Largest number of boxes and nodes in one box, unless it holds a body: a reader can take in that
many, and they are laid out instantly. So many scopes of a name are boxes; the rest is one."""
_TO = " … "


class Folding(Struct, frozen=True):
    """Parts of the graph, each of which can be folded into a box.

    Attributes:
        labels: Of the boxes, each after the one around it.
        parents: The box around each box, as an index; -1 for none.
        places: The box of each node; -1 for none.
    """

    labels: tuple[str, ...]
    parents: tuple[int, ...]
    places: tuple[int, ...]


class _Part(Struct):
    label: str
    inside: "list[_Item]" = []


_Item: TypeAlias = "_Part | int"
"""A part, or the index of a node in the graph."""


def fold(graph: Graph) -> Folding:
    """Return the boxes of a graph.

    Nodes are grouped by scope, those in a body with the node that owns it. What is still flat is
    cut into stretches of like length.
    """
    root = _by_scope(graph)
    _tidy(root, graph)
    labels, parents = list[str](), list[int]()
    places = [-1] * len(graph.nodes)

    def place(part: _Part, box: int) -> None:
        for item in part.inside:
            if isinstance(item, int):
                places[item] = box
            else:
                labels.append(item.label[: 2 * WIDEST_NAME])
                parents.append(box)
                place(item, len(labels) - 1)

    place(root, -1)
    return Folding(tuple(labels), tuple(parents), tuple(places))


def short(name: str) -> str:
    """Return the last part of a name."""
    return name.rstrip("/").rpartition("/")[2] or name


def _by_scope(graph: Graph) -> _Part:
    root = _Part("")
    parts: dict[tuple[object, ...], _Part] = {(): root}
    owners = set(graph.bodies.values())
    paths: list[tuple[object, ...]] = []
    for i, scope in enumerate(graph.scopes):
        names = [name for name in scope.split("/") if name]
        path: tuple[object, ...] = (*names[:MOST_INSIDE], "/".join(names[MOST_INSIDE:]))
        path = path if path[-1] else path[:-1]
        if i in graph.bodies:
            # Owners come before the nodes in their bodies.
            path = paths[graph.bodies[i]]
        paths.append((*path, i) if i in owners else path)
        for depth in range(1, len(paths[i]) + 1):
            if (here := paths[i][:depth]) not in parts:
                last = here[-1]
                parts[here] = _Part(
                    short(graph.nodes[last]) if isinstance(last, int) else str(last)
                )
                parts[here[:-1]].inside.append(parts[here])
        parts[paths[i]].inside.append(i)
    return root


def _tidy(part: _Part, graph: Graph) -> None:
    """Open the boxes in `part` that hold a single item, and cut what is overfull."""
    for i, item in enumerate(part.inside):
        if isinstance(item, int):
            continue
        _tidy(item, graph)
        if len(item.inside) == 1:
            only = item.inside[0]
            if isinstance(only, _Part):
                only.label = f"{item.label}/{only.label}"
            part.inside[i] = only
    while (size := len(part.inside)) > MOST_INSIDE:
        stretch = -(-size // -(-size // MOST_INSIDE))
        cuts = [part.inside[i : i + stretch] for i in range(0, size, stretch)]
        part.inside = [_Part(_label(items, graph), items) for items in cuts]


def _label(items: Sequence[_Item], graph: Graph) -> str:
    first, last = (
        item.label if isinstance(item, _Part) else short(graph.nodes[item])
        for item in (items[0], items[-1])
    )
    # For nested stretches the outer ends count.
    first, last = first.partition(_TO)[0], last.rpartition(_TO)[2]
    return f"{first[: WIDEST_NAME // 2]}{_TO}{last[-WIDEST_NAME // 2 :]}"


_SCRIPTS = ("model", "measures", "scene", "drawing", "panel", "controls")
_STRUCTURE = {
    *("ops", "reads", "gives", "added", "tensors", "shapes"),
    *("constants", "inputs", "outputs", "sources"),
}


def graph(stored: Stored) -> Section | None:
    """Return the section of the graph; None if the run folder has no graph."""
    run, evidence, low = stored.run, stored.evidence, stored.low
    if evidence is None or (shown := evidence.graph) is None or not shown.nodes:
        return None
    folding, proof = fold(shown), engine_proof(run)
    data: dict[str, Data] = {
        **{name: getattr(shown, name) for name in _STRUCTURE},
        "names": shown.nodes,
        "types": [TYPES.get(name, name) for name in shown.types],
        "bodies": [*shown.bodies.items()],
        "origins": [source.to_dict() for source in evidence.sources],
        "place": folding.places,
        "boxes": {"labels": folding.labels, "parents": folding.parents},
        "precision": _precisions(shown, set(() if run.plan is None else run.plan.int8)),
        "facts": _facts(shown, stored),
        **({"engine": {}, "layers": []} if proof is None else _engine(shown, proof)),
        "isOriginal": run.plan is None,
        "grown": grown_with(run) if run.growth else "",
        "low": {"name": low.name, "max": low.max, "smallest": low.smallest_normal},
    }
    return Section(
        "graph",
        "Graph",
        data,
        scripts=("source", *(f"graph-{part}" for part in _SCRIPTS)),
        libraries=("dagre",),
    )


def _precisions(graph: Graph, int8: set[NodeName]) -> list[str]:
    """Return what each node computes in, by the types of its tensors."""

    def types(tensors: Sequence[int]) -> list[str]:
        return [graph.types[tensor] for tensor in tensors if graph.types[tensor]]

    nodes = zip(graph.nodes, graph.ops, graph.reads, graph.gives, strict=True)
    return [
        "INT8" if name in int8 else type_words(op, types(reads), types(gives))
        for name, op, reads, gives in nodes
    ]


def _facts(graph: Graph, stored: Stored) -> dict[str, Data]:
    """Return what the run knows about nodes, by index; of others, nothing is known."""
    seen, told = stored.observations, told_of_nodes(stored.run, stored.observations)
    growth: dict[NodeName, dict[str, Data]] = {
        o.node: {"error": o.error, "inherited": o.inherited} for o in stored.run.growth
    }
    # Of a node's tensors, the one that reaches furthest comes last, and stays.
    tensors = sorted(seen.tensors if seen else (), key=lambda t: (t.nonfinite > 0, t.absmax))
    largest: dict[NodeName | None, dict[str, Data]] = {
        one.producer: {
            "absmax": one.absmax,
            "nonfinite": one.nonfinite,
            "sample": seen.samples[one.worst_sample] if seen else "",
        }
        for one in tensors
    }
    known = (
        {**({"told": told[n]} if n in told else {}), **growth.get(n, {}), **largest.get(n, {})}
        for n in graph.nodes
    )
    return {str(i): facts for i, facts in enumerate(known) if facts}


def _engine(graph: Graph, proof: PrecisionProof) -> dict[str, Data]:
    """Return the engine's layers with nodes of the graph, and the precision of nodes by index."""
    places = {name: i for i, name in enumerate(graph.nodes)}
    layers: list[Data] = [
        {"name": layer.name, "type": layer.type, "nodes": nodes}
        for layer in proof.layers
        if (nodes := [places[name] for name in layer.nodes if name in places])
    ]
    precisions = {str(places[n.node]): n.precision for n in proof.nodes if n.node in places}
    return {"engine": precisions, "layers": layers}


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


_WIDTH, _HEIGHT, _LEFT, _TOP = 480, 220, 70, 30
"""Half as wide as the strip, in the same units: the right half of the picture is empty."""
_INK, _PLAN, _CHOSEN = "#767676", "#4a7fb5", "#d0342c"
"""Colours with at least 3 : 1 on white and on black."""


def plot(run: Run) -> Markup | None:
    """Return the plans as an SVG picture that refers to nothing; None with fewer than two.

    Across is the median time of engines in ms, or the predicted cost relative to everything low; up
    is the logarithm of the error relative to what is allowed. Exact plans lie below all others, and
    those whose outputs are not finite above.
    """
    points, across = _placed(_timed(run.engines)), "median time in ms"
    if len(points) < 2:
        points, across = _placed(_predicted(run.curve)), "predicted cost"
    if len(points) < 2:
        return None
    costs = [cost for cost, *_ in points]
    least, widest = min(costs), max(costs) - min(costs) or 1.0
    known = [log10(error) for _, error, _ in points if 0 < error < inf]
    low, high = min(known, default=0.0), max(known, default=0.0)
    bottom, top = min(low, 0.0) - 1, max(high, 0.0) + 1

    def x(cost: float) -> float:
        return round(_LEFT + 20 + (cost - least) / widest * (_WIDTH - _LEFT - 60), 1)

    def y(error: float) -> float:
        power = bottom if error == 0 else top if error == inf else log10(error)
        return round(_TOP + 10 + (top - power) / (top - bottom) * (_HEIGHT - 20), 1)

    def text(left: float, top: float, words: str, anchor: str = "end") -> Markup:
        return Markup('<text x="{}" y="{}" text-anchor="{}" fill="{}">{}</text>').format(
            left, top, anchor, _INK, words
        )

    circle = Markup('<circle cx="{}" cy="{}" r="5" fill="{}"/>')
    parts = [circle.format(x(c), y(e), _CHOSEN if own else _PLAN) for c, e, own in points]
    line = Markup('<path d="M{} {}H{}" stroke="{}" stroke-dasharray="4 3"/>')
    parts.append(line.format(_LEFT, y(1.0), _WIDTH, _INK))
    said = {
        inf: "not finite",
        10**high: f"{number(10**high)} ×",
        10**low: f"{number(10**low)} ×",
        1.0: "allowed",
        0.0: "exact",
    }
    parts += (text(_LEFT - 6, y(error) + 4, words) for error, words in said.items())
    below, ends = _TOP + _HEIGHT + 18, sorted({least, max(costs)})
    parts += (text(x(cost), below, number(cost), "middle") for cost in ends)
    title = f"Error over what is allowed, by {across}; the delivered plan in red"
    parts.append(text(0, _TOP - 14, title, "start"))
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12"><title>{}</title>{}</svg>'
    ).format(2 * _WIDTH, _TOP + _HEIGHT + 28, title, Markup().join(parts))


_Shown = tuple[float | None, float | None, bool]
"""Cost, error over what is allowed, and whether it is the delivered plan."""


def _timed(engines: Engines | None) -> Iterator[_Shown]:
    if engines is not None:
        yield from ((r.median_ms, r.measured, r.keep == engines.keep) for r in engines.rounds)


def _predicted(curve: Curve | None) -> Iterator[_Shown]:
    if curve is not None:
        shown = ((curve.points[i], i == curve.plan) for i in curve.shown)
        yield from ((point.cost, point.error, own) for point, own in shown)


def _placed(shown: Iterable[_Shown]) -> list[tuple[float, float, bool]]:
    """Return the plans whose cost and error are known."""
    return [(c, error, own) for c, error, own in shown if c is not None and error is not None]
