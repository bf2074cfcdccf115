"""Words for what was decided: why verdicts fail, and remarks on a plan and its search."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

from halfwise.records import (
    Failure,
    FailureKind,
    JudgedBatch,
    KeptNode,
    Remark,
    RemarkKind,
    Run,
    Search,
    Verdict,
)
from halfwise.reporting.guards import explained, worded
from halfwise.wording import capital, everything_low, filled, number, seconds, sentence, stopped

_OFF = "off by {off} (sample {of}) where {allowed} is allowed; overall "
_WORDS: Mapping[FailureKind, str] = {
    "no-sample": "there was no held-out sample to judge on",
    "seen": "the search used every sample, so none is held out",
    "rate": "{failing:d} of {size:sample} fail, and {allowed:%} of inputs may",
    "few": "{size:sample}[, {failing:d} of which fail,] show only that at most {upper:%} of "
    "inputs fail; {needed:sample} with no more failures would show {allowed:%}",
    "run": "it cannot be run on sample {sample}[ and {more:d} more], unlike the reference: "
    "[node {node} fails|it fails] ({why})",
    "batch": "it cannot be run: {why}",
    "non-finite": "output {output} [has {elements:non-finite value} that the reference lacks"
    "|has {unlike:element} where it or the reference is not finite, and they differ]",
    "shape": "output {output} differs in shape from the reference on {elements:d} of {size:sample}",
    "agreement": "output {output} is out of tolerance: {agreement:4} of its elements agree"
    "[, and {rare:4} of those that differ from the most common value] (worst sample {sample})",
    "tolerance": "output {output} is out of tolerance: "
    f"[{{slices}}, with values spanning {{span}} on an offset, {_OFF}"
    f"|{{slices}}, with values up to {{scale}}, {_OFF}]max error "
    "{max_abs}, {rel_max} of the largest reference value, SNR {snr:dB} (worst sample {sample})",
    "metric": "{metric} [{rises}rose|fell] from {before:6} to {after:6}; a [{rises}rise|drop] of "
    "{allowed} is allowed",
    "part": "{metric} of {outputs} is {value:6}; at {least} {required:6} is required",
    "flip": "{node} ({op}) decides {elements:d} of {size:d} values differently there than when "
    "each value is rounded",
    "infinite": "{tensor} is infinite inside on {sample}, and what reads it has no finite limit "
    "there",
    "worth": "[it costs {cost} × everything low, and at most {allowed} × is required|its cost is "
    "unknown, and --require worth needs it]",
    "no-engine": "no engine of {elements:d} builds is shown to be within the tolerance on the "
    "calibration samples",
    "fp32-lost": "the FP32 engine was right at first, but does not run to the end: {why}",
    "fp32-wrong": "the FP32 engine without TF32 is already wrong, so precision is not the problem",
    "not-run": "the engine does not run on the held-out samples: {why}",
    "unfetched": "the engine passed, but cannot be fetched from {path} on the worker: {why}",
    "device-lost": "{device} was lost before its engine was judged: {why}",
    "unmade": "the repairs that its metadata names cannot be made on the original: {why}",
    "other-graph": "it is not the original with the repairs that its metadata names: at {node}",
    "refused": "{runner} refuses the file: {why}",
    "folded": "{runner} computes {elements:product} in low precision that {elements:are} FP32 in "
    "the file: {nodes}",
    "unproven": "the repairs that its metadata names change the function: [{elements:element} of "
    "its outputs are NaN or infinite, and are not in the original|{mended:element} that are NaN "
    "or infinite in the original are something else|by {error} of an output's "
    "largest value, {limit} is allowed]",
}
"""Templates, see `wording.filled`; the other kinds have their own words."""
_UNDER: Mapping[str, str] = {
    "seen": "on samples that the search used, ",
    "file": "when {} runs the file, ",
    "batch": "in batches of {}, ",
    "shapes": "at {} shapes: ",
    "device": "on {}: ",
}


Judged = TypeVar("Judged", Verdict, JudgedBatch)


def reasons(failures: Iterable[Failure]) -> tuple[str, ...]:
    """Return a clause for each failure."""
    return tuple(map(_clause, failures))


def stated(failures: Iterable[Failure]) -> tuple[str, ...]:
    """Return a sentence for each failure; a leading name keeps its case."""
    return tuple(sentence(stopped(capital(_clause(f), (_first(f),)))) for f in failures)


def _first(failure: Failure) -> str:
    """Return the leading name of a failure's words; "" for none."""
    match = re.match(r"\{(\w+)\}", _WORDS.get(failure.kind, ""))
    whole = match is not None and not (failure.under or failure.text)
    return str(failure.facts[match[1]]) if match is not None and whole else ""


def _clause(failure: Failure) -> str:
    where = "".join(_UNDER[at].format(which) for at, which in failure.under.items())
    text = failure.text or filled(_WORDS[failure.kind], failure.facts)
    return f"{where}{text}"


