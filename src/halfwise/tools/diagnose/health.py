"""Rung 3: are the model's outputs finite, and has its file known faults?"""

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from halfwise.emulation.ort import Session
from halfwise.graph.dataflow import reached
from halfwise.graph.excluding import excluding
from halfwise.graph.loading import read_unchecked
from halfwise.graph.model import node_name
from halfwise.graph.quantised import pairs_of
from halfwise.judging.reference import inspected_reference
from halfwise.linting import lint
from halfwise.metrics.difference import is_discrete
from halfwise.records import Finding, NodeName, QuantisationLoss, Rung, Severity, Sign, Step, said
from halfwise.reporting.causes import cause_line, summary_lines
from halfwise.tools.diagnose.subject import Subject, skipped
from halfwise.tools.verify.quantised import Question, allowance, quantisation_loss
from halfwise.wording import argument, count


def lost(subject: Subject) -> QuantisationLoss | None:
    """Return the effect of the pairs on the outputs; None if none can be left out.

    Also None without the framework's outputs if stored weights have no scale: then nothing is known
    to be right. Right are the framework's outputs, or without these the model's own without its
    pairs. Weights stored as integers stay unchanged.
    """
    network, settings = subject.case.network, subject.settings
    references, pairs = subject.given, pairs_of(network)
    if not pairs:
        return None
    if not references:
        if any(pair.source is None and not pair.has_scales for pair in pairs):
            return None
        every = [node_name(node) for node in network.nodes()]
        session = Session(excluding(network, every, ends=True).model, runtime=settings.runtime)
        references = [session.run(sample) for sample in subject.samples]
    return quantisation_loss(
        Question(
            network=network,
            original=None,
            samples=subject.samples,
            references=references,
            criterion=subject.case.criterion,
            metric=subject.case.metric,
            accumulate=settings.accumulate,
            runtime=settings.runtime,
            budget=allowance(settings, subject.samples),
            right="framework" if subject.given else "floats",
        )
    )


def signs_of_loss(loss: QuantisationLoss) -> list[Sign]:
    """Return a sign for each pair that is a cause, and one for all.

    Faulty pairs are errors; too few bits are a warning, since a diagnosis goes on to what else may
    be wrong.
    """
    if loss.needed == 0:
        return []
    found = [Sign(severity="warning", text=" ".join(summary_lines(loss)))]
    for cause in loss.causes:
        severity: Severity = "warning" if cause.fault == "rounding" else "error"
        text = f"The pair at {cause_line(cause)}"
        found.append(Sign(severity=severity, text=text, nodes=(cause.node, *cause.readers)))
    return found


_REQUANTISE = (
    "Recalibrate these tensors on data like these, or keep their readers out of INT8; "
    "`halfwise fix ORIGINAL --to int8 --start-from QUANTISED` finds which."
)
_MEANT = (
    "Give inputs on which the model is defined, or fix the model. If such values are intended, "
    "continue with --allow unjudged."
)


def healthy(subject: Subject) -> Rung:
    """Return whether FP32's outputs are finite and the linter finds no error in the file.

    The linter checks for the target's TensorRT, if any. In a quantised model without expected
    outputs, faulty pairs are errors too.
    """
    nonfinite = _nonfinite(subject)
    bad = [*nonfinite]
    path = subject.case.network.path
    loss = None if subject.given else lost(subject)
    bad += [] if loss is None else signs_of_loss(loss)
    if path is None and not bad:
        return skipped(3, "model", "The model was not loaded from a file.")
    version = None if subject.engines is None else subject.engines.tensorrt
    findings = () if path is None else lint(read_unchecked(path, subject.watcher.step), version)[0]
    errors = [f for f in findings if f.severity == "error"]
    signs = [*bad, *(_sign(alike) for alike in _alike(findings))]
    wrong = [sign for sign in signs if sign.severity == "error"]
    advice = list(said(_MEANT)) if nonfinite else []
    if loss is not None and any(cause.fault != "rounding" for cause in loss.causes):
        advice += said(_REQUANTISE)
    if path is not None and errors:
        advice.append(Step(kind="lint", command=("halfwise", "lint", argument(path))))
    return Rung(
        rung=3,
        name="model",
        passed=not wrong,
        how="measured",
        cause=wrong[0].text if wrong else f"No known error; {count(len(findings), 'remark')}.",
        nodes=tuple(dict.fromkeys(node for sign in wrong for node in sign.nodes)),
        evidence=tuple(signs),
        advice=tuple(advice) if wrong else (),
        quantisation=loss,
    )


def _nonfinite(subject: Subject) -> list[Sign]:
    """Return a sign for each nonfinite FP32 output; errors unless allowed."""
    broken: dict[str, list[int]] = {}
    told = {}
    for name, first in subject.references[0].items() if subject.references else ():
        if is_discrete(first.dtype):
            continue
        elements = [int(np.count_nonzero(~np.isfinite(r[name]))) for r in subject.references]
        if any(elements):
            broken[name] = [index for index, bad in enumerate(elements) if bad]
            size = sum(r[name].size for r in subject.references)
            told[name] = (
                f"FP32 itself gives NaN or infinite values: output {name}, in {sum(elements)} of "
                f"{count(size, 'element')}, on {len(broken[name])} of "
                f"{count(len(elements), 'sample')}."
            )
    if not broken:
        return []
    severity: Severity = "warning" if subject.allow_unjudged else "error"
    samples = subject.samples.select(sorted({i for indices in broken.values() for i in indices}))
    network = subject.case.network
    _, inside = inspected_reference(network, samples, runtime=subject.settings.runtime)
    return [
        Sign(severity=severity, text=told[str(v.name)], nodes=_origins(network.nodes(), v, inside))
        for v in network.graph.outputs
        if v.name in told
    ]


def _origins(
    nodes: Iterable[ir.Node], output: ir.Value, nonfinite: frozenset[str]
) -> tuple[NodeName, ...]:
    """Return the nodes that turn finite tensors into NaN or inf that reach an output."""

    def bad(node: ir.Node | None) -> list[ir.Value]:
        inputs = () if node is None else node.inputs
        return [v for v in inputs if v is not None and v.name in nonfinite]

    seen = reached([output], lambda value: bad(value.producer()))
    makers = {value.producer() for value in seen}
    return tuple(node_name(node) for node in nodes if node in makers and not bad(node))


def _alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Return findings grouped by shared sentence, worst first."""
    groups: dict[tuple[Severity, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.rule, finding.fix), []).append(finding)
    return list(groups.values())


def _sign(alike: Sequence[Finding]) -> Sign:
    first = alike[0]
    often = f" ({len(alike)} times)" if len(alike) > 1 else ""
    return Sign(
        severity=first.severity,
        text=f"{first.rule}{often}: {first.message}. {first.fix}",
        nodes=tuple(dict.fromkeys(f.node for f in alike if f.node)),
    )
