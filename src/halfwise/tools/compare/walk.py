"""Walk a graph and measure each tensor of two sides, a few tensors at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import sqrt
from typing import Any, Literal, Protocol

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import CPU, Case, Runtime, Sample, Samples, Settings
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import LIVE_BYTES, TENSORS_AT_ONCE
from halfwise.emulation.runner import (
    OTHER_KERNELS,
    TOLERANCES,
    Arithmetic,
    ModelRunner,
    Runner,
    tensor_bytes,
)
from halfwise.emulation.typed import emulate_tf32, emulate_typed
from halfwise.errors import HalfwiseError, TookTooLong
from halfwise.fixing.plan.rules import lowered_by
from halfwise.fixing.rewrite import rewrite, with_opset_for
from halfwise.formats import BF16, LOW_FORMATS, Format
from halfwise.graph.casts import low_type
from halfwise.graph.dataflow import GIVEN, Ancestry, giving_out, reached, read_by
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.quantised import quantising
from halfwise.graph.roles import is_float, roles_of
from halfwise.metrics import Excess, Outputs, totals
from halfwise.metrics.difference import RelativeError
from halfwise.records import Criterion, NodeName, SideName, TensorName, TensorStatus, replace

UNITS: Mapping[Arithmetic, float] = {
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "int8": 2.0**-8,
}
"""Largest relative error of one rounding; for INT8, relative to the largest of 127 steps."""


class Side(Runner, Protocol):
    """One side of a comparison.

    Attributes:
        exact: Whether this is the model itself in ONNX Runtime, where no error can be born.
    """

    exact: bool

    @property
    def tolerance(self) -> float:
        """Relative RMS error that the side's arithmetic explains."""


class RecordedSide(Struct):
    """Tensors from a file or an engine, for each sample; `absent`: why it lacks all others."""

    recorded: Sequence[Outputs]
    label: str
    arithmetic: Arithmetic = "fp32"
    absent: TensorStatus = "missing"
    exact: bool = False

    @property
    def tolerance(self) -> float:
        """The tolerance of its arithmetic in unknown kernels."""
        return max(OTHER_KERNELS, TOLERANCES[self.arithmetic])

    def get(self, names: Sequence[TensorName]) -> Iterator[Outputs]:
        """Yield, for each sample, the recorded tensors among `names`."""
        for outputs in self.recorded:
            yield {name: outputs[name] for name in names if name in outputs}

    def lack(self, name: TensorName) -> TensorStatus | None:
        """Return `absent` for a tensor without a record."""
        return None if name in self.recorded[0] else self.absent


def tolerance_of(*sides: Side) -> float:
    """Return the relative RMS error up to which tensors of two sides count as equal."""
    return max(side.tolerance for side in sides)


def excess_of(
    criterion: Criterion, a: Side, b: Side, outputs: Sequence[TensorName]
) -> dict[TensorName, float]:
    """Return the error of each output of `b` over what is allowed; see `Excess`.

    Empty if a side lacks one on a sample. Runs each side once, and keeps the outputs of `a`.
    """
    references = list(a.get(outputs))
    if any(not set(outputs) <= held.keys() for held in references):
        return {}
    whole = totals(references)
    excesses = {name: Excess(criterion, {name: whole[name]}) for name in outputs}
    for expected, actual in zip(references, b.get(outputs), strict=True):
        if not set(outputs) <= actual.keys():
            return {}
        for name, excess in excesses.items():
            excess.update({name: expected[name]}, {name: actual[name]})
    return {name: excess.final() for name, excess in excesses.items()}


Low = Literal["tf32", "fp16", "bf16"]


def reference(
    network: Network, samples: Samples, settings: Settings, *, optimise: bool = False
) -> ModelRunner:
    """Return the model in ONNX Runtime; `optimise` allows fusions, which round differently."""
    label = "ONNX Runtime, FP32, with its optimisations" if optimise else "ONNX Runtime, FP32"
    return ModelRunner(
        network.model,
        samples,
        label,
        arithmetic_on(network, "fp32") if optimise else "fp32",
        exact=not optimise,
        optimise=optimise,
        runtime=settings.runtime,
    )


def emulated(network: Network, samples: Samples, settings: Settings, low: Low) -> ModelRunner:
    """Return an emulation of the model entirely in a low format, or with its products in TF32.

    BF16 needs a network with an opset that has it.
    """
    if low == "tf32":
        model, label = emulate_tf32(network), "emulation, TF32 products"
    else:
        typed = all_low(network, LOW_FORMATS[low], settings)
        model = emulate_typed(typed, accumulate=settings.accumulate)
        label = f"emulation, all {low.upper()}"
    arithmetic = arithmetic_on(network, low)
    return ModelRunner(model, samples, label, arithmetic, partial=True, runtime=settings.runtime)


def with_bf16(case: Case, settings: Settings) -> Case:
    """Return the case at an opset whose operators take BF16, if it can be raised."""
    network, _ = with_opset_for(BF16, case.network, case.calibration, runtime=settings.runtime)
    return replace(case, network=network)


