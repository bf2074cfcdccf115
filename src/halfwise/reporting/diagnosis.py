"""Diagnoses, faults of engines, and comparisons of two computations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite, log

from halfwise.records import (
    Comparison,
    Criterion,
    Decided,
    EngineDiagnosis,
    NodeComparison,
    NodeName,
    Run,
    Rung,
    RungName,
    Sign,
    SymptomKind,
)
from halfwise.reporting.guards import flipped
from halfwise.reporting.parts import (
    Column,
    Lines,
    Report,
    Table,
    commands,
    first_of,
    known,
    lines_of,
    present,
)
from halfwise.reporting.remarks import stated
from halfwise.reporting.steps import steps_told
from halfwise.wording import (
    MOST_ROWS,
    clean,
    count,
    fixed,
    listed,
    number,
    percent,
    ratio,
    sentence,
    shorten,
    stopped,
    verb,
)

_SYMPTOMS: Mapping[SymptomKind, str] = {
    "outputs": "is wrong",
    "build": "cannot be built",
    "run": "cannot be run",
}


def cause(diagnosis: EngineDiagnosis, label: str, message: str, *, emulated: bool) -> str:
    """Return what is wrong with an engine, in a sentence or two.

    Args:
        diagnosis: What was found.
        label: Name of the engine.
        message: Why there is no engine, or none that runs; else empty.
        emulated: Whether it should match an emulation instead of the FP32 model.
    """
    than = "the emulation of the same plan" if emulated else "the FP32 model"
    wrong = f"The {label} {_SYMPTOMS[diagnosis.symptom]}"
    wrong += f": {stopped(message)}" if message else f" although {than} is right."
    if diagnosis.regions:
        where = "; ".join(map(listed, diagnosis.regions))
        return f"{wrong} This is not precision: a kernel or compiler fault at {where}."
    why = "no part of it is wrong alone."
    if diagnosis.everywhere:
        why = "every part fails the same way, so it may be the driver, the GPU or the installation."
    elif diagnosis.interrupted:
        why = "Ctrl-C ended the search."
    return f"{wrong} The place is unknown: {why}"


def evidence(diagnosis: EngineDiagnosis) -> list[Sign]:
    """Return the evidence for a diagnosis, and what was tried."""
    signs = []
    for i, region in enumerate(diagnosis.regions):
        symptom = _SYMPTOMS[diagnosis.symptom]
        text = f"An engine of {listed(region)} alone, on the true inputs, {symptom}"
        if diagnosis.symptom == "outputs":
            text += f"{_db(diagnosis.snr_db[i])}; {diagnosis.limit_db:.0f} dB would be right"
        signs.append(Sign(severity="error", text=f"{text}.", nodes=region))
    rest = "With the true outputs of these nodes fed in, the engine of the rest"
    if diagnosis.explained:
        right = {"outputs": "is right", "build": "is built", "run": "runs"}[diagnosis.symptom]
        signs.append(Sign(severity="info", text=f"{rest} {right}{_db(diagnosis.rest_db)}."))
    elif diagnosis.explained is False:
        text = f"{rest} {_SYMPTOMS[diagnosis.symptom]}{_db(diagnosis.rest_db)}: more is wrong."
        signs.append(Sign(severity="warning", text=text))
    remarks = []
    if diagnosis.builds >= diagnosis.most_builds:
        remarks.append(f"All {diagnosis.most_builds} builds allowed for this diagnosis were used.")
    if diagnosis.late and diagnosis.build_seconds is not None:
        builds = count(diagnosis.late, "build")
        remarks.append(
            f"{builds} took longer than {diagnosis.build_seconds:.0f} s and showed nothing."
        )
    if diagnosis.interrupted:
        remarks.append("Ctrl-C ended the search: more may be wrong.")
    return [*signs, *(Sign(severity="info", text=text) for text in remarks)]


def _db(snr_db: float | None) -> str:
    if snr_db is None:
        return ""
    return f", {fixed(snr_db, 1)} dB" if isfinite(snr_db) else ", not finite or entirely wrong"


def advice(diagnosis: EngineDiagnosis) -> tuple[str, ...]:
    """Return what to do, one sentence each."""
    again = "Try another TensorRT version or optimization level."
    report = "Report it to NVIDIA with these nodes and the inputs of the sample."
    return (again, report) if diagnosis.regions else (again,)


QUESTIONS: dict[RungName, str] = {
    "harness": "are the inputs right, and real?",
    "export": "does the ONNX file give what the framework gives?",
    "model": "is the model healthy?",
    "fp32": "does an FP32 engine give the same?",
    "tf32": "does TF32 matter?",
    "precision": "which nodes does the low format break?",
    "kernels": "does the engine match its emulation?",
}
_MARKS = {"error": "✗", "warning": "!", "info": "·"}


def diagnosed(run: Run) -> Report:
    """Return the report on a run of `diagnose`: the first rung that failed, and all before it."""
    failed = _first_failed(run)
    parts: list[Lines | Table] = [_ladder(run)]
    if failed is not None:
        parts += _failed(failed)
    elif not run.verdict.passed:
        why = stated(run.verdict.failures)
        parts.append(Lines("Why it is not judged", why))
        parts.append(Lines("What to do", steps_told(run.next_step), whole=True))
    parts += [part for rung in run.diagnosis if rung is not failed for part in _warnings(rung)]
    samples = count(len(run.verdict.samples), "sample")
    about = f"{sentence(run.provenance.model)} · {samples} · {run.verdict.level}"
    return Report(_title(run, failed), run.verdict.passed, about, tuple(parts))


def diagnosed_screen(run: Run) -> Report:
    """Return the first screen of the report that `diagnosed` returns."""
    whole = diagnosed(run)
    failed = _first_failed(run)
    if failed is None:
        return replace(whole, parts=(_ladder(run).only(range(3)), *whole.parts[1:]))
    where = Lines("Where", (listed(failed.nodes),)) if failed.nodes else None
    errors = [s for s in failed.evidence if s.severity == "error"] or failed.evidence[:1]
    lines = [f"{sign.text}{_at(sign.nodes)}" for sign in errors]
    seen = lines_of("Evidence", first_of(lines, "more in the full report"))
    parts = present(where, seen, commands("Next", steps_told(failed.advice)))
    return replace(whole, parts=parts)


def _first_failed(run: Run) -> Rung | None:
    return next((rung for rung in run.diagnosis if rung.passed is False), None)


def _title(run: Run, failed: Rung | None) -> str:
    if failed is not None:
        return f"Rung {failed.rung} ({failed.name}) fails: {sentence(failed.cause)}"
    looked = [rung for rung in run.diagnosis if rung.passed is not None]
    clause = f"othing wrong on {count(len(looked), 'rung')} of {len(run.diagnosis)}"
    if run.verdict.passed:
        return f"N{clause}"
    return f"NOT JUDGED: n{clause}, but the samples do not test everything"


def _ladder(run: Run) -> Table:
    failed = _first_failed(run)
    rows = tuple(
        (
            str(rung.rung),
            QUESTIONS[rung.name],
            _answer(rung),
            "see above" if rung is failed else sentence(rung.cause),
        )
        for rung in run.diagnosis
    )
    columns = (Column("", "right"), Column("question"), Column("answer"), Column("what was found"))
    return Table("The ladder", columns, rows)


def _answer(rung: Rung) -> str:
    unknown = "skipped" if rung.how == "skipped" else "suspected"
    word = unknown if rung.passed is None else "passes" if rung.passed else "FAILS"
    return f"{word} (emulated)" if rung.how == "emulated" else word


def _failed(rung: Rung) -> list[Lines | Table]:
    signs = rung.evidence[:MOST_ROWS]
    lines = [f"{_MARKS[sign.severity]} {sentence(sign.text)}{_at(sign.nodes)}" for sign in signs]
    if len(rung.evidence) > len(signs):
        lines.append(f"and {len(rung.evidence) - len(signs)} more in run.json")
    parts: list[Lines | Table] = []
    if rung.nodes:
        parts.append(Lines("Where", (listed(rung.nodes, most=MOST_ROWS),)))
    parts.append(Lines("Evidence", tuple(lines)))
    if rung.advice:
        parts.append(Lines("What to do", steps_told(rung.advice), whole=True))
    return parts


def _warnings(rung: Rung) -> list[Lines]:
    warnings = [s for s in rung.evidence if s.severity == "warning"]
    lines = [f"{sentence(sign.text)}{_at(sign.nodes)}" for sign in warnings[:MOST_ROWS]]
    advice = steps_told(rung.advice) if rung.passed is None else ()
    if not lines and not advice:
        return []
    return [Lines(f"Also seen on rung {rung.rung} ({rung.name})", (*lines, *advice))]


def _at(nodes: tuple[str, ...]) -> str:
    return f" ({listed(nodes)})" if nodes else ""


def decided_cause(decided: Decided, what: str, criterion: Criterion) -> str:
    """Return the cause of an error that the reference's decisions undo, in one sentence.

    Args:
        decided: The decisions.
        what: What rounds differently, with its verb, such as `TF32 changes`.
        criterion: What is acceptable.
    """
    decisions = "a decision" if len(decided.flips) == 1 else "decisions"
    return f"{what} {decisions}: {_decisions(decided, criterion)}."


def decided_part(decided: Decided, criterion: Criterion) -> Sign:
    """Return what decisions contribute to an error that remains out of tolerance without them."""
    text = f"Part of the error comes from decisions: {_decisions(decided, criterion)}."
    return Sign(severity="warning", text=text, nodes=tuple(flip.node for flip in decided.flips))


def decided_signs(decided: Decided) -> list[Sign]:
    """Return how many of each decision's values differ, and what leads to them."""
    signs = [
        Sign(
            severity="error",
            text=f"{flip.op} decides {flip.elements} of {count(flip.of, 'value')} "
            f"({percent(flip.elements / flip.of)}) differently than FP32 in ONNX Runtime.",
            nodes=(flip.node,),
        )
        for flip in decided.flips
    ]
    if before := _feeding(decided):
        signs.append(Sign(severity="info", text="They lead to these decisions.", nodes=before))
    return signs


