"""Diagnoses, faults of engines, and comparisons of two computations."""

from collections import Counter
from collections.abc import Iterator

from halfwise.records import (
    Comparison,
    EngineDiagnosis,
    NodeComparison,
    NodeName,
    Run,
    Rung,
    Sign,
)
from halfwise.reporting.causes import blame_lines
from halfwise.reporting.parts import (
    WORDS,
    Column,
    Columns,
    Lines,
    Report,
    Table,
    commands,
    first_of,
    known,
    lines_of,
    present,
    say,
    table_of,
)
from halfwise.reporting.remarks import stated, steps_told
from halfwise.wording import (
    MOST_ROWS,
    clean,
    count,
    listed,
    number,
    sentence,
    shorten,
    stopped,
)


def cause(diagnosis: EngineDiagnosis, label: str, message: str, *, emulated: bool) -> str:
    """Return what is wrong with an engine, in a sentence or two.

    Args:
        diagnosis: What was found.
        label: Name of the engine.
        message: Why there is no engine, or none that runs; else empty.
        emulated: Whether it should match an emulation instead of the FP32 model.
    """
    return say(
        "fault",
        "cause",
        diagnosis,
        label=label,
        wrong=WORDS["symptom"][diagnosis.symptom],
        message=stopped(message) if message else "",
        emulated=emulated,
        where=listed(diagnosis.region),
    )


def evidence(diagnosis: EngineDiagnosis) -> list[Sign]:
    """Return the evidence for a diagnosis."""
    told = {
        "wrong": WORDS["symptom"][diagnosis.symptom],
        "limit": diagnosis.limit_db if diagnosis.symptom == "outputs" else None,
    }
    signs: list[Sign] = []
    if diagnosis.region:
        text = say("fault", "region", diagnosis, told)
        signs.append(Sign(severity="error", text=text, nodes=diagnosis.region))
    if diagnosis.explained is not None:
        text = say("fault", "rest", diagnosis, told)
        signs.append(Sign(severity="info" if diagnosis.explained else "warning", text=text))
    return signs


def advice(diagnosis: EngineDiagnosis) -> tuple[str, ...]:
    """Return what to do, one sentence each."""
    again, told = say("fault", "again"), say("fault", "report")
    return (again, told) if diagnosis.region else (again,)


_MARKS = {"error": "✗", "warning": "!", "info": "·"}


def diagnosed(run: Run) -> Report:
    """Return the report on a run of `diagnose`: the first rung that failed, and all before it."""
    failed = next((rung for rung in run.diagnosis if rung.passed is False), None)
    passed, samples = run.verdict.passed, len(run.verdict.samples)
    about = f"{sentence(run.provenance.model)} · {count(samples, 'sample')} · {run.verdict.level}"
    signs = failed.evidence if failed is not None else ()
    marked = [f"{_MARKS[s.severity]} {s.text}{_at(s)}" for s in signs]
    unjudged = failed is None and not passed
    steps = steps_told(failed.advice if failed is not None else run.next_step if unjudged else ())
    parts = present(
        lines_of("Where", [listed(failed.nodes if failed is not None else (), most=MOST_ROWS)]),
        lines_of("Evidence", first_of(marked, most=MOST_ROWS)),
        lines_of("Why it is not judged", stated(run.verdict.failures) if unjudged else ()),
        Lines("What to do", steps, whole=True) if steps else None,
        *(_warnings(rung) for rung in run.diagnosis if rung is not failed),
        _ladder(run, failed),
    )
    return Report(_title(run, failed), passed, about, parts)


def _title(run: Run, failed: Rung | None) -> str:
    if failed is not None:
        return sentence(failed.cause)
    looked = sum(rung.passed is not None for rung in run.diagnosis)
    passed, rungs = run.verdict.passed, len(run.diagnosis)
    return say("diagnosis", "nothing", looked=looked, rungs=rungs, passed=passed)


def _ladder(run: Run, failed: Rung | None) -> Table:
    rows = tuple(
        (
            str(rung.rung),
            WORDS["tested"][rung.name],
            _answer(rung),
            "see above" if rung is failed else _found(rung),
        )
        for rung in run.diagnosis
    )
    columns = (Column("", "right"), Column("tested"), Column("result"), Column("what was found"))
    return Table("What was tested", columns, rows)


def _found(rung: Rung) -> str:
    """Return what was found, and what to do where that is not all."""
    steps = steps_told(rung.advice) if rung.passed is None else ()
    return " ".join((sentence(rung.cause), *steps))


