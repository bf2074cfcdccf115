"""Rungs 4 and 7: does an engine compute what it should? If not, which region is wrong?

Parts of the model are cut out and built as engines of their own, on the true values of what they
read. Of the nodes in graph order, the shortest beginning that is wrong ends with a node at fault;
without as many of its first nodes as possible, it is the region: two bisections, so about
2 log2(nodes) builds. It is proved if the engine of the rest is right with the region's true outputs
fed in. A region is always wrong on its true inputs, though a smaller one may be, where what follows
a fault hides it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, log2, log10, sqrt
from typing import Any, Literal

import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import Samples
from halfwise.emulation.runner import OTHER_KERNELS, TOLERANCES, Arithmetic, ModelRunner
from halfwise.errors import CaseError, RunFailed
from halfwise.graph.dataflow import GIVEN, reached, read_by, region_model, varying_tensors
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, add_constant, node_name, tensor_name
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
    TensorName,
    Verdict,
    said,
)
from halfwise.reporting.diagnosis import advice, cause, evidence
from halfwise.tensorrt.failures import EngineFailed
from halfwise.tensorrt.log import explain
from halfwise.tools.compare.engine_maker import EngineMaker, EngineSide
from halfwise.tools.compare.walk import UNITS, WIGGLED, Regions, emulated, reference
from halfwise.tools.diagnose.subject import Subject, signs_of, skipped
from halfwise.wording import count

Values = Mapping[Any, NDArray[Any]]
Part = frozenset[NodeName]

LEAST_SECONDS = 60.0
LONGER = 5.0
"""A build may take this many times as long as the engine itself, and this many seconds in any case.
Our choice: a part is less than the whole, but an input and an output per node are more."""


class Spent(Exception):
    """No more builds may be used."""


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


def symptom_of(build: BuildOutcome) -> Symptom:
    """Return the symptom of a build without an engine."""
    errors = frozenset(f.kind for f in explain(build.log) if f.severity == "error")
    return Symptom("build", build.status, build.signal, errors)


@dataclass(frozen=True)
class Piece:
    """A part of a model on the true values of its inputs.

    Attributes:
        model: The model: every shape fixed.
        feed: Its inputs for one sample.
        outputs: What others read and the part does not, and the model's outputs; floats only. Any
            other output may end a fusion, and is one only if there are none of these.
    """

    model: ir.Model
    feed: dict[str, NDArray[Any]]
    outputs: tuple[TensorName, ...]


def line(network: Network) -> list[NodeName]:
    """Return the nodes that compute from the inputs' values, in graph order."""
    varying = varying_tensors(network)
    nodes = (n for n in network.nodes() if any(v.name in varying for v in n.outputs))
    return [node_name(node) for node in nodes]


def cut(
    network: Network, part: Part, values: Callable[[Sequence[TensorName]], Values]
) -> Piece | None:
    """Return a part of a model; None if it has no output that holds floats.

    Values that follow only from shapes become constants, as do integers and Booleans from outside:
    builders refuse many of these as inputs.

    Args:
        network: The model; not changed.
        part: Nodes of the main graph.
        values: Returns tensors' values on one sample, including the model's inputs.

    Raises:
        CaseError: the part would need an input that is not a tensor.
    """
    nodes = list(network.nodes())
    inside = [node for node in nodes if node.name in part]
    made = [v for node in inside for v in node.outputs if v.name]
    reads = {name for node in inside for name in read_by(node)}
    others = {name for node in nodes if node.name not in part for name in read_by(node)}
    ends = {tensor_name(v) for v in network.graph.outputs}
    floats = [tensor_name(v) for v in made if is_float(v) and v.name in others | ends]
    outputs = tuple(name for name in floats if name in ends or name not in reads) or tuple(floats)
    if not outputs:
        return None
    computed = {v.name for node in nodes for v in node.outputs}.difference(v.name for v in made)
    model = region_model(network, outputs, [n for n in dict.fromkeys(reads) if n in computed])
    varying = varying_tensors(network)
    model.graph.inputs[:] = [value for value in model.graph.inputs if value.uses()]
    starts = {v: TensorName(tensor_name(v).removesuffix(GIVEN)) for v in model.graph.inputs}
    arrays = values(list(starts.values()))
    feed: dict[str, NDArray[Any]] = {}
    for value, name in starts.items():
        if not isinstance(value.type, ir.TensorType) or value.dtype is None:
            raise CaseError(f"{name} is not a tensor, so it cannot be given.", "Keep it inside.")
        array = arrays[name].astype(value.dtype.numpy(), copy=False)
        if name in varying and is_float(value):
            value.shape = ir.Shape(array.shape)
            feed[tensor_name(value)] = array
        else:
            model.graph.inputs.remove(value)
            constant = add_constant(model.graph, f"{name}::constant", array)
            value.replace_all_uses_with(constant)
    for value in (v for node in model.graph for v in node.outputs):
        # Sizes fixed now would contradict inferred ones.
        value.shape = None
    return Piece(model, feed, outputs)