def decided_advice(
    decided: Decided, criterion: Criterion, *, low: bool, auto: bool
) -> tuple[str, ...]:
    """Return what to do about decisions, one sentence each.

    Args:
        decided: The decisions.
        criterion: What is acceptable.
        low: Whether FP32 would help.
        auto: Whether `--metric auto` recognises the outputs, and the samples test them.
    """
    before = listed(_feeding(decided)) if low else ""
    keep = f"Keep in FP32 what leads to these decisions: {before}." if before else ""
    tolerant = (
        ""
        if criterion.metric is not None
        else "Where both decisions are as good, judge by a metric of the task, which tolerates "
        f"them: --metric {'auto, or your own' if auto else 'file.py:function'}."
    )
    return tuple(text for text in (keep, tolerant) if text)


def _decisions(decided: Decided, criterion: Criterion) -> str:
    allowed = "what is allowed" if criterion.metric is None else "the default tolerance"
    return flipped(decided, allowed)


def _feeding(decided: Decided) -> tuple[NodeName, ...]:
    deciding = {flip.node for flip in decided.flips}
    return tuple(name for name in decided.nodes if name not in deciding)


_AMPLIFIED = "{} an error: out of tolerance, with inputs within it"
_MEANING = {
    "constant": "constant, folded away",
    "fused": "fused away in the engine",
    "missing": "missing on one side",
    "refused": "that no engine can output",
    "skipped": "not looked at",
}


