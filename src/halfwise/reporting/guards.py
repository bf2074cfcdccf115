"""Words on suspicions (guards), and on why nodes stay in FP32."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Literal

from halfwise.records import (
    Because,
    Decided,
    Followed,
    Guard,
    GuardKind,
    KeptBy,
    KeptNode,
    NodeName,
    Origin,
)
from halfwise.wording import capital, filled, listed, number, shorten, verb

_FLIPPED = (
    "{nodes} {decides} {elements:d} of {of:d} values differently on {samples:sample}"
    "[, reading floats that are off by {read:%}]; with the reference's decisions instead, the "
    "error falls from {error} × to {left} × {allowed}"
)


def flipped(decided: Decided, allowed: str) -> str:
    """Return what decisions do to the error, a multiple of what is `allowed`, as a clause."""
    names = [flip.node for flip in decided.flips]
    facts: dict[str, str | float] = {
        "nodes": listed(names),
        "decides": verb(len(names), "decides", "decide"),
        "elements": sum(flip.elements for flip in decided.flips),
        "of": sum(flip.of for flip in decided.flips),
        "error": decided.error,
        "left": decided.left,
        "samples": decided.samples,
        "allowed": allowed,
    }
    # Floats that are exact until their reader rounds them say nothing.
    if decided.read and isfinite(decided.read):
        facts["read"] = decided.read
    return filled(_FLIPPED, facts)


def followed_over(metric: str | None) -> str:
    """Return what errors are multiples of where they are followed: no metric has a part of them."""
    return "what the search allows" if metric is None else "the default tolerance"


def appears(origin: Origin) -> str:
    """Return the verb for an error at its origin: what it reads may have most of it already."""
    return "starts" if origin.read is None else "grows"


_SEEN_INSIDE: frozenset[GuardKind] = frozenset(("infinite", "decision"))
"""Guards on observations inside a passing plan, which its outputs do not show."""
_BODIES = ("If", "Loop", "Scan", "SequenceMap")
Reason = (
    GuardKind
    | Literal["rule", "model", "engine", "flip", "origin"]
    | Literal["accumulated error", "effect", "spare", "unknown"]
)
"""Why a node is kept: a kind of guard, or who decided it, as in `KeptBy`.

