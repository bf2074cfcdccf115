"""Runs a model on samples, and inspects its tensors: shapes, sizes, non-finite values; folds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import Literal, Protocol

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from msgspec import Struct

from halfwise.case import CPU, FileRunner, Probe, Runtime, Sample, Samples
from halfwise.emulation.bodies import Report, report
from halfwise.emulation.ort import OrtFailure, Session, provider_of, runtime_version
from halfwise.emulation.probe import ExtremaProbe, observable, shapes_of
from halfwise.emulation.rounding import Steps
from halfwise.errors import CaseError, HalfwiseError, RunFailed
from halfwise.graph.aside import draws, resolve
from halfwise.graph.bodies import OBSERVABLE_OPSET, Key, bodies_of
from halfwise.graph.dataflow import drop_unused_nodes, giving_out
from halfwise.graph.loading import normalise
from halfwise.graph.model import (
    Names,
    Network,
    add_constant,
    bodies,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    opset_of,
    tensor_name,
    values_of,
)
from halfwise.graph.sizes import sizes_read
from halfwise.graph.weights import EXTERNAL_DATA_BYTES, is_large
from halfwise.metrics import Computed, Outputs
from halfwise.records import FP32_SNR_DB, TensorName, TensorStatus, replace
from halfwise.scratch import scratch

Arithmetic = Literal["fp32", "tf32", "fp16", "bf16", "int8"]

TOLERANCES: Mapping[Arithmetic, float] = {
    "fp32": 1e-5,
    "tf32": 2e-3,
    "fp16": 2e-3,
    "bf16": 1.6e-2,
    "int8": 3e-2,
}
"""Relative RMS error that the arithmetic alone explains at one node. Low formats: four times the
largest error of one rounding, 2⁻¹¹ and 2⁻⁸, since weights, inputs and output are rounded. FP32: the
effect of reordering a sum of 10⁴ terms, √10⁴ · 2⁻²⁴, with a margin. INT8: data and weights rounded
to 127 steps of a largest value that is eight times their RMS, √2 · 8 / (127 √12) = 2.6 %, with a
margin."""

OTHER_KERNELS = 10 ** (-FP32_SNR_DB / 20)
"""Relative RMS error up to which two FP32 computations of one function by different kernels count
as equal: an SNR of `FP32_SNR_DB`."""


class Runner(Protocol):
    """Runs one model on given samples: ONNX Runtime, an emulation, an engine, a record.

    Attributes:
        label: Its name in reports.
        arithmetic: The arithmetic it computes in.
    """

    label: str
    arithmetic: Arithmetic

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the tensors among `names` that it has, inner ones included."""

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return why it has no tensor `name`; None if it has it, or that is not known yet."""


class ModelRunner(Struct, dict=True):
    """A model in ONNX Runtime: the model itself, an emulation of it, or another file.

    Each call makes a session that computes only the requested tensors: ONNX Runtime keeps every
    possible output of a session alive while it runs. So memory is that of plain inference plus the
    requested tensors.

    Attributes:
        model: The model.
        samples: The samples to run it on.
        label: Its name in reports.
        arithmetic: The arithmetic it computes in.
        exact: Whether it is the reference itself, where no error can start.
        optimise: Whether ONNX Runtime may fuse.
        partial: If a node fails on a sample, yield the tensors that do not depend on it.
        runtime: Where to run.
        failures: Samples that have failed so far, by identifier.
    """

    model: ir.Model
    samples: Samples
    label: str = "ONNX Runtime"
    arithmetic: Arithmetic = "fp32"
    exact: bool = False
    optimise: bool = False
    partial: bool = False
    runtime: Runtime = CPU
    failures: dict[str, RunFailed] = {}

    @cached_property
    def names(self) -> frozenset[TensorName]:
        """Outputs of the main graph's nodes."""
        return frozenset(TensorName(v.name) for n in self.model.graph for v in n.outputs if v.name)

    @property
    def tolerance(self) -> float:
        """Relative RMS error that its arithmetic explains."""
        return TOLERANCES[self.arithmetic]

    def get(self, names: Sequence[TensorName] | None = None) -> Iterator[Outputs]:
        """Yield, for each sample, the tensors among `names` that the model computes.

        None asks for the model's outputs.

        Raises:
            CaseError: ONNX Runtime cannot load the model (see `Session`).
            RunFailed: it fails on a sample, and `partial` is false.
        """
        wanted = None if names is None else [name for name in names if name in self.names]
        if wanted == []:
            yield from ({} for _ in self.samples)
            return
        session = self._session(wanted)
        for identifier, sample in zip(self.samples.ids, self.samples, strict=True):
            try:
                yield session.run(sample, wanted)
            except RunFailed as failure:
                if not self.partial:
                    raise
                self.failures[identifier] = failure
                yield self._without(
                    failure.node, wanted or [*map(TensorName, session.outputs)], sample
                )

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return "constant" for a constant of the model, "missing" for a tensor it lacks."""
        if name in self.names:
            return None
        return "constant" if name in self.model.graph.initializers else "missing"

    def _session(self, names: Sequence[TensorName] | None) -> Session:
        model = self.model if names is None else giving_out(self.model, names)
        return Session(model, optimise=self.optimise, runtime=self.runtime)

    def _without(self, node: str, names: Sequence[TensorName], sample: Sample) -> Outputs:
        """Return the tensors among `names` that `sample` gives without the failing nodes."""
        lost = _behind(self.model, node)
        rest = [name for name in names if name not in lost]
        # ONNX Runtime may name a node that it created itself, whose readers are unknown.
        if not rest or len(rest) == len(names):
            return {}
        try:
            return self._session(rest).run(sample, rest)
        except RunFailed as failure:
            return self._without(failure.node, rest, sample)


class OnnxRuntime(Struct, frozen=True):
    """ONNX Runtime in this process, without its optimisations; fields of `FileRunner`."""

    runtime: Runtime = CPU
    runs: bool = True

    @property
    def name(self) -> str:
        """Its name."""
        return "ONNX Runtime" if self.runtime.device == "cpu" else "ONNX Runtime on CUDA"

    @property
    def version(self) -> str:
        """The version of the installed package."""
        provider_of(self.runtime.device)
        return runtime_version()

    def run(self, model: ir.Model, samples: Samples) -> Sequence[Outputs]:
        """Return the outputs."""
        return list(ModelRunner(model, samples, runtime=self.runtime).get())

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def running(runners: Sequence[FileRunner]) -> Iterator[None]:
    """Run the programs of runners during the block.

    Raises:
        BackendMissing: one cannot be asked.
    """
    try:
        for runner in runners:
            _ = runner.version
        yield
    finally:
        for runner in runners:
            runner.close()


def _behind(model: ir.Model, node: str) -> frozenset[str | None]:
    """Return the names of values that depend on the named node, which may be in a body."""
    lost: set[ir.Value] = set()
    for one in model.graph:
        inside = (n.name for body in bodies(one) for n in body.all_nodes())
        if node in (one.name, *inside) or not lost.isdisjoint(
            v for v in one.inputs if v is not None
        ):
            lost.update(one.outputs)
    return frozenset(v.name for v in lost)


Shapes = dict[TensorName, tuple[int, ...]]


def tensor_bytes(
    model: ir.Model,
    names: Sequence[TensorName],
    sample: Sample,
    *,
    runtime: Runtime = CPU,
) -> dict[TensorName, int]:
    """Return how many bytes tensors take on a sample; a string counts as a reference of 8 bytes.

    Args:
        model: The model; not changed.
        names: Tensors that nodes of its main graph compute.
        sample: What to run it on.
        runtime: Where to run.
    """
    shapes = shapes_of(model, names, sample, runtime)
    computed = {v.name: v.dtype for node in model.graph for v in node.outputs}
    return {name: prod(shapes[name]) * _bytes_of(computed[name]) for name in names}


def _bytes_of(dtype: ir.DataType | None) -> int:
    if dtype is None or dtype is ir.DataType.STRING:
        return 8
    return max(1, int(dtype.itemsize))


def seen_shapes(
    network: Network,
    sample: Sample,
    *,
    runtime: Runtime = CPU,
    known: Mapping[TensorName, tuple[int, ...]] = MappingProxyType({}),
) -> Shapes:
    """Return the shape of every FP32 tensor of the main graph on `sample`, its inputs included.

    Unused tensors are left out, and so are those in bodies: see `seen_in_bodies`. Those `known`
    are not seen again.

    Raises:
        CaseError, BackendMissing, RunFailed: as for `Session`.
    """
    of_inputs = {tensor_name(v): tuple(sample[tensor_name(v)].shape) for v in network.graph.inputs}
    names = [name for name in observable(network.model) if name not in of_inputs]
    unknown = [name for name in names if name not in known]
    seen = shapes_of(network.model, unknown, sample, runtime)
    return of_inputs | {name: known[name] for name in names if name in known} | seen


def seen_in_bodies(
    network: Network, samples: Sequence[Sample], *, runtime: Runtime = CPU
) -> tuple[dict[Key, float], Shapes]:
    """Return how often each body of If, Loop and Scan runs per sample on average, and its shapes.

    The shapes of a body's FP32 inputs and results are means over all runs; a body that never ran
    has none.

    Raises:
        CaseError, BackendMissing, RunFailed: as for `Session`. Also CaseError if the model is too
            old (opset below 10) or its bodies are too unusual to measure.
    """
    if len(graphs_of(network.model)) == 1:
        return {}, {}
    copy = network.copy()
    reports = report(copy, _padded_shape, _AXES)
    if not reports:
        return {}, {}
    session = Session(copy, runtime=runtime)
    names = [told.output for told in reports.values()]
    outputs = [session.run(sample, names) for sample in samples]
    runs: dict[Key, float] = {}
    shapes: Shapes = {}
    for key, told in reports.items():
        ran, *sums = np.sum([one[told.output] for one in outputs], axis=0).tolist()
        runs[key] = ran / len(samples)
        if ran:
            means = np.reshape(sums, (-1, _AXES)) / ran
            sizes = (tuple(round(size) for size in row if size >= 0) for row in means.tolist())
            shapes |= zip(told.tensors, sizes, strict=True)
    return runs, shapes


_AXES = 8
"""Axes that are told of a tensor: TensorRT's maximum."""


