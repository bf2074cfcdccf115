"""Words on what quantisation does to outputs, and on the Q/DQ pairs responsible."""

from collections.abc import Iterator

from halfwise.records import PairLoss, QuantisationLoss, Right, Run
from halfwise.reporting.notes import quantised_note
from halfwise.reporting.parts import Lines
from halfwise.wording import count, listed, number, percent, ratio, shorten, verb

_PAIRLESS = (
    "Causes cannot be found: no product reads through a Q/DQ pair that could be left out. With "
    "such pairs (QuantFormat.QDQ in onnxruntime.quantization) verify finds them."
)
_RIGHT: dict[Right, str] = {
    "original": "The reference is what the original gives.",
    "framework": "The reference is what the framework gave.",
    "floats": "The reference is what this model gives without its pairs, its weights as stored.",
}
_EVEN = 0.01
"""Share of a range by which ends written as ± may differ: one step of INT8 in 127."""

_FURTHER = "`halfwise fix ORIGINAL --to int8 --start-from QUANTISED`"


def pairless_lines(run: Run) -> Lines | None:
    """Return that a failing candidate without pairs cannot be diagnosed, or None."""
    facts = quantised_note(run, candidate=True)
    if facts is None or facts["whole"] or facts["half"] or run.quantisation is not None:
        return None
    failed = run.verdict.judged and not run.verdict.passed
    return Lines("Quantisation", (_PAIRLESS,)) if failed else None


def quantisation_lines(loss: QuantisationLoss | None) -> Lines | None:
    """Return which pairs make the outputs wrong; None if none do, or if unknown."""
    if loss is None or loss.needed == 0:
        return None
    return Lines("Quantisation", (*summary_lines(loss), *map(cause_line, loss.causes)))


def summary_lines(loss: QuantisationLoss) -> Iterator[str]:
    """Yield how many pairs must be left out, if any, and the effect on the outputs."""
    pairs = count(loss.pairs, "Q/DQ pair")
    right = "" if loss.right is None else f" {_RIGHT[loss.right]}"
    if not loss.explained:
        yield (
            f"Even without any of the {pairs} the error is {number(loss.without_all)} times what "
            f"is allowed, {number(loss.error)} times with them: {_else(loss)}.{right}"
        )
        return
    if loss.cut:
        worst = f" Most harm alone is done by {listed(loss.gravest, 3)}." if loss.gravest else ""
        without = f"{number(loss.without_all)} times without any of the {pairs}"
        yield (
            f"The error is {number(loss.error)} times what is allowed, and {without}. Which are to "
            "blame is unknown: the budget of the search was spent."
            f"{worst} {_FURTHER} finds the nodes that cost least.{right}"
        )
        return
    assert loss.without is not None
    left_out = number(loss.without)
    if loss.needed is None:
        if number_of := len(loss.causes):
            makes, them = verb(number_of, "makes", "make"), verb(number_of, "it", "them")
            yield (
                f"{number_of} of {pairs} {makes} most of the error: "
                f"without {them} it is {left_out} times what is allowed, "
                f"{number(loss.error)} times with all. For the rest, {_FURTHER} finds the "
                f"nodes that cost least.{right}"
            )
            return
        worst = f"the {len(loss.gravest)} that do most harm alone ({listed(loss.gravest, 3)})"
        yield (
            f"No small group of the {pairs} is to blame: without {worst} the error is "
            f"{left_out} times what is allowed, {number(loss.error)} times with all. "
            f"{_FURTHER} finds the nodes that cost least.{right}"
        )
        return
    few = f"{loss.needed} of {pairs}"
    yield (
        f"The outputs pass without {few}: the error is then {left_out} times what is allowed, "
        f"{number(loss.error)} times with all.{right}"
    )


def cause_line(cause: PairLoss) -> str:
    """Return the fault of one pair, its cost, and the effect of another scale."""
    readers = f", read by {listed(cause.readers, 2)}" if cause.readers else ""
    line = (
        f"{shorten(cause.tensor)}{readers}: {_fault(cause)}. With it, the error is "
        f"{number(cause.restored)} times what is allowed"
    )
    if cause.rescale is None or cause.rescaled is None:
        return f"{line}."
    larger = cause.rescale > 1
    times = ratio(cause.rescale if larger else 1 / cause.rescale)
    scale = f"a scale {times} as {'large' if larger else 'fine'}"
    return f"{line}; with {scale}, {number(cause.rescaled)} times."


def _fault(cause: PairLoss) -> str:
    span, reach = _span(cause), number(cause.reach)
    if cause.fault == "saturated":
        assert cause.beyond is not None
        assert cause.clipped is not None
        return (
            f"saturated: {percent(cause.beyond)} of its values are beyond {span}, up to {reach}, "
            f"which is {percent(cause.clipped)} of its squared error"
        )
    if cause.fault == "outlier":
        return (
            f"its range {span} is set by a few outliers, up to {reach}; all others are below "
            f"{number(cause.usual)}"
        )
    if cause.fault == "wide":
        return f"its range {span} is too wide: no value is beyond {reach}"
    if cause.fault == "channels":
        return "its channels differ by over 100 times but share one scale"
    if cause.fault == "scale":
        return "its scale is not a positive number"
    return f"it needs more than {cause.bits} bits"


def _span(cause: PairLoss) -> str:
    low, high = cause.ends or (-cause.limit, cause.limit)
    if abs(low + high) <= _EVEN * high:
        return f"±{number(cause.limit)}"
    return f"{number(low)} … {number(high)}"


def _else(loss: QuantisationLoss) -> str:
    """Return the fault of a model without a pair that is left out in vain."""
    if not loss.foreign:
        return "something else is wrong"
    return (
        f"something else is wrong, or {listed(loss.foreign, 2)}: what is stored for "
        f"{verb(len(loss.foreign), 'it', 'them')} is not a rounded constant of the original"
    )