def arithmetic_on(network: Network, kind: Arithmetic) -> Arithmetic:
    """Return the arithmetic of a model run in `kind`: INT8 if it has Q/DQ pairs.

    Earlier roundings move some elements by a whole INT8 step.
    """
    return "int8" if quantising(network) else kind


def all_low(network: Network, fmt: Format, settings: Settings) -> ir.Model:
    """Return the typed model with everything possible low; inputs and outputs stay FP32."""
    lowered = lowered_by(settings.rules, network)
    roles = roles_of(network, low_type(fmt), lowered=lowered)
    rewritten = rewrite(network, roles, frozenset(), fmt, fixed=frozenset(), low_io=frozenset())
    return rewritten.model


class Regions:
    """The nodes between given tensors and targets."""

    def __init__(
        self,
        network: Network,
        targets: Sequence[TensorName],
        start: Sequence[TensorName],
        *,
        runtime: Runtime = CPU,
    ) -> None:
        """Take the model, the targets and the given tensors; see `graph.dataflow.giving_out`."""
        self.targets = tuple(targets)
        self._part: Callable[[Sequence[TensorName]], Regions] = lambda targets: Regions(
            network, targets, start, runtime=runtime
        )
        model = giving_out(network.model, targets, start)
        starts = [v for v in model.graph.inputs if str(v.name).endswith(GIVEN)]
        self._starts = {TensorName(str(v.name).removesuffix(GIVEN)): v.dtype for v in starts}
        self._session: Session | None = Session(model, runtime=runtime)

    def run(self, sample: Sample, values: Outputs, wiggle: float = 0.0) -> Outputs:
        """Return the targets computed from `values`, without those that cannot run on it.

        Args:
            sample: Inputs of the model.
            values: Tensors by name; converted to the model's types.
            wiggle: Largest relative random change of the given elements, floats only, the same in
                each run.
        """
        if self._session is None:
            return self._in_halves(sample, values, wiggle)
        random = np.random.default_rng(0)
        feed: dict[str, Any] = {
            name: wiggled(array, wiggle, random) for name, array in sample.items()
        }
        for name, dtype in self._starts.items():
            wanted = np.float32 if dtype is None else dtype.numpy()
            feed[f"{name}{GIVEN}"] = wiggled(values[name].astype(wanted), wiggle, random)
        try:
            return self._session.run(feed, self.targets)
        except TookTooLong:
            raise
        except HalfwiseError:
            # The candidate's tensor has another shape: only its readers cannot run.
            if len(self.targets) == 1:
                return {}
            self._session = None
            return self._in_halves(sample, values, wiggle)

    def _in_halves(self, sample: Sample, values: Outputs, wiggle: float) -> Outputs:
        parts = (half.run(sample, values, wiggle) for half in self._halves)
        return {name: array for outputs in parts for name, array in outputs.items()}

    @cached_property
    def _halves(self) -> tuple["Regions", "Regions"]:
        middle = len(self.targets) // 2
        return self._part(self.targets[:middle]), self._part(self.targets[middle:])


def wiggled(array: NDArray[Any], size: float, random: np.random.Generator) -> NDArray[Any]:
    """Return an array with floats changed at random, each by at most `size` times its size."""
    if size == 0 or array.dtype.kind != "f":
        return array
    factors = 1 + random.uniform(-size, size, array.shape)
    with np.errstate(all="ignore"):
        return np.asarray(array * factors, array.dtype)


WIGGLED = 8.0
"""An error is born if it is this many times what rounding the node's inputs would cause. Our
choice: the roundings are drawn once, and a kernel may round at several steps. For a region of n
nodes, √n times as much."""


_SIDES: tuple[SideName, SideName] = ("a", "b")


class Found(Struct):
    """What is known about one tensor.

    Attributes:
        tensor: The tensor.
        node: Its producer.
        error: B against A; None until compared.
        lack: Why it was not compared.
        born: Error of each side against its node's own function of its inputs.
        side: The side with the largest of these beyond what rounding explains; None if none is.
        worst: That error on the sample where it is largest.
        given: By side, the tensors given there during measurement.
    """

    tensor: TensorName
    node: ir.Node
    error: RelativeError | None = None
    lack: TensorStatus | None = None
    born: dict[SideName, RelativeError] = {}
    side: SideName | None = None
    worst: float = 0.0
    given: dict[SideName, frozenset[TensorName]] = {}


def comparable(network: Network) -> dict[TensorName, ir.Node]:
    """Return the comparable tensors, in graph order, each with its node.

    Tensors only: no sequences, and no unused optional outputs.
    """
    ends = set(network.graph.outputs)
    return {
        tensor_name(v): node
        for node in network.nodes()
        for v in node.outputs
        if v.name and isinstance(v.type, ir.TensorType) and (v.uses() or v in ends)
    }


