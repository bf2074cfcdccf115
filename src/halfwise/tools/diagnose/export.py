"""Rungs 2 and 3: does the ONNX file compute what the framework did; is it finite and healthy?

Where a choice (TopK, ArgMax) is between nearly equal values, or nearly equal values are subtracted,
two right FP32 computations differ by more than other kernels usually explain. Inputs that are moved
by their last bit show that: they move the outputs about as much.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from halfwise import linting
from halfwise.errors import RunFailed
from halfwise.formats import ALIKE_IN_FP32, nudged
from halfwise.graph.dataflow import reached
from halfwise.graph.model import node_name
from halfwise.graph.quantised import pairs_of
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import Outputs
from halfwise.metrics.difference import is_discrete
from halfwise.observing import DETAIL_SAMPLES
from halfwise.records import (
    Comparison,
    Finding,
    NodeName,
    Rung,
    Sign,
    Step,
    TensorName,
    Verdict,
    replace,
    said,
)
from halfwise.reporting.remarks import reasons
from halfwise.tensorrt.versions import version_of
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.walk import RecordedSide, Walk, excess_of, reference
from halfwise.tools.diagnose.subject import (
    Subject,
    signs_of,
    skipped,
)
from halfwise.wording import alike, argument, count, listed, number

_REQUANTISE = (
    "If its quantisation may be too coarse: `halfwise verify ORIGINAL QUANTISED --inputs DATA` "
    "judges it against the unquantised model, and `halfwise fix ORIGINAL --to int8 --start-from "
    "QUANTISED` finds which nodes to leave out."
)
_MEANT = (
    "Give inputs on which the model is defined, or fix the model. If such values are intended, "
    "continue with --allow unjudged."
)

_MENDED = ("mixed-types",)
"""Rules that find what was mended while reading, which the first rung tells."""


def healthy(subject: Subject) -> Rung:
    """Return whether FP32's outputs are finite and the linter finds no error in the file.

    The linter checks for the target's TensorRT, if any.
    """
    nonfinite = _nonfinite(subject)
    path = subject.case.network.path
    worker = None if subject.engines is None else subject.engines.worker.info
    version = None if worker is None else version_of(worker.tensorrt or "")
    findings = linting.examine(linting.Subject(subject.case.whole, version), _MENDED)
    errors = [f for f in findings if f.severity == "error"]
    groups = alike(findings, lambda found: (found.severity, found.rule, found.fix))
    signs = [*nonfinite, *map(_sign, groups)]
    wrong = [sign for sign in signs if sign.severity == "error"]
    remarks = f"; {count(len(findings), 'remark')}" if findings else ""
    advice = list(said(_MEANT)) if nonfinite else []
    if path is not None and errors:
        advice.append(Step(kind="lint", command=("halfwise", "lint", argument(path))))
    return Rung(
        rung=3,
        name="model",
        passed=not wrong,
        how="measured",
        cause=wrong[0].text if wrong else f"No known error{remarks}.",
        nodes=tuple(dict.fromkeys(node for sign in wrong for node in sign.nodes)),
        evidence=tuple(signs),
        advice=tuple(advice) if wrong else (),
    )


def _nonfinite(subject: Subject) -> list[Sign]:
    """Return a sign for each nonfinite FP32 output; errors unless allowed."""
    network, count_of = subject.case.network, {}
    for value in network.graph.outputs:
        arrays = [outputs[str(value.name)] for outputs in subject.references]
        if not is_discrete(arrays[0].dtype):
            count_of[value] = [int(np.count_nonzero(~np.isfinite(a))) for a in arrays]
    if not any(map(any, count_of.values())):
        return []
    _, inside = inspected_reference(network, subject.samples, runtime=subject.settings.runtime)
    sizes = {n: sum(each[n].size for each in subject.references) for n in subject.references[0]}
    return [
        Sign(
            severity="warning" if subject.settings.allow_unjudged else "error",
            text=f"FP32 itself gives NaN or infinite values: output {value.name}, in "
            f"{sum(bad)} of {count(sizes[str(value.name)], 'element')}, on "
            f"{sum(map(bool, bad))} of {count(len(bad), 'sample')}.",
            nodes=_origins(network.nodes(), value, inside),
        )
        for value, bad in count_of.items()
        if any(bad)
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


def _sign(group: Sequence[Finding]) -> Sign:
    first = group[0]
    often = f" ({len(group)} times)" if len(group) > 1 else ""
    return Sign(
        severity=first.severity,
        text=f"{first.rule}{often}: {first.message}. {first.fix}",
        nodes=tuple(dict.fromkeys(f.node for f in group if f.node)),
    )


def blurred(subject: Subject) -> dict[str, tuple[float, float]]:
    """Return the outputs in doubt, if rounding in FP32 explains all of the framework's error.

    Empty too if a metric decides.

    Returns:
        For each, how far it moves with the last bits of the inputs, and how far the framework's is,
        over what two computations of one function may differ.
    """
    if subject.case.metric is not None or not subject.given:
        return {}
    few = subject.samples.select(range(min(len(subject.samples), DETAIL_SAMPLES)))
    draw = np.random.default_rng(0)
    try:
        moved = [subject.session.run(nudged(sample, draw)) for sample in few]
    except RunFailed:  # the model takes certain numbers only
        return {}
    names = list(map(TensorName, subject.given[0]))
    exact, rounded, theirs = (
        RecordedSide(outputs[: len(few)], "")
        for outputs in (subject.references, moved, subject.given)
    )
    rounding, framework = (
        excess_of(subject.same_function, exact, side, names) for side in (rounded, theirs)
    )
    if any(framework[n] > max(1.0, ALIKE_IN_FP32 * rounding[n]) for n in names):
        return {}
    return {name: (rounding[name], framework[name]) for name in names if rounding[name] > 1}


def exported(subject: Subject) -> Rung:
    """Return whether ONNX Runtime reproduces the framework's outputs."""
    if subject.expected is None:
        return skipped(
            2,
            "export",
            "The framework's outputs are not given.",
            "Give its outputs on these inputs: --expected outputs.npz.",
        )
    verdict = subject.against_framework
    if verdict is None:
        return skipped(2, "export", "--expected contains no output of the model.")
    if not verdict.passed:
        return _apart(verdict, subject)
    return Rung(
        rung=2,
        name="export",
        passed=True,
        how="measured",
        cause="ONNX Runtime reproduces the framework's outputs.",
        evidence=tuple(signs_of(verdict, "ONNX Runtime against the framework")),
    )


