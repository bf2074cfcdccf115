"""Say which frozen size a model insists on, in the place of its crash."""

from collections.abc import Iterator
from contextlib import contextmanager

from halfwise.case import Case, Settings
from halfwise.errors import CaseError, RunFailed
from halfwise.judging.frozen import frozen_size
from halfwise.reporting.frozen import frozen_advice, frozen_cause


@contextmanager
def frozen_named(case: Case, settings: Settings) -> Iterator[None]:
    """Turn the failure of a model that insists on a size of its export into what it insists on.

    Raises:
        CaseError: the FP32 model fails on a sample, and runs on the same values in another batch
            size or length, and only there. Any other failure goes on as it is.
    """
    try:
        yield
    except RunFailed as failure:
        if failure.late:  # it would be as late again
            raise
        found = frozen_size(
            case.network,
            case.calibration + case.heldout,
            runtime=settings.runtime,
        )
        if found is None:
            raise
        raise CaseError(frozen_cause(found), " ".join(frozen_advice(found))) from failure
