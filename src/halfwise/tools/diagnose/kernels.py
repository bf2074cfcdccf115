"""Rungs 4 and 7: does an engine compute what it should? If not, which region is wrong?

As in `reduce`, parts of the model are cut out, on the true values of what they read; here they are
built as engines of their own. The smallest part that is wrong as the whole engine is wrong is the
region. It is proved if the engine of the rest is right with the region's true outputs fed in. A
region is always wrong on its true inputs, though a smaller one may be, where what follows a fault
hides it.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf, log2, log10, sqrt
from typing import Literal

import numpy as np

from halfwise.case import Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.errors import CaseError, RunFailed
from halfwise.formats import BF16
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import is_float
from halfwise.metrics import Outputs
from halfwise.metrics.difference import relative_rms
from halfwise.progress import interruption
from halfwise.records import (
    BuildOutcome,
    Criterion,
    EngineDiagnosis,
    NodeName,
    Rung,
    RungName,
    Sign,
    SymptomKind,
    said,
)
from halfwise.reporting.diagnosis import advice, cause, evidence
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.log import explain
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.compare.walk import UNITS, WIGGLED, emulated, reference, wiggled
from halfwise.tools.diagnose.subject import Subject, signs_of, skipped
from halfwise.tools.reduce import Search
from halfwise.wording import count

Kind = Literal["fp32", "fp16", "bf16"]

LEAST_SECONDS = 60.0
LONGER = 5.0
"""A build may take this many times as long as the engine itself, and this many seconds in any case.
Our choice: a part is less than the whole, but an input and an output per node are more."""


@dataclass(frozen=True)
class Symptom:
    """How an engine is wrong: its outputs are off, or it does not build or run.

    Attributes:
        kind: Kind of symptom.
        status: How a build or run ended.
        signal: The signal that ended it.
        errors: Kinds of errors in the builder's log.
    """

    kind: SymptomKind
    status: str = ""
    signal: str | None = None
    errors: frozenset[str] = frozenset()


OFF = Symptom("outputs")
LATE = Symptom("build", "timeout")


def symptom_of(build: BuildOutcome) -> Symptom:
    """Return the symptom of a build without an engine."""
    errors = frozenset(f.kind for f in explain(build.log) if f.severity == "error")
    return Symptom("build", build.status, build.signal, errors)


class Stopped(Exception):
    """Ctrl-C ends the search."""


@dataclass
class Transplants:
    """Tests parts of a model in engines, on one sample.

    Attributes:
        engines: Engine maker of the model.
        kind: What the engines compute in.
        symptom: How the whole model's engine is wrong.
        seconds: Seconds that a build may take.
        builds: Builds used, including the whole model's.
        errors: The largest relative RMS error of the outputs of each part that ran.
        spared: Whether a part ended otherwise than the whole model.
    """

    engines: EngineMaker
    kind: Kind
    symptom: Symptom
    seconds: float
    builds: int = 1
    errors: dict[frozenset[NodeName], float] = field(default_factory=dict)
    spared: bool = False

    @property
    def tolerance(self) -> float:
        """Relative RMS error up to which a tensor is right: its arithmetic's in kernels."""
        return self.engines.side(self.kind).tolerance

    def __call__(self, part: Network, sample: Sample) -> bool:
        """Return whether the engine of a part is wrong as that of the whole model is.

        Only floats that the part does not read itself count, if there are any: other outputs may
        end a fusion.

        Raises:
            Stopped: Ctrl-C came.
            EngineFailed: the worker is lost.
        """
        floats = [value for value in part.graph.outputs if is_float(value)]
        part.graph.outputs[:] = [value for value in floats if not value.uses()] or floats
        if not floats:
            return False
        # Sizes fixed now would contradict inferred ones.
        for value in (v for node in part.graph for v in node.outputs):
            value.shape = None
        try:
            network = normalise(part.model.clone(), path=None, sha256="")
            ending, outputs = self._run(network, sample)
            self.spared = self.spared or ending not in (self.symptom, LATE)
            wrong = self.symptom != OFF or self._is_off(network, sample, outputs)
        except (CaseError, RunFailed) as failed:
            if isinstance(failed, EngineFailed):
                raise
            return False
        return ending == self.symptom and wrong

    def _run(self, network: Network, sample: Sample) -> tuple[Symptom, Outputs]:
        """Build and run an engine of a part; return how it ends, and its outputs."""
        if interruption().asked:
            raise Stopped
        self.builds += 1
        samples = Samples(("part",), lambda _: sample)
        maker = self.engines.of(
            replace(self.engines.case, network=network, calibration=samples, metric=None)
        )
        settings = replace(maker.engine_settings, build_timeout=self.seconds)
        what = f"{count(len(network.graph), 'node')} on true inputs"
        side = maker.side(self.kind, settings=settings, what=what)
        try:
            build = side.build(())
            outputs = {} if build.engine is None else side.run(build, sample)
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            return Symptom("run", failed.status), {}
        finally:
            maker.forget()
            self.engines.others.remove(maker)
        if build.status == "interrupted":
            raise Stopped
        if build.status == "lost":
            raise EngineFailed(build.message, status="lost")
        return (symptom_of(build) if build.engine is None else OFF), outputs

    def _is_off(self, network: Network, sample: Sample, outputs: Outputs) -> bool:
        """Return whether outputs are further off than rounding in the part, and before, explains.

        Empty outputs are of no engine.
        """
        samples, settings = Samples(("part",), lambda _: sample), self.engines.settings
        if self.kind == "fp32":
            right = next(reference(network, samples, settings).get())
        else:
            right = next(emulated(network, samples, settings, self.kind).get())
        errors = {name: relative_rms(right[name], array) for name, array in outputs.items()}
        nodes = frozenset(map(node_name, network.nodes()))
        self.errors[nodes] = max(errors.values(), default=0.0)
        above = [name for name, error in errors.items() if error > self.tolerance]
        if not above:
            return False
        session, random = Session(network.model, runtime=settings.runtime), np.random.default_rng(0)
        moved = {name: wiggled(a, UNITS[self.kind], random) for name, a in sample.items()}
        exact, rounded = session.run(sample), session.run(moved)
        factor = WIGGLED * sqrt(len(nodes))
        return any(errors[n] > factor * relative_rms(exact[n], rounded[n]) for n in above)


