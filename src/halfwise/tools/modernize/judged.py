"""Modernize a model, and judge what FP16 does to it before and after."""

from collections.abc import Collection

from halfwise.case import Case, Settings
from halfwise.fixing.rewrite import rewrite
from halfwise.graph.casts import low_type
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.inputs.spec import WARNING
from halfwise.judging.check import check
from halfwise.judging.judge import judge
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import Outputs
from halfwise.progress import Watcher
from halfwise.records import Modernized, NodeName, TensorName, Verdict
from halfwise.tools.modernize.rewriting import Modernizer, Proven

MOST_SAMPLES = 16
"""Samples that both models run on: a wrong rewriting shows on the first."""


def modernize(
    case: Case,
    settings: Settings,
    watcher: Watcher,
    *,
    opset: int,
    available: Collection[str],
    target: str,
    transposes: bool,
) -> tuple[Network, Modernized]:
    """Return the modernized network and the record of what was done.

    Args:
        case: The FP32 model and its samples, none held out.
        settings: Where to run, and the low format.
        watcher: Is told about progress.
        opset: The highest that the target reads.
        available: Operators that the target has.
        target: What the target is, in words.
        transposes: Whether norms over other axes than the last may get Transposes.

    Raises:
        CaseError, RunFailed: the model cannot be lowered, or does not run on the samples.
    """
    samples = case.calibration.select(range(min(MOST_SAMPLES, len(case.calibration))))
    watcher.stage("modernize")
    check(case.network, runtime=settings.runtime)
    modernizer = Modernizer(case.network, samples, runtime=settings.runtime)
    proven = modernizer.run(opset, available, transposes=transposes)
    before, after = _low_verdicts(case, proven.network, settings, watcher)
    return proven.network, Modernized(
        model=str(case.network.path or "in memory"),
        opset=case.network.opset,
        new_opset=proven.network.opset,
        target=target,
        rewritings=proven.rewritings,
        left=proven.left,
        folded=proven.folded,
        names=_names(proven, case.network),
        nodes=sum(1 for _ in case.network.nodes()),
        new_nodes=sum(1 for _ in proven.network.nodes()),
        samples=samples.ids,
        real=case.real,
        error=proven.error,
        fp16_before=before,
        fp16_after=after,
        notes=(*(note for note in case.notes if note.startswith(WARNING)), *proven.notes),
    )


def _names(proven: Proven, network: Network) -> dict[NodeName, tuple[NodeName, ...]]:
    """Return what stands for each node that is gone, by the name that the user's file gives it."""
    names: dict[NodeName, tuple[NodeName, ...]] = dict.fromkeys(proven.folded, ())
    for rewriting in proven.rewritings:
        names |= dict.fromkeys(rewriting.removed, rewriting.added)
    original = network.original_names
    return {NodeName(original.get(old) or old): new for old, new in names.items()}


def _low_verdicts(
    case: Case, new: Network, settings: Settings, watcher: Watcher
) -> tuple[Verdict | None, Verdict | None]:
    """Return the verdicts on both models with every node low; none on random numbers."""
    if not case.real:
        return None, None
    watcher.stage("judge")
    references, nonfinite = inspected_reference(
        case.network, case.calibration, runtime=settings.runtime
    )
    before, after = (
        _low_verdict(network, case, settings, references, nonfinite)
        for network in (case.network, new)
    )
    return before, after


def _low_verdict(
    network: Network,
    case: Case,
    settings: Settings,
    references: list[Outputs],
    nonfinite: frozenset[TensorName],
) -> Verdict:
    """Return the verdict on `network` with every node low, by emulation."""
    roles = roles_of(network, low_type(settings.fmt))
    low, _ = rewrite(
        network, roles, frozenset(), settings.fmt, fixed=frozenset(), low_io=frozenset()
    )
    return judge(
        low.model,
        case.calibration,
        references,
        case.criterion,
        case.metric,
        reference_nonfinite=nonfinite,
        inspected=0,
        runtime=settings.runtime,
    ).verdict