class Walk(Struct, dict=True):
    """Compares two sides of a network.

    Attributes:
        network: The model in FP32, which defines each node.
        samples: Inputs.
        a: The trusted side.
        b: The other.
        runtime: Where regions run.
        progress: Receives the number of tensors done, and of all.
        found: What is known about each tensor, in graph order.
    """

    network: Network
    samples: Samples
    a: Side
    b: Side
    runtime: Runtime = CPU
    progress: Callable[[int, int | None], None] = lambda _done, _total: None
    found: dict[TensorName, Found] = {}

    def __post_init__(self) -> None:
        """Start with the tensors known to be lacking."""
        for name, node in comparable(self.network).items():
            self.found[name] = Found(name, node, lack=self._lack(name))

    @cached_property
    def _ancestry(self) -> Ancestry:
        return Ancestry(self.network)

    @cached_property
    def _stored(self) -> frozenset[TensorName]:
        stored = (v for n in quantising(self.network) for v in n.outputs if v.name)
        return frozenset(tensor_name(v) for v in stored if not is_float(v))

    @property
    def line(self) -> list[TensorName]:
        """The tensors both sides may have, in graph order."""
        return [name for name, tensor in self.found.items() if tensor.lack is None]

    def all(self) -> None:
        """Measure every tensor both sides may have."""
        names, done = self.line, 0
        for part in self._parts(names):
            self.measure(part)
            done += len(part)
            self.progress(done, len(names))

    def measure(self, targets: Sequence[TensorName]) -> None:
        """Measure some tensors on all samples."""
        inexact = [name for name in _SIDES if not self.side(name).exact]
        wanted = list(dict.fromkeys((*targets, *self.borders(targets))))
        regions: dict[tuple[SideName, frozenset[str]], Regions] = {}
        pairs = zip(self.samples, self.a.get(wanted), self.b.get(wanted), strict=True)
        for index, (sample, first, second) in enumerate(pairs):
            for name in targets:
                tensor = self.found[name]
                if name in first and name in second:
                    tensor.error = tensor.error or RelativeError()
                    tensor.error.add(first[name], second[name], index)
                else:
                    tensor.lack = self._lack(name) or "skipped"
            for side in inexact:
                held = first if side == "a" else second
                computed = [name for name in targets if name in held]
                key = side, frozenset(held)
                if computed and key not in regions:
                    starts = [TensorName(name) for name in held]
                    regions[key] = Regions(self.network, computed, starts, runtime=self.runtime)
                if computed:
                    self._births(side, regions[key], sample, held, index)

    def _births(
        self, name: SideName, regions: Regions, sample: Sample, held: Outputs, index: int
    ) -> None:
        """Record the errors born on a side, on the sample with that index."""
        side, computed = self.side(name), regions.run(sample, held)
        suspects = []
        for target, expected in computed.items():
            tensor = self.found[TensorName(target)]
            tensor.given[name] = frozenset(map(TensorName, held))
            error = tensor.born.setdefault(name, RelativeError()).add(expected, held[target], index)
            if error > side.tolerance:
                suspects.append((tensor, error))
        wiggled = regions.run(sample, held, UNITS[side.arithmetic]) if suspects else {}
        for tensor, error in suspects:
            natural = 0.0
            if tensor.tensor in wiggled:
                natural = RelativeError().add(computed[tensor.tensor], wiggled[tensor.tensor], 0)
            # Each node of a region rounds anew, and such errors add up like a random walk.
            natural *= WIGGLED * sqrt(len(self.region(tensor, name)))
            if error > max(natural, tensor.worst):
                tensor.side, tensor.worst = name, error

    def region(self, tensor: Found, side: SideName) -> tuple[NodeName, ...]:
        """Return the nodes among which an error born on `side` arises."""
        return self._ancestry.between(tensor.given[side], tensor.tensor)

    def side(self, name: SideName) -> Side:
        """Return a side by name."""
        return self.a if name == "a" else self.b

    def borders(self, targets: Sequence[TensorName]) -> list[TensorName]:
        """Return the tensors that the nodes of `targets` read, or the nearest available ones."""
        producers = {name: tensor.node for name, tensor in self.found.items()}

        def read(name: TensorName) -> list[TensorName]:
            return [v for v in read_by(producers[name]) if v in producers]

        def behind(name: TensorName) -> list[TensorName]:
            return [] if self.found[name].lack is None else read(name)

        start = [name for target in targets for name in read(target)]
        return [name for name in reached(start, behind) if self.found[name].lack is None]

    def _parts(self, names: Sequence[TensorName]) -> Iterator[list[TensorName]]:
        """Yield the tensors in order, in parts that fit in memory on the largest sample.

        Each part takes a run of the model from its inputs, so parts are few.
        """
        if not names:
            return
        largest = max(self.samples, key=lambda sample: sum(a.nbytes for a in sample.values()))
        sizes = tensor_bytes(self.network.model, names, largest, runtime=self.runtime)
        part: list[TensorName] = []
        alive = 0
        for name in names:
            alive += sizes[name]
            if len(part) >= TENSORS_AT_ONCE and alive > LIVE_BYTES[0]:
                yield part
                part, alive = [], sizes[name]
            part.append(name)
        yield part

    def _lack(self, name: TensorName) -> TensorStatus | None:
        if name not in self._ancestry.varying:
            return "constant"
        # Tensors between Q and DQ are compared behind DQ.
        return "skipped" if name in self._stored else self.a.lack(name) or self.b.lack(name)
