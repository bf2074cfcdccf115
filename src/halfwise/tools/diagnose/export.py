"""Rungs 2 and 3: does the ONNX file compute what the framework did; is it finite and healthy?

Where a choice (TopK, ArgMax) is between nearly equal values, or nearly equal values are subtracted,
two right FP32 computations differ by more than other kernels usually explain. FP64 shows that: both
are then about as far from it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.double import DoubleSession
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import OTHER_KERNELS
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.dataflow import reached
from halfwise.graph.excluding import excluding
from halfwise.graph.loading import read_unchecked
from halfwise.graph.model import node_name
from halfwise.graph.quantised import pairs_of
from halfwise.judging.reference import inspected_reference
from halfwise.linting import lint
from halfwise.metrics.difference import is_discrete, relative_rms
from halfwise.records import (
    Comparison,
    Finding,
    NodeName,
    QuantisationLoss,
    Rung,
    Severity,
    Sign,
    Step,
    Verdict,
    said,
)
from halfwise.reporting.causes import cause_line, quantisation_summary
from halfwise.reporting.remarks import reasons
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.walk import RecordedSide, reference
from halfwise.tools.diagnose.input_changes import no_change
from halfwise.tools.diagnose.subject import (
    Subject,
    constant_outputs,
    foreign,
    reordered,
    signs_of,
    skipped,
)
from halfwise.tools.verify.quantised import Question, allowance, quantisation_loss
from halfwise.wording import argument, count, listed, number


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
    found = [Sign(severity="warning", text=quantisation_summary(loss))]
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


ALIKE = 4.0
"""How many times as far from FP64 as ONNX Runtime's FP32 another FP32 computation may be: both
flip a few choices each, and counts as small as these vary."""
_SAMPLES = 32
"""FP64 takes 5 to 70 times as long as FP32 (`bench/proof.py`)."""


@dataclass(frozen=True)
class Blurred:
    """An output that FP32 rounding explains.

    Attributes:
        output: Its name.
        runtime: Distance of ONNX Runtime's FP32 from FP64: relative RMS, or the share of elements
            that differ.
        framework: That of the framework.
    """

    output: str
    runtime: float
    framework: float


def blurred(subject: Subject) -> tuple[Blurred, ...]:
    """Return the outputs in doubt, if rounding in FP32 explains all of the framework's error.

    Empty too if a metric decides, or if FP64 cannot be computed.
    """
    if subject.case.metric is not None or not subject.given:
        return ()
    chosen = range(min(len(subject.samples), _SAMPLES))
    try:
        double = DoubleSession(subject.case.network.model)
        exact = [double.run(subject.samples[i]) for i in chosen]
    except (CaseError, RunFailed):
        return ()
    found = []
    for name in subject.given[0]:
        given, ours, true = (
            [side[i][name] for i in chosen] for side in (subject.given, subject.references, exact)
        )
        pairs = (given, true), (ours, true), (given, ours)
        framework, runtime, apart = (_distance(*pair) for pair in pairs)
        unclear = runtime > OTHER_KERNELS
        if framework > (ALIKE * runtime if unclear else OTHER_KERNELS):
            return ()
        # Errors of rounding are independent. A common one, such as FP32's range, hides others.
        if unclear and apart < runtime / ALIKE:
            return ()
        if unclear:
            found.append(Blurred(name, runtime, framework))
    return tuple(found)


def _distance(found: Sequence[NDArray[np.generic]], exact: Sequence[NDArray[np.generic]]) -> float:
    """Return the relative RMS error, or of discrete values the share that differs."""
    if any(a.shape != b.shape for a, b in zip(found, exact, strict=True)):
        return inf
    left, right = (np.concatenate([np.ravel(a) for a in side]) for side in (found, exact))
    if is_discrete(right.dtype) or is_discrete(left.dtype):
        return float(np.mean(left != right)) if left.size else 0.0
    if not (np.isfinite(right).all() and np.isfinite(left).all()) or not right.any():
        return inf
    return relative_rms(right, left)


def exported(subject: Subject) -> Rung:
    """Return whether ONNX Runtime reproduces the framework's outputs."""
    if subject.expected is None:
        return skipped(
            2,
            "export",
            "The framework's outputs are not given.",
            "Give its outputs on these inputs (--expected outputs.npz) or the PyTorch module "
            "(--expected file.py:factory).",
        )
    verdict = subject.against_framework
    if verdict is None:
        return skipped(2, "export", "--expected contains no output of the model.")
    if subject.order is not None and not (verdict.passed and subject.foreign is None):
        return _mispaired(verdict, subject, reordered(subject.order, subject.samples.ids))
    if verdict.passed and subject.foreign is not None:
        return _mispaired(verdict, subject, foreign(subject.foreign))
    if not verdict.passed:
        return _apart(verdict, subject)
    constant = bool(subject.variations) and all(v.constant for v in subject.variations)
    unshown = (
        [Sign(severity="warning", text=constant_outputs(subject.variations))] if constant else []
    )
    return Rung(
        rung=2,
        name="export",
        passed=True,
        how="measured",
        cause="ONNX Runtime reproduces the framework's outputs.",
        evidence=(
            *signs_of(verdict, "ONNX Runtime against the framework"),
            *unshown,
            *_tried(subject),
        ),
        inputs=subject.tried,
    )


