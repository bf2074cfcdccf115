"""What nothing tests: outputs, a metric, and bodies that never run."""

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from halfwise.backends.ort import Session
from halfwise.case import Case, Samples
from halfwise.graph.model import node_name
from halfwise.graph.running import Body, computing_bodies, count_runs
from halfwise.metrics import Outputs, untested_metric, untested_outputs
from halfwise.records import Unjudged


def find_unjudged(
    case: Case,
    candidate: ir.Model | None,
    samples: Samples,
    references: Sequence[Outputs],
    *,
    device: str = "cpu",
    libraries: Sequence[Path] = (),
) -> tuple[Unjudged, ...]:
    """Return what the verdict on `samples` says nothing of.

    Args:
        case: The FP32 model, all samples, and what is acceptable. A body that ran on any of the
            samples, those of the search included, was tested at least there.
        candidate: The judged model in its types: only what is low in it has to be tested. None for
            an engine and for outputs on record, of which all has.
        samples: What was judged.
        references: FP32 outputs of each.
        device: Where to run.
        libraries: Custom operator libraries.
    """
    labels = None if samples.labels is None else list(samples.labels)
    found = (
        *untested_outputs(case.criterion, references),
        *untested_metric(case.criterion, case.metric, references, labels),
    )
    wanted = _to_be_tested(case, candidate)
    idle = _never_run(case, wanted, device, libraries) if wanted else ()
    return (*found, *map(_untested, idle))


def _to_be_tested(case: Case, candidate: ir.Model | None) -> list[Body]:
    """Return the bodies of the reference that are low in the candidate; all floats without one."""
    bodies = computing_bodies(case.network.graph, low=False)
    if candidate is None or not bodies:
        return list(bodies.values())
    low = computing_bodies(candidate.graph, low=True)
    known = {node_name(node) for node in candidate.graph.all_nodes()}
    return [body for key, body in bodies.items() if key in low or body.node not in known]


def _never_run(
    case: Case, wanted: Sequence[Body], device: str, libraries: Sequence[Path]
) -> list[Body]:
    """Return which bodies run on no sample; of nested ones the outermost."""
    model = case.network.copy()
    names = dict(zip(wanted, count_runs(model, [body.key for body in wanted]), strict=True))
    session = Session(model, device=device, libraries=libraries)
    waiting = list(wanted)
    for sample in case.heldout + case.calibration:
        if not waiting:
            return []
        runs = session.run(sample, [names[body] for body in waiting])
        waiting = [body for body in waiting if not runs[names[body]].any()]
    idle = {body.key for body in waiting}
    return [body for body in waiting if idle.isdisjoint(body.around)]


def _untested(body: Body) -> Unjudged:
    return Unjudged(kind="never-ran", name=body.node, body=body.attribute, op=body.op)
