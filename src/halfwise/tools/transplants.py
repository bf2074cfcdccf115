"""Where an engine is wrong.

As in `reduce`, parts of the model are cut out, on the true values of what they read; here they are
built as engines of their own. The smallest part that is wrong as the whole engine is wrong is the
region. It is proved if the engine of the rest is right with the region's true outputs fed in. A
region is always wrong on its true inputs, though a smaller one may be, where what follows a fault
hides it.
"""

from contextlib import suppress
from math import inf, log2, log10, sqrt
from typing import Literal

import numpy as np
from msgspec import Struct

from halfwise.case import Runtime, Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import OTHER_KERNELS, TOLERANCES, Arithmetic, ModelRunner
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, node_name
from halfwise.graph.sizes import size_inputs
from halfwise.judging.judge import fed
from halfwise.metrics import Outputs
from halfwise.metrics.difference import is_discrete, relative_rms
from halfwise.progress import interruption
from halfwise.records import BuildOutcome, EngineDiagnosis, NodeName, SymptomKind, replace
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.log import explain
from halfwise.tools.compare.engine_maker import EngineMaker
from halfwise.tools.compare.walk import (
    UNITS,
    WIGGLED,
    arithmetic_on,
    emulated,
    reference,
    wiggled,
)
from halfwise.tools.reduce import Search
from halfwise.wording import count

Kind = Literal["fp32", "fp16", "bf16", "file"]
"""What engines compute in: FP32 without TF32, one low format, or the types of a file."""

LEAST_SECONDS = 60.0
LONGER = 5.0
"""A build may take this many times as long as the engine itself, and this many seconds in any case.
Our choice: a part is less than the whole, but an input and an output per node are more."""


class Symptom(Struct, frozen=True):
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


class Transplants(Struct):
    """Tests parts of a model in engines, on one sample.

    Attributes:
        engines: Engine maker of the model.
        network: The model; for "file" in its types.
        kind: What the engines compute in.
        symptom: How the whole model's engine is wrong.
        builds: Builds used, including the whole model's.
        errors: The largest relative RMS error of the outputs of each part that ran.
        spared: Whether a part ended otherwise than the whole model.
    """

    engines: EngineMaker
    network: Network
    kind: Kind
    symptom: Symptom
    builds: int = 1
    errors: dict[frozenset[NodeName], float] = {}
    spared: bool = False

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of the engines."""
        return arithmetic_on(self.network, "fp16" if self.kind == "file" else self.kind)

    def __call__(self, part: Network, sample: Sample) -> bool:
        """Return whether the engine of a part is wrong as that of the whole model is.

        Only floats that the part does not read itself count, if there are any: other outputs may
        end a fusion.

        Raises:
            Stopped: Ctrl-C came.
            EngineFailed: the worker is lost.
        """
        floats = [v for v in part.graph.outputs if v.dtype and v.dtype.is_floating_point()]
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
        case = replace(self.engines.case, network=network, calibration=samples, metric=None)
        plain = max(build.seconds for build in self.engines.builds.outcomes)
        seconds = allowed_seconds(plain, self.engines.engine_settings.build_timeout)
        maker = self.engines.of(case, seconds)
        purpose = f"{count(len(network.graph), 'node')} on true inputs,"
        file = network if self.kind == "file" else None
        try:
            build = maker.build(self.kind, file=file, purpose=purpose)
            outputs = {} if build.engine is None else maker.measure.run(build.engine, sample)
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            return Symptom("run", failed.status), {}
        finally:
            maker.forget()
        if build.status == "interrupted":
            raise Stopped
        return (symptom_of(build) if build.engine is None else OFF), outputs

    def _is_off(self, network: Network, sample: Sample, outputs: Outputs) -> bool:
        """Return whether outputs are further off than rounding in the part, and before, explains.

        Empty outputs are of no engine.
        """
        samples, settings = Samples(("part",), lambda _: sample), self.engines.settings
        if self.kind == "file":
            model = emulate_typed(network.model, accumulate=settings.accumulate)
            runner = ModelRunner(model, fed(model, samples), runtime=settings.runtime)
        elif self.kind == "fp32":
            runner = reference(network, samples, settings)
        else:
            runner = emulated(network, samples, settings, self.kind)
        right = next(runner.get())
        off, largest = is_off(network, sample, outputs, right, self.arithmetic, settings.runtime)
        self.errors[frozenset(map(node_name, network.nodes()))] = largest
        return off


def is_off(
    part: Network,
    sample: Sample,
    outputs: Outputs,
    right: Outputs,
    arithmetic: Arithmetic,
    runtime: Runtime,
) -> tuple[bool, float]:
    """Return whether floats are further off than rounding in a part, and before, explains.

    Args:
        part: The part, which tells what rounding its inputs does.
        sample: Its inputs.
        outputs: What was computed of it; none if nothing was.
        right: What is right.
        arithmetic: The arithmetic of `outputs`.
        runtime: Where the part runs.

    Returns:
        And the largest relative RMS error.
    """
    floats = {name: array for name, array in outputs.items() if not is_discrete(array.dtype)}
    errors = {name: relative_rms(right[name], array) for name, array in floats.items()}
    above = [name for name, error in errors.items() if error > tolerance_in_kernels(arithmetic)]
    largest = max(errors.values(), default=0.0)
    if not above:
        return False, largest
    session, random = Session(part.model, runtime=runtime), np.random.default_rng(0)
    # Other sizes would be other outputs.
    values = sample.keys() - {value.name for value in size_inputs(part)}
    moved = {
        name: wiggled(array, UNITS[arithmetic], random) if name in values else array
        for name, array in sample.items()
    }
    exact, rounded = session.run(sample), session.run(moved)
    factor = WIGGLED * sqrt(len(list(part.nodes())))
    natural = {name: factor * relative_rms(exact[name], rounded[name]) for name in above}
    return any(errors[name] > natural[name] for name in above), largest


def tolerance_in_kernels(arithmetic: Arithmetic) -> float:
    """Return the relative RMS error up to which a tensor of unknown kernels is right."""
    return max(OTHER_KERNELS, TOLERANCES[arithmetic])


def localise(transplants: Transplants, sample: Sample) -> EngineDiagnosis:
    """Return the region where an engine is wrong on a sample, if one is found.

    Raises:
        EngineFailed: the worker is lost.
    """
    network, nodes = transplants.network, list(transplants.network.nodes())
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
        limit_db=decibels(tolerance_in_kernels(transplants.arithmetic)),
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


def allowed_seconds(plain: float, most: float) -> float:
    """Return the seconds that a part may take, of an engine that took `plain`; `most` at most."""
    return min(most, max(LEAST_SECONDS, LONGER * plain))