def _padded_shape(steps: Steps, value: ir.Value) -> ir.Value:
    """Append the steps that give a tensor's shape, padded with -1: int64[`_AXES`]."""
    integer = ir.DataType.INT64
    shape = steps.op("Shape", [value], dtype=integer)
    filled = steps.op("Concat", [shape, steps.integers([-1] * _AXES)], {"axis": 0}, integer)
    ends = [steps.integers([end]) for end in (0, _AXES)]
    return steps.op("Slice", [filled, *ends], dtype=integer)


def _not_finite(steps: Steps, value: ir.Value) -> ir.Value:
    """Append the steps that count a tensor's NaN and infinities, exact up to 2²⁴: int64[1]."""
    boolean = ir.DataType.BOOL
    flat = steps.op("Reshape", [value, steps.integers([-1])])
    # The difference is NaN where the value is not finite, and NaN is true.
    lost = steps.op("Cast", [steps.op("Sub", [flat, flat])], {"to": int(boolean)}, boolean)
    # As floats: ONNX Runtime takes ten times as long to add up integers.
    total = steps.op("ReduceSum", [steps.op("Cast", [lost], {"to": int(ir.DataType.FLOAT)})])
    return steps.op("Cast", [total], {"to": int(ir.DataType.INT64)}, ir.DataType.INT64)