def comparison(compared: Comparison) -> Report:
    """Return the report on a comparison.

    It shows where errors first leave the tolerance, where they start, their paths, and what was not
    compared.
    """
    parts = present(
        _amplified(compared),
        _way(compared, compared.amplified, "Path of the error from there"),
        _divergence(compared),
        _outputs(compared),
        _way(compared, compared.path, "Path of the error to the output"),
        _born(compared),
        _rest(compared),
        commands("Next", steps_told(compared.next_step)),
    )
    samples = count(len(compared.samples), "sample")
    about = (
        f"A: {sentence(compared.a)} · B: {sentence(compared.b)} · {samples} "
        f"· tolerance: a relative RMS error of {number(compared.tolerance)}"
    )
    return Report(
        _title_comparison(compared), not compared.different, about, parts, _within(compared)
    )


def _title_comparison(walked: Comparison) -> str:
    compared = sum(node.error is not None for node in walked.nodes)
    if walked.amplified:
        where = listed(_amplifier(walked).region or walked.amplified[:1])
        title = f"First divergence: {where}, where an error is amplified"
        if not walked.first:
            return f"{title}; it starts at no single node"
        return f"{title}; the first node where an error that matters starts: {listed(walked.first)}"
    if walked.first:
        return f"First divergence: {listed(walked.first)}"
    if walked.differs:
        return "The outputs differ, and the error starts at no single node: it adds up"
    return f"No divergence in {count(compared, 'node')} that both sides have"