@dataclass
class Transplants:
    """Tests parts of a model in engines, on one sample.

    Attributes:
        engines: Engine maker of the model.
        kind: Their arithmetic, as for `EngineMaker.side`.
        right: The right side.
        sample: The sample's index.
        symptom: How the whole model's engine is wrong.
        plain_seconds: Seconds that its build took.
        late: Builds that took longer than allowed.
        builds: Builds used, including the whole model's.
        errors: The largest relative RMS error of the outputs of each part that ran.
        answers: Whether each part is wrong.
    """

    engines: EngineMaker
    kind: Arithmetic
    right: ModelRunner
    sample: int
    symptom: Symptom
    plain_seconds: float
    late: int = 0
    builds: int = 1
    errors: dict[Part, float] = field(default_factory=dict)
    answers: dict[Part, bool | None] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The seconds a build may take."""
        most = self.engines.engine_settings.build_timeout
        return min(most, max(LEAST_SECONDS, LONGER * self.plain_seconds))

    @cached_property
    def line(self) -> list[NodeName]:
        """The nodes that may be wrong; see `line`."""
        return line(self.engines.case.network)

    @property
    def most(self) -> int:
        """The builds that may be used: enough for two regions."""
        return 4 + int(4 * log2(max(1, len(self.line))))

    def values(self, names: Sequence[TensorName]) -> Values:
        """Return the true values of tensors."""
        alone = self.right.samples.select([self.sample])
        right = replace(self.right, samples=alone, failures={})
        return {**self.engines.case.calibration[self.sample], **next(right.get(list(names)))}

    @property
    def tolerance(self) -> float:
        """Relative RMS error up to which a tensor is right: its arithmetic's in kernels."""
        return max(OTHER_KERNELS, TOLERANCES[self.kind])

    def wrong(self, nodes: Collection[NodeName], what: str) -> bool | None:
        """Return whether the engine of some nodes on true inputs is wrong; None if unknown.

        Raises:
            Spent: no more builds may be used, or Ctrl-C came.
            EngineFailed: the worker is lost.
        """
        part = frozenset(nodes)
        if part not in self.answers:
            self.answers[part] = self._answer(part, what)
        return self.answers[part]

    def _answer(self, part: Part, what: str) -> bool | None:
        try:
            piece = cut(self.engines.case.network, part, self.values)
            if piece is None:
                return None
            ending, outputs = self._run(piece, what)
        except EngineFailed:
            raise
        except (CaseError, RunFailed):
            return None
        if self.symptom != OFF:
            return (
                None
                if ending.status == "timeout" != self.symptom.status
                else ending == self.symptom
            )
        return self._compare(part, piece, outputs) if ending == OFF else None

    def _run(self, piece: Piece, what: str) -> tuple[Symptom, Outputs]:
        """Build and run an engine of a piece; return how it ends, and its outputs."""
        if self.builds >= self.most or interruption().asked:
            raise Spent
        self.builds += 1
        network = normalise(piece.model.clone(), path=None, sha256="")
        samples = Samples(("part",), lambda _: piece.feed)
        maker = self.engines.of(
            replace(self.engines.case, network=network, calibration=samples, metric=None)
        )
        settings = replace(maker.engine_settings, build_timeout=self.seconds)
        side = maker.side(self.kind, settings=settings, what=what)
        try:
            build = side.build(())
            outputs = {} if build.engine is None else side.run(build, piece.feed)
        except EngineFailed as failed:
            if failed.status == "lost":
                raise
            return Symptom("run", failed.status), {}
        finally:
            maker.forget()
            self.engines.others.remove(maker)
        self.late += build.status == "timeout"
        if build.status == "interrupted":
            raise Spent
        if build.status == "lost":
            raise EngineFailed(build.message, status="lost")
        return (symptom_of(build) if build.engine is None else OFF), outputs

    def _compare(self, part: Part, piece: Piece, outputs: Outputs) -> bool:
        right = self.values(piece.outputs)
        names = [name for name in piece.outputs if name in outputs and name in right]
        errors = {name: relative_rms(right[name], outputs[name]) for name in names}
        self.errors[part] = max(errors.values(), default=0.0)
        above = [name for name, error in errors.items() if error > self.tolerance]
        natural = self._natural(part, above) if above else {}
        return any(errors[name] > natural[name] for name in above)

    def _natural(self, part: Part, names: Sequence[TensorName]) -> dict[TensorName, float]:
        """Return the largest error that rounding in a part and of its inputs explains."""
        network = self.engines.case.network
        nodes = [node for node in network.nodes() if node.name in part]
        made = {v.name for node in nodes for v in node.outputs}
        computed = {v.name for node in network.nodes() for v in node.outputs}
        read = dict.fromkeys(n for node in nodes for n in read_by(node) if n not in made)
        varying = varying_tensors(network)
        start = [n for n in read if n in computed and n in varying]
        regions = Regions(network, names, start, runtime=self.engines.settings.runtime)
        values, sample = self.values(start), self.engines.case.calibration[self.sample]
        right, wiggled = regions.run(sample, values), regions.run(sample, values, UNITS[self.kind])
        factor = WIGGLED * sqrt(len(part))
        return {n: factor * relative_rms(right[n], wiggled[n]) for n in names}


