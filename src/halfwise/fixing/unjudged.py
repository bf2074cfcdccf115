"""Put on record what no sample tests."""

from collections.abc import Sequence

import onnx_ir as ir

from halfwise.case import Case, Samples
from halfwise.judging.unjudged import find_unjudged
from halfwise.metrics import Outputs, takes_any_sample
from halfwise.options.options import Request
from halfwise.records import Verdict
from halfwise.reporting.unjudged import ANY_SAMPLE, not_judged


def with_unjudged(
    verdict: Verdict,
    case: Case,
    request: Request,
    candidate: ir.Model | None,
    samples: Samples,
    references: Sequence[Outputs],
) -> Verdict:
    """Return the verdict with what no sample tests; it fails for that, unless allowed.

    Args:
        verdict: On the candidate.
        case: The case.
        request: The options.
        candidate: The judged model; see `find_unjudged`.
        samples: What was judged.
        references: FP32 outputs of each.
    """
    settings = request.settings
    found = find_unjudged(case, candidate, samples, references, runtime=settings.runtime)
    if takes_any_sample(case.criterion, case.metric, references, samples.labels):
        verdict = verdict.model_copy(update={"hints": (*verdict.hints, ANY_SAMPLE)})
    if request.data.allow_unjudged or not found:
        return verdict.model_copy(update={"unjudged": found})
    reasons = (*verdict.reasons, *map(not_judged, found))
    return verdict.model_copy(
        update={
            "passed": False,
            "judged": not verdict.passed,
            "unjudged": found,
            "reasons": reasons,
        }
    )
