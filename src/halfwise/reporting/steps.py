"""What a run notes of its inputs and what it is worth, and what to do next."""

from collections.abc import Mapping, Sequence
from typing import Any

from halfwise.records import FrozenSize, MadeUp, Note, Run, Step, Worth
from halfwise.reporting.remarks import spent
from halfwise.reporting.words import WORDS, say
from halfwise.wording import capital, clean, command, sentence


def note_text(note: Note) -> str:
    """Return a note as a separate line, which says whether it is a warning."""
    return f"warning: {clause(note)}" if note.severity == "warning" else clause(note)


def clause(note: Note, *, repairs: int = 0) -> str:
    """Return a note in words, without a capital letter or full stop.

    Args:
        note: The note.
        repairs: Number of repairs made since.
    """
    facts = note.facts if note.made_up is None else dict(note.made_up)
    text = say("note", note.kind, {**facts, "repairs": repairs})
    return f"{note.of}: {text}" if note.of else text


def not_real(made_up: Sequence[MadeUp], *, accepted: bool = False) -> str:
    """Return why inputs say nothing about real data; if none looks made up, that they are random.

    Args:
        made_up: What looks made up; empty if random inputs were requested.
        accepted: Whether such inputs are accepted: then no option is proposed.
    """
    if not made_up:
        return "the inputs are random, not real data, so this says nothing"
    seen = f"{'; '.join(say('note', 'look', one) for one in made_up)}: not real data"
    return seen if accepted else f"{seen}. If the model really gets such inputs, add --allow random"


def quantised_note(run: Run, *, candidate: bool = False) -> Mapping[str, Any] | None:
    """Return what is known of quantised products of the model or candidate; None if it has none."""
    notes = (note.facts for note in run.provenance.notes if note.kind == "quantised")
    return next((f for f in notes if (f["whose"] == "candidate") == candidate), None)


def frozen_cause(frozen: FrozenSize) -> str:
    """Return the size that a model insists on, and the nodes that fix it."""
    axis = "/".join(map(str, sorted(set(frozen.axes.values()))))
    facts = {**dict(frozen), "axis": axis, "inputs": tuple(frozen.axes)}
    return say("frozen", "cause", facts.items())


def frozen_advice(frozen: FrozenSize) -> tuple[str, ...]:
    """Return what to do: permanently, and with the file unchanged."""
    return say("frozen", "advice"), say("frozen", "until", frozen)


def cut_lines(run: Run) -> tuple[str, ...]:
    """Return a sentence each on what the budget ended, and on overlong and refused runs, if any."""
    search, lines = run.search, list[str]()
    if search is None:
        return ()
    ended = [WORDS["cut"][stage] for stage in search.cut if stage in WORDS["cut"]]
    if ended or "interrupt" in search.ended_by:
        lines.append(f"{': '.join(filter(None, (capital(spent(search)), '; '.join(ended))))}.")
    lines += [say("cut", fact, search) for fact in ("late", "refused") if getattr(search, fact)]
    return tuple(map(sentence, lines))


def nothing_gained(run: Run) -> str:
    """Return the end of the title of a run that gains too little; else nothing."""
    worth, required = run.worth, run.verdict.required_worth
    of = "the low format" if run.plan is None else run.plan.low.upper()
    facts: dict[str, object] = {"of": of, "required": required}
    if worth is None:
        return "" if required is None else say("worth", "required", facts)
    predicted = worth.measured is None
    facts |= {
        "does": "is predicted to cost" if predicted else "takes",
        "saves": "is predicted to save" if predicted else "saves",
        "gain": "little" if worth.saved >= 1e-4 else "nothing",
        **{name: getattr(worth, name) for name in ("ratio", "fp32_ratio", "times_fp32", "saved")},
    }
    if required is not None:
        return say("worth", "required", facts)
    if worth.gains or not run.verdict.passed:
        return ""
    # 1 is everything low, which the last lines cover.
    dearer = worth.is_dearer and worth.ratio != 1
    kind = "dearer" if dearer else "fp32" if worth.fp32_ratio <= 1 else "little"
    return say("worth", kind, facts)


def has_int8(run: Run) -> bool:
    """Return whether the judged model has INT8: that of a plan, or a candidate's."""
    planned = run.plan is not None and run.plan.has_int8
    return planned or quantised_note(run, candidate=True) is not None


def cost_line(worth: Worth, low: str, *, int8: bool = False) -> str:
    """Return a plan's cost, as a sentence.

    Args:
        worth: The plan's.
        low: Name for everything low.
        int8: Whether the plan has INT8, whose cost is uncertain until it is measured.
    """
    return say("worth", "cost", {**dict(worth), "everything": low, "uncertain": int8})


def steps_told(steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Return a line for each step, which its command ends; lines must not be wrapped."""
    return tuple(": ".join(filter(None, step_text(step))) for step in steps)


def step_text(step: Step) -> tuple[str, str]:
    """Return a step's words and its command, quoted for a shell; "" for none."""
    has = dict.fromkeys(step.items, True) | {"command": step.command is not None}
    own = {"items": step.items, "text": step.text}
    # A name may be "", which is known.
    facts = {**has, **{name: fact for name, fact in own.items() if fact}, **step.facts}
    return clean(say("step", step.kind, facts)), clean(command(*step.command or ()))