def _amplifier(compared: Comparison) -> NodeComparison:
    return next(node for node in compared.nodes if node.node == compared.amplified[0])


def _amplified(compared: Comparison) -> Lines | None:
    if not compared.amplified:
        return None
    node = _amplifier(compared)
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


def _divergence(compared: Comparison) -> Lines | None:
    if not compared.first:
        return None
    node = next(n for n in compared.nodes if n.status == "born" and n.region == compared.first)
    side = "A" if node.side == "a" else "B"
    lines = [
        f"{side}, given the same inputs, is off by {number(node.born or 0.0)} of what "
        f"{'the node' if len(compared.first) == 1 else 'these nodes'} should give "
        f"({shorten(node.tensor)}); worst on {shorten(node.worst_sample or '')}."
    ]
    if len(compared.first) > 1:
        lines.append(_one_of(compared.first))
    return Lines("Where it starts", tuple(lines))


def _one_of(region: Sequence[str]) -> str:
    return f"It is one of these {len(region)} nodes: the tensors between them are not available."


def _outputs(compared: Comparison) -> Table | None:
    rows = [
        (clean(name), number(error), "good" if error <= compared.tolerance else "off")
        for name, error in compared.outputs.items()
    ]
    columns = (Column("output", width=48), Column("error", "right"), Column(""))
    return Table("Outputs", columns, tuple(rows), most=MOST_ROWS) if rows else None


def _within(compared: Comparison) -> str:
    if not compared.nothing_to_fix:
        return ""
    return (
        "The outputs are within what `halfwise fix` allows by default: the largest error is "
        f"{number(compared.excess or 0.0)} × that. The tolerance here is narrower, to show where "
        "errors start."
    )


def _way(compared: Comparison, way: Sequence[NodeName], title: str) -> Table | None:
    if len(way) < 2:
        return None
    by_name = {node.node: node for node in compared.nodes}
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


def _born(compared: Comparison) -> Table | None:
    shown = {*compared.first, *compared.path, *compared.amplified}
    others = [n for n in compared.nodes if n.status == "born" and n.node not in shown]
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


def _rest(compared: Comparison) -> Lines | None:
    counts: Counter[str] = Counter(node.status for node in compared.nodes)
    shown = {*compared.amplified, *compared.path}
    amplifiers = sum(n.status == "amplified" and n.node not in shown for n in compared.nodes)
    noun = "more node" if compared.amplified else "node"
    amplify = f"{count(amplifiers, noun)} {verb(amplifiers, 'amplifies', 'amplify')}"
    lines = [_AMPLIFIED.format(amplify)] if amplifiers else []
    lines += [
        f"{count(counts[status], 'node')} {meaning}"
        for status, meaning in _MEANING.items()
        if counts[status]
    ]
    lines += [sentence(note) for note in compared.notes]
    if compared.builds:
        lines.append(f"{count(compared.builds, 'engine')} built")
    return Lines("About this comparison", tuple(lines)) if lines else None
