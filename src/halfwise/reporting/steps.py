"""What a run notes of its inputs and what it is worth, and what to do next."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from halfwise.metrics.recognised import KINDS, SEEN
from halfwise.records import (
    CutStage,
    FrozenSize,
    MadeUp,
    Note,
    NoteKind,
    Run,
    Step,
    StepKind,
    Worth,
)
from halfwise.reporting.remarks import MORE, spent
from halfwise.wording import (
    capital,
    clean,
    command,
    count,
    dimensions,
    filled,
    fixed,
    listed,
    percent,
    ratio,
    sentence,
    verb,
)

_NOISE = {"normal": "standard normal noise", "uniform": "uniform noise"}
_REPAIRED = {
    "NAMELESS": "the graph has no name",
    "REPEATED": "values are described more than once; the first counts ({names})",
    "SHAPELESS": "inputs or outputs have no shape ({names})",
    "UNSORTED": "nodes come before those that they read from",
    "MISTYPED": "types contradict each other; Casts are read there ({names})",
    "MISDECLARED": "declared shapes do not match what the nodes compute, and are ignored ({names})",
}
_CASTS = {"nearest": "rounded to nearest", "checked": "every value has to fit"}
_WHOSE = {
    "candidate": "only the candidate has them as outputs",
    "model": "only the model has them as outputs, and its own nodes read them",
}


def note_text(note: Note) -> str:
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


def not_real(made_up: Sequence[MadeUp], *, accepted: bool = False) -> str:
    """Return why inputs say nothing about real data; if none looks made up, that they are random.

    Args:
        made_up: What looks made up; empty if random inputs were requested.
        accepted: Whether such inputs are accepted: then no option is proposed.
    """
    if not made_up:
        return "the inputs are random, not real data, so this says nothing"
    seen = f"{'; '.join(_look(one.model_dump()) for one in made_up)}: not real data"
    if accepted:
        return seen
    return f"{seen}. If the model really gets such inputs, add --allow random"


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
    return f"ignored in {facts['folder']}: {listed(facts['names'])}"


def _paired(facts: Mapping[str, Any]) -> str:
    how = {
        "number": "the last number in their names",
        "order": "order alone, since no names or numbers match",
    }
    return f"files are paired by {how[facts['by']]}: {' with '.join(facts['names'])}, and so on"


def _random(facts: Mapping[str, Any]) -> str:
    return (
        f"random inputs ({facts['samples']} samples: {facts['shapes']}); "
        "rounding may break other things on real data, so give real inputs before you trust the "
        "result"
    )


def _repaired(facts: Mapping[str, Any]) -> str:
    names = listed(facts["names"])
    return f"repaired while reading: {_REPAIRED[facts['flaw']].format(names=names)}"


def _copies(facts: Mapping[str, Any]) -> str:
    copies, heldout = facts["copies"], facts["heldout"]
    rest = "" if copies < heldout else "; none is left to judge on"
    return (
        f"left out {copies} of {count(heldout, 'held-out sample')}: each copies a sample of "
        f"the search or another held-out one{rest}"
    )


def _aside(facts: Mapping[str, Any]) -> str:
    more = f" and what follows, {count(facts['more'], 'node')}," if facts["more"] else ""
    judged = f"; instead, what they read is judged: {listed(facts['read'])}"
    return (
        f"not run here, and written back as they are: {listed(facts['nodes'])}{more}"
        f"{judged if facts['read'] else ''}"
    )


def _reasons(facts: Mapping[str, Any]) -> str:
    more = (f"{facts['more']} more",) if facts["more"] else ()
    return "; ".join((*facts["reasons"], *more))


def _linted(facts: Mapping[str, Any]) -> str:
    counted = zip(facts["rules"], facts["counts"], strict=True)
    rules = [f"{often} × {rule}" for rule, often in counted]
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
    counted = listed([f"{number} {what}" for number, what in kinds if number]) or "none is INT8"
    return f"of {count(facts['products'], 'product')}, {counted}"


def quantised_note(run: Run, *, candidate: bool = False) -> Mapping[str, Any] | None:
    """Return how much of a run's model, or candidate, is quantised; None if nothing is."""
    notes = (note.facts for note in run.provenance.notes if note.kind == "quantised")
    return next((f for f in notes if (f["whose"] == "candidate") == candidate), None)


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
    metrics = " and ".join(facts["metrics"])
    return f"{names}: recognised as {KINDS[facts['kind']]} ({seen}) and judged by {metrics}"


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
    "aside": _aside,
    "draws": lambda facts: (
        f"{listed(facts['nodes'])} {verb(len(facts['nodes']), 'draws', 'draw')} random numbers: "
        "judged on one draw for each sample; the file written draws again"
    ),
    "unbuilt": lambda facts: f"TensorRT builds no engine of it: {_reasons(facts)}",
    "frozen": lambda facts: f"the export holds one batch size: {_reasons(facts)}",
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