class Nonfinite(Struct, frozen=True):
    """NaN and infinities of one tensor.

    Attributes:
        counts: Their number in each affected sample.
        samples: Indices of the affected samples, at least one, ascending.
    """

    counts: tuple[int, ...]
    samples: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Their number over all samples."""
        return sum(self.counts)


def inspect_samples(
    model: ir.Model,
    tensors: Sequence[TensorName],
    samples: Samples,
    *,
    exact: bool = False,
    runtime: Runtime = CPU,
    probe: Probe | None = None,
) -> tuple[list[Computed], dict[TensorName, Nonfinite]]:
    """Return the outputs of each sample, and the non-finite values per tensor.

    Args:
        model: A model whose chosen tensors are FP32: a reference, or an emulation.
        tensors: Computed tensors, in bodies too (before opset 9, they are left out there).
        samples: The samples to run it on; if there are none, nothing is loaded.
        exact: Whether some are probably not finite; see `ExtremaProbe`.
        runtime: Where to run.
        probe: A probe of these tensors of the model, if there is one already.

    Returns:
        In sample order, the outputs or why the sample failed; and the tensors with NaN or
        infinities, in the order in which they were found.
    """
    outputs: list[Computed] = []
    nonfinite: dict[TensorName, Nonfinite] = {}
    if not samples:
        return outputs, nonfinite
    own = {v.name for v in values_of(model.graph)}
    reports: Mapping[Key, Report] = {}
    if (inner := {*tensors} - own) and opset_of(model) >= OBSERVABLE_OPSET:
        model = model.clone()
        reports = report(model, _not_finite, 1, inner)
    chosen = [name for name in tensors if name in own]
    if probe is None or reports:
        probe = ExtremaProbe(model, chosen, magnitudes=False, exact=exact, runtime=runtime)
    for index, sample in enumerate(samples):
        try:
            results, extrema = probe.run(sample)
        except RunFailed as failure:
            outputs.append(failure)
            continue
        found = [(name, extremum.nonfinite) for name, extremum in extrema.items()]
        for told in reports.values():
            found += zip(told.tensors, map(int, results.pop(told.output)[1:]), strict=True)
        outputs.append(results)
        for name, count in found:
            if count:
                before = nonfinite.get(name, Nonfinite((), ()))
                nonfinite[name] = Nonfinite((*before.counts, count), (*before.samples, index))
    return outputs, nonfinite


def settled(network: Network, samples: Samples) -> Network | None:
    """Return an equivalent network for inputs with the shapes of `samples` only.

    It has operators of the same domains. None if nothing would change, if samples differ in shape,
    if weights are too large for one more copy, or if ONNX Runtime refuses the model.
    """
    shaped = None if is_large(network.model, EXTERNAL_DATA_BYTES) else _shaped(network, samples)
    if shaped is None:
        return None
    model = shaped.model
    try:
        folded = ir.from_proto(_optimised(ir.to_proto(model)))
        domains = {node.domain for node in folded.graph.all_nodes()}
        for domain in folded.opset_imports.keys() - domains - model.opset_imports.keys():
            del folded.opset_imports[domain]
        normal = normalise(folded, path=network.path, sha256=network.sha256)
    except (*OrtFailure, CaseError):
        return None
    if not domains <= {node.domain for node in model.graph.all_nodes()}:
        return None
    return normal if _form(normal.model) != _form(network.model) else None


def static(network: Network, samples: Samples) -> Network | None:
    """Return a network for inputs with the shapes of `samples` only, in the same types.

    What follows from shapes alone is a constant, and an If that goes by it is its branch; all else
    stays. None if nothing would change, if samples differ in shape, if the network draws random
    numbers, or if ONNX Runtime cannot run it.
    """
    shaped = _shaped(network, samples)
    if shaped is None or any(map(draws, network.all_nodes())):
        return None
    try:
        fixed = _static(shaped, samples)
    except HalfwiseError:
        return None
    return fixed if _form(fixed.model) != _form(network.model) else None


def _static(network: Network, samples: Samples, made: frozenset[str] = frozenset()) -> Network:
    """Return the form of a network with inputs of these shapes; `made` are its new constants."""
    network = normalise(network.model, path=network.path, sha256=network.sha256)
    graph, known, shaped = network.graph, set[ir.Value](), dict[TensorName, ir.Value]()
    for node in graph:
        sizes = sizes_read(node)
        sized = sizes is not None and all(isinstance(size, int) for size in sizes)
        read = [v for v in node.inputs if v is not None]
        computed = any(v.const_value is None and v not in known for v in read)
        if bodies_of(node) or (computed and not sized):
            continue
        given = [v for v in node.outputs if v.name and isinstance(v.type, ir.TensorType)]
        known.update(given)
        # What constants alone decide stays: folding would widen quantised or low weights.
        if sized or any(v.name in made or v.name in shaped for v in read):
            shaped |= {tensor_name(v): v for v in given if v.uses() and not v.is_graph_output()}
    if shaped:
        names = Names(network.graphs())
        session = Session(giving_out(network.model, list(shaped)))
        for name, array in session.run(samples[0]).items():
            constant = add_constant(graph, names.take(f"{name}::static"), array)
            shaped[TensorName(name)].replace_all_uses_with(constant)
            made |= {tensor_name(constant)}
        drop_unused_nodes(graph)
        return _static(network, samples, made)
    branches = {
        node_name(node): "then_branch" if constant_array(condition) else "else_branch"
        for node in graph
        if is_standard(node, "If")
        and (condition := node.inputs[0]) is not None
        and condition.const_value is not None
    }
    return _static(resolve(network, branches)[0], samples, made) if branches else network


def _shaped(network: Network, samples: Samples) -> Network | None:
    """Return a copy whose inputs have the shapes of `samples`; None if these differ in shape."""
    shapes = [{name: array.shape for name, array in sample.items()} for sample in samples]
    if not shapes or any(other != shapes[0] for other in shapes):
        return None
    model = network.copy()
    for value in model.graph.inputs:
        value.shape = ir.Shape(shapes[0][tensor_name(value)])
    return replace(network, model=model)


def _form(model: ir.Model) -> tuple[list[object], ...]:
    nodes: list[object] = [(node.domain, node.op_type) for node in model.graph.all_nodes()]
    return nodes, [value.shape for value in model.graph.inputs]


def _optimised(proto: onnx.ModelProto) -> onnx.ModelProto:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with scratch() as folder:
        path = folder / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
        return onnx.load(path)