def _apart(verdict: Verdict, subject: Subject) -> Rung:
    """Return why the outputs differ: FP32 rounding, or another function."""
    signs = signs_of(verdict, "ONNX Runtime against the framework")
    if subject.tried:
        signs.append(Sign(severity="info", text=subject.tried))
    rung = Rung(rung=2, name="export", passed=False, how="measured", cause="")
    if explained := blurred(subject):
        most = max(explained, key=lambda name: explained[name][0])
        figures = " and ".join(map(number, explained[most]))
        why = (
            f"FP32 rounding alone explains it: {listed(list(explained))} of ONNX Runtime moves "
            "about as far when the inputs are moved by their last bit as the framework's is away "
            f"({most}: {figures} times what is allowed). The export is not shown to "
            "be wrong; the model needs more than FP32 here."
        )
        apart = [replace(sign, severity="info") for sign in signs]
        evidence = (Sign(severity="warning", text=why), *apart)
        return replace(rung, passed=True, cause=why, evidence=evidence)
    divergence = _located(subject, subject.expected or ())
    # Too few tensors are known to say where the two diverge.
    anywhere = 2 * len(divergence.first) > max(2, len(list(subject.case.network.nodes())))
    return replace(
        rung,
        cause="On these inputs the ONNX file computes something else than the framework "
        f"gave: {reasons(verdict.failures)[0]}."
        f"{' Where they diverge is unknown.' if anywhere else ''}",
        nodes=() if anywhere else divergence.first,
        evidence=tuple(signs),
        advice=_advice(() if anywhere else divergence.first, subject),
    )


def _located(subject: Subject, expected: Sequence[Outputs]) -> Comparison:
    """Return where the model leaves what the framework computed."""
    network, settings = subject.case.network, subject.settings
    framework = RecordedSide(expected, "the framework")
    right = reference(network, subject.samples, settings)
    runtime, step = settings.runtime, subject.watcher.step
    return find_divergence(
        Walk(network, subject.samples, framework, right, runtime=runtime, progress=step)
    )


def _advice(first: Sequence[NodeName], subject: Subject) -> tuple[Step, ...]:
    where = (
        f"They diverge at {listed(first)}."
        if first
        else "To find where they diverge, add tensors from inside the model to --expected, under "
        "their names in the ONNX file."
    )
    other = (
        "Make sure that the framework had these very inputs, in this order: of the usual changes "
        "none fits, but crops, resizes, uncommon factors and three changes at once are not found. "
        "--inputs-b compares them with the framework's."
    )
    return said(
        where,
        *([_REQUANTISE] if pairs_of(subject.case.network) else []),
        *([other] if subject.tried else []),
        "Export in evaluation mode (model.eval()) with the same weights and inputs, and compare in "
        "FP32; another opset or exporter may work better (docs/exporting.md).",
    )