def with_failures(judged: Judged, failures: Iterable[Failure], *, ahead: bool = False) -> Judged:
    """Return what was judged with more failures, `ahead` of or after the existing ones."""
    new: tuple[Failure, ...] = tuple(failures)
    kinds = (*new, *judged.failures) if ahead else (*judged.failures, *new)
    return judged.model_copy(update={"passed": False, "failures": kinds})


def under(at: str, which: str | int, failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return failures attributed to something else that was judged: see `Failure.under`."""
    return tuple(f.model_copy(update={"under": {at: which, **f.under}}) for f in failures)


def spent(search: Search) -> str:
    """Return what was spent when the budget ended a stage, as a clause."""
    ended = lacking(search)
    if ended == "interrupt":
        return "the run was interrupted"
    if ended == "work":
        return f"the budget of {number(search.budget or 0.0)} inferences over the data was spent"
    by_clock = search.ended_by and search.seconds_budget > 0
    again = ", so another run may give another plan" if by_clock else ""
    return f"the time budget of {seconds(search.seconds_budget)} was spent{again}"


def lacking(search: Search) -> Literal["interrupt", "work", "time"]:
    """Return what ended a search: the user, or the limit that ran out."""
    if "interrupt" in search.ended_by:
        return "interrupt"
    by_work = search.budget is not None and "seconds" not in search.ended_by
    return "work" if by_work else "time"


MORE = {
    "interrupt": "let the interrupted search finish",
    "work": "give the search more work (--budget inferences=N)",
    "time": "give the search more time (--budget time=SECONDS)",
}
"""What lets a search go on, by what it lacks."""


EARLY: Mapping[RemarkKind, str] = {
    "dearer": "a plan with {kept:d} passes too, but is predicted to cost more: conversions around "
    "the further nodes cost more than these save",
    "sounder": "a plan with fewer passes too, but is infinite inside, and would cost more with "
    "what prevents that",
    "rationed": "{tried:d} of {kept:node} left out were tried alone; the search may evaluate "
    "{most:d} plans",
    "futile": "many nodes each add a little error, and no plan within the tolerance would save "
    "half of what everything low saves; the search ends",
}
"""Why a search ends before its plan is minimal."""

REMARKS: Mapping[RemarkKind, str] = {
    "opset-raised": "The opset was raised from {opset:d} to {raised:d}, which these need for "
    "{low}: {operators}; outputs were the same on {samples:d} samples.",
    "opset-stays": "The opset stays at {opset:d}, where these take no {low}: {operators}. {why}",
    "repair-unmade": "A repair was left out, {rule} at {nodes}: {why}",
    "repair-useless": "A repair was undone, {rule} at {nodes}: everything low [is off by {before} "
    "times what the search allows without it, and by {after} times with it|fails as it does "
    "without it].",
    "repair-dearer": "A repair was undone, {rule} at {nodes}: its predicted cost is {after} "
    "times everything low, and keeping the nodes instead costs {before} times.",
    "repair-unproven": "A repair was undone, {rule} at {nodes}: [{mended:element} of "
    "outputs {mended:are} NaN or infinite without it, and something else with it|FP32 is off by "
    "{value} of an output's largest value with it, and by {original} without|it changes an output "
    "by {value} of its largest value][; {elements:d} elements are NaN or infinite only with it].",
    "repair-failing": "A repair was undone, {rule} at {nodes}: even with everything in FP32 the "
    "outputs are off by [{after} times what the search allows|more than the search allows].",
    "repair-spare": "A repair was undone, {rule} at {nodes}: the plan needs no more nodes without "
    "it.",
    "unrepaired": "[No engine of the model with {repairs:repair} passed, so this plan is for "
    "the model without|The best engine that passed is without the {better:repair}, and so is this "
    "plan].",
    "repair-outdone": "A repair was undone, {rule} at {nodes}: [the plan with it costs "
    "{after} times what everything low does, and one without no more: {before} times|no plan with "
    "it passes].",
    "repair-left": "{elements:d} more repairs were not tried: a run makes {size:d} trials at most.",
    "scale-limited": "For {elements:d} tensors and constants the search for powers of two hit its "
    "limit: others may need fewer Muls, or bring more into range.",
    "unranged": "{elements:node} {elements:are} left out of INT8: on the calibration samples what "
    "it reads is constant or not finite, so it has no range: {tensors}.",
    "start-int8": "The starting plan leaves {elements:node} out of INT8, and {ends}.",
    "int8-untried": "INT8 was not tried: {why}",
    "start": "[{found:d} of {size:d} compute nodes are in {path}|warning: the plan comes from the "
    "run of {date}, of another file, which has {shared} in common with this one|the plan comes "
    "from the run of {date}][; the starting plan keeps {kept:d} nodes and {ends}]"
    "[; this plan keeps {plan:d}.]",
    "seen-only": "With {start}, held-out samples pass and calibration samples fail, at a margin of "
    "{margin}[ and a headroom of {headroom}].",
    "tolerance": "[No node was found{unknown} at fault|No single node is at fault]: with [all but "
    "{kept:d} of the nodes|every node] low, {low} rounding adds up to {error} of the largest "
    "reference value[ of some {slices}] (SNR {snr:dB}) on the calibration samples. To keep "
    "[no more than {kept:node}|none] in FP32, use {options} if the task allows it, or judge the "
    "task itself with --metric.",
    "first-look": "With everything low, all samples pass at half the tolerance, so halfwise looked "
    "for values that vanish or cancel on {samples:d} of {size:d} calibration samples only, and "
    "found none; ranges are of all samples.",
    "low-io": "FP32 in the mixed model although the file stores them low, in another format than "
    "{low}: {tensors}.",
    "constant": "Output {tensor} is a constant that {low} cannot hold ({minimum} to {maximum}): "
    "whatever is kept, its values change.",
    "input": "Input {tensor} reaches {value} and is {low} in the mixed model: it overflows before "
    "any node computes.",
    "other-engine": "The delivered engine does not use this plan: it computes nothing in the low "
    "format.",
    "emulated": "In the emulation no kept node can be lowered alone.",
    "spared": "The engine does not need {elements:node} of the {size:d} that the emulation keeps.",
    "added": "{elements:node} more than in the emulation: see the rounds.",
    "hopeless": "the outputs are out of tolerance even with every free node [{form}|in FP32]",
    "spent": "the search was ended early; this is the best plan that passed",
    **EARLY,
    "passes": "passes with {guess} [{form}|in FP32], {kept:node} in all",
    "measuring": "fails with all suspected nodes [{form}|in FP32], {kept:node} in all; measuring "
    "contributions",
    "ranked": "nodes left after ranking {groups:d} groups: {kept:d}",
    "grouped": "nodes left after lowering groups: {kept:d}",
    "chosen": "it was chosen ({rule}), not searched for",
    "refused": "another plan of {elements:node} passed the search and fails on held-out samples; "
    "this one passes",
}
"""Templates, see `wording.filled`."""


def remark(entry: Remark) -> str:
    """Return a remark on a plan as a sentence; as a clause for a starting plan not yet tried."""
    facts = entry.facts
    if entry.kind == "seen-only":
        kept, pinned = (int(entry.numbers[name]) for name in ("own", "pinned"))
        facts["start"] = everything_low(entry.names["low"], kept, pinned)
    return filled(REMARKS[entry.kind], facts)


def unfinished(search: Search | None) -> str:
    """Return a sentence on what ended a search before its plan was minimal, as far as known."""
    why = ""
    if search is not None and (search.exhausted or "interrupt" in search.ended_by):
        why = f": {spent(search)}"
    elif search is not None and search.remarks:
        early = [step for step in search.remarks if step.kind in EARLY]
        # The last one is of the delivered plan.
        why = f": {remark((early or search.remarks)[-1])}"
    return sentence(f"Not shown to be minimal{why}.")


def note(entry: Remark) -> str:
    """Return a remark as a sentence of its own."""
    return capital(remark(entry), (entry.names.get("tensor", ""),))


_LEFT_OUT = (
    "[its convolution {beside} is left out, without which there is no INT8 kernel for it"
    "|{nonfinite}with INT8 here alone outputs are NaN or infinite"
    "|with INT8 here alone the error is at least {excess} × what the search allows"
    "|INT8 here, or in its group, contributes {contribution} × what the search allows"
    "|not tried alone: with INT8 here alone the plan would cost more, or the search ended before]."
)


def explain_left_out(left_out: Iterable[KeptNode]) -> tuple[KeptNode, ...]:
    """Return the nodes excluded from INT8, with the reasons in words."""
    return tuple(k.model_copy(update={"reason": _why_left_out(k)}) for k in left_out)


def _why_left_out(kept: KeptNode) -> str:
    because, excess = kept.because, kept.error_without
    named: dict[str, str | float | None] = {
        "beside": None if because is None else because.beside,
        "nonfinite": "" if because is not None and because.nonfinite else None,
        "excess": excess,
        "contribution": None if because is None else because.contribution,
    }
    facts = {name: fact for name, fact in named.items() if fact is not None}
    return capital(filled(_LEFT_OUT, facts))


def in_words(run: Run) -> Run:
    """Return the record of a run with its facts put into sentences."""
    guards, plan = worded(run.guards), run.plan
    if plan is not None:
        keep = explained(plan.keep, guards, run.headroom, run.followed)
        left_out = explain_left_out(plan.left_out)
        plan = plan.model_copy(update={"keep": keep, "left_out": left_out})
    without = explain_left_out(run.without_int8)
    return run.model_copy(update={"without_int8": without, "guards": guards, "plan": plan})
