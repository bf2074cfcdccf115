"""Words on why a verdict failed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TypeVar

from halfwise.records import Failure, FailureKind, JudgedBatch, Verdict
from halfwise.wording import capital, filled, sentence, stopped

_OFF = "off by {off} (sample {of}) where {allowed} is allowed; overall "
_WORDS: Mapping[FailureKind, str] = {
    "no-sample": "there was no held-out sample to judge on",
    "seen": "the search used every sample, so none is held out",
    "run": "it cannot be run on sample {sample}[ and {more:d} more], unlike the reference: "
    "[node {node} fails|it fails] ({why})",
    "batch": "it cannot be run: {why}",
    "non-finite": "output {output} [has {elements:non-finite value} that the reference lacks"
    "|is finite in {finite:element} where the reference is not"
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
    "unproven": "the repairs that its metadata names change the function: [{elements:element} of "
    "its outputs are NaN or infinite, and are not in the original|{mended:element} that are NaN "
    "or infinite in the original are something else|by {error} of an output's "
    "largest value, {limit} is allowed]",
}
"""Templates, see `wording.filled`; the other kinds have their own words."""
_UNDER: Mapping[str, str] = {
    "seen": "on samples that the search used, ",
    "file": "when ONNX Runtime runs the file, ",
    "batch": "in batches of {}, ",
    "shapes": "at {} shapes: ",
    "device": "on {}: ",
    "checked": "the FP32 engine, which was judged before the worker was lost, fails: ",
}


Judged = TypeVar("Judged", Verdict, JudgedBatch)


def reasons(failures: Iterable[Failure]) -> tuple[str, ...]:
    """Return a clause for each failure."""
    return tuple(map(_told, failures))


def stated(clauses: Sequence[str], failures: Sequence[Failure] = ()) -> tuple[str, ...]:
    """Return clauses as sentences; a leading name keeps its case.

    Args:
        clauses: Clauses from `reasons`.
        failures: Their failures; none for an old record.
    """
    named = (_first(failure) for failure in failures)
    pairs = zip_longest(clauses, named, fillvalue="")
    return tuple(sentence(stopped(capital(told, (name,)))) for told, name in pairs if told)


def _first(failure: Failure) -> str:
    """Return the leading name of a failure's words; "" for none."""
    found = re.match(r"\{(\w+)\}", _WORDS.get(failure.kind, ""))
    own = found is not None and not (failure.under or failure.text)
    return str(failure.facts[found[1]]) if found is not None and own else ""


def _told(failure: Failure) -> str:
    where = "".join(_UNDER[at].format(which) for at, which in failure.under.items())
    told = failure.text or filled(_WORDS[failure.kind], failure.facts)
    return f"{where}{told}"


def with_failures(judged: Judged, failures: Iterable[Failure], *, ahead: bool = False) -> Judged:
    """Return what was judged with more failures, `ahead` of or after the existing ones."""
    new: tuple[Failure, ...] = tuple(failures)
    kinds = (*new, *judged.failures) if ahead else (*judged.failures, *new)
    words = (*reasons(new), *judged.reasons) if ahead else (*judged.reasons, *reasons(new))
    return judged.model_copy(update={"passed": False, "failures": kinds, "reasons": words})


def under(at: str, which: str | int, failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return failures attributed to something else that was judged: see `Failure.under`."""
    return tuple(f.model_copy(update={"under": {at: which, **f.under}}) for f in failures)
