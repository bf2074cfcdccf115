"""What no sample tests: outputs, a metric, and bodies that never run."""

from collections.abc import Sequence

import onnx_ir as ir

from halfwise.case import CPU, Case, Runtime, Samples
from halfwise.emulation.ort import Session
from halfwise.graph.bodies import Body, alike, bodies_in, count_runs
from halfwise.metrics import Outputs, untested_outputs, untested_task
from halfwise.records import Unjudged


def find_unjudged(
    case: Case,
    candidate: ir.Model | None,
    samples: Samples,
    references: Sequence[Outputs],
    *,
    runtime: Runtime = CPU,
) -> tuple[Unjudged, ...]:
    """Return what the verdict on `samples` does not cover.

    Args:
        case: The FP32 model, all samples, and what is acceptable. A body that ran on any sample,
            even of the search, counts as tested.
        candidate: The judged model with its types: a body that is in FP32, as in the reference,
            needs no test. None for an engine and for recorded outputs, where all bodies need one.
        samples: The judged samples.
        references: FP32 outputs of each.
        runtime: Where to run.
    """
    labels = None if samples.labels is None else list(samples.labels)
    found = (
        *untested_outputs(case.criterion, references),
        *untested_task(case.criterion, case.metric, references, labels),
    )
    wanted = _to_be_tested(case, candidate)
    idle = _never_run(case, wanted, runtime) if wanted else ()
    return (*found, *(_untested(body, case.network.graph) for body in idle))


def _to_be_tested(case: Case, candidate: ir.Model | None) -> list[Body]:
    """Return the reference's bodies that compute, except those unchanged in the candidate.

    Bodies that no input reaches are excluded.
    """
    own = {} if candidate is None else bodies_in(candidate.graph)
    wanted = (b for b in bodies_in(case.network.graph).values() if b.computes(low=False))
    kept = {k for k, body in own.items() if not body.computes(low=True)}
    return [
        b for b in wanted if b.can_run and not (b.key in kept and alike(b.graph, own[b.key].graph))
    ]


def _never_run(case: Case, wanted: Sequence[Body], runtime: Runtime) -> list[Body]:
    """Return the bodies that run on no sample; of nested bodies, only the outermost."""
    model = case.network.copy()
    names = dict(zip(wanted, count_runs(model, [body.key for body in wanted]), strict=True))
    session = Session(model, runtime=runtime)
    waiting = list(wanted)
    for sample in case.heldout + case.calibration:
        if not waiting:
            return []
        runs = session.run(sample, [names[body] for body in waiting])
        waiting = [body for body in waiting if not runs[names[body]].any()]
    idle = {body.key for body in waiting}
    return [body for body in waiting if idle.isdisjoint(body.around)]


def _untested(body: Body, graph: ir.Graph) -> Unjudged:
    (node, attribute), inputs = body.key, body.inputs(graph)
    return Unjudged(
        kind="never-ran",
        name=node,
        body=attribute,
        op=body.node.op_type,
        around=(*body.around, body.key)[0][0],
        inputs=inputs if len(inputs) < len(graph.inputs) else (),
    )