def _answer(rung: Rung) -> str:
    unknown = "not tested" if rung.how == "skipped" else "suspected"
    word = unknown if rung.passed is None else "no fault" if rung.passed else "FAULT"
    return f"{word} (emulated)" if rung.how == "emulated" else word


def _warnings(rung: Rung) -> Lines | None:
    warnings = [f"{s.text}{_at(s)}" for s in rung.evidence if s.severity == "warning"][:MOST_ROWS]
    return lines_of(f"About {WORDS['tested'][rung.name]}", warnings)


def _at(sign: Sign) -> str:
    return f" ({listed(sign.nodes)})" if sign.nodes else ""


def comparison(compared: Comparison) -> Report:
    """Return the report on a comparison.

    It shows where errors first leave the tolerance, where they start, their paths, and what was not
    compared.
    """
    parts = present(
        blame_lines(compared.blame),
        lines_of("Where it arises", _arises(compared)),
        table_of(
            "Outputs",
            list(compared.outputs.items()),
            [
                (Column("output", width=48), lambda output: clean(output[0])),
                (Column("error", "right"), lambda output: number(output[1])),
                (
                    Column(""),
                    lambda o: (
                        "off" if o[1] > compared.tolerance or o[0] in compared.beyond else "good"
                    ),
                ),
            ],
            MOST_ROWS,
        ),
        _nodes(compared),
        lines_of("About this comparison", _rest(compared)),
        commands("Next", steps_told(compared.next_step)),
    )
    return Report(
        _title_comparison(compared),
        not compared.different,
        sentence(say("comparison", "about", compared)),
        parts,
        say("comparison", "within", compared) if compared.nothing_to_fix else "",
    )


def _title_comparison(compared: Comparison) -> str:
    amplified = compared.amplified[:1]
    amplified = amplified and (_of(compared, amplified[0]).region or amplified)
    nodes = sum(node.error is not None for node in compared.nodes)
    found = compared.blame
    blamed = () if found is None or found.is_spread else found.left_out[:1]
    return say(
        "comparison",
        "title",
        compared,
        amplified=amplified,
        nodes=nodes,
        blamed=next((one.nodes for one in blamed), None),
        share=next((one.share for one in blamed), None),
    )


def _of(compared: Comparison, name: NodeName) -> NodeComparison:
    return next(node for node in compared.nodes if node.node == name)


def _arises(compared: Comparison) -> Iterator[str]:
    for name in compared.amplified[:1]:
        yield _told(_of(compared, name), "amplified")
    if compared.first:
        born = (n for n in compared.nodes if n.status == "born" and n.region == compared.first)
        yield _told(next(born), "first")


def _told(node: NodeComparison, kind: str) -> str:
    region = node.region if len(node.region) > 1 else None
    facts = {"side": "A" if node.side == "a" else "B", "born": node.born or 0.0}
    return say("comparison", kind, node, facts, region=region)


def _nodes(compared: Comparison) -> Table | None:
    """Return the nodes on the way of the error, then others where errors start, worst first."""
    way, by_name = (*compared.amplified, *compared.path), {n.node: n for n in compared.nodes}
    described = {*compared.first, *way}
    others = [n for n in compared.nodes if n.status == "born" and n.node not in described]
    others.sort(key=lambda node: node.born or 0.0, reverse=True)
    title = "Nodes on the way of the error, and others where errors start"
    steps = (by_name[name] for name in dict.fromkeys(way))
    return table_of(title, (*steps, *others), _COLUMNS, MOST_ROWS)


_COLUMNS: Columns[NodeComparison] = [
    (Column("node"), lambda node: shorten(node.node, 36)),
    (Column("op"), lambda node: shorten(node.op, 16)),
    (Column("status"), lambda node: node.status),
    (Column("error", "right"), lambda node: known(node.error)),
    (Column("inherited", "right"), lambda n: "" if n.error is None else number(n.inherited)),
    (Column("born", "right"), lambda node: known(node.born)),
    (Column("worst sample"), lambda node: shorten(node.worst_sample or "", 16)),
]


def _rest(compared: Comparison) -> Iterator[str]:
    shown = {*compared.amplified, *compared.path}
    counts = Counter(
        n.status for n in compared.nodes if n.status != "amplified" or n.node not in shown
    )
    for status, meaning in WORDS["status"].items():
        if some := counts[status]:  # type: ignore[index]
            yield f"{count(some, 'node')} {meaning}"
    yield from compared.notes