def frozen_cause(frozen: FrozenSize) -> str:
    """Return the size that a model insists on, and the nodes that fix it."""
    inputs = " and ".join(f"'{name}'" for name in frozen.axes)
    where = (
        f"on batches of {frozen.given}"
        if frozen.batch
        else f"where axis {'/'.join(map(str, sorted(set(frozen.axes.values()))))} of {inputs} is "
        f"{frozen.given} long"
    )
    size = f"on batches of {frozen.runs}" if frozen.batch else f"where it is {frozen.runs} long"
    text = f"The model declares the axis dynamic, fails {where}, and runs {size}"
    if not frozen.nodes:
        return f"{text}; no constant is known to hold this size. {frozen.failure}"
    hold = verb(len(frozen.nodes), "holds", "hold")
    held = f"{listed(frozen.nodes)} {hold} the exported size in a constant"
    return f"{text}: {held}, judging by the file. {frozen.failure}"


def frozen_advice(frozen: FrozenSize) -> tuple[str, ...]:
    """Return what to do: permanently, and with the file unchanged."""
    again = "Export the model again with this axis dynamic: `halfwise lint` says how."
    if not frozen.batch:
        return (again, f"Until then, give data whose axis is {frozen.runs} long.")
    return (
        again,
        f"Until then, give samples in batches of {frozen.runs}: arrays of [samples, {frozen.runs}, "
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
    ended = [_LEFT_OUT[stage] for stage in search.cut if stage in _LEFT_OUT]
    if ended or "interrupt" in search.ended_by:
        lines.append(f"{': '.join(filter(None, (capital(spent(search)), '; '.join(ended))))}.")
    if search.late:
        lines.append(
            f"{count(search.late, 'run')} of a sample took longer than allowed and "
            f"{verb(search.late, 'counts', 'count')} as failed, so another run may give another "
            "plan; --budget run-timeout=SECONDS allows more."
        )
    if search.refused:
        lines.append(
            "ONNX Runtime refused some runs of the emulation, so plans count as failed whose error "
            f"was not measured. The first time: {sentence(search.refused)}"
        )
    return tuple(lines)


def nothing_gained(run: Run) -> str:
    """Return the end of the title of a run that gains too little; else nothing."""
    worth, required = run.worth, run.verdict.required_worth
    low = "the low format" if run.plan is None else run.plan.low.upper()
    if required is not None:
        return f" on cost alone: the outputs pass, but {_cost(worth, required, low)}"
    if worth is None or worth.gains or not run.verdict.passed:
        return ""
    is_predicted = worth.measured is None
    costs = "is predicted to cost" if is_predicted else "takes"
    if worth.is_dearer and worth.ratio != 1:  # 1 is everything low, which the last lines cover
        return f", but it {costs} {ratio(worth.times_fp32)} FP32"
    gain = f", but it gains {'little' if worth.saved >= 1e-4 else 'nothing'}: "
    if worth.fp32_ratio <= 1:
        return f"{gain}FP32 {costs} {ratio(worth.fp32_ratio)} everything in {low}"
    saves = "is predicted to save" if is_predicted else "saves"
    return f"{gain}it {saves} {percent(worth.saved)} of what everything in {low} would"


def _cost(worth: Worth | None, required: float, low: str) -> str:
    if worth is None:
        return f"its cost is unknown, and at most {ratio(required)} everything in {low} is required"
    does = "is predicted to cost" if worth.measured is None else "takes"
    text = f"it {does} {ratio(worth.ratio)} everything in {low}"
    return f"{text}, and at most {ratio(required)} is required"


UNCERTAIN = "INT8 took 1.3 to 2.3 × its predicted cost on the one GPU measured"
"""`bench/gpu/int8.py` on an H200; no single rule explains the four engines (docs/int8.md)."""


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
    text = f"Predicted cost: {ratio(worth.cost)} {low}, where FP32 costs {ratio(worth.fp32)}."
    if worth.measured is None:
        return f"{text} Uncertain: {UNCERTAIN}." if int8 else text
    return f"{text} Measured: {ratio(worth.measured)} the time of the engine with {low}."


_OLDER = "TensorRT {older} ignores the Casts in the model"


def steps_told(steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Return a line for each step, which its command ends; lines must not be wrapped."""
    return tuple(": ".join(filter(None, step_text(step))) for step in steps)


def step_text(step: Step) -> tuple[str, str]:
    """Return a step's words and its command, quoted for a shell; "" for none."""
    words = _WORDS_STEPS[step.kind]
    text = words(step) if callable(words) else filled(words, step.facts)
    return clean(text), clean(command(*step.command or ()))


def _constrained(step: Step) -> str:
    has = step.items
    model = f"the {'repaired ' * ('repaired' in has)}FP32 model"
    model += " and its Q/DQ pairs" * ("int8" in has)
    builds = bool({"repaired", "int8"} & set(has))
    parts = [model] if builds else []
    if which := {"kept": "kept nodes", "moving": "what moves data in FP32"}.get(has[-1]):
        parts.append(f"layer constraints on {which}")
    what, older = " with ".join(parts), filled(_OLDER, step.facts)
    if step.command is None:
        return f"{older}; `halfwise export` writes {what}."
    return f"{older}; {'build' if builds else 'use'} {what}"


def _engines(step: Step) -> str:
    files = {device: command(Path(file)) for device, file in step.names.items()}
    if len(files) == 1:
        file = next(iter(files.values()))
        return f"The engine is {file}; it runs on this GPU model with this TensorRT version."
    engines = listed([f"{file} ({device})" for device, file in files.items()])
    return f"The engines are {engines}; each runs on its GPU model and TensorRT version."


def _untested(step: Step) -> str:
    options = " ".join(f"--keep {shlex.quote(name)}" for name in step.items)
    whose = verb(len(step.items), "the node whose body", "the nodes whose bodies")
    keep = f", or keep {whose} never ran ({options})" if step.items else ""
    return f"Give samples that test what is not judged{keep}, or accept that: --allow unjudged."


def _own_runs(step: Step) -> str:
    each = verb(len(step.items), "a run of its own", "a run of its own for each")
    options = ", or ".join(f"--trt-worker {shlex.quote(name)}" for name in step.items)
    return (
        f"The plan is right on the other devices and wrong on {listed(step.items)}, which may need "
        f"{each}: only {options}."
    )


_WORDS_STEPS: Mapping[StepKind, str | Callable[[Step], str]] = {
    "said": lambda step: step.text,
    "build": "Build it with TensorRT {since} or later[, which needs plugins for {plugins}]",
    "older-bf16": "TensorRT {older} has no BF16, and neither have GPUs before compute capability "
    "8.0.",
    "older-bodies": f"{_OLDER}, and constraints do not reach layers in the bodies of kept nodes.",
    "older-plain": f"{_OLDER}, and nothing is kept[: build the original model with {{flags}}.]",
    "older-constrained": _constrained,
    "prove": "[Judge the engine itself, on unseen {unseen}"
    "|{heldout}Judge the engine itself"
    "|This verdict is emulated; judge the engine itself with --target tensorrt.]",
    "engines": _engines,
    "verify-elsewhere": "To build and judge it on another",
    "export": "To build it without halfwise (python, cpp and json are other forms)",
    "use-fp32": "Unless an engine shows a gain, use the FP32 model.",
    "near-plan": "[Of the plans that are predicted to cost at most {required} ×"
    "|Of the plans that gain more], the nearest keeps {kept:node}, costs {cost} × everything low, "
    "and [passes{passes}|has {error} × the error allowed, which --require margin=1 accepts{margin}"
    "|has {error} × the error allowed].",
    "no-near-plan": "No plan that was tried is known to cost at most {required} × with a finite "
    "error.",
    "lint": "See what the linter finds",
    "unbuilt": "TensorRT builds no engine of it: {reasons}.",
    "unfused": "ONNX Runtime runs this file. TensorRT has none of its operators {operators}: give "
    "halfwise the file from before ONNX Runtime's optimizer or builder.",
    "frozen": "It runs with the exported batch size only: {reasons}.",
    "fix": "Repair the graph where that is enough, keep in FP32 what is left, and judge the model "
    "on held-out samples",
    "fix-quantised": "Find which of its pairs to leave out, and judge the model on held-out "
    "samples",
    "compare": "Find the node where it goes wrong",
    "diagnose": "Find the first fault, from the inputs to the kernels",
    "modernize": "For an {rung} engine, try a model whose norms are one node each",
    "other-builds": "[For an {rung} engine, try|Try] another --engine optimization-level=N (0 to "
    "5), other tactic-sources, or another TensorRT version.",
    "typing-strong": "The builder ignores constraints: from TensorRT {since} on, use --typing "
    "strong, where the Casts in the model decide.",
    "lost": "The worker was lost, so nothing is known of {rung} engines: once it answers, run the "
    "command again with another -o; --start-from this folder skips the search without engines.",
    "unfetched": "The {rung} engine that passed could not be fetched: run the command again with "
    "another -o; --start-from this folder skips the search without engines.",
    "accumulate-fp16": "If kernels may accumulate in FP16, --accumulate fp16 emulates that.",
    "no-tf32": "Kept nodes may compute in TF32: leave --engine tf32 out.",
    "more-builds": "Let the search use more builds: --budget builds=N.",
    "search-on": lambda step: f"{capital(MORE[step.names['more']])}.",
    "keep-less": lambda step: (
        f"The search did not finish; to find a plan that keeps less, {MORE[step.names['more']]}."
    ),
    "not-only": "Leave --only fp16 out: [FP16 harms these, and no repair helps: {nodes}|rounding "
    "adds up].",
    "leave-lower": "Leave --lower out: it forces {lowered:node} low.",
    "more-samples": "Give [{alike}samples that differ from one another|more samples], or a second "
    "set with --heldout DATA.",
    "real-inputs": "Give real inputs, or accept a verdict without them: --allow random.",
    "untested": _untested,
    "own-runs": _own_runs,
    "check-tolerance": "Check that the tolerance fits the task: --rel-max, --require snr-db, or a "
    "task metric (--metric).",
    "batches": "Give inputs in batches of {size:d}, which fail: the search then uses them.",
    "best-model": "The run folder holds the best model found.",
    "accept-missing": lambda step: (
        "If what this run lacks, compared with the baseline, may be missing: "
        f"{' '.join(f'--may-worsen {group}=any' for group in step.items)}."
    ),
}
"""Words without their command; templates, see `wording.filled`."""
