"""Words on what no sample tests."""

from halfwise.metrics import rises, usual
from halfwise.records import Unjudged
from halfwise.wording import listed, number

ANY_SAMPLE = (
    "The metric accepts for each sample the outputs of another one, too: it sees little of them, "
    "or the samples are alike."
)


def not_judged(found: Unjudged) -> str:
    """Return what is not judged, and why, as a clause with the numbers."""
    if found.kind == "never-ran":
        by = f"; whether it runs goes by input {listed(found.inputs)}" if found.inputs else ""
        return (
            f"not judged: {found.op} node {found.name}: {found.body} never ran, on any sample{by}"
        )
    if found.kind in ("metric", "guessing"):
        return f"not judged: {_metric(found)}"
    largest = f", whose largest is {number(found.reference)}" if found.reference else ""
    why = {
        "non-finite": "FP32 itself gives nothing finite, on any sample",
        "empty": "it is empty on every sample",
        "zeros": f"zeros would pass in place of its values{largest}",
        "flat": f"a constant would pass in place of its values, which are from "
        f"{number(found.reference)} to {number(found.other)}",
        "constant": "its target is constant, so that psnr has no peak",
    }
    return f"not judged: output {found.name}: {why[found.kind]}"


def _metric(found: Unjudged) -> str:
    own, other = (usual(found.name, value) for value in (found.reference, found.other))
    doubt = ". Do the labels fit? Classes count from 0" if found.labelled else ""
    if found.kind == "guessing":
        return (
            f"{found.name}: FP32's own outputs have {number(own)}, no more than guessing would "
            f"have, {number(other)}{doubt}"
        )
    way = "rise" if rises(found.name) else "drop"
    return (
        f"{found.name} would accept values next to zero in place of all outputs: they have "
        f"{number(other)}, FP32's own have {number(own)}, and a {way} of {number(found.allowed)} "
        f"is allowed{doubt}"
    )
