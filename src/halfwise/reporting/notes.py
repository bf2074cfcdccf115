"""Words on what was, or was not, understood about a model and its inputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from halfwise.metrics.recognised import KINDS, SEEN
from halfwise.records import CutStage, FrozenSize, MadeUp, Note, NoteKind, Run
from halfwise.reporting.remarks import spent
from halfwise.wording import capital, count, dimensions, fixed, listed, sentence, verb

_MOST_NAMES = 4
"""Most values that a note names; the rest are counted."""

_NOISE = {"normal": "standard normal noise", "uniform": "uniform noise"}
_REPAIRED = {
    "NAMELESS": "the graph has no name",
    "SPARSE": "sparse constants are dense now ({names})",
    "REPEATED": "values are described more than once; the first counts ({names})",
    "SHAPELESS": "inputs or outputs have no shape ({names})",
    "UNSORTED": "nodes come before those that they read from",
    "MISDECLARED": "declared shapes do not match what the nodes compute, and are ignored ({names})",
}
_CASTS = {"nearest": "rounded to nearest", "checked": "every value has to fit"}
_WHOSE = {
    "candidate": "only the candidate has them as outputs",
    "model": "only the model has them as outputs, and its own nodes read them",
}


def told(note: Note) -> str:
    """Return a note as a separate line, which says whether it is a warning."""
    return f"warning: {clause(note)}" if note.severity == "warning" else clause(note)


def clause(note: Note, *, repairs: int = 0) -> str:
    """Return a note in words, without a capital letter or full stop.

    Args:
        note: The note.
        repairs: Number of repairs made since.
    """
    words = _WORDS[note.kind]
    facts = (
        {**note.facts, "repairs": repairs} if note.made_up is None else note.made_up.model_dump()
    )
    text = words.format(**facts) if isinstance(words, str) else words(facts)
    return f"{note.of}: {text}" if note.of else text


def not_real(found: Sequence[MadeUp], *, accepted: bool = False) -> str:
    """Return why inputs say nothing about real data; if none looks made up, that they are random.

    Args:
        found: What looks made up; empty if random inputs were requested.
        accepted: Whether such inputs are accepted: then no option is proposed.
    """
    if not found:
        return "the inputs are random, not real data, so this says nothing"
    seen = f"{'; '.join(_look(one.model_dump()) for one in found)}: not real data"
    if accepted:
        return seen
    return f"{seen}. If the model really gets such inputs, add --allow-random"


def _look(facts: Mapping[str, Any]) -> str:
    """Return what an input looks like, as a clause."""
    if facts["kind"] == "constant":
        return f"input '{facts['input']}' looks made up: all its elements are equal"
    return (
        f"input '{facts['input']}' looks like {_NOISE[facts['kind']]} (mean "
        f"{fixed(facts['mean'], 2)}, standard deviation {fixed(facts['deviation'], 2)}, "
        "neighbours do not correlate)"
    )


def _made_up(facts: Mapping[str, Any]) -> str:
    return (
        f"{_look(facts)}; rounding may break other things on real data, so give real inputs, "
        "unless the model really gets such ones"
    )


def _samples(facts: Mapping[str, Any]) -> str:
    files = facts.get("files", 1)
    return count(facts["samples"], "sample") + (f" from {files} files" if files > 1 else "")


def _layout(facts: Mapping[str, Any]) -> str:
    single = "it has the model's own axes"
    if not facts["ranked"]:
        single = "the model declares no rank, so every array is one sample"
    elif not facts.get("counts", True):
        single = "the model needs its rows together"
    why = {
        "stacked": "the first axis counts samples",
        "batched": "the first axis counts samples",
        "single": single,
    }
    return (
        f"input '{facts['input']}': {dimensions(facts['shape'])} holds "
        f"{count(facts['samples'], 'sample')} of {dimensions(facts['sample'])} "
        f"({why[facts['layout']]}){_converted(facts)}"
    )


def _first(facts: Mapping[str, Any]) -> str:
    source = f", taken from '{facts['array']}'" if "array" in facts else ""
    added = ", a batch axis is added" if facts["added"] else ""
    return (
        f"input '{facts['input']}'{source}: {dimensions(facts['shape'])} in the first sample{added}"
        f"{_converted(facts)}"
    )


def _converted(facts: Mapping[str, Any]) -> str:
    if "stored" not in facts:
        return ""
    how = _CASTS.get(facts["cast"], facts["cast"])
    return f"; {facts['stored']} is converted to {facts['dtype']} ({how})"


def _folded(facts: Mapping[str, Any]) -> str:
    nodes = facts["nodes"]
    return (
        f"TensorRT computes {count(len(nodes), 'product')} of the candidate in low precision that "
        "the file has in FP32, since nothing in FP32 stands beside: the emulation rounds constants "
        f"there ({listed(nodes)})"
    )


def _ignored(facts: Mapping[str, Any]) -> str:
    names = facts["names"]
    return f"ignored in {facts['folder']}: {', '.join(names[:5])}{', …' * (len(names) > 5)}"


def _paired(facts: Mapping[str, Any]) -> str:
    how = {
        "number": "the last number in their names",
        "order": "order alone, since no names or numbers match",
    }
    return f"files are paired by {how[facts['by']]}: {' with '.join(facts['names'])}, and so on"


def _random(facts: Mapping[str, Any]) -> str:
    return (
        f"random inputs ({facts['samples']} samples, seed {facts['seed']}: {facts['shapes']}); "
        "rounding may break other things on real data, so give real inputs before you trust the "
        "result"
    )


def _repaired(facts: Mapping[str, Any]) -> str:
    names = facts["names"]
    rest = len(names) - _MOST_NAMES
    more = [f"and {count(rest, 'more value')}"] if rest > 0 else []
    shown = ", ".join([*names[:_MOST_NAMES], *more])
    return f"repaired while reading: {_REPAIRED[facts['flaw']].format(names=shown)}"


def _copies(facts: Mapping[str, Any]) -> str:
    copies, heldout = facts["copies"], facts["heldout"]
    left = "" if copies < heldout else "; none is left to judge on"
    return (
        f"left out {copies} of {count(heldout, 'held-out sample')}: each copies, up to the "
        f"last digits, a sample of the search or another held-out one{left}"
    )


def _linted(facts: Mapping[str, Any]) -> str:
    found = zip(facts["rules"], facts["counts"], strict=True)
    rules = [f"{often} × {rule}" for rule, often in found]
    more = [count(facts["more"], "more rule")] if facts["more"] else []
    repairs = facts.get("repairs", 0)
    mended = f" as given, before {count(repairs, 'repair')}" if repairs else ""
    return (
        f"the linter finds {', '.join(rules + more)} in the file{mended}; `halfwise lint` says "
        "what to do"
    )


def quantised_products(facts: Mapping[str, Any]) -> str:
    """Return how many products are quantised, by the facts of the note `quantised`."""
    whole, half, integers = (facts[name] for name in ("whole", "half", "integers"))
    kinds = (
        (whole, f"{verb(whole, 'reads', 'read')} data and weights through Q/DQ"),
        (half, f"{verb(half, 'reads', 'read')} only one of the two so"),
        (integers, f"{verb(integers, 'computes', 'compute')} with integers"),
    )
    told = listed([f"{number} {what}" for number, what in kinds if number]) or "none is INT8"
    return f"of {count(facts['products'], 'product')}, {told}"


def quantised_note(run: Run, *, candidate: bool = False) -> Mapping[str, Any] | None:
    """Return how much of a run's model, or candidate, is quantised; None if nothing is."""
    found = (note.facts for note in run.provenance.notes if note.kind == "quantised")
    return next((f for f in found if (f["whose"] == "candidate") == candidate), None)