def _apart(verdict: Verdict, subject: Subject) -> Rung:
    """Return why the outputs differ: quantisation, FP32 rounding, or another function."""
    if loss := lost(subject):
        return _quantised(verdict, subject, loss)
    if explained := blurred(subject):
        return _blurred(verdict, subject, explained)
    found = _located(subject)
    anywhere = _is_anywhere(found, subject)
    unknown = " Where they diverge is unknown." if anywhere else ""
    return Rung(
        rung=2,
        name="export",
        passed=False,
        how="measured",
        cause="On these inputs the ONNX file computes something else than the framework gave: "
        f"{reasons(verdict.failures)[0]}.{unknown}",
        nodes=() if anywhere else found.first,
        evidence=(*signs_of(verdict, "ONNX Runtime against the framework"), *_tried(subject)),
        advice=_advice(found, subject),
        inputs=subject.tried,
    )


def _blurred(verdict: Verdict, subject: Subject, explained: Sequence[Blurred]) -> Rung:
    most = max(explained, key=lambda each: each.runtime)
    why = (
        f"FP32 rounding alone explains it: {listed([each.output for each in explained])} of ONNX "
        f"Runtime in FP32 is as far from FP64 as the framework's ({most.output}: "
        f"{number(most.runtime)} and {number(most.framework)}, relative RMS or share of elements). "
        "The export is not shown to be wrong; the model needs more than FP32 here."
    )
    apart = [
        sign.model_copy(update={"severity": "info"})
        for sign in signs_of(verdict, "ONNX Runtime against the framework")
    ]
    return Rung(
        rung=2,
        name="export",
        passed=True,
        how="measured",
        cause=why,
        evidence=(Sign(severity="warning", text=why), *apart, *_tried(subject)),
        inputs=subject.tried,
    )


def _quantised(verdict: Verdict, subject: Subject, loss: QuantisationLoss) -> Rung:
    evidence = signs_of_loss(loss)
    worst = next((sign for sign in evidence if sign.severity == "error"), None)
    told = worst or next(iter(evidence), None)
    return Rung(
        rung=2,
        name="export",
        passed=False,
        how="measured",
        cause=told.text
        if told
        else f"The outputs differ from the framework's: {reasons(verdict.failures)[0]}.",
        nodes=() if worst is None else worst.nodes,
        evidence=(*signs_of(verdict, "ONNX Runtime against the framework"), *evidence),
        advice=said(
            "Judge it against the unquantised model, which has the original weights: "
            "`halfwise verify ORIGINAL QUANTISED --inputs DATA`."
        ),
        inputs=subject.tried,
        quantisation=loss,
    )


def _mispaired(verdict: Verdict, subject: Subject, cause: str) -> Rung:
    return Rung(
        rung=2,
        name="export",
        passed=False,
        how="measured",
        cause=cause,
        evidence=(*signs_of(verdict, "ONNX Runtime against the framework"), *_tried(subject)),
        advice=said("Give --expected the framework's outputs for these inputs, in the same order."),
        inputs=subject.tried,
    )


def _tried(subject: Subject) -> list[Sign]:
    if subject.tried is None or not subject.tried.planned:
        return []
    return [Sign(severity="info", text=no_change(subject.tried))]


def _located(subject: Subject) -> Comparison:
    assert subject.expected is not None
    given = RecordedSide(subject.expected, "the framework")
    right = reference(subject.case.network, subject.samples, subject.settings)
    return find_divergence(subject.walk(given, right))


def _other_inputs(subject: Subject) -> list[str]:
    if subject.tried is None or not subject.tried.tried:
        return []
    return [
        "Make sure that the framework had these very inputs: of the usual changes none fits, but "
        "crops, resizes, uncommon factors and three changes at once are not found. --inputs-b "
        "compares them with the framework's."
    ]


def _is_anywhere(found: Comparison, subject: Subject) -> bool:
    """Return whether too few tensors are known to say where the two diverge."""
    return 2 * len(found.first) > max(2, len(list(subject.case.network.nodes())))


def _advice(found: Comparison, subject: Subject) -> tuple[Step, ...]:
    where = (
        "To find where they diverge, add tensors from inside the model to --expected, under their "
        "names in the ONNX file."
        if _is_anywhere(found, subject) or not found.first
        else f"They diverge at {listed(found.first)}."
    )
    return said(
        where,
        *_other_inputs(subject),
        "Export in evaluation mode (model.eval()) with the same weights and inputs, and compare in "
        "FP32; another opset or exporter may work better (docs/exporting.md).",
    )