Without a guard, of the error that guards and rules leave: "flip": decisions that it leads to cause
most of it (`Decided`); "origin": FP32 at this node and others
next to it removes most of it (`Origin`);
"accumulated error": it grows with depth; "effect": lowering the node had an effect, and nothing
shows why. "spare": less would cost more. "unknown": it was not lowered.
"""

CAUSES: dict[Reason, str] = {
    "overflow": "values beyond the range",
    "headroom": "values near the end of the range",
    "square": "squares that overflow inside the op",
    "sum": "sums that overflow inside the op",
    "underflow": "values that vanish to zero",
    "eps": "an epsilon that vanishes",
    "cancellation": "differences of nearly equal values",
    "floor": "small values lost in rounding noise",
    "constant-range": "constants beyond the range",
    "constant-subnormal": "constants that lose digits near zero",
    "integer": "integers too large to be exact",
    "grid": "sampling coordinates off by much of a pixel",
    "angle": "large angles",
    "residual": "small branches lost in sums",
    "mask": "mask values beyond the range",
    "margin": "choices between nearly equal scores",
    "infinite": "values that become infinite inside a plan whose outputs pass",
    "decision": "decisions that depend on where values are rounded",
}

_BY_OTHERS: Mapping[KeptBy, str] = {
    "model": "Kept by the model itself: its file has this node in FP32 among lower ones.",
    "engine": "The engine needs it or is faster with it, although the emulation does not need it.",
}
_UNGUARDED: Mapping[Reason, str] = {
    "flip": "Leads to decisions that change, of {decision}",
    "origin": "Most of the error that no guard explains {verb} at {origin}",
    "accumulated error": "Accumulated error: what no guard explains grows with depth",
    "spare": "Not needed: a plan that lowers it passes too, but costs more because of conversions",
    "effect": "Cause unknown: no single number stands out here",
}
"""Templates, see `followed_names`."""


def followed_names(followed: Followed | None) -> dict[str, str]:
    """Return the names in templates on where an error comes from that no guard explains."""
    names: dict[str, str] = {}
    if followed is not None and followed.decided is not None:
        names["decision"] = listed([flip.node for flip in followed.decided.flips])
    if followed is not None and followed.origin is not None:
        names["origin"] = shorten(followed.origin.node)
        names["verb"] = appears(followed.origin)
    return names


_BEYOND = (
    "{value}, beyond {low}'s {limit:6}[ (sample {sample})]"
    "[, in {share:%} of the elements of {samples:sample}|, in {share:%} of all its elements]"
)
_WORDS: Mapping[GuardKind, str] = {
    "overflow": f"{{tensor}} reaches {_BEYOND}",
    "square": "[inside {inside} ({op}) the squares reach|the square of {squared} reaches] "
    f"{_BEYOND}",
    "headroom": "[the square of {squared}|{tensor}] reaches {value}[ (sample {sample})]; {low}'s "
    "{limit:6} is {times} times that",
    "sum": "a running {low} sum inside {inside} ({op}) [can reach {value}, beyond {limit:6}"
    " (sample {sample})|can reach {value}, beyond {limit:6}|is rounded {elements:d} times and may "
    "lose up to {share:%}|makes it fail where a runtime sums in {low}]",
    "underflow": "[{tensor}, which {node} ({op}) reads, falls to {value}: |{tensor} reaches only "
    "{value} (sample {sample}): |{tensor} reaches only {value}: ][{share:%} of the elements of "
    "{samples:sample} become {becomes} in {low}|{share:%} of all its elements become {becomes} in "
    "{low}|all of it becomes {becomes} in {low}, whose smallest normal number is {limit}]",
    "eps": "the eps {value} before {reader} ({op}) becomes {becomes} in {low}, "
    "[and values as small as {smallest} depend on it"
    "|which matters once a value is near zero]",
    "cancellation": "operands rounded to {low} [reach {exponent} in {inside} ({op}), and e is "
    "raised to the result, which leaves an error of about {share:%}|cancel in {inside} "
    "({op}): they are {value} times the result, which keeps an error of about {share:%}|mostly "
    "cancel to zero in {inside} ({op})][ (sample {sample})]",
    "floor": "{node} ({op}) adds up terms that cancel, so that in {low} [results are off by up to "
    "{error:%}|its smallest results are nothing but rounding error]; {reader} ({reader_op}) needs "
    "small values to be relatively exact and reads some that are off by {read:itself}",
    "constant-range": "{elements:d} of the {size:d} values of constant {tensor} {elements:are} "
    "beyond {low}'s {limit:6}, up to {value}",
    "constant-subnormal": "[storing the variance {tensor} in {low} changes the scale of "
    "{elements:channel} by up to {share:%}|{share:%} of the non-zero values of constant {tensor} "
    "are below {low}'s smallest normal number {limit}, and {zeroed:%} become zero]",
    "integer": "[{tensor} counts up to {value:6} (sample {sample}), and "
    "{low} holds every integer only up to {limit:d}|{tensor} counts up to {value:6}, and {low} "
    "holds every integer only up to {limit:d}]",
    "grid": "the grid of {node} (GridSample) addresses {value:d} pixels, and {low} stores its "
    "coordinates to within {error} pixels",
    "angle": "{node} ({op}) reads angles up to {value} rad[ (sample {sample})], which {low} stores "
    "with an error of up to {error} rad",
    "residual": "from {node} (Add) on, {elements:sum} on the stream add branches down to 1/{value} "
    "of it, less than {low}'s spacing there: up to {share:%} of it is lost",
    "mask": "mask constant {tensor} = {value} [plus a score goes beyond {low}'s {limit:6} to -inf "
    "before {reader} ({op}), where a fully masked row would become NaN|taken from a score goes "
    "beyond {low}'s {lowest:6} to -inf before {reader} ({op}), where a fully masked row would "
    "become NaN|is selected before {reader} ({op}), at or beyond the edge of {low}'s range]",
    "margin": "{inside} ({op}) decides between scores that differ by [{value} of {low}'s spacing "
    "there|nothing at all][ (sample {sample})]",
    "infinite": "{tensor} [reaches {value}, beyond {low}'s {limit:6}: {elements:value} would be "
    "infinite inside|is not finite in {elements:value} inside where it is in FP32]"
    "[, and {reader} ({op}) reads that], in a plan whose outputs pass",
    "decision": "{node} ({op}) decides {elements:d} of {size:d} values differently when ONNX "
    "Runtime runs the file without rounding each value that leads to it: {value} × "
    "what is allowed, although the emulation passes",
}
"""Templates, see `wording.filled`."""
_EFFECT = (
    "[{nonfinite}; lowered{near} it gives NaN or infinite outputs"
    "|{endless}; lowered{near} it changes an output's shape or a value that has to be exact, or "
    "ends the run"
    "|; lowered{near} it brings the error to at least {excess} × what the search allows"
    "|; it or its group alone contributes {contribution} × what the search allows]"
)


def message(guard: Guard) -> str:
    """Return a suspicion as a clause with its numbers; the stored one if a record has no facts."""
    if not guard.names:
        return guard.message
    facts = {"node": guard.node, "tensor": guard.tensor or "", **guard.facts}
    if guard.kind == "headroom":
        facts["times"] = guard.numbers["limit"] / guard.numbers["value"]
    return filled(_WORDS[guard.kind], facts)


def guard_sentence(guard: Guard, node: NodeName) -> str:
    """Return a guard's message worded as the reason why `node` is kept."""
    if node == guard.node:
        return guard.message
    why = "it reads what may overflow" if guard.is_read_by(node) else f"needed by {guard.node}"
    return f"{why}: {guard.message}"