def _quantised(facts: Mapping[str, Any]) -> str:
    words = f"the {facts['whose']} is quantised: {quantised_products(facts)}"
    if facts["whose"] == "candidate":
        return words
    return (
        f"{words}; it is its own reference here, and low precision moves it by whole quantisation "
        "steps. Judge it against the original: `halfwise verify ORIGINAL QUANTISED`, "
        "`halfwise fix ORIGINAL --start-from QUANTISED`"
    )


def _recognised(facts: Mapping[str, Any]) -> str:
    seen = ", ".join(SEEN[one] for one in facts["evidence"])
    names = f"{verb(len(facts['outputs']), 'output', 'outputs')} {listed(facts['outputs'])}"
    return f"{names}: recognised as {KINDS[facts['kind']]} ({seen}) and judged by {facts['metric']}"


_WORDS: Mapping[NoteKind, str | Callable[[Mapping[str, Any]], str]] = {
    "samples": _samples,
    "array": "array '{array}' of {where} is used for input '{input}'",
    "layout": _layout,
    "first-sample": _first,
    "ignored": _ignored,
    "paired": _paired,
    "random": _random,
    "dynamic": "dynamic axes have length 1",
    "preprocess": "each image goes through {function}",
    "no-decoder": "resize kernels are not identified: Pillow is missing (pip install "
    "'halfwise[images]')",
    "repaired": _repaired,
    "repairs-unread": lambda facts: (
        "the file's metadata on repairs cannot be read, and is left out of what is written: "
        f"{facts['why']}"
    ),
    "stored": lambda facts: (
        f"the model stores {' and '.join(facts['formats'])}; the reference is "
        "the same model with all of it in FP32"
    ),
    "ranks": lambda facts: (
        "the model declares no rank for some inputs; taken from the first sample: "
        + ", ".join(map("{} {}".format, facts["inputs"], facts["ranks"]))
    ),
    "settled": "the FP32 engine of the model as it is is wrong; plan and engines are of the model "
    "with the samples' shapes fixed, as ONNX Runtime's basic optimisations leave it",
    "made-up": _made_up,
    "split": lambda facts: (
        f"{count(facts['searched'], 'sample')} to search on, {facts['heldout']} held out"
    ),
    "mixed-rows": "the first axis is read as {rows} samples, but together they give other results "
    "than alone; if all of it is one sample, add an axis of length 1 in front",
    "single": "there is a single sample, so nothing can be held out",
    "copies": _copies,
    "linted": _linted,
    "lint-failed": "the linter failed on this file ({error}); please report it",
    "left-out": lambda facts: (
        f"not judged, since {_WHOSE[facts['whose']]}: {listed(facts['names'])}"
    ),
    "quantised": _quantised,
    "folded": _folded,
    "none-low": "nothing in the candidate is FP16 or BF16",
    "of-the-run": "these are the inputs of the run: only those that it held out are judged",
    "recognised": _recognised,
    "refused": "the model does not take {whose}: {error}",
}