def localise(transplants: Transplants) -> EngineDiagnosis:
    """Return the regions where an engine is wrong, within the budget of builds.

    Another region is looked for as long as the engine of the rest is wrong.

    Raises:
        EngineFailed: the worker is lost.
    """
    regions: list[list[NodeName]] = []
    explained: bool | None = None
    rest: list[NodeName] = list(transplants.line)
    with suppress(Spent):
        while explained is not True and (region := _region(rest, transplants)):
            rest = [node for node in rest if node not in region]
            regions.append(region)
            wrong = transplants.wrong(rest, "the model with true values fed in")
            explained = None if wrong is None else not wrong
    everywhere = False not in transplants.answers.values() and transplants.symptom != OFF
    errors = transplants.errors
    return EngineDiagnosis(
        symptom=transplants.symptom.kind,
        limit_db=decibels(transplants.tolerance),
        regions=() if everywhere else tuple(map(tuple, regions)),
        snr_db=tuple(decibels(errors[p]) for r in regions if (p := frozenset(r)) in errors),
        everywhere=everywhere,
        explained=explained,
        rest_db=decibels(errors[frozenset(rest)]) if frozenset(rest) in errors else None,
        build_seconds=transplants.seconds,
        late=transplants.late,
        interrupted=interruption().asked,
        builds=transplants.builds,
        most_builds=transplants.most,
    )


def _region(line: Sequence[NodeName], transplants: Transplants) -> list[NodeName]:
    """Return the last nodes of the shortest beginning of `line` that is wrong; empty if none is.

    `line` is not known to be wrong: only the whole model is.
    """
    right, end = 0, len(line)
    while end - right > 1:
        middle = (right + end) // 2
        if transplants.wrong(line[:middle], f"the first {count(middle, 'node')}"):
            end = middle
        else:
            right = middle
    first, last = 0, end
    while last - first > 1:
        middle = (first + last) // 2
        if transplants.wrong(line[middle:end], f"{count(end - middle, 'node')} on true inputs"):
            first = middle
        else:
            last = middle
    region = list(line[first:end])
    # Both ends are needed; what is on no path from one to the other may stand there by chance.
    nodes = {node_name(node): node for node in transplants.engines.case.network.nodes()}
    ends = [nodes[name] for name in (*region[:1], *region[-1:])]
    ahead, back = reached(ends[:1], ir.Node.successors), reached(ends[-1:], ir.Node.predecessors)
    on_path = (ahead.keys() & back.keys()).union(ends)
    paths = [name for name in region if nodes[name] in on_path]
    for part in (paths, region):
        if part and transplants.wrong(part, "the region alone"):
            return part
    return []