def worded(guards: Sequence[Guard]) -> tuple[Guard, ...]:
    """Return guards with their messages."""
    return tuple(guard.model_copy(update={"message": message(guard)}) for guard in guards)


def reason_of(kept: KeptNode, followed: Followed | None) -> Reason:
    """Return why a node is kept, by what was measured; `followed` is that of the run."""
    if kept.kept_by != "search":
        return kept.kept_by
    if kept.guard is not None:
        return kept.guard
    facts = kept.because or Because()
    if kept.spare:
        return "spare"
    if not facts.nonfinite and (kept.error_without, facts.contribution) == (None, None):
        return "unknown"
    reason = "effect" if followed is None else _reason_of_error(kept.node, followed)
    # What only adds to an error is no cause of NaN or infinities.
    return reason if reason == "origin" or not facts.nonfinite else "effect"


def _reason_of_error(node: NodeName, followed: Followed) -> Reason:
    decided, origin = followed.decided, followed.origin
    if decided is not None and node in decided.nodes:
        return "flip"
    if origin is not None and node in origin.kept:
        return "origin"
    return "accumulated error" if followed.accumulates else "effect"


def explained(
    keep: Sequence[KeptNode],
    guards: Sequence[Guard],
    headroom: float,
    followed: Followed | None = None,
) -> tuple[KeptNode, ...]:
    """Return kept nodes with their reasons; unchanged for records without facts.

    Args:
        keep: The nodes.
        guards: All guards of the run, with their messages.
        headroom: Factor on observed ranges within which overflow counts.
        followed: Where the error comes from that no guard explains; None if not followed.
    """

    def with_reason(kept: KeptNode) -> KeptNode:
        if (facts := kept.because) is None:
            return kept
        guard = None if facts.guard is None else guards[facts.guard]
        effect = _effect(kept, facts, headroom)
        reason = _reason(kept, facts, guard, effect, followed)
        return kept.model_copy(update={"reason": reason})

    return tuple(map(with_reason, keep))


def _reason(
    kept: KeptNode, facts: Because, guard: Guard | None, effect: str, followed: Followed | None
) -> str:
    if kept.kept_by == "rule":
        return f"Kept by the rule {facts.rule}."
    if kept.kept_by != "search":
        return _BY_OTHERS[kept.kept_by]
    inside = (
        ", and values inside its bodies are not observed"
        if kept.op in _BODIES and not kept.spare
        else ""
    )
    if guard is None and (effect or kept.spare):
        origin = _UNGUARDED[reason_of(kept, followed)].format(**followed_names(followed))
        return f"{origin}{inside}{effect}."
    if guard is None:
        if facts.opposed is None:
            return "Not lowered before the search ended; nothing is known of it."
        way = " and ".join(facts.opposed) or "low inputs and outputs"
        return f"Not lowered: the outputs fail even with all free nodes in FP32, because of {way}."
    doubt = "suspected: " if guard.severity < 1 else ""
    if not effect and guard.kind not in _SEEN_INSIDE:
        doubt = "suspected, not tried alone: "
    names = () if doubt else (guard.node, *guard.nodes, guard.tensor or guard.node)
    return f"{capital(f'{doubt}{guard_sentence(guard, kept.node)}', names)}{inside}{effect}."


def _effect(kept: KeptNode, facts: Because, headroom: float) -> str:
    """Return what happens if the node is low, as the end of a sentence; "" if unknown."""
    excess, near = kept.error_without, f", with values {number(headroom)} × those seen,"
    effects: dict[str, str | float | None] = {
        "near": near if facts.at_headroom else ",",
        "excess": excess,
        "contribution": facts.contribution,
        "nonfinite": "" if facts.nonfinite else None,
        "endless": "" if excess == inf else None,
    }
    return filled(_EFFECT, {name: fact for name, fact in effects.items() if fact is not None})
