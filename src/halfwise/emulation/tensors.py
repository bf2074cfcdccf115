"""What lies inside a model on samples: tensors, a few at a time; shapes; what is not finite."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir
from onnx_ir.passes import common as passes

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import ExtremaProbe, observable
from halfwise.errors import RunFailed
from halfwise.graph.cut import giving_out
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.roles import bodies
from halfwise.metrics import Computed, Outputs
from halfwise.records import TensorName

_SHAPE = "::shape"


class ModelTensors:
    """What ONNX Runtime gives for tensors of a model's main graph.

    Each time a session is made that computes no more than it is asked for: ONNX Runtime keeps all
    that a session could give out as long as it runs, so memory is that of plain inference and of
    what is asked for at a time.

    Attributes:
        names: What nodes of the main graph compute.
        constants: Its constants.
        failures: Samples that could not be run to the end so far, by their identifiers.
    """

    def __init__(
        self,
        model: ir.Model,
        samples: Samples,
        *,
        optimise: bool = False,
        partial: bool = False,
        runtime: Runtime = CPU,
    ) -> None:
        """Take a model and the samples to run it on.

        Args:
            model: The model.
            samples: The samples.
            optimise: Let ONNX Runtime fuse.
            partial: Where a node fails on a sample, give what is computed without it.
            runtime: Where to run.
        """
        self._partial = partial
        self.failures: dict[str, RunFailed] = {}
        self._model, self._samples = model, samples
        self._optimise, self._runtime = optimise, runtime
        graph = model.graph
        self.names = frozenset(TensorName(v.name) for node in graph for v in node.outputs if v.name)
        self.constants = frozenset(TensorName(name) for name in graph.initializers)

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the tensors among `names` that the model computes.

        Raises:
            RunFailed: the model cannot be run on a sample, and partial results were not asked for.
        """
        wanted = [name for name in names if name in self.names]
        if not wanted:
            yield from ({} for _ in self._samples)
            return
        session = self._session(wanted)
        for identifier, sample in zip(self._samples.ids, self._samples, strict=True):
            try:
                yield session.run(sample, wanted)
            except RunFailed as failure:
                if not self._partial:
                    raise
                self.failures[identifier] = failure
                yield self._without(failure.node, wanted, sample)

    def _session(self, names: Sequence[TensorName]) -> Session:
        return Session(
            giving_out(self._model, names),
            optimise=self._optimise,
            runtime=self._runtime,
        )

    def _without(self, node: str, names: Sequence[TensorName], sample: Sample) -> Outputs:
        """Return those of `names` that can be computed on `sample` without a node that fails."""
        lost = _behind(self._model, node)
        left = [name for name in names if name not in lost]
        # ONNX Runtime may name a node that it has made: nothing is known of what needs it.
        if not left or len(left) == len(names):
            return {}
        try:
            return self._session(left).run(sample, left)
        except RunFailed as failure:
            return self._without(failure.node, left, sample)


def _behind(model: ir.Model, node: str) -> frozenset[str | None]:
    """Return the values that cannot be computed without the node of that name, maybe of a body."""
    lost: set[ir.Value] = set()
    for one in model.graph:
        inside = (n.name for body in bodies(one) for n in body.all_nodes())
        if node in (one.name, *inside) or not lost.isdisjoint(
            v for v in one.inputs if v is not None
        ):
            lost.update(one.outputs)
    return frozenset(v.name for v in lost)


