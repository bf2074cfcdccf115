"""Words on what no sample tests."""

from halfwise.metrics import usual
from halfwise.records import Unjudged
from halfwise.render.wording import number

ANY_SAMPLE = (
    "The metric accepts for each sample the outputs of another one, too: it sees little of them, "
    "or the samples are alike."
)


def not_judged(found: Unjudged) -> str:
    """Return what is not judged, and why, as a clause with the numbers."""
    if found.kind == "never-ran":
        return f"not judged: {found.op} node {found.name}: {found.body} never ran, on any sample"
    if found.kind in ("metric", "guessing"):
        return f"not judged: {_metric(found)}"
    largest = f", whose largest is {number(found.reference)}" if found.reference else ""
    why = {
        "non-finite": "FP32 itself gives nothing finite, on any sample",
        "empty": "it is empty on every sample",
        "zeros": f"zeros would pass in place of its values{largest}",
        "constant": "its target is constant, so that psnr has no peak",
    }
    return f"not judged: output {found.name}: {why[found.kind]}"


def _metric(found: Unjudged) -> str:
    own, other = (usual(found.name, value) for value in (found.reference, found.other))
    compared = "guessing" if found.kind == "guessing" else "values next to zero"
    doubt = ". Do the labels fit? Classes count from 0" if found.labelled else ""
    return (
        f"{found.name}: FP32's own outputs have {number(own)}, {compared} would have "
        f"{number(other)}, and {number(found.allowed)} may be lost{doubt}"
    )
