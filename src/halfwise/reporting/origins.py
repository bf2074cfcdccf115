"""Words on where an error comes from that no guard explains."""

from math import isfinite

from halfwise.records import Channel, Decided, NodeName, Origin
from halfwise.wording import filled, listed, shorten, verb

_FLIPPED = (
    "{lead}{nodes} {decides} {elements:d} of {of:d} values differently on {samples:sample}"
    "[, reading floats that are off by {read:%}]; with the reference's decisions instead, the "
    "error falls from {error} × to {left} × {allowed}"
)
_CARRIED = (
    "channel {index:d} of {size:d} (axis {axis:d}) of {tensor} carries most of the error"
    "[: it is off by {error:%}, the other channels by {rest:%}]; with FP32's values there alone, "
    "the error falls from {whole} × to {left} × {allowed}"
)


def flipped(
    found: Decided, node: NodeName | None = None, allowed: str = "what the search allows"
) -> str:
    """Return what decisions do to the error, as a clause.

    Args:
        found: The decisions.
        node: A node that leads to them; None for the decisions themselves.
        allowed: What errors are multiples of.
    """
    names = [flip.node for flip in found.flips]
    facts: dict[str, str | float] = {
        "lead": "" if node is None or node in names else "this node leads to decisions: ",
        "nodes": listed(names),
        "decides": verb(len(names), "decides", "decide"),
        "elements": sum(flip.elements for flip in found.flips),
        "of": sum(flip.of for flip in found.flips),
        "error": found.error,
        "left": found.left,
        "samples": found.samples,
        "allowed": allowed,
    }
    # Floats that are exact until their reader rounds them say nothing.
    if found.read and isfinite(found.read):
        facts["read"] = found.read
    return filled(_FLIPPED, facts)


def carried(found: Channel, error: float, allowed: str) -> str:
    """Return what the error of a channel does, as a clause.

    Args:
        found: The channel.
        error: Error of the outputs with the candidate's own values there.
        allowed: What errors are multiples of.
    """
    facts: dict[str, str | float] = {
        "index": found.index,
        "size": found.size,
        "axis": found.axis,
        "tensor": shorten(found.tensor),
        "error": found.error if isfinite(found.error) else "",
        "rest": found.rest if isfinite(found.rest) else "",
        "whole": error,
        "left": found.left,
        "allowed": allowed,
    }
    return filled(_CARRIED, {name: fact for name, fact in facts.items() if fact != ""})


def followed_over(metric: str | None) -> str:
    """Return what errors are multiples of where they are followed: no metric has a part of them."""
    return "what the search allows" if metric is None else "the default tolerance"


def appears(origin: Origin) -> str:
    """Return the verb for an error at its origin: what it reads may have most of it already."""
    return "starts" if origin.read is None else "grows"
