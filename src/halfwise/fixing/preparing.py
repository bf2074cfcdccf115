"""The network that a run plans for: raised to an opset with its types, or unquantised."""

from dataclasses import dataclass, replace

from halfwise.case import Case, Settings
from halfwise.fixing.int8.given import Given
from halfwise.fixing.rewrite import with_opset_for
from halfwise.graph.model import Network
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import Outputs
from halfwise.progress import Watcher
from halfwise.records import Remark
from halfwise.reporting.remarks import remark


@dataclass(frozen=True)
class Prepared:
    """Input of a run.

    Attributes:
        case: With the network that plans are for.
        original: The reference network.
        searched: Outputs of the network to plan for on the calibration samples, if it is not
            `original`; else None.
        notes: Changes made to it.
    """

    case: Case
    original: Network
    searched: list[Outputs] | None = None
    notes: tuple[Remark, ...] = ()


def prepare(case: Case, given: Given | None, settings: Settings, watcher: Watcher) -> Prepared:
    """Return the case with the network to plan for.

    Args:
        case: With the user's model.
        given: The quantised model to start from; plans are then of its nodes.
        settings: The types, and where to run.
        watcher: Receives notes on the changes.

    Raises:
        RunFailed: the model does not run on a sample.
    """
    network, runtime = case.network, settings.runtime
    if given is not None:
        searched = inspected_reference(network, case.calibration, runtime=runtime)[0]
        return Prepared(replace(case, network=given.floats, restored=True), network, searched)
    raised, note = with_opset_for(
        settings.fmt, network, case.calibration, runtime=runtime, int8=settings.int8
    )
    if note is not None:
        watcher.note(remark(note))
    notes = () if note is None else (note,)
    return Prepared(replace(case, network=raised), raised, notes=notes)
