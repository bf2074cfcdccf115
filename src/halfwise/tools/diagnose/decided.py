"""Whether decisions that flip explain why the outputs on a rung are wrong."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan

import onnx_ir as ir

from halfwise.case import Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import Arithmetic, ModelRunner
from halfwise.errors import BuildFailed, HalfwiseError
from halfwise.fixing.plan.rules import lowered_by
from halfwise.graph.casts import low_type
from halfwise.graph.dataflow import GIVEN, giving_out, region_model
from halfwise.graph.loading import normalise
from halfwise.graph.model import tensor_name
from halfwise.graph.roles import roles_of
from halfwise.judging.deciding import Candidate, Corrected, Deciding, with_true_values
from halfwise.metrics import Computed, Excess, Outputs, is_tested, totals
from halfwise.records import (
    BuildOutcome,
    Criterion,
    Decided,
    Rung,
    Step,
    TensorName,
    TensorStatus,
    Verdict,
    said,
)
from halfwise.reporting.diagnosis import (
    decided_advice,
    decided_cause,
    decided_part,
    decided_signs,
)
from halfwise.tools.compare.engine_maker import EngineMaker, EngineSide
from halfwise.tools.diagnose.subject import Subject


def in_emulation(
    subject: Subject,
    verdict: Verdict,
    low: ir.Model,
    *,
    criterion: Criterion | None = None,
    optimise: bool = False,
) -> Decided | None:
    """Return the decisions that cause most of the error of a model run in ONNX Runtime.

    Args:
        subject: What is diagnosed.
        verdict: The verdict on that model, on all samples.
        low: The model: an emulation in FP32, with the names of the network's tensors.
        criterion: Criterion of the verdict; None for the user's.
        optimise: Whether ONNX Runtime may fuse nodes.
    """
    runtime, network = subject.settings.runtime, subject.case.network
    return _cause(
        subject,
        verdict,
        criterion or subject.case.criterion,
        lambda some: ModelRunner(low, some, partial=True, optimise=optimise, runtime=runtime),
        with_true_values(low, network, optimise=optimise, runtime=runtime),
    )


def in_engine(
    subject: Subject,
    verdict: Verdict,
    engines: EngineMaker,
    side: EngineSide,
    *,
    criterion: Criterion | None = None,
) -> Decided | None:
    """Return the decisions that cause most of an engine's error, as other engines show.

    One more engine has the decisions as outputs, and one or two take the reference's; if that
    helps, another shows what they read. None too if one of them cannot be built or run.

    Args:
        subject: What is diagnosed.
        verdict: The verdict on the engine, on all samples.
        engines: Makes engines.
        side: The engine.
        criterion: Criterion of the verdict; None for the user's.
    """
    provider = _Given(subject, engines, side.arithmetic)
    criterion = criterion or subject.case.criterion
    try:
        return _cause(
            subject, verdict, criterion, lambda some: _Marked(side, some), provider, tried_alone=0
        )
    except HalfwiseError:
        return None


def decided_rung(
    rung: Rung,
    decided: Decided | None,
    what: str,
    subject: Subject,
    *advice: Step,
    low: bool = True,
) -> Rung:
    """Return a failed rung with the decisions that explain it instead of its cause.

    If they explain only a part, or none were found, the rung blames what it did.

    Args:
        rung: The rung.
        decided: The decisions.
        what: What changes them, with its verb, such as `TF32 changes`.
        subject: What is diagnosed.
        advice: What to do besides.
        low: Whether FP32 would help.
    """
    if decided is None:
        return rung
    case = subject.case
    criterion = case.criterion
    if decided.left > 1:
        part = decided_part(decided, criterion)
        return rung.model_copy(update={"evidence": (part, *rung.evidence), "decided": decided})
    auto = criterion.metric is None and is_tested(subject.references, case.input_shapes)
    return rung.model_copy(
        update={
            "cause": decided_cause(decided, what, criterion),
            "nodes": tuple(flip.node for flip in decided.flips),
            "evidence": (*decided_signs(decided), *rung.evidence),
            "advice": (*advice, *said(*decided_advice(decided, criterion, low=low, auto=auto))),
            "decided": decided,
        }
    )


def _cause(
    subject: Subject,
    verdict: Verdict,
    criterion: Criterion,
    candidate: Candidate,
    provider: Corrected,
    **how: int,
) -> Decided | None:
    settings, network = subject.settings, subject.case.network
    lowered = lowered_by(settings.rules, network)
    look = Deciding(
        network,
        roles_of(network, low_type(settings.fmt), lowered=lowered),
        candidate,
        provider,
        _error_by(criterion if subject.case.metric is None else Criterion(), subject.references),
        subject.samples.with_progress(subject.watcher.step),
        settings.runtime,
        **how,
    )
    return look.cause([inf if isnan(error) else error for error in verdict.excesses])


def _error_by(
    criterion: Criterion, references: Sequence[Outputs]
) -> Callable[[int, Computed], float]:
    scales = totals(references)

    def error(index: int, outputs: Computed) -> float:
        excess = Excess(criterion, scales).update(references[index], outputs)
        return inf if isnan(excess) else excess

    return error


@dataclass
class _Marked:
    """Engines that have tensors as outputs; see `emulation.runner.Runner`."""

    side: EngineSide
    samples: Samples
    label: str = "engine"
    arithmetic: Arithmetic = "fp32"

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield the tensors among `names` that an engine with all of them as outputs returns."""
        build: BuildOutcome = self.side.build([n for n in names if n not in self.side.outputs])
        for sample in self.samples:
            outputs = {} if build.engine is None else self.side.run(build, sample)
            yield {name: outputs[name] for name in names if name in outputs}

    def lack(self, _name: TensorName) -> TensorStatus | None:
        """Return None: nothing is known before."""
        return None


