"""Words on what to do next."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from halfwise.records import Step, StepKind
from halfwise.reporting.remarks import MORE
from halfwise.reporting.tasks import counted
from halfwise.reporting.worth import near
from halfwise.wording import capital, clean, command, count, filled, listed, ratio, verb

_OLDER = "TensorRT {older} ignores the Casts in the model"


def steps_told(steps: tuple[Step, ...]) -> tuple[str, ...]:
    """Return a line for each step, which its command ends; lines must not be wrapped."""
    return tuple(": ".join(filter(None, told(step))) for step in steps)


def told(step: Step) -> tuple[str, str]:
    """Return a step's words and its command, quoted for a shell; "" for none."""
    words = _WORDS[step.kind]
    text = words(step) if callable(words) else filled(words, step.facts)
    return clean(text), clean(command(*step.command or ()))


def _constrained(step: Step) -> str:
    has = step.items
    own = f"the {'repaired ' * ('repaired' in has)}FP32 model"
    own += " and its Q/DQ pairs" * ("int8" in has)
    builds = bool({"repaired", "int8"} & set(has))
    parts = [own] if builds else []
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
    found = listed([f"{file} ({device})" for device, file in files.items()])
    return f"The engines are {found}; each runs on its GPU model and TensorRT version."


def _choose(step: Step) -> str:
    facts, what = step.numbers, _spared(step)
    if "error" in facts:
        what += f"; {ratio(facts['error'])} what {step.names['allowed']} allows"
    if on := counted(int(facts.get("evidence", 0)), step.names.get("unit", "")):
        what += f"; {on} only, so judge it on more inputs"
    which = "cheaper plan" if facts["cheaper"] else "plan"
    return f"Take the {which} that keeps {' and '.join(step.items)} ({what})"


def _spared(step: Step) -> str:
    facts = step.numbers
    kept = "left out of INT8" if facts.get("int8") else "kept"
    cost = f" at {ratio(facts['cost'])}" if "cost" in facts else ""
    return f"{count(int(facts['kept']), 'node')} {kept}{cost}"


def _near(step: Step) -> str:
    facts = step.numbers
    return (
        f"Among the plans tried that are predicted to cost at most {ratio(facts['required'])}, the "
        f"nearest {near(int(facts['kept']), facts['cost'], facts['error'])}."
    )


def _untested(step: Step) -> str:
    options = " ".join(f"--keep {shlex.quote(name)}" for name in step.items)
    whose = verb(len(step.items), "the node whose body", "the nodes whose bodies")
    keep = f", or keep {whose} never ran ({options})" if step.items else ""
    return f"Give samples that test what is not judged{keep}, or accept that: --allow-unjudged."


def _own_runs(step: Step) -> str:
    each = verb(len(step.items), "a run of its own", "a run of its own for each")
    options = ", or ".join(f"--trt-worker {shlex.quote(name)}" for name in step.items)
    return (
        f"The plan is right on the other devices and wrong on {listed(step.items)}, which may need "
        f"{each}: only {options}."
    )


_WORDS: Mapping[StepKind, str | Callable[[Step], str]] = {
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
    "choose": _choose,
    "use-fp32": "Unless an engine shows a gain, use the FP32 model.",
    "near-plan": _near,
    "no-near-plan": "No plan that was tried is known to cost at most {required} × with a finite "
    "error.",
    "use-metric": "To judge the task instead, use --metric {metric}.",
    "lint": "See what the linter finds",
    "fix": "Repair the graph where that is enough, keep in FP32 what is left, and judge the model "
    "on held-out samples",
    "fix-quantised": "Find which of its pairs to leave out, and judge the model on held-out "
    "samples",
    "compare": "Find the node where it goes wrong",
    "diagnose": "Find the first fault, from the inputs to the kernels",
    "modernize": "For an {rung} engine, try a model whose norms are one node each",
    "other-builds": "[For an {rung} engine, try|Try] another --optimization-level (0 to 5), other "
    "--tactic-sources, or another TensorRT version.",
    "typing-strong": "The builder ignores constraints: from TensorRT {since} on, use --typing "
    "strong, where the Casts in the model decide.",
    "lost": "The worker was lost, so nothing is known of {rung} engines: once it answers, run the "
    "command again with another -o; --start-from this folder skips the search without engines.",
    "unfetched": "The {rung} engine that passed could not be fetched: run the command again with "
    "another -o; --start-from this folder skips the search without engines.",
    "accumulate-fp16": "If kernels may accumulate in FP16, --accumulate fp16 emulates that.",
    "no-tf32": "Kept nodes may compute in TF32: leave --tf32 out.",
    "more-builds": "Let the search use more builds: --max-builds N.",
    "search-on": lambda step: f"{capital(MORE[step.names['more']])}.",
    "keep-less": lambda step: (
        f"The search did not finish; to find a plan that keeps less, {MORE[step.names['more']]}."
    ),
    "leave-keep-above": "Leave --keep-above out: it skips the search and checks no output.",
    "leave-lower": "Leave --lower out: it forces {lowered:node} low.",
    "more-samples": "Give [{alike}samples that differ from one another|more samples], or a second "
    "set with --heldout DATA.",
    "real-inputs": "Give real inputs, or accept a verdict without them: --allow-random.",
    "untested": _untested,
    "own-runs": _own_runs,
    "check-tolerance": "Check that the tolerance fits the task: --rel-max, --snr-db, or a task "
    "metric (--metric).",
    "batches": "Give inputs in batches of {size:d}, which fail: the search then uses them.",
    "best-model": "The run folder holds the best model found.",
    "accept-missing": lambda step: (
        "If what this run lacks, compared with the baseline, may be missing: "
        f"{' '.join(f'--may-worsen {group}=any' for group in step.items)}."
    ),
}
"""Words without their command; templates, see `wording.filled`."""