def tensor_bytes(
    model: ir.Model,
    names: Sequence[TensorName],
    sample: Sample,
    *,
    runtime: Runtime = CPU,
) -> dict[TensorName, int]:
    """Return how many bytes tensors take on a sample; of strings, what their references take.

    The model runs once, and gives out shapes alone, so no tensor lives longer than it has to.

    Args:
        model: The model; not changed.
        names: Tensors that nodes of its main graph compute.
        sample: What to run it on.
        runtime: Where to run.
    """
    wanted = {*names}
    copy = model.clone()
    computed = {v.name: v for node in copy.graph for v in node.outputs if v.name in wanted}
    copy.graph.outputs[:] = []
    # Written last tensor first, so that ONNX Runtime does not run the whole model before the first
    # of them (see `backends.probe`).
    for name, value in reversed(computed.items()):
        shape = ir.val(f"{name}{_SHAPE}", type=ir.TensorType(ir.DataType.INT64))
        node = ir.Node("", "Shape", [value], outputs=[shape], name=f"{name}{_SHAPE}")
        copy.graph.append(node)
        copy.graph.outputs.append(shape)
    passes.RemoveUnusedNodesPass()(copy)
    shapes = Session(copy, runtime=runtime).run(sample)
    return {
        name: prod(map(int, shapes[f"{name}{_SHAPE}"])) * _bytes_of(computed[name].dtype)
        for name in names
    }


def _bytes_of(dtype: ir.DataType | None) -> int:
    if dtype is None or dtype is ir.DataType.STRING:
        return 8
    return max(1, int(dtype.itemsize))


Shapes = dict[TensorName, tuple[int, ...]]


def seen_shapes(network: Network, sample: Sample, *, runtime: Runtime = CPU) -> Shapes:
    """Return the shape of every FP32 tensor of the main graph on `sample`, its inputs included.

    Shapes alone leave ONNX Runtime. Tensors that nothing uses, and those in bodies, are not told.

    Raises:
        CaseError, BackendMissing, RunFailed: as for `Session`.
    """
    model = network.copy()
    names = set(observable(model))
    computed = (v for node in model.graph for v in node.outputs if v.name)
    values = {tensor_name(v): v for v in computed if tensor_name(v) in names}
    nodes = {
        name: ir.Node("", "Shape", [value], name=f"halfwise::shape::{name}")
        for name, value in values.items()
    }
    for name, node in nodes.items():
        node.outputs[0].name = f"halfwise::shape::{name}"
    model.graph.extend(list(reversed(nodes.values())))
    model.graph.outputs.extend(node.outputs[0] for node in nodes.values())
    asked = [f"halfwise::shape::{name}" for name in nodes]
    found = Session(model, runtime=runtime).run(sample, asked) if asked else {}
    shapes = {
        TensorName(str(v.name)): tuple(sample[str(v.name)].shape) for v in network.graph.inputs
    }
    for name in nodes:
        shapes[name] = tuple(found[f"halfwise::shape::{name}"].tolist())
    return shapes


@dataclass(frozen=True)
class Nonfinite:
    """NaN and infinities of one tensor.

    Attributes:
        elements: Their number over all samples, at least 1.
        samples: Indices of the samples that have some.
    """

    elements: int
    samples: tuple[int, ...]


def inspect_samples(
    model: ir.Model,
    tensors: Sequence[TensorName],
    samples: Samples,
    *,
    runtime: Runtime = CPU,
) -> tuple[list[Computed], dict[TensorName, Nonfinite]]:
    """Return the outputs of each sample, and per tensor what is not finite.

    Args:
        model: A model whose chosen tensors are FP32: a reference, or an emulation.
        tensors: Tensors of the main graph.
        samples: What to run it on; without any nothing is loaded.
        runtime: Where to run.

    Returns:
        Outputs in the order of the samples, or why it could not be run on one, and the tensors that
        have NaN or infinities, in the order in which they were met.
    """
    outputs: list[Computed] = []
    nonfinite: dict[TensorName, Nonfinite] = {}
    if not samples:
        return outputs, nonfinite
    probe = ExtremaProbe(model, tensors, magnitudes=False, runtime=runtime)
    for index, sample in enumerate(samples):
        try:
            results, extrema = probe.run(sample)
        except RunFailed as failure:
            outputs.append(failure)
            continue
        outputs.append(results)
        for name, extremum in extrema.items():
            if extremum.nonfinite:
                before = nonfinite.get(name, Nonfinite(0, ()))
                elements = before.elements + extremum.nonfinite
                nonfinite[name] = Nonfinite(elements, (*before.samples, index))
    return outputs, nonfinite