@dataclass
class _Given:
    """Engines that take tensors of the reference as inputs, each built once."""

    subject: Subject
    engines: EngineMaker
    kind: str
    built: dict[tuple[TensorName, ...], Callable[[Sample], Outputs]] = field(default_factory=dict)

    def __call__(self, tensors: Sequence[TensorName], samples: Samples) -> Iterator[Computed]:
        """Yield the outputs for each sample; an output that is given is as given.

        Raises:
            HalfwiseError: the engine cannot be built or run.
        """
        runtime = self.subject.settings.runtime
        source = Session(giving_out(self.subject.case.network.model, tensors), runtime=runtime)

        def fed(sample: Sample) -> Sample:
            values = source.run(sample, tensors)
            return {**sample, **{f"{name}{GIVEN}": array for name, array in values.items()}}

        key = tuple(tensors)
        if key not in self.built:
            self.built[key] = self._engine(key, fed)
        for sample in map(fed, samples):
            outputs = self.built[key](sample)
            yield {name: sample.get(f"{name}{GIVEN}", array) for name, array in outputs.items()}

    def _engine(
        self, tensors: Sequence[TensorName], fed: Callable[[Sample], Sample]
    ) -> Callable[[Sample], Outputs]:
        """Build an engine that takes `tensors`, and return what runs it; `fed` adds them."""
        case = self.subject.case
        outputs = [tensor_name(v) for v in case.network.graph.outputs]
        model, every = region_model(case.network, outputs, tensors), self.subject.samples
        seen = [{name: array.shape for name, array in fed(sample).items()} for sample in every]
        for value in model.graph.inputs:
            if str(value.name).endswith(GIVEN):
                value.shape = _shape_of([shapes[tensor_name(value)] for shapes in seen])
        part = normalise(model, path=None, sha256="")
        inputs = [tensor_name(v) for v in part.graph.inputs]

        def own(sample: Sample) -> Sample:
            return {name: sample[name] for name in inputs}

        samples = Samples(every.ids, lambda index: own(fed(every[index])))
        engines = self.engines.of(replace(case, network=part, calibration=samples, metric=None))
        side = engines.side(self.kind)
        build = side.build(())
        if build.engine is None:
            raise BuildFailed(build.message)
        return lambda sample: side.run(build, own(sample))


def _shape_of(seen: Sequence[tuple[int, ...]]) -> ir.Shape:
    """Return a shape with the sizes that all samples share; the others are free."""
    sizes = [set(each) for each in zip(*seen, strict=True)]
    return ir.Shape([size.pop() if len(size) == 1 else None for size in sizes])