def decibels(error: float) -> float:
    """Return the SNR in dB of a relative RMS error ≥ 0: inf for 0, -inf for inf."""
    if error in (0.0, inf):
        return -inf if error else inf
    return -20 * log10(error)


NEEDS_TENSORRT = "This needs TensorRT, but no target was given."


def fp32_engine(subject: Subject) -> Rung:
    """Return whether an FP32 engine without TF32 computes the model's function."""
    if subject.engines is None:
        return skipped(4, "fp32", NEEDS_TENSORRT, "Add --target tensorrt.")
    side = subject.engines.side("fp32")
    right = reference(subject.case.network, subject.samples, subject.settings)
    return _judged(_Judged(4, "fp32", subject, subject.engines, side, right, subject.same_function))


def low_engine(subject: Subject) -> Rung:
    """Return whether the engine with everything low is as right as its emulation."""
    if subject.engines is None:
        return skipped(7, "kernels", NEEDS_TENSORRT, "Add --target tensorrt.")
    low: Literal["fp16", "bf16"] = "bf16" if subject.settings.fmt.name == "bf16" else "fp16"
    side = subject.engines.side(low)
    right = emulated(subject.case.network, subject.samples, subject.settings, low)
    criterion = subject.case.criterion
    return _judged(_Judged(7, "kernels", subject, subject.engines, side, right, criterion))


def _judged(engine: "_Judged") -> Rung:
    side = engine.side
    build = side.build(())
    if build.status == "lost":
        raise EngineFailed(build.message, status="lost")
    if not build.parsed:
        return _unparsed(engine, build)
    if build.engine is None:
        return _faulty(engine, build, symptom_of(build), build.message)
    try:
        verdict = engine.engines.judge(build, engine.subject.references, engine.criterion)
    except EngineFailed as failed:
        if failed.status == "lost":
            raise
        return _faulty(engine, build, Symptom("run", failed.status), failed.message)
    signs = signs_of(verdict, side.label)
    if not verdict.passed:
        return _faulty(engine, build, OFF, "", signs, verdict)
    return Rung(
        rung=engine.rung,
        name=engine.name,
        passed=True,
        how="measured",
        cause=f"The {side.label} is right.",
        evidence=tuple(signs),
    )


@dataclass(frozen=True)
class _Judged:
    """An engine judged against its model by a rung.

    Attributes:
        rung: Number of the rung.
        name: Its name.
        subject: What is diagnosed.
        engines: Engine maker.
        side: The engine.
        right: The right outputs.
        criterion: Criterion for acceptable outputs, unless the user has a metric.
    """

    rung: int
    name: RungName
    subject: Subject
    engines: EngineMaker
    side: EngineSide
    right: ModelRunner
    criterion: Criterion


def _unparsed(engine: _Judged, build: BuildOutcome) -> Rung:
    """Return the parser's message, which names the nodes: no kernel is at fault."""
    errors = [finding for finding in explain(build.log) if finding.severity == "error"]
    named = {name for finding in errors for name in finding.nodes}
    network = engine.subject.case.network
    return Rung(
        rung=engine.rung,
        name=engine.name,
        passed=False,
        how="measured",
        cause=build.message,
        nodes=tuple(name for node in network.nodes() if (name := node_name(node)) in named),
        evidence=(Sign(severity="error", text=build.message),),
        advice=said(*dict.fromkeys(finding.hint for finding in errors if finding.hint)),
    )


def _faulty(
    engine: _Judged,
    build: BuildOutcome,
    symptom: Symptom,
    message: str,
    signs: Sequence[Sign] = (),
    verdict: Verdict | None = None,
) -> Rung:
    """Return where a faulty engine is wrong.

    From here on Ctrl-C ends only the search; results so far are reported.
    """
    interruption().ready = True
    subject, side = engine.subject, engine.side
    ids = subject.samples.ids
    worst = None if verdict is None else verdict.worst_sample
    index = ids.index(worst) if worst in ids else 0
    fault = localise(
        Transplants(engine.engines, side.arithmetic, engine.right, index, symptom, build.seconds)
    )
    return Rung(
        rung=engine.rung,
        name=engine.name,
        passed=False,
        how="measured",
        cause=cause(fault, side.label, message, emulated=engine.name == "kernels"),
        nodes=tuple(name for region in fault.regions for name in region),
        evidence=(*signs, *evidence(fault)),
        advice=said(*advice(fault)),
        engine=fault,
    )