def frozen_cause(found: FrozenSize) -> str:
    """Return the size that a model insists on, and the nodes that fix it."""
    inputs = " and ".join(f"'{name}'" for name in found.axes)
    where = (
        f"on batches of {found.given}"
        if found.batch
        else f"where axis {'/'.join(map(str, sorted(set(found.axes.values()))))} of {inputs} is "
        f"{found.given} long"
    )
    size = f"on batches of {found.runs}" if found.batch else f"where it is {found.runs} long"
    text = f"The model declares the axis dynamic, fails {where}, and runs {size}"
    if not found.nodes:
        return f"{text}; no constant is known to hold this size. {found.failure}"
    hold = verb(len(found.nodes), "holds", "hold")
    held = f"{listed(found.nodes)} {hold} the exported size in a constant"
    if found.shown:
        return f"{text}: {held}; with {found.given} instead, the model runs."
    return f"{text}: {held}, judging by the file. {found.failure}"


def frozen_advice(found: FrozenSize) -> tuple[str, ...]:
    """Return what to do: permanently, and with the file unchanged."""
    again = "Export the model again with this axis dynamic: `halfwise lint` says how."
    if not found.batch:
        return (again, f"Until then, give data whose axis is {found.runs} long.")
    return (
        again,
        f"Until then, give samples in batches of {found.runs}: arrays of [samples, {found.runs}, "
        "…].",
    )


_LEFT_OUT: dict[CutStage, str] = {
    "observe": "operators and tensors were not observed on all samples, so guards may be missing",
    "emulate": "samples were not ordered by their errors",
    "repair": "not all repairs were tried, with and without",
    "growth": "the error that no guard explains was not traced",
    "notes": "the effect of the margin and of other tolerances was not measured",
    "worth": "not all cheaper plans were measured",
    "curve": "not all plans to choose from were measured",
    "sums": "sums in FP16 were not tried on all samples",
}


def cut_lines(run: Run) -> tuple[str, ...]:
    """Return a sentence each on what the budget ended, and on overlong and refused runs, if any."""
    search = run.search
    if search is None:
        return ()
    lines = []
    told = [_LEFT_OUT[stage] for stage in search.cut if stage in _LEFT_OUT]
    if told or "interrupt" in search.ended_by:
        lines.append(f"{': '.join(filter(None, (capital(spent(search)), '; '.join(told))))}.")
    if search.late:
        lines.append(
            f"{count(search.late, 'run')} of a sample took longer than allowed and "
            f"{verb(search.late, 'counts', 'count')} as failed, so another run may give another "
            "plan; --run-timeout SECONDS allows more."
        )
    if search.refused:
        lines.append(
            "ONNX Runtime refused some runs of the emulation, so plans count as failed whose error "
            f"was not measured. The first time: {sentence(search.refused)}"
        )
    return tuple(lines)