def localise(transplants: Transplants, index: int) -> EngineDiagnosis:
    """Return the region where an engine is wrong on the sample at `index`, if one is found.

    Raises:
        EngineFailed: the worker is lost.
    """
    network = transplants.engines.case.network
    nodes = list(network.nodes())
    sample = transplants.engines.case.calibration[index]
    search = Search(network, sample, transplants, most=int(4 * log2(max(1, len(nodes)))))
    region: frozenset[NodeName] = frozenset()
    explained: bool | None = None
    with suppress(Stopped, CaseError):
        # A fault that needs dynamic shapes is none here.
        if transplants(*search.part(nodes)):
            region = frozenset(map(node_name, search.smallest()))
            rest = [node for node in nodes if node_name(node) not in region]
            explained = not transplants(*search.part(rest)) if rest else None
    everywhere = not transplants.spared and transplants.symptom != OFF
    error = transplants.errors.get(region)
    return EngineDiagnosis(
        symptom=transplants.symptom.kind,
        limit_db=decibels(transplants.tolerance),
        region=() if everywhere else tuple(n for n in map(node_name, nodes) if n in region),
        snr_db=None if error is None else decibels(error),
        everywhere=everywhere,
        explained=explained,
        interrupted=interruption().asked,
        builds=transplants.builds,
    )


def decibels(error: float) -> float:
    """Return the SNR in dB of a relative RMS error ≥ 0: inf for 0, -inf for inf."""
    if error in (0.0, inf):
        return -inf if error else inf
    return -20 * log10(error)


NEEDS_TENSORRT = "This needs TensorRT, but no target was given."


def allowed_seconds(plain: float, most: float) -> float:
    """Return the seconds that a part may take, of an engine that took `plain`; `most` at most."""
    return min(most, max(LEAST_SECONDS, LONGER * plain))


def fp32_engine(subject: Subject) -> Rung:
    """Return whether an FP32 engine without TF32 computes the model's function."""
    return _judged(4, "fp32", subject, "fp32", subject.same_function)


def low_engine(subject: Subject) -> Rung:
    """Return whether the engine with everything low is as right as its emulation."""
    low: Kind = "bf16" if subject.settings.fmt == BF16 else "fp16"
    return _judged(7, "kernels", subject, low, subject.case.criterion)


def _judged(number: int, name: RungName, subject: Subject, kind: Kind, by: Criterion) -> Rung:
    """Return the answer of a rung about an engine, judged `by` that unless the user has a metric.

    Raises:
        EngineFailed: the worker is lost.
    """
    engines = subject.engines
    if engines is None:
        why = "This needs TensorRT, but no target was given."
        return skipped(number, name, why, "Add --target tensorrt.")
    side = engines.side(kind)
    rung = Rung(rung=number, name=name, passed=False, how="measured", cause="")
    build = side.build(())
    if build.status == "lost":
        raise EngineFailed(build.message, status="lost")
    if not build.parsed:
        return _unparsed(rung, subject, build)
    symptom, message, index = symptom_of(build), build.message, 0
    signs: list[Sign] = []
    if build.engine is not None:
        try:
            verdict = engines.judge(build, subject.references, by)
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            symptom, message = Symptom("run", failed.status), failed.message
        else:
            signs = signs_of(verdict, side.label)
            if verdict.passed:
                right = {"passed": True, "cause": f"The {side.label} is right."}
                return rung.model_copy(update={**right, "evidence": tuple(signs)})
            symptom, message, ids = OFF, "", subject.samples.ids
            index = ids.index(verdict.worst_sample) if verdict.worst_sample in ids else 0
    # From here on Ctrl-C ends only the search; results so far are reported.
    interruption().ready = True
    seconds = allowed_seconds(build.seconds, engines.engine_settings.build_timeout)
    fault = localise(Transplants(engines, kind, symptom, seconds), index)
    told = {
        "cause": cause(fault, side.label, message, emulated=name == "kernels"),
        "nodes": fault.region,
        "evidence": (*signs, *evidence(fault)),
        "advice": said(*advice(fault)),
        "engine": fault,
    }
    return rung.model_copy(update=told)


def _unparsed(rung: Rung, subject: Subject, build: BuildOutcome) -> Rung:
    """Return the parser's message, which names the nodes: no kernel is at fault."""
    errors = [finding for finding in explain(build.log) if finding.severity == "error"]
    named = {name for finding in errors for name in finding.nodes}
    nodes = map(node_name, subject.case.network.nodes())
    told = {
        "cause": build.message,
        "nodes": tuple(name for name in nodes if name in named),
        "evidence": (Sign(severity="error", text=build.message),),
        "advice": said(*dict.fromkeys(finding.hint for finding in errors if finding.hint)),
    }
    return rung.model_copy(update=told)
